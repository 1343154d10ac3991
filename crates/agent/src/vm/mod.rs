//! The outer half of the agent in a virtual machine: the first process of the guest's kernel. It makes of a bare kernel what
//! an engine of containers makes of the host's: modules, disks, link, a process namespace with a root of its own. In it
//! starts the agent proper, exactly as in a container, which sees nothing of this process: the workload can neither signal nor
//! trace what serves the port and sets the clock.
//!
//! ```text
//! host ═ virtual serial port ═ port (marks) ─ relay (HTTP/2) ─ unix socket ─ agent, process 1 of its own namespace
//! ```
//!
//! When the agent ends this ends, and with it the machine.

mod boot;
pub(crate) mod identity;
mod link;
mod pack;
pub(crate) mod port;
pub(crate) mod relay;
mod root;
mod workload;

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;

use rustix::process::WaitOptions;
use tokio::sync::oneshot;
use wire::agent::boot::{LISTEN_FD, NPROC};

use crate::sys;

/// Where the agent listens, as this process sees it.
const SOCKET: &str = "/agent.sock";

/// Runs until the agent ends, then ends the machine.
pub(crate) fn run() -> io::Result<()> {
    if !rustix::process::getpid().is_init() {
        return Err(io::Error::other("this role is for the first process of a virtual machine"));
    }
    let ended = serve();
    if let Err(error) = &ended {
        crate::log(format_args!("{error}"));
    }
    rustix::fs::sync();
    // The engine runs the machine without restarts, so this ends it.
    rustix::system::reboot(rustix::system::RebootCommand::Restart)?;
    ended
}

fn serve() -> io::Result<()> {
    boot::mount_kernel_views()?;
    let given = boot::read_command_line()?;
    boot::load_modules()?;
    root::mount()?;
    link::configure(&given).map_err(step("configure the link"))?;
    identity::keep_boot_id()?;
    let workload = Arc::new(workload::Workload::new()?);
    let port = port::find()?;
    let listener = UnixListener::bind(SOCKET).map_err(step("listen for the agent"))?;
    // Before any thread exists.
    let child = || match root::enter(&given.hostname) {
        Ok(()) => become_agent(&given, &listener),
        Err(error) => step("enter the root")(error),
    };
    let agent = workload.within(|| sys::vm::fork_inside(child)).map_err(step("start the agent"))?;
    drop(listener);

    let (tell, ended) = oneshot::channel();
    std::thread::Builder::new().name("wait".to_owned()).spawn(move || {
        let _nobody_waits_any_more = tell.send(rustix::process::waitpid(Some(agent), WaitOptions::empty()));
    })?;
    let next_mark = port::NextMark::default();
    let calls = port::serve(port.try_clone()?, port, next_mark.clone())?;
    let machine = Some(relay::Machine { agent, workload, next_mark });
    let guest = Rc::new(relay::Guest { door: relay::Door::Socket(SOCKET), machine });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let ended = tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::select! {
            ended = ended => ended,
            () = relay::run(calls, guest) => Ok(Err(rustix::io::Errno::PIPE)),
        }
    });
    let status = ended.map_err(io::Error::other)??;
    Err(io::Error::other(format!("the agent ended: {status:?}")))
}

/// The agent as an engine starts it (`wire::agent::boot`); returns only if that fails.
fn become_agent(given: &boot::Given, listener: &UnixListener) -> io::Error {
    if let Err(error) = rustix::io::fcntl_setfd(listener, rustix::io::FdFlags::empty()) {
        return error.into();
    }
    Command::new(root::AGENT)
        .arg("guest")
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env(LISTEN_FD, listener.as_raw_fd().to_string())
        .env(NPROC, &given.nproc)
        .exec()
}

/// Names the step that failed: the console is all there is to read.
fn step(what: &'static str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}
