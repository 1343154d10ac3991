//! A command in a sandbox that does not outlive the call it was started for.
//!
//! The platform lets a streamed command go on when its client vanishes, so whatever ends a call early (a notification, a
//! client that goes away, a time limit, the end of this server) kills the command by its session
//! (`docs/data-plane-sessions.md`). Dropping [`run`] is enough: a task in the background sees to it, also when the command
//! is only being started. Platforms that give commands no names end them, or not, when the connection closes.

use std::time::Duration;

use client::{Client, ClientError, ExecEvent, ExecRequest, ExecStream};
use futures_util::StreamExt;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

use crate::progress::Output;
use crate::text::{Failure, line};
use crate::truncate::{Kept, OUTPUT_CAP};

/// The platform ends a command that is out of time itself; after this much more we do not wait for it to say so.
const LATE: Duration = Duration::from_secs(5);
/// Longest wait for the end of a killed command: the guest takes at most 8 s, and the way there may be busy.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// What a command left.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) stdout: Kept,
    pub(crate) stderr: Kept,
    /// `None`: it was killed because it did not end in time.
    pub(crate) exit_code: Option<i32>,
}

/// Why there is no [`Finished`].
#[derive(Debug)]
pub(crate) enum Fault {
    Client(ClientError),
    /// A defect; details are on stderr.
    Panic,
}

impl Fault {
    /// The failure a model reads.
    pub(crate) fn explain(self, about: crate::text::About<'_>) -> Failure {
        match self {
            Self::Client(error) => crate::text::explain(&error, about),
            Self::Panic => Failure::unexpected(),
        }
    }
}

/// Runs `request`, whose time limit is `limit`, in a sandbox, and tells `output` what comes.
///
/// # Errors
/// See [`Fault`]. The command is dead or about to be.
///
/// # Cancel safety
/// Dropping the future kills the command.
pub(crate) async fn run(
    client: &Client,
    background: &TaskTracker,
    sandbox: &str,
    request: ExecRequest,
    limit: Duration,
    output: &Output,
) -> Result<Finished, Fault> {
    let mut running = Running::start(client, background, sandbox, request).await?;
    let until = Instant::now() + limit + LATE;
    let mut finished =
        Finished { stdout: Kept::new(OUTPUT_CAP), stderr: Kept::new(OUTPUT_CAP), exit_code: None };
    loop {
        let event = tokio::select! {
            event = running.events.next() => event,
            () = sleep_until(until) => {
                running.kill().await;
                return Ok(finished);
            }
        };
        match event {
            Some(Ok(ExecEvent::Stdout(text))) => {
                output.add(text.len());
                finished.stdout.push(&text);
            }
            Some(Ok(ExecEvent::Stderr(text))) => {
                output.add(text.len());
                finished.stderr.push(&text);
            }
            Some(Ok(ExecEvent::Exit(code))) => {
                running.leash.session = None;
                finished.exit_code = Some(code);
                return Ok(finished);
            }
            Some(Err(error)) => return Err(Fault::Client(error)),
            // The stream ends after an exit or an error, which were handled.
            None => return Err(Fault::Panic),
        }
    }
}

/// A command and what ends it.
struct Running {
    events: ExecStream,
    leash: Leash,
}

impl Running {
    /// Starting is not given up half-way, because only its answer names the command. When nobody waits any more the answer
    /// is dropped, and with it the command.
    async fn start(
        client: &Client,
        background: &TaskTracker,
        sandbox: &str,
        request: ExecRequest,
    ) -> Result<Self, Fault> {
        let (client, sandbox, owner) = (client.clone(), sandbox.to_owned(), background.clone());
        let starting = background.spawn(async move {
            let events = client.exec_stream(&sandbox, &request).await?;
            let session = events.session_id().map(str::to_owned);
            Ok(Self { events, leash: Leash { client, background: owner, sandbox, session } })
        });
        starting.await.map_err(|_| Fault::Panic)?.map_err(Fault::Client)
    }

    /// Kills the command and waits for that.
    async fn kill(mut self) {
        if let Some(killing) = self.leash.pull() {
            let _its_panic_went_to_stderr = killing.await;
        }
    }
}

/// Dropped, it kills the command, if that still runs as far as is known.
struct Leash {
    client: Client,
    background: TaskTracker,
    sandbox: String,
    session: Option<String>,
}

impl Leash {
    fn pull(&mut self) -> Option<JoinHandle<()>> {
        let session = self.session.take()?;
        let (client, sandbox) = (self.client.clone(), self.sandbox.clone());
        Some(self.background.spawn(async move {
            let killed = tokio::time::timeout(KILL_TIMEOUT, client.kill_abandoned(&sandbox, &session)).await;
            let problem = match killed {
                Ok(Ok(())) => return,
                // The sandbox, or the command, went by itself.
                Ok(Err(error)) if matches!(error.status(), Some(404 | 410)) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            tracing::warn!(
                sandbox = %line(&sandbox),
                problem = %line(&problem),
                "a command that nobody waits for was not killed; it ends with its time limit"
            );
        }))
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        self.pull();
    }
}
