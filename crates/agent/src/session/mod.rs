//! Commands as something one can name: seen in a list, ended by id and, where a client holds a conversation with them
//! (`/exec/connect`, `/terminal`), left and returned to (`docs/data-plane-sessions.md`).
//!
//! ```text
//! launch ─▶ Run ──output──▶ Transcript ──▶ socket ──▶ client       a client that leaves and returns finds the
//!            ▲ kill, signal, size                ▲                 transcript where it was
//!            └───────── Session ◀── Input ◀──────┘
//! ```
//!
//! A session's command outlives its connection, so nothing here may depend on one.

mod input;
mod list;
mod signal;
mod socket;
mod transcript;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use wire::data_plane::{SessionEnd, SessionInfo, SessionKind, TtySize};

use crate::exec::{Channel, Piece, Run};
use crate::pty;
use input::Input;
use transcript::Transcript;

pub(crate) use list::{kill, list};
pub(crate) use socket::{attach, connect, terminal};

/// Sessions and terminals that run at one time.
const MAX_RUNNING: usize = 64;
/// Sessions and terminals that ended and are remembered.
const MAX_ENDED: usize = 64;
/// Output kept of one session.
const KEPT_BYTES: usize = 1024 * 1024;
/// Shared by the running sessions; and no less than the second for each, so that a piece always has room.
const KEPT_RUNNING_BYTES: usize = 8 * 1024 * 1024;
const KEPT_LEAST_BYTES: usize = 128 * 1024;
/// Of all sessions that ended.
const KEPT_ENDED_BYTES: usize = 4 * 1024 * 1024;
/// Of the command's text, for the list.
const COMMAND_CHARS: usize = 1024;
/// From asking a command to end until it is killed with everything it started.
const GRACE: Duration = Duration::from_secs(5);
/// A terminal nobody types at and nobody looks at (`spec/data-plane.md` §8).
const TERMINAL_IDLE: Duration = Duration::from_secs(600);

/// All sessions, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    all: RefCell<VecDeque<Rc<Session>>>,
    /// Sessions and terminals that run.
    running: Rc<Cell<usize>>,
}

/// A command that runs or did.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) tty: bool,
    kind: SessionKind,
    command: String,
    started_at: jiff::Timestamp,
    running: Rc<Cell<usize>>,
    /// The leader, which is also its process group.
    leader: Cell<Option<Pid>>,
    ended_at: Cell<Option<jiff::Timestamp>>,
    exit_code: Cell<Option<i32>>,
    kill: Cell<bool>,
    /// Wakes whoever waits for anything here to change.
    changed: Notify,
    transcript: RefCell<Transcript>,
    input: RefCell<Option<Input>>,
    terminal: RefCell<Option<Rc<AsyncFd<OwnedFd>>>>,
    /// What is left until a terminal is hung up for want of anybody.
    idle: Cell<Option<Duration>>,
    /// Why it was ended, where it did not end by itself.
    cause: Cell<Option<&'static str>>,
}

impl Sessions {
    /// A new session; `None` when there are too many of its kind.
    pub(crate) fn open(
        &self,
        id: String,
        kind: SessionKind,
        command: &str,
        tty: bool,
    ) -> Option<Rc<Session>> {
        let session = Rc::new(Session {
            id,
            tty,
            kind,
            command: command.chars().take(COMMAND_CHARS).collect(),
            started_at: jiff::Timestamp::now(),
            running: Rc::clone(&self.running),
            leader: Cell::default(),
            ended_at: Cell::default(),
            exit_code: Cell::default(),
            kill: Cell::default(),
            changed: Notify::new(),
            transcript: RefCell::default(),
            input: RefCell::default(),
            terminal: RefCell::default(),
            idle: Cell::new((kind == SessionKind::Terminal).then_some(TERMINAL_IDLE)),
            cause: Cell::default(),
        });
        if session.is_kept() {
            if self.running.get() >= MAX_RUNNING {
                return None;
            }
            self.running.set(self.running.get() + 1);
        }
        self.all.borrow_mut().push_back(Rc::clone(&session));
        Some(session)
    }

    /// The command is over, or never ran. Only conversations are remembered.
    pub(crate) fn close(&self, session: &Rc<Session>) {
        let mut all = self.all.borrow_mut();
        if !session.is_kept() {
            all.retain(|one| !Rc::ptr_eq(one, session));
            return;
        }
        self.running.set(self.running.get() - 1);
        let (mut count, mut bytes) = (0, 0);
        let mut kept: Vec<_> = all.drain(..).collect();
        // The newest of those that ended stay.
        kept.sort_by_key(|one| one.ended_at.get());
        kept.reverse();
        kept.retain(|one| {
            let ended = one.is_kept() && one.ended_at.get().is_some();
            if ended {
                count += 1;
                let mut transcript = one.transcript.borrow_mut();
                if !transcript.attached() && bytes + transcript.size() > KEPT_ENDED_BYTES {
                    transcript.trim(0);
                }
                bytes += transcript.size();
            }
            !ended || count <= MAX_ENDED
        });
        kept.sort_by_key(|one| one.started_at);
        all.extend(kept);
    }

    fn find(&self, id: &str) -> Option<Rc<Session>> {
        self.all.borrow().iter().find(|one| one.id == id).cloned()
    }
}

impl Session {
    /// A name nobody can guess.
    pub(crate) fn new_id() -> std::io::Result<String> {
        Ok(format!("{:016x}", getrandom::u64().map_err(std::io::Error::other)?))
    }

    /// Clients may leave it and return.
    fn is_kept(&self) -> bool {
        matches!(self.kind, SessionKind::Connect | SessionKind::Terminal)
    }

    pub(crate) fn started(&self, leader: Pid) {
        self.leader.set(Some(leader));
        self.changed.notify_waiters();
    }

    /// The command's process is gone, or never was one; output may still come.
    pub(crate) fn process_ended(&self, code: Option<i32>) {
        if self.ended_at.get().is_none() {
            self.ended_at.set(Some(jiff::Timestamp::now()));
            self.exit_code.set(code);
            self.changed.notify_waiters();
        }
    }

    async fn until<T>(&self, condition: impl Fn() -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(value) = condition() {
                return value;
            }
            changed.await;
        }
    }

    /// Until the command's process is gone.
    pub(crate) async fn ended(&self) {
        self.until(|| self.ended_at.get().map(|_| ())).await;
    }

    /// Until there is something to send a signal to, or nothing any more.
    async fn running_or_over(&self) {
        self.until(|| (self.leader.get().is_some() || self.ended_at.get().is_some()).then_some(())).await;
    }

    /// Ends the command with everything it started.
    pub(crate) fn kill(&self) {
        self.kill.set(true);
        self.changed.notify_waiters();
    }

    pub(crate) fn kill_wanted(&self) -> bool {
        self.kill.get()
    }

    pub(crate) async fn until_kill_wanted(&self) {
        self.until(|| self.kill.get().then_some(())).await;
    }

    /// Until output can be taken in without taking from the client what it has not got.
    pub(crate) async fn room(&self) {
        self.until(|| self.transcript.borrow().has_room(self.share()).then_some(())).await;
    }

    /// As [`Session::room`], for output after the command's end, when no time is counted: waits for a client that is there, and not for one
    /// that left.
    pub(crate) async fn last_room(&self) {
        self.until(|| {
            let transcript = self.transcript.borrow();
            (!transcript.attached() || transcript.has_room(self.share())).then_some(())
        })
        .await;
    }

    fn share(&self) -> usize {
        KEPT_BYTES.min((KEPT_RUNNING_BYTES / self.running.get().max(1)).max(KEPT_LEAST_BYTES))
    }

    fn push(&self, channel: Channel, bytes: &[u8]) {
        self.transcript.borrow_mut().push(channel, bytes, self.share());
        self.changed.notify_waiters();
    }

    fn finish(&self, end: SessionEnd) {
        self.transcript.borrow_mut().finish(end);
        self.terminal.take();
        self.input.take();
        self.changed.notify_waiters();
    }

    /// Running time passed.
    pub(crate) fn tick(self: &Rc<Self>, passed: Duration) {
        if self.transcript.borrow_mut().tick(passed) {
            self.changed.notify_waiters();
        }
        if let Some(left) = self.idle.get() {
            let left = left.saturating_sub(passed);
            self.idle.set((!left.is_zero()).then_some(left));
            if left.is_zero() {
                self.cause.set(Some("idle timeout"));
                self.kill();
            }
        }
    }

    /// A client is there.
    fn touch(&self) {
        if self.idle.get().is_some() {
            self.idle.set(Some(TERMINAL_IDLE));
        }
    }

    /// The command ran out of time.
    pub(crate) fn timed_out(&self) {
        self.cause.set(Some("time limit"));
    }

    /// Sends a signal: to the process group or, on a terminal, to the one in its foreground. Signals that end things go
    /// to the command as well, whatever it has put into the foreground.
    fn signal(&self, signal: Signal) {
        let (Some(leader), None) = (self.leader.get(), self.ended_at.get()) else { return };
        let send = |group| {
            // In its first moment the leader has no group of its own yet. It may also have ended this very moment.
            if rustix::process::kill_process_group(group, signal).is_err() && group == leader {
                let _ = rustix::process::kill_process(leader, signal);
            }
        };
        let terminal = self.terminal.borrow();
        let foreground =
            terminal.as_ref().and_then(|terminal| rustix::termios::tcgetpgrp(terminal.get_ref()).ok());
        match foreground {
            Some(foreground) if foreground != leader => {
                send(foreground);
                if [Signal::HUP, Signal::TERM, Signal::KILL].contains(&signal) {
                    send(leader);
                }
            }
            _ => send(leader),
        }
    }

    fn resize(&self, size: TtySize) {
        if let Some(terminal) = self.terminal.borrow().as_ref() {
            // Sizes are hints; the kernel takes any.
            let _ = pty::resize(terminal.get_ref(), size);
        }
    }

    /// Asks the command to end, and kills it should it not. `asked` says that its client has asked already.
    async fn end_gently(&self, asked: bool) {
        if !asked {
            for signal in if self.tty { &[Signal::HUP, Signal::CONT][..] } else { &[Signal::TERM] } {
                self.signal(*signal);
            }
        }
        if tokio::time::timeout(GRACE, self.ended()).await.is_err() {
            self.kill();
        }
    }

    fn info(&self) -> SessionInfo {
        let transcript = self.transcript.borrow();
        SessionInfo {
            id: self.id.clone(),
            kind: self.kind,
            command: self.command.clone(),
            started_at: self.started_at.to_string(),
            tty: self.tty,
            attached: transcript.attached(),
            ended_at: self.ended_at.get().map(|time| time.to_string()),
            exit_code: self.exit_code.get(),
            first_offset: transcript.first(),
            next_offset: transcript.next(),
        }
    }

    /// What the command reads from, and on a terminal also what its size belongs to.
    pub(crate) fn wire_up(
        self: &Rc<Self>,
        stdin: Rc<AsyncFd<OwnedFd>>,
        terminal: Option<Rc<AsyncFd<OwnedFd>>>,
    ) -> impl Future<Output = ()> + 'static {
        let (input, feed) = Input::new(Rc::clone(self), stdin);
        *self.input.borrow_mut() = Some(input);
        *self.terminal.borrow_mut() = terminal;
        feed
    }
}

/// Takes a session's output in until its command is over.
async fn record(mut run: Run, session: Rc<Session>) {
    loop {
        match run.next().await {
            Piece::Output(channel, bytes) => session.push(channel, bytes),
            Piece::Ended(end) => {
                if let Some(note) = end.note {
                    session.push(Channel::Stderr, note.as_bytes());
                }
                drop(run);
                session.finish(SessionEnd {
                    exit_code: Some(end.code),
                    finished: true,
                    ..SessionEnd::default()
                });
                return;
            }
            Piece::Failed(failure) => {
                let (message, code) = failure.told();
                drop(run);
                session.finish(could_not_run(message, code));
                return;
            }
        }
    }
}

fn could_not_run(message: String, code: &str) -> SessionEnd {
    SessionEnd { exit_code: None, error: Some(message), code: Some(code.to_owned()), finished: true }
}
