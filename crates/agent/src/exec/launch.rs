//! From a request to a running command: who, where, with which variables (`spec/semantics.md` §5).

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::pipe::PipeFlags;
use tokio::io::Interest;
use tokio::net::unix::pipe;
use wire::agent::AgentConfig;
use wire::data_plane::{ExecRequest, SessionKind, TtySize};

use super::run::{Failure, Run, Source};
use crate::agent::{Agent, Counted};
use crate::pty;
use crate::reply::Refusal;
use crate::session::Session;
use crate::sys::{
    self,
    child::{self, Plan, SCRIPT_FD},
};
use crate::tree::Leash;
use crate::users::{self, DEFAULT_HOME, User};

/// Streams whose clients went keep running; the kernel's limits hold for what the commands fork.
const MAX_COMMANDS: usize = 512;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What terminal programs of today emulate.
const TERMINAL_TYPE: &str = "xterm-256color";
const SHELL: &str = "/bin/sh";
/// The kernel's `MAX_ARG_STRLEN`: one argument, with its final NUL.
const MAX_ARGUMENT_BYTES: usize = 128 * 1024;
const MAX_ARGUMENTS: usize = 16 * 1024;

/// What to start, and as what.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) request: &'a ExecRequest,
    pub(crate) kind: SessionKind,
    pub(crate) limit: Duration,
    /// On a terminal of this size.
    pub(crate) tty: Option<TtySize>,
    /// The session's name.
    pub(crate) id: String,
}

impl<'a> Launch<'a> {
    /// Without a conversation: no standard input, no terminal.
    pub(super) fn plain(
        request: &'a ExecRequest,
        kind: SessionKind,
        limit: Duration,
    ) -> Result<Self, Refusal> {
        let id =
            Session::new_id().map_err(|error| Refusal::internal(format!("no random numbers: {error}")))?;
        Ok(Self { request, kind, limit, tty: None, id })
    }
}

/// The descriptors of a command, and the agent's ends of them.
struct Wires {
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
    /// The agent's end of standard input, unless that is empty.
    input: Option<Source>,
    output: [Option<Source>; 2],
}

pub(crate) async fn launch(
    agent: &Rc<Agent>,
    config: &AgentConfig,
    launch: Launch<'_>,
) -> Result<Run, Refusal> {
    let Launch { request, kind, limit, tty, id } = launch;
    let counted = Counted::new(agent, |agent| &agent.commands, MAX_COMMANDS)
        .ok_or_else(|| Refusal::busy(format!("{MAX_COMMANDS} commands are running; wait for some to end")))?;
    let (user, directory) = place(agent, config, request).await?;
    let variables = variables(config, request, &user, tty.is_some())?;
    let (programs, argv, script) = program(request, &variables)?;
    let env = variables
        .iter()
        .map(|(name, value)| c_string("env", &format!("{name}={value}")))
        .collect::<Result<_, _>>()?;

    let started = || -> io::Result<Option<Run>> {
        let wires = match (tty, kind) {
            (Some(size), _) => Wires::terminal(size, &user)?,
            (None, SessionKind::Exec | SessionKind::Stream) => Wires::pipes(false)?,
            (None, SessionKind::Connect | SessionKind::Terminal) => Wires::pipes(true)?,
        };
        let (report_read, report_write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let plan = Plan {
            programs,
            argv,
            env,
            directory: directory.clone(),
            identity: user.identity.clone(),
            stdin: wires.stdin.as_ref().map_or(agent.boot.null.as_fd(), AsFd::as_fd),
            stdout: wires.stdout,
            stderr: wires.stderr,
            terminal: tty.is_some(),
            script,
            cgroups: &agent.boot.cgroups,
            nproc: agent.boot.nproc,
            nofile: agent.boot.nofile,
            // Out of the way of standard descriptors and the script.
            reports: rustix::io::fcntl_dupfd_cloexec(&report_write, SCRIPT_FD + 1)?,
        };
        drop(report_write);
        let reports = pipe::Receiver::from_owned_fd(report_read)?;
        let Some(session) = agent.sessions.open(id, kind, &request.command, tty.is_some()) else {
            return Ok(None);
        };
        let supervisor = match child::start(&plan) {
            Ok(supervisor) => supervisor,
            Err(error) => {
                session.process_ended(None);
                agent.sessions.close(&session);
                return Err(error);
            }
        };
        if let Some(input) = wires.input {
            let terminal = tty.and(wires.output[0].clone());
            agent.spawn(session.wire_up(input, terminal));
        }
        Ok(Some(Run::new(
            agent,
            counted,
            session,
            Leash::new(agent.killer.clone(), supervisor),
            agent.reaper.watch(supervisor),
            reports,
            wires.output,
            limit,
            request,
        )))
    };
    match started() {
        Ok(Some(run)) => Ok(run),
        Ok(None) => Err(Refusal::busy("too many sessions and terminals are running; end some of them")),
        Err(error) => Err(Refusal::from(Failure::no_process(&error))),
    }
}

impl Wires {
    fn pipes(with_input: bool) -> io::Result<Self> {
        let (out_read, stdout) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (err_read, stderr) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let output =
            [Some(source(out_read, Interest::READABLE)?), Some(source(err_read, Interest::READABLE)?)];
        let (stdin, input) = if with_input {
            let (stdin, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            (Some(stdin), Some(source(write, Interest::WRITABLE)?))
        } else {
            (None, None)
        };
        Ok(Self { stdin, stdout, stderr, input, output })
    }

    fn terminal(size: TtySize, user: &User) -> io::Result<Self> {
        let (master, slave) = pty::open(size, &user.identity)?;
        let master = source(master, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self {
            stdout: rustix::io::fcntl_dupfd_cloexec(&slave, SCRIPT_FD + 1)?,
            stderr: rustix::io::fcntl_dupfd_cloexec(&slave, SCRIPT_FD + 1)?,
            stdin: Some(slave),
            input: Some(Rc::clone(&master)),
            output: [Some(master), None],
        })
    }
}

fn source(fd: OwnedFd, interest: Interest) -> io::Result<Source> {
    Ok(Rc::new(sys::watch(fd, interest)?))
}

/// The guest base, then the template's, the sandbox's and the command's variables; the last wins.
fn variables(
    config: &AgentConfig,
    request: &ExecRequest,
    user: &User,
    on_terminal: bool,
) -> Result<BTreeMap<String, String>, Refusal> {
    let mut variables = BTreeMap::from([
        ("PATH".to_owned(), PATH.to_owned()),
        ("HOME".to_owned(), user.home.clone()),
        ("USER".to_owned(), user.name.clone()),
        ("LOGNAME".to_owned(), user.name.clone()),
    ]);
    if on_terminal {
        variables.insert("TERM".to_owned(), TERMINAL_TYPE.to_owned());
    }
    let own = request.env.as_ref();
    for (name, value) in config.template_env.iter().chain(&config.env).chain(own.into_iter().flatten()) {
        check_variable(name, value)?;
        variables.insert(name.clone(), value.clone());
    }
    Ok(variables)
}

/// Refuses what an environment cannot hold. The value is never quoted.
pub(crate) fn check_variable(name: &str, value: &str) -> Result<(), Refusal> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(Refusal::bad_request(format!("env: {name:?} cannot be the name of a variable")));
    }
    if value.contains('\0') {
        return Err(Refusal::bad_request(format!("env: the value of {name} contains a NUL character")));
    }
    Ok(())
}

type Program = (Vec<CString>, Vec<CString>, Option<OwnedFd>);

/// What to execute: candidates, arguments, and the script of a command too long to be an argument.
fn program(request: &ExecRequest, variables: &BTreeMap<String, String>) -> Result<Program, Refusal> {
    let command = request.command.as_str();
    if let Some(args) = &request.args {
        if args.len() > MAX_ARGUMENTS {
            return Err(Refusal::bad_request(format!("args may have {MAX_ARGUMENTS} entries")));
        }
        let programs = if command.contains('/') {
            vec![c_string("command", command)?]
        } else {
            let path = variables.get("PATH").map_or(PATH, String::as_str);
            path.split(':')
                .map(|directory| if directory.is_empty() { "." } else { directory })
                .map(|directory| c_string("command", &format!("{directory}/{command}")))
                .collect::<Result<_, _>>()?
        };
        let argv = std::iter::once(c_string("command", command))
            .chain(args.iter().map(|arg| c_string("args", arg)))
            .collect::<Result<_, _>>()?;
        return Ok((programs, argv, None));
    }
    if command.contains('\0') {
        return Err(Refusal::bad_request("command contains a NUL character"));
    }
    let (text, script) = if command.len() < MAX_ARGUMENT_BYTES {
        (command.to_owned(), None)
    } else {
        let script = script(command)
            .map_err(|error| Refusal::internal(format!("no memory for the command's text: {error}")))?;
        (format!(". /proc/self/fd/{SCRIPT_FD}"), Some(script))
    };
    let mut argv = vec![c_string("command", SHELL)?, c_string("command", "-c")?];
    if text.starts_with(['-', '+']) {
        // Shells would take the command for one of their options.
        argv.push(c_string("command", "--")?);
    }
    argv.push(c_string("command", &text)?);
    Ok((vec![c_string("command", SHELL)?], argv, script))
}

/// The text as an anonymous file for the shell to source, which keeps `$0`, standard input, line numbers and the exit
/// code as they are with `-c`. The first thing it does is to close the descriptor, so that no program inherits it.
fn script(command: &str) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("command", MemfdFlags::CLOEXEC)?);
    write!(file, "exec {SCRIPT_FD}<&-;")?;
    file.write_all(command.as_bytes())?;
    file.write_all(b"\n")?;
    Ok(file.into())
}

/// Who runs the command, and where. The request's directory must exist, which the command itself finds out; a default
/// one is made.
async fn place(
    agent: &Agent,
    config: &AgentConfig,
    request: &ExecRequest,
) -> Result<(User, CString), Refusal> {
    let asked = request.working_dir.clone().filter(|text| !text.is_empty());
    if let Some(asked) = asked.as_deref().filter(|text| !text.starts_with('/')) {
        return Err(Refusal::bad_request(format!("working_dir {asked:?} must be an absolute path")));
    }
    let workdir = config.workdir.clone().filter(|text| text.starts_with('/'));
    let name = config.user.clone();
    // On a pool thread, as the guest may have mounted anything over these files.
    let found = agent.accounts.run(move || {
        let Some(user) = users::find(name.as_deref()) else { return Ok(None) };
        let owner = (user.identity.uid, user.identity.gid);
        let directory = match (asked, workdir) {
            (Some(asked), _) => asked,
            (None, Some(workdir)) => make_directory(&workdir, owner).map(|()| workdir)?,
            (None, None) if Path::new(&user.home).is_dir() => user.home.clone(),
            (None, None) => make_directory(DEFAULT_HOME, owner).map(|()| DEFAULT_HOME.to_owned())?,
        };
        Ok(Some((user, directory)))
    });
    let (user, directory) = found
        .await
        .map_err(|error| Refusal::internal(format!("the default working directory cannot be made: {error}")))?
        .ok_or_else(|| users::unknown(config.user.as_deref()))?;
    Ok((user, c_string("working_dir", &directory)?))
}

fn make_directory(path: &str, (uid, gid): (u32, u32)) -> io::Result<()> {
    if Path::new(path).is_dir() {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    std::os::unix::fs::chown(path, Some(uid), Some(gid))
}

fn c_string(field: &str, text: &str) -> Result<CString, Refusal> {
    CString::new(text).map_err(|_| Refusal::bad_request(format!("{field} contains a NUL character")))
}
