//! Sessions: commands that take input and signals, survive a broken connection, and can be come back to
//! (`docs/data-plane-sessions.md`).
//!
//! A session's connection belongs to one task. When it breaks the task attaches again and goes on at the byte where it
//! stopped, in both directions; a sandbox that was paused meanwhile is woken by input, not by us.

mod backlog;
mod dial;
mod link;

use bytes::Bytes;
use http::{HeaderMap, Method};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use wire::data_plane::{
    ExecRequest, MAX_SESSION_FRAME_BYTES, SESSION_ID_HEADER, SESSIONS_PATH, SessionInfo, SessionList,
    SessionPath, SessionStart, TtySize, session_path,
};

use crate::control::{CALL_TIMEOUT, Client};
use crate::data_plane::{DataBody, DataCall};
use crate::error::{ClientError, Plane};
use crate::transport::{Exchange, read_all};
use link::Link;

/// Largest list of sessions: some hundred of them, each with 4 KiB of command, escaped.
const MAX_LIST_BYTES: usize = 16 * 1024 * 1024;
/// Pieces of output that wait for their reader, some 32 KiB each. Then the connection is not read, and the command waits.
const EVENTS_AHEAD: usize = 8;
/// Pieces of input handed over but not yet taken.
const INPUTS_AHEAD: usize = 4;

/// Something that happened in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// A piece of standard output, or of a terminal's output.
    Stdout(Bytes),
    /// A piece of standard error.
    Stderr(Bytes),
    /// The connection broke; this attempt to come back begins now.
    Reconnecting {
        /// Counted from 1.
        attempt: u32,
        /// The last one.
        of: u32,
    },
    /// The sandbox is paused. Input wakes it; until then the session waits for others to do so.
    Paused,
    /// The connection stands again.
    Reconnected {
        /// Bytes of output that are gone.
        lost: u64,
        /// Others have written to the session meanwhile, and some of our last input may be lost.
        input_unsure: bool,
    },
    /// Another client attached to the session, so it is no longer ours. The last event.
    TakenOver,
    /// The command ended with this code. The last event.
    Exit(i32),
}

/// A running session. Dropped, it leaves the command running.
#[derive(Debug)]
pub struct Session {
    id: Option<String>,
    tty: bool,
    input: SessionInput,
    events: SessionEvents,
}

impl Session {
    /// Its name for [`Client::attach_session`] and [`Client::kill_session`], on platforms that give it one.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Whether the command has a terminal.
    #[must_use]
    pub fn tty(&self) -> bool {
        self.tty
    }

    /// Both directions, to be used at the same time: who does not read while writing may wait for ever.
    #[must_use]
    pub fn split(self) -> (SessionInput, SessionEvents) {
        (self.input, self.events)
    }
}

/// What goes to the command.
#[derive(Debug)]
pub struct SessionInput {
    inputs: mpsc::Sender<Input>,
    size: watch::Sender<Option<TtySize>>,
}

#[derive(Debug)]
enum Input {
    Bytes(Bytes),
    Close,
    Signal(String),
}

impl SessionInput {
    /// Gives the command input, and waits while it does not read. After the end of a session input goes nowhere.
    pub async fn write(&self, bytes: Bytes) {
        self.give(Input::Bytes(bytes)).await;
    }

    /// There is no more input.
    pub async fn close(&self) {
        self.give(Input::Close).await;
    }

    /// Sends a POSIX signal, after the input so far. [`Client::signal_session`] does not wait for input.
    pub async fn signal(&self, name: &str) {
        self.give(Input::Signal(name.to_owned())).await;
    }

    /// The terminal's new size.
    pub fn resize(&self, size: TtySize) {
        self.size.send_replace(Some(size));
    }

    async fn give(&self, input: Input) {
        // The end of a session is told by its events.
        let _ = self.inputs.send(input).await;
    }
}

/// What comes from the command.
#[derive(Debug)]
pub struct SessionEvents {
    events: mpsc::Receiver<Result<SessionEvent, ClientError>>,
    link: AbortHandle,
}

impl SessionEvents {
    /// The next event; `None` after the last one or an error.
    ///
    /// # Errors
    /// See [`ClientError`]. An error ends the events, not the command.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Option<Result<SessionEvent, ClientError>> {
        self.events.recv().await
    }
}

impl Drop for SessionEvents {
    fn drop(&mut self) {
        self.link.abort();
    }
}

impl Client {
    /// Starts a command that takes input; resumes a paused sandbox. With `tty` it has a terminal of that size.
    ///
    /// # Errors
    /// See [`ClientError`]. That the command cannot be run is told by the first event.
    pub async fn start_session(
        &self,
        id: &str,
        command: ExecRequest,
        tty: Option<TtySize>,
    ) -> Result<Session, ClientError> {
        if command.command.is_empty() {
            return Err(ClientError::Invalid {
                field: "command",
                accepted: "it must not be empty".to_owned(),
            });
        }
        let start = serde_json::to_string(&SessionStart { exec: command, tty })
            .map_err(|error| ClientError::Local(format!("cannot write the request: {error}")))?;
        if start.len() > MAX_SESSION_FRAME_BYTES {
            return Err(ClientError::Invalid {
                field: "command",
                accepted: format!("with its variables it may have {MAX_SESSION_FRAME_BYTES} bytes"),
            });
        }
        let (socket, session_id) = dial::start(self, id, start).await?;
        Ok(self.session(id, session_id, tty.is_some(), tty, |link| link.run(socket)))
    }

    /// Comes back to a session: what is kept of its output from `offset` on, or all of it, and then what it writes.
    /// Whoever was attached before is not any more.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 for an unknown session, 409 for a command that is no session.
    pub async fn attach_session(
        &self,
        id: &str,
        session_id: &str,
        offset: Option<u64>,
        size: Option<TtySize>,
    ) -> Result<Session, ClientError> {
        let (socket, attached) = dial::attach(self, id, session_id, offset).await?;
        let tty = attached.tty;
        Ok(self.session(id, Some(session_id.to_owned()), tty, size.filter(|_| tty), |mut link| async move {
            link.begin_at(&attached);
            link.run(socket).await;
        }))
    }

    fn session<F: Future<Output = ()> + Send + 'static>(
        &self,
        id: &str,
        session_id: Option<String>,
        tty: bool,
        size: Option<TtySize>,
        run: impl FnOnce(Link) -> F,
    ) -> Session {
        let (inputs, inputs_end) = mpsc::channel(INPUTS_AHEAD);
        let (events_end, events) = mpsc::channel(EVENTS_AHEAD);
        let (size, size_end) = watch::channel(size);
        let link = Link::new(self.clone(), id, session_id.clone(), inputs_end, size_end, events_end);
        let link = tokio::spawn(run(link)).abort_handle();
        Session {
            id: session_id,
            tty,
            input: SessionInput { inputs, size },
            events: SessionEvents { events, link },
        }
    }

    /// The commands of a sandbox, oldest first: those that run, and some that ended lately. Resumes a paused sandbox.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 also from platforms that have no such list.
    pub async fn list_sessions(&self, id: &str) -> Result<Vec<SessionInfo>, ClientError> {
        let exchange = Exchange {
            what: "the list of sessions",
            plane: Plane::Data,
            mutating: false,
            timeout: CALL_TIMEOUT,
        };
        let call = DataCall {
            exchange,
            method: Method::GET,
            path: SESSIONS_PATH.into(),
            query: Vec::new(),
            body: DataBody::None,
        };
        let body = read_all(exchange, self.data_call(id, call).await?, MAX_LIST_BYTES).await?;
        // serde's text may quote a command, which is not ours to show.
        let list: SessionList =
            serde_json::from_slice(&body).map_err(|_| exchange.protocol("not the expected JSON"))?;
        Ok(list.sessions)
    }

    /// Kills a command and everything it started, and returns when it is gone. One that has ended is left alone.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 for an unknown session.
    pub async fn kill_session(&self, id: &str, session_id: &str) -> Result<(), ClientError> {
        self.data_call(id, deletion(session_id, None)?).await.map(drop)
    }

    /// As [`Client::kill_session`], for a caller that nobody waits for any more: a sandbox that was paused meanwhile stays
    /// paused, and the command in it frozen, which is an error with status 503.
    ///
    /// # Errors
    /// As [`Client::kill_session`].
    pub async fn kill_abandoned(&self, id: &str, session_id: &str) -> Result<(), ClientError> {
        self.data_call_asleep(id, deletion(session_id, None)?).await.map(drop)
    }

    /// Sends a POSIX signal to a command.
    ///
    /// # Errors
    /// As [`Client::kill_session`].
    pub async fn signal_session(&self, id: &str, session_id: &str, signal: &str) -> Result<(), ClientError> {
        self.data_call(id, deletion(session_id, Some(signal))?).await.map(drop)
    }
}

fn deletion<'a>(session_id: &str, signal: Option<&'a str>) -> Result<DataCall<'a>, ClientError> {
    let exchange = Exchange {
        what: "the end of the session",
        plane: Plane::Data,
        mutating: true,
        timeout: CALL_TIMEOUT,
    };
    Ok(DataCall {
        exchange,
        method: Method::DELETE,
        path: path_of(session_id, "")?.into(),
        query: signal.map(|signal| ("signal", signal)).into_iter().collect(),
        body: DataBody::None,
    })
}

/// The path of a session, with an ending.
fn path_of(session_id: &str, ending: &str) -> Result<String, ClientError> {
    let path = format!("{SESSIONS_PATH}/{session_id}");
    match session_path(&path) {
        Some(SessionPath::One(_)) => Ok(path + ending),
        _ => Err(ClientError::Invalid {
            field: "session id",
            accepted: "lower-case letters and digits are accepted".to_owned(),
        }),
    }
}

/// The session that an answer speaks of.
pub(crate) fn id_of(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(SESSION_ID_HEADER)?.to_str().ok()?;
    path_of(id, "").is_ok().then(|| id.to_owned())
}
