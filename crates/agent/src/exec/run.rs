//! A running command: its output piece by piece, then its end.
//!
//! ```text
//! Running ──leader ended──▶ Draining ──pipes empty──▶ Over
//!    │ └─supervisor killed by the guest─▶ Orphaned ──leader ended──▶ Draining
//!    └──time limit, or told to: whole tree killed──▶ Draining
//! ```
//!
//! The end of the *leader* counts, never the end of the pipes: a daemon may hold those for ever. What is in the pipes
//! when the leader ends is always delivered.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use http::StatusCode;
use rustix::process::Pid;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::Instant;
use wire::data_plane::{ExecRequest, STREAM_CHUNK_BYTES, TIMEOUT_EXIT_CODE};

use crate::agent::{Agent, Counted};
use crate::reply::Refusal;
use crate::session::Session;
use crate::sys::child::{Report, Stage};
use crate::tree::Leash;

/// How long helpers of the leader that it did not wait for (`> >(tee log)`) get to write their last words. Only commands
/// that leave a process with the pipes behind pay it. The specification allows a second; a busy machine needs some tens
/// of milliseconds to start such a helper at all.
const GRACE: Duration = Duration::from_millis(200);
/// The time limit counts in steps of this length, so that a step during which the sandbox was frozen counts as one: a
/// command must not be found out of time when its sandbox is resumed.
const STEP: Duration = Duration::from_secs(1);
/// How late a step may come before it is put down to a freeze and not to a busy machine.
const LATE: Duration = Duration::from_secs(3);
/// Reads in a row before other requests get their turn.
const READS_PER_TURN: u32 = 16;
/// What a terminal may hold that was written and not read; the kernel does not tell how much there is.
const TERMINAL_BYTES: usize = 128 * 1024;
/// Finished commands whose daemons still hold the pipes. Beyond, such a daemon gets a broken pipe.
const MAX_HELD: usize = 128;

/// Where output comes from: a pipe, or a terminal's other end.
pub(super) type Source = Rc<AsyncFd<OwnedFd>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Stdout,
    Stderr,
}

const CHANNELS: [Channel; 2] = [Channel::Stdout, Channel::Stderr];

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) code: i32,
    /// For standard error: why it could not be executed.
    pub(crate) note: Option<String>,
}

/// No command ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The caller can mend it.
    BadRequest(String),
    Exec(String),
}

impl Failure {
    pub(super) fn no_process(error: &io::Error) -> Self {
        Self::Exec(match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                "the sandbox has reached its limit of processes; end some of them and try again".to_owned()
            }
            Some(libc::ENOMEM) => "the sandbox has no memory for another process".to_owned(),
            _ => format!("the command could not be started: {error}"),
        })
    }
}

impl Failure {
    /// The text, and its code in events and frames.
    pub(crate) fn told(self) -> (String, &'static str) {
        match self {
            Self::BadRequest(message) => (message, "bad_request"),
            Self::Exec(message) => (message, "exec_failed"),
        }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::BadRequest(message) => Self::bad_request(message),
            Failure::Exec(message) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Piece<'a> {
    Output(Channel, &'a [u8]),
    Ended(End),
    Failed(Failure),
}

#[derive(Debug)]
enum Phase {
    Running,
    Orphaned(oneshot::Receiver<i32>),
    /// Bytes left to take from each pipe, and how to end then.
    Draining {
        left: [usize; 2],
        end: End,
        graced: bool,
    },
    Over,
}

#[derive(Debug)]
pub(crate) struct Run {
    agent: Rc<Agent>,
    _counted: Counted,
    leash: Leash,
    session: Rc<Session>,
    supervisor_end: oneshot::Receiver<i32>,
    leader: Option<Pid>,
    reports: pipe::Receiver,
    output: [Option<Source>; 2],
    /// Of the time limit, at `counted_to`.
    left: Duration,
    counted_to: Instant,
    phase: Phase,
    reads: u32,
    buffer: Box<[u8]>,
    /// For messages.
    program: String,
    directly: bool,
    directory: Option<String>,
}

/// What woke a running command's watcher.
enum Event {
    Report(Option<Report>),
    Kill,
    Step,
    Read(usize, io::Result<usize>),
    LeaderGone(Option<i32>),
}

impl Run {
    #[expect(clippy::too_many_arguments, reason = "the parts of a start, put together in one place")]
    pub(super) fn new(
        agent: &Rc<Agent>,
        counted: Counted,
        session: Rc<Session>,
        leash: Leash,
        supervisor_end: oneshot::Receiver<i32>,
        reports: pipe::Receiver,
        output: [Option<Source>; 2],
        limit: Duration,
        request: &ExecRequest,
    ) -> Self {
        Self {
            agent: Rc::clone(agent),
            _counted: counted,
            session,
            leash,
            supervisor_end,
            leader: None,
            reports,
            output,
            left: limit,
            counted_to: Instant::now(),
            phase: Phase::Running,
            reads: 0,
            buffer: vec![0; STREAM_CHUNK_BYTES].into_boxed_slice(),
            program: if request.args.is_some() { request.command.clone() } else { String::new() },
            directly: request.args.is_some(),
            directory: request.working_dir.clone().filter(|text| !text.is_empty()),
        }
    }

    pub(crate) fn session(&self) -> &Rc<Session> {
        &self.session
    }

    /// When to [`Run::count`] next; `None` once the command has ended.
    pub(super) fn next_step(&self) -> Option<Instant> {
        matches!(self.phase, Phase::Running | Phase::Orphaned(_))
            .then(|| self.counted_to + self.left.min(STEP))
    }

    /// Takes the time since the last count off the limit. True when it is used up.
    pub(super) fn count(&mut self) -> bool {
        let now = Instant::now();
        let passed = now - self.counted_to;
        let passed = if passed > STEP + LATE { STEP } else { passed };
        self.left = self.left.saturating_sub(passed);
        self.session.tick(passed);
        self.counted_to = now;
        self.left.is_zero()
    }

    /// Ends the whole tree, for having run out of time or because somebody wants it. Not cancel safe.
    pub(super) async fn cut(&mut self) {
        self.leash.kill().await;
        let code = if self.session.kill_wanted() {
            128 + libc::SIGKILL
        } else {
            self.session.timed_out();
            TIMEOUT_EXIT_CODE
        };
        self.end(End { code, note: None });
    }

    /// The next piece; after `Ended` or `Failed` there is none. Not cancel safe.
    pub(crate) async fn next(&mut self) -> Piece<'_> {
        loop {
            self.reads += 1;
            if self.reads.is_multiple_of(READS_PER_TURN) {
                tokio::task::yield_now().await;
            }
            match &mut self.phase {
                Phase::Over => return Piece::Failed(Failure::Exec("the command is over".to_owned())),
                Phase::Draining { .. } => {
                    self.session.last_room().await;
                    if let Some((at, length)) = self.drain().await {
                        return Piece::Output(CHANNELS[at], &self.buffer[..length]);
                    }
                    if let Phase::Draining { end, .. } = std::mem::replace(&mut self.phase, Phase::Over) {
                        return Piece::Ended(end);
                    }
                }
                Phase::Running | Phase::Orphaned(_) => match self.event().await {
                    Event::Report(Some(Report::Started(pid))) => {
                        self.leader = Pid::from_raw(pid);
                        if let Some(pid) = self.leader {
                            self.leash.session(if self.session.tty { self.leash.supervisor() } else { pid });
                            self.session.started(pid);
                        }
                    }
                    Event::Report(Some(Report::Ended(status))) => {
                        self.leash.release();
                        self.end(End { code: exit_code(status), note: None });
                    }
                    Event::Report(Some(Report::Failed(stage, errno))) => {
                        self.leash.release();
                        match self.failure(stage, errno) {
                            Ok(end) => self.end(end),
                            Err(failure) => {
                                self.session.process_ended(None);
                                self.phase = Phase::Over;
                                return Piece::Failed(failure);
                            }
                        }
                    }
                    Event::Report(None) => self.orphaned().await,
                    Event::LeaderGone(status) => {
                        self.leash.release();
                        let killed = 128 + libc::SIGKILL;
                        self.end(End { code: status.map_or(killed, exit_code), note: None });
                    }
                    Event::Step => {
                        if self.count() {
                            self.cut().await;
                        }
                    }
                    Event::Kill => self.cut().await,
                    Event::Read(at, Ok(length)) if length > 0 => {
                        return Piece::Output(CHANNELS[at], &self.buffer[..length]);
                    }
                    Event::Read(at, _) => self.output[at] = None,
                },
            }
        }
    }

    async fn event(&mut self) -> Event {
        let step = self.counted_to + self.left.min(STEP);
        let leader = async {
            match &mut self.phase {
                Phase::Orphaned(end) => Event::LeaderGone(end.await.ok()),
                _ => Event::Report(report(&self.reports).await),
            }
        };
        tokio::select! {
            // The end and the time limit first: a command that writes without pause must not hide them.
            biased;
            event = leader => event,
            () = self.session.until_kill_wanted() => Event::Kill,
            () = tokio::time::sleep_until(step) => Event::Step,
            (at, read) = async {
                self.session.room().await;
                read_any(&self.output, &mut self.buffer).await
            } => Event::Read(at, read),
        }
    }

    /// The guest killed the supervisor: its processes are now the agent's own children.
    async fn orphaned(&mut self) {
        let _ = (&mut self.supervisor_end).await;
        self.leash.supervisor_gone();
        self.phase = match self.leader {
            Some(leader) => {
                let end = self.agent.reaper.watch(leader);
                if rustix::process::test_kill_process(leader).is_ok() {
                    Phase::Orphaned(end)
                } else {
                    Phase::Orphaned(oneshot::channel().1)
                }
            }
            None => Phase::Orphaned(oneshot::channel().1),
        };
    }

    fn end(&mut self, end: End) {
        self.session.process_ended(Some(end.code));
        let left = [0, 1].map(|at| self.waiting(at));
        self.phase = Phase::Draining { left, end, graced: false };
    }

    /// Bytes that are in a pipe now, or may be in a terminal.
    fn waiting(&self, at: usize) -> usize {
        if self.session.tty {
            return TERMINAL_BYTES;
        }
        let bytes = self.output[at].as_ref().and_then(|pipe| rustix::io::ioctl_fionread(pipe.get_ref()).ok());
        bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
    }

    /// Takes what was in the pipes at the leader's end, and what comes within the grace. Reads past the runtime, whose
    /// idea of readiness may lag behind.
    async fn drain(&mut self) -> Option<(usize, usize)> {
        loop {
            let Phase::Draining { left, graced, .. } = &mut self.phase else { return None };
            for (at, left) in left.iter_mut().enumerate().filter(|(_, left)| **left > 0) {
                let most = (*left).min(self.buffer.len());
                let pipe = self.output[at].as_ref();
                match pipe.map(|pipe| rustix::io::read(pipe.get_ref(), &mut self.buffer[..most])) {
                    Some(Ok(length)) if length > 0 => {
                        *left -= length;
                        return Some((at, length));
                    }
                    _ => *left = 0,
                }
            }
            if *graced {
                return None;
            }
            *graced = true;
            self.wait_for_writers().await;
            let waiting = [0, 1].map(|at| self.waiting(at));
            if let Phase::Draining { left, .. } = &mut self.phase {
                *left = waiting;
            }
        }
    }

    /// Until nobody can write any more, or the grace is over. The pipes hold what is written meanwhile.
    async fn wait_for_writers(&mut self) {
        let pipes = self.output.iter().flatten();
        let until = Instant::now() + GRACE;
        while !pipes.clone().all(closed) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// A failed start as the specification sees it: an end for what a shell would report by code, else a failure.
    fn failure(&self, stage: Stage, errno: i32) -> Result<End, Failure> {
        let error = io::Error::from_raw_os_error(errno);
        let program = &self.program;
        Err(match (stage, errno) {
            (Stage::Directory, _) => {
                let directory = self.directory.as_deref().unwrap_or("the default working directory");
                Failure::BadRequest(format!("working_dir {directory}: {error}"))
            }
            (Stage::Exec, libc::ENOENT) if self.directly => {
                Failure::BadRequest(format!("command {program:?} not found"))
            }
            (Stage::Exec, libc::EACCES | libc::ENOEXEC | libc::EISDIR | libc::ELIBBAD) if self.directly => {
                return Ok(End { code: 126, note: Some(format!("{program}: {error}\n")) });
            }
            (Stage::Exec, libc::E2BIG) => {
                Failure::BadRequest("the arguments and variables are too large for one program".to_owned())
            }
            (Stage::Exec, libc::ENOENT) => Failure::Exec("the sandbox has no /bin/sh".to_owned()),
            (Stage::Terminal, _) => Failure::Exec(format!("no terminal for the command: {error}")),
            _ => Failure::no_process(&error),
        })
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // After the end, daemons may go on writing to the pipes: closing them would kill those daemons. Before it, the
        // leash ends them all.
        let killed = matches!(self.phase, Phase::Running | Phase::Orphaned(_));
        self.session.process_ended(Some(128 + libc::SIGKILL));
        self.agent.sessions.close(&self.session);
        if killed {
            return;
        }
        let held: Vec<Source> =
            self.output.iter_mut().filter_map(Option::take).filter(|pipe| !closed(pipe)).collect();
        // A terminal goes with its command.
        if held.is_empty() || self.session.tty {
            return;
        }
        if let Some(counted) = Counted::new(&self.agent, |agent| &agent.held, MAX_HELD) {
            self.agent.spawn(async move {
                let _counted = counted;
                swallow(held).await;
            });
        }
    }
}

/// Reads and forgets until nobody holds the other ends.
async fn swallow(pipes: Vec<Source>) {
    let mut pipes = pipes.into_iter();
    let mut output = [pipes.next(), pipes.next()];
    let mut buffer = vec![0; 4096];
    let mut reads = 0u32;
    while output.iter().any(Option::is_some) {
        if let (at, Ok(0) | Err(_)) = read_any(&output, &mut buffer).await {
            output[at] = None;
        }
        reads = reads.wrapping_add(1);
        if reads.is_multiple_of(READS_PER_TURN) {
            tokio::task::yield_now().await;
        }
    }
}

/// Reads from whichever source has something; waits for ever when both are gone. Cancel safe.
async fn read_any(output: &[Option<Source>; 2], buffer: &mut [u8]) -> (usize, io::Result<usize>) {
    loop {
        let (at, ready) = tokio::select! {
            ready = readable(output[0].as_ref()) => (0, ready),
            ready = readable(output[1].as_ref()) => (1, ready),
        };
        let read = match ready {
            Ok(mut ready) => ready.try_io(|source| Ok(rustix::io::read(source.get_ref(), &mut *buffer)?)),
            Err(error) => return (at, Err(error)),
        };
        if let Ok(read) = read {
            return (at, read);
        }
    }
}

async fn readable(source: Option<&Source>) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
    match source {
        Some(source) => source.readable().await,
        None => std::future::pending().await,
    }
}

/// The next report; `None` when the supervisor is gone. Reports are written at once, so one is never read in parts.
async fn report(reports: &pipe::Receiver) -> Option<Report> {
    let mut bytes = [0; Report::SIZE];
    loop {
        reports.readable().await.ok()?;
        match reports.try_read(&mut bytes) {
            Ok(Report::SIZE) => return Report::parse(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return None,
        }
    }
}

/// Nobody holds the other end.
fn closed(source: &Source) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(source.get_ref(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

fn exit_code(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}
