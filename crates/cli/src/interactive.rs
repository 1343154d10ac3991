//! A session at this terminal, or between our standard input and output. It ends when the command ends, whatever
//! standard input does, and gives the terminal back on every way out.

use std::cell::Cell;
use std::future::pending;
use std::time::Duration;

use client::{Client, ClientError, Session, SessionEvent, SessionEvents, SessionInput};
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{CliError, INTERRUPTED, NOT_RUN};
use crate::escape::Escape;
use crate::input;
use crate::out::{self, Stop};
use crate::terminal::{self, Raw};

/// Longest wait for a command to be killed when the user does not want to wait any more.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// How much of us the command gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wiring {
    /// Our standard input.
    pub(crate) stdin: bool,
    /// Our terminal. With `stdin` it is in raw mode: Ctrl-C is a byte like any other.
    pub(crate) tty: bool,
    /// The end of our standard input is the end of the command's.
    pub(crate) closes: bool,
}

impl Wiring {
    fn raw(self) -> bool {
        self.stdin && self.tty
    }
}

/// A session and how to speak about it.
struct Here<'a> {
    client: &'a Client,
    sandbox: &'a str,
    session: Option<String>,
    wiring: Wiring,
    /// The user does not want to wait for the command any more.
    insisted: Cell<bool>,
}

/// Why the session is left before its command has ended.
#[derive(Debug)]
enum Left {
    /// The user typed the escape.
    Detached,
    /// A signal; the session goes on.
    HungUp(u8),
    /// The user insisted.
    Killed,
}

/// Runs the session to its end and gives the command's exit code.
pub(crate) async fn run(
    client: &Client,
    sandbox: &str,
    session: Session,
    wiring: Wiring,
) -> Result<u8, Stop> {
    let session_id = session.id().map(str::to_owned);
    let here = Here { client, sandbox, session: session_id, wiring, insisted: Cell::new(false) };
    let (input, mut events) = session.split();
    let mut signals = Signals::watch()?;
    let raw = if wiring.raw() { Some(Raw::enter()?) } else { None };
    if wiring.tty {
        // It may have changed since the session was asked for.
        input.resize(terminal::size());
    }
    let ended = tokio::select! {
        code = here.show(&mut events) => code.map(Ok),
        left = feed(&input, wiring) => Ok(Err(left)),
        left = here.obey(&mut signals, &input, raw.as_ref()) => Ok(Err(left)),
    };
    if !matches!(ended, Ok(Ok(_)))
        && let Some(raw) = &raw
    {
        raw.undo_modes();
    }
    // Before anything more is said.
    drop(raw);
    match ended {
        _ if here.insisted.get() => Ok(INTERRUPTED),
        Ok(Ok(code)) => Ok(code),
        Ok(Err(left)) => {
            out::note("left the session; its command goes on");
            if let Some(again) = here.again() {
                out::note(&format!("hint: {again}"));
            }
            Ok(if let Left::HungUp(code) = left { code } else { 0 })
        }
        Err(Stop::Closed) => {
            // Nobody reads any more; a local command would learn it the same way.
            here.kill().await?;
            Err(Stop::Closed)
        }
        Err(failed) => Err(failed),
    }
}

/// Our input to the command. Returns only when the user wants to leave.
async fn feed(input: &SessionInput, wiring: Wiring) -> Left {
    if !wiring.stdin {
        return pending().await;
    }
    let mut escape = wiring.raw().then(Escape::new);
    let mut chunks = input::chunks();
    while let Some(Ok(chunk)) = chunks.recv().await {
        let Some(escape) = &mut escape else {
            input.write(chunk).await;
            continue;
        };
        let (typed, leave) = escape.take(&chunk);
        if !typed.is_empty() {
            input.write(typed.into()).await;
        }
        if leave {
            return Left::Detached;
        }
    }
    if wiring.raw() {
        // A terminal in raw mode has no end of input, so it is gone.
        return Left::HungUp(HANGUP);
    }
    if wiring.closes {
        input.close().await;
    }
    pending().await
}

impl Here<'_> {
    /// The command's output to ours, until its exit code.
    async fn show(&self, events: &mut SessionEvents) -> Result<u8, Stop> {
        let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
        while let Some(event) = events.next().await {
            match event.map_err(|error| self.failed(&error))? {
                SessionEvent::Stdout(bytes) => {
                    stdout.write_all(&bytes).await?;
                    stdout.flush().await?;
                }
                SessionEvent::Stderr(bytes) => {
                    // A closed standard error is ignored.
                    let _ = stderr.write_all(&bytes).await;
                    let _ = stderr.flush().await;
                }
                SessionEvent::Reconnecting { attempt: 1, .. } => self.say("connection lost, reconnecting"),
                SessionEvent::Reconnecting { attempt, of } => {
                    self.say(&format!("still no connection, attempt {attempt} of {of}"));
                }
                SessionEvent::Paused if self.wiring.stdin => {
                    self.say("the sandbox is paused; it resumes when you type");
                }
                SessionEvent::Paused => self.say("the sandbox is paused; waiting until it is resumed"),
                SessionEvent::Reconnected { lost, input_unsure } => {
                    self.say(&reconnected(lost, input_unsure));
                }
                SessionEvent::TakenOver => {
                    let taken =
                        CliError::new("another client has attached to this session").exit_code(NOT_RUN);
                    return Err(self.with_way_back(taken).into());
                }
                SessionEvent::Exit(code) => return Ok(u8::try_from(code).unwrap_or(u8::MAX)),
            }
        }
        Err(CliError::new("the session ended without an exit code").exit_code(NOT_RUN).into())
    }

    /// Does what signals ask for. Returns when the session is to be left.
    async fn obey(&self, signals: &mut Signals, input: &SessionInput, raw: Option<&Raw>) -> Left {
        loop {
            match signals.next().await {
                Told::Resized => {}
                Told::Continued => raw.into_iter().for_each(Raw::again),
                Told::End { number, leaves, .. } if leaves || self.wiring.raw() => {
                    return Left::HungUp(128 + number);
                }
                Told::End { name, .. } => {
                    tokio::select! {
                        () = self.pass_on(name, input) => {}
                        () = signals.insisted() => {
                            self.insisted.set(true);
                            if tokio::time::timeout(KILL_LIMIT, self.kill()).await.is_err() {
                                self.say("the sandbox does not answer; its command may go on");
                            }
                            return Left::Killed;
                        }
                    }
                }
            }
            if self.wiring.tty {
                input.resize(terminal::size());
            }
        }
    }

    /// Gives the command a signal, and waits, while it ends or not.
    async fn pass_on(&self, name: &str, input: &SessionInput) {
        match &self.session {
            Some(session) => {
                if let Err(error) = self.client.signal_session(self.sandbox, session, name).await {
                    self.say(&format!("{error}; press Ctrl-C again to leave"));
                }
            }
            None => input.signal(name).await,
        }
        pending().await
    }

    async fn kill(&self) -> Result<(), CliError> {
        let Some(session) = &self.session else { return Ok(()) };
        self.client.kill_session(self.sandbox, session).await.map_err(|error| self.failed(&error))
    }

    /// A remark in the middle of a session, on a line of its own also in raw mode.
    fn say(&self, text: &str) {
        let (before, after) = if self.wiring.raw() { ("\r\n", "\r") } else { ("", "") };
        out::note(&format!("{before}superserve: {}{after}", out::printable(text)));
    }

    fn failed(&self, error: &ClientError) -> CliError {
        let shown = CliError::of_sandbox(error, self.sandbox).exit_code(NOT_RUN);
        // A refusal is the end of it; anything else says nothing about the command.
        if error.api().is_some() { shown } else { self.with_way_back(shown) }
    }

    fn with_way_back(&self, error: CliError) -> CliError {
        match self.again() {
            Some(again) => error.hint(again),
            None => error,
        }
    }

    /// The command that comes back to this session.
    fn again(&self) -> Option<String> {
        let session = self.session.as_ref()?;
        Some(format!("superserve sandbox sessions {} attach {session}", self.sandbox))
    }
}

fn reconnected(lost: u64, input_unsure: bool) -> String {
    let mut text = "reconnected".to_owned();
    if lost > 0 {
        text += &format!("; {lost} bytes of output are lost");
    }
    if input_unsure {
        text += "; the last input may be lost";
    }
    text
}

/// Exit code after SIGHUP.
const HANGUP: u8 = 129;

/// The signals that mean something during a session, remembered from now on.
struct Signals {
    resized: Signal,
    continued: Signal,
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    quit: Signal,
}

enum Told {
    Resized,
    Continued,
    /// `leaves`: not meant for the command, even when Ctrl-C is.
    End {
        name: &'static str,
        number: u8,
        leaves: bool,
    },
}

impl Signals {
    fn watch() -> Result<Self, CliError> {
        let watch =
            |kind| signal(kind).map_err(|error| CliError::new(format!("cannot watch for signals: {error}")));
        Ok(Self {
            resized: watch(SignalKind::window_change())?,
            continued: watch(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?,
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
            hang_up: watch(SignalKind::hangup())?,
            quit: watch(SignalKind::quit())?,
        })
    }

    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.resized.recv() => Told::Resized,
            _ = self.continued.recv() => Told::Continued,
            _ = self.interrupt.recv() => Told::End { name: "INT", number: 2, leaves: false },
            _ = self.terminate.recv() => Told::End { name: "TERM", number: 15, leaves: false },
            _ = self.hang_up.recv() => Told::End { name: "HUP", number: 1, leaves: true },
            _ = self.quit.recv() => Told::End { name: "QUIT", number: 3, leaves: true },
        }
    }

    /// Another signal that asks for the end.
    async fn insisted(&mut self) {
        while !matches!(self.next().await, Told::End { .. }) {}
    }
}
