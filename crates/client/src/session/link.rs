//! The task that owns a session's connection: moves bytes both ways, and comes back when the connection breaks.
//!
//! Nothing is lost or doubled in either direction. Output is counted, acknowledged to the server, and asked for from the
//! count on a new connection. Input is kept until the server says that the command has been given it.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use futures_util::{SinkExt, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use wire::data_plane::{
    Attached, CHANNEL_STDERR, CHANNEL_STDIN, CHANNEL_STDOUT, MAX_SESSION_S, SessionControl, SessionEnd,
    SessionNews, TtySize, close,
};

use super::backlog::{Backlog, Next};
use super::{Input, SessionEvent, dial};
use crate::control::Client;
use crate::error::{ApiError, ClientError, Plane};
use crate::exec::could_not_run;
use crate::quote::quote;
use crate::retry::with_jitter;
use crate::websocket::Socket;

/// Attempts to come back, and the pauses before them: together about as long as the server keeps everything for us.
const ATTEMPTS: u32 = 10;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A connection that stood so long, or brought anything, was a good one; others count as another failed attempt.
const GOOD: Duration = Duration::from_secs(10);
/// A server pings every 30 s; this long without a sign means that the connection is dead without having been closed.
const SILENCE: Duration = Duration::from_secs(75);
/// Output after which it is acknowledged. The server may let a command go on for 128 KiB without, and for most 1 MiB.
const ACK_BYTES: u64 = 32 * 1024;
/// How often a paused sandbox is looked at.
const PAUSED_POLL: Duration = Duration::from_secs(3);
/// Longest wait for a paused sandbox: no session is longer.
const LONGEST_PAUSED: Duration = Duration::from_secs(MAX_SESSION_S);

type Event = Result<SessionEvent, ClientError>;
/// Breaks when the session is over and its last event has been told.
type Flow = ControlFlow<()>;

pub(super) struct Link {
    client: Client,
    sandbox: String,
    session: Option<String>,
    inputs: mpsc::Receiver<Input>,
    size: watch::Receiver<Option<TtySize>>,
    events: mpsc::Sender<Event>,
    backlog: Backlog,
    /// Signals to send. Unlike input they are not repeated: who pressed Ctrl-C does it again.
    signals: Vec<String>,
    /// Bytes of output so far.
    received: u64,
    acknowledged: Option<u64>,
    /// Nobody is left who could give input.
    inputs_ended: bool,
    resize_due: bool,
    /// Counted as received, and not yet handed over.
    incoming: Option<SessionEvent>,
    /// Attempts to come back since there was a good connection.
    attempts: u32,
}

/// What one look at the socket brought.
enum Step {
    Sent,
    Received(Option<Result<Message, WsError>>),
    Broken,
}

impl Link {
    pub(super) fn new(
        client: Client,
        sandbox: &str,
        session: Option<String>,
        inputs: mpsc::Receiver<Input>,
        size: watch::Receiver<Option<TtySize>>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            client,
            sandbox: sandbox.to_owned(),
            backlog: Backlog::new(session.is_some()),
            session,
            inputs,
            size,
            events,
            signals: Vec::new(),
            received: 0,
            acknowledged: None,
            inputs_ended: false,
            resize_due: false,
            incoming: None,
            attempts: 0,
        }
    }

    /// Goes on with a session that others have used before.
    pub(super) fn begin_at(&mut self, attached: &Attached) {
        self.received = attached.offset;
        self.backlog.start_at(attached.stdin_offset.unwrap_or(0));
        self.resize_due = true;
    }

    /// Until the session ends, fails, or nobody listens.
    pub(super) async fn run(mut self, mut socket: Socket) {
        loop {
            let since = Instant::now();
            let before = self.received;
            if self.pump(&mut socket).await.is_break() {
                return;
            }
            if since.elapsed() >= GOOD || self.received > before {
                self.attempts = 0;
            }
            // Gone before another is opened, so that the server does not see two.
            drop(socket);
            match self.come_back().await {
                ControlFlow::Continue(new) => socket = new,
                ControlFlow::Break(()) => return,
            }
        }
    }

    /// Moves bytes until the connection breaks, or the session is over.
    async fn pump(&mut self, socket: &mut Socket) -> Flow {
        let events = self.events.clone();
        let mut outgoing = None;
        let mut unflushed = false;
        let mut last_sign = Instant::now();
        loop {
            if outgoing.is_none() {
                outgoing = self.next_message();
            }
            let readable = self.incoming.is_none();
            let look = poll_fn(|context| look(socket, &mut outgoing, &mut unflushed, readable, context));
            tokio::select! {
                step = look => match step {
                    Step::Sent => {}
                    Step::Broken => return Flow::Continue(()),
                    Step::Received(frame) => {
                        last_sign = Instant::now();
                        match self.take(frame) {
                            Taken::Nothing => {}
                            Taken::Event(event) => self.incoming = Some(event),
                            Taken::Broken => return Flow::Continue(()),
                            Taken::Last(event) => return self.last(event).await,
                        }
                    }
                },
                place = events.reserve(), if !readable => match (place, self.incoming.take()) {
                    (Ok(place), Some(event)) => {
                        place.send(Ok(event));
                        last_sign = Instant::now();
                    }
                    _ => return Flow::Break(()),
                },
                input = self.inputs.recv(), if self.wants_input() => self.put(input),
                Ok(()) = self.size.changed() => self.resize_due = true,
                // Who does not take our events is not expected to hear from the server.
                () = sleep_until(last_sign + SILENCE), if readable => return Flow::Continue(()),
            }
        }
    }

    fn wants_input(&self) -> bool {
        !self.inputs_ended && self.backlog.has_room()
    }

    fn put(&mut self, input: Option<Input>) {
        match input {
            Some(Input::Bytes(bytes)) => self.backlog.push(&bytes),
            Some(Input::Close) => self.backlog.close(),
            Some(Input::Signal(name)) => self.signals.push(name),
            // Nobody can send any more; the command's input stays open, as it does when a connection breaks.
            None => self.inputs_ended = true,
        }
    }

    fn next_message(&mut self) -> Option<Message> {
        let due = self.acknowledged.is_none_or(|acknowledged| self.received - acknowledged >= ACK_BYTES);
        if due && self.session.is_some() {
            self.acknowledged = Some(self.received);
            return Some(control(&SessionControl::Ack { offset: self.received }));
        }
        if std::mem::take(&mut self.resize_due)
            && let Some(TtySize { cols, rows }) = *self.size.borrow()
        {
            return Some(control(&SessionControl::Resize { cols, rows }));
        }
        match self.backlog.next() {
            Some(Next::Piece(piece)) => return Some(stdin(&piece)),
            Some(Next::Close) => return Some(control(&SessionControl::StdinClose)),
            None => {}
        }
        let signal = (!self.signals.is_empty()).then(|| self.signals.remove(0))?;
        Some(control(&SessionControl::Signal { name: signal }))
    }

    fn take(&mut self, frame: Option<Result<Message, WsError>>) -> Taken {
        match frame {
            Some(Ok(Message::Binary(mut piece))) if !piece.is_empty() => {
                let channel = piece.split_to(1)[0];
                let event = match channel {
                    CHANNEL_STDOUT => SessionEvent::Stdout,
                    CHANNEL_STDERR => SessionEvent::Stderr,
                    _ => return Taken::Nothing,
                };
                self.received += piece.len() as u64;
                Taken::Event(event(piece))
            }
            Some(Ok(Message::Text(text))) => {
                if let Ok(SessionNews::Stdin { offset }) = serde_json::from_str(&text) {
                    self.backlog.given(offset);
                    return Taken::Nothing;
                }
                match serde_json::from_str::<SessionEnd>(&text) {
                    Ok(end) if end.finished => Taken::Last(ended(end)),
                    _ => Taken::Nothing,
                }
            }
            Some(Ok(Message::Close(frame))) => closed(frame),
            Some(Ok(_)) => Taken::Nothing,
            Some(Err(WsError::Protocol(ProtocolError::ResetWithoutClosingHandshake))) => Taken::Broken,
            Some(Err(WsError::Capacity(_) | WsError::Protocol(_) | WsError::Utf8(_))) => {
                Taken::Last(Err(protocol("it is not what a session sends")))
            }
            Some(Err(_)) | None => Taken::Broken,
        }
    }

    async fn last(&mut self, event: Event) -> Flow {
        // The listener may have left; then nobody needs to know.
        let _ = self.events.send(event).await;
        Flow::Break(())
    }

    async fn tell(&mut self, event: SessionEvent) -> Flow {
        if self.events.send(Ok(event)).await.is_ok() { Flow::Continue(()) } else { Flow::Break(()) }
    }

    /// A new connection that goes on where the old one broke.
    async fn come_back(&mut self) -> ControlFlow<(), Socket> {
        if let Some(event) = self.incoming.take() {
            self.tell(event).await?;
        }
        let mut error = ClientError::Interrupted { what: "the session", may_have_taken_effect: true };
        let Some(session) = self.session.clone() else {
            self.last(Err(error)).await?;
            return ControlFlow::Break(());
        };
        while self.attempts < ATTEMPTS {
            self.attempts += 1;
            self.tell(SessionEvent::Reconnecting { attempt: self.attempts, of: ATTEMPTS }).await?;
            sleep(with_jitter(pause_before(self.attempts))).await;
            self.until_running().await?;
            let attached = dial::attach(&self.client, &self.sandbox, &session, Some(self.received)).await;
            match attached {
                Ok((socket, attached)) => {
                    self.go_on(&attached).await?;
                    return ControlFlow::Continue(socket);
                }
                Err(failed) => error = failed,
            }
            if !worth_another(&error) {
                break;
            }
        }
        self.last(Err(error)).await?;
        ControlFlow::Break(())
    }

    async fn go_on(&mut self, attached: &Attached) -> Flow {
        self.received = attached.offset;
        self.acknowledged = None;
        self.resize_due = true;
        let input_unsure = !self.backlog.resume(attached.stdin_offset);
        self.tell(SessionEvent::Reconnected { lost: attached.lost, input_unsure }).await
    }

    /// Waits while the sandbox is paused. Only input wakes it: a terminal that was left open must not keep a sandbox
    /// awake which its owner, or its time limit, has paused.
    async fn until_running(&mut self) -> Flow {
        let until = Instant::now() + LONGEST_PAUSED;
        let mut told = false;
        while Instant::now() < until {
            let status = self.client.get_sandbox(&self.sandbox).await.map(|sandbox| sandbox.item.status);
            // Attaching says better than a lookup what is wrong.
            let Ok(status) = status else { break };
            match status.as_str() {
                "paused" if !told => {
                    told = true;
                    self.tell(SessionEvent::Paused).await?;
                }
                "paused" | "pausing" | "resuming" | "starting" => {}
                _ => break,
            }
            tokio::select! {
                () = sleep(if told { PAUSED_POLL } else { FIRST_PAUSE }) => {}
                input = self.inputs.recv(), if status == "paused" && self.wants_input() => {
                    let wakes = input.is_some();
                    self.put(input);
                    if wakes {
                        break;
                    }
                }
                () = self.events.closed() => return Flow::Break(()),
            }
        }
        Flow::Continue(())
    }
}

/// What a frame means.
enum Taken {
    Nothing,
    Event(SessionEvent),
    Broken,
    Last(Event),
}

/// One look at both directions. A message leaves `outgoing` only when the socket has taken it.
fn look(
    socket: &mut Socket,
    outgoing: &mut Option<Message>,
    unflushed: &mut bool,
    readable: bool,
    context: &mut Context<'_>,
) -> Poll<Step> {
    if outgoing.is_some() {
        match socket.poll_ready_unpin(context) {
            Poll::Ready(Ok(())) => {
                if let Some(message) = outgoing.take() {
                    *unflushed = true;
                    return Poll::Ready(match socket.start_send_unpin(message) {
                        Ok(()) => Step::Sent,
                        Err(_) => Step::Broken,
                    });
                }
            }
            // What the server sent before it broke off is still to be read.
            Poll::Ready(Err(_)) if readable => *outgoing = None,
            Poll::Ready(Err(_)) => return Poll::Ready(Step::Broken),
            Poll::Pending => {}
        }
    } else if *unflushed {
        match socket.poll_flush_unpin(context) {
            Poll::Ready(_) => *unflushed = false,
            Poll::Pending => {}
        }
    }
    if readable { socket.poll_next_unpin(context).map(Step::Received) } else { Poll::Pending }
}

fn control(message: &SessionControl) -> Message {
    // Plain data: it cannot fail.
    Message::text(serde_json::to_string(message).unwrap_or_default())
}

fn stdin(piece: &[u8]) -> Message {
    let mut frame = BytesMut::with_capacity(piece.len() + 1);
    frame.put_u8(CHANNEL_STDIN);
    frame.put_slice(piece);
    Message::Binary(frame.freeze())
}

fn ended(end: SessionEnd) -> Event {
    match (end.error, end.exit_code) {
        (Some(error), _) => Err(could_not_run(end.code.unwrap_or_default(), &error)),
        (None, Some(code)) => Ok(SessionEvent::Exit(code)),
        (None, None) => Err(protocol("it ended without an exit code")),
    }
}

/// A close without an end before it.
fn closed(frame: Option<CloseFrame>) -> Taken {
    let Some(frame) = frame else { return Taken::Broken };
    match u16::from(frame.code) {
        close::GOING_AWAY => Taken::Broken,
        close::TAKEN_OVER => Taken::Last(Ok(SessionEvent::TakenOver)),
        code => Taken::Last(Err(protocol(&format!("closed with {code} {}", quote(&frame.reason))))),
    }
}

fn protocol(detail: &str) -> ClientError {
    ClientError::Protocol { what: "the session", detail: detail.to_owned(), may_have_taken_effect: true }
}

/// None before the first attempt, then longer and longer.
fn pause_before(attempt: u32) -> Duration {
    match attempt {
        0 | 1 => Duration::ZERO,
        _ => (FIRST_PAUSE * 2u32.saturating_pow(attempt - 2)).min(LONGEST_PAUSE),
    }
}

/// Whether the next attempt to attach may do better.
fn worth_another(error: &ClientError) -> bool {
    match error {
        ClientError::Connect { .. } | ClientError::Timeout { .. } | ClientError::Interrupted { .. } => true,
        ClientError::Api(ApiError { plane: Plane::Control, status, .. }) => {
            matches!(status, 409 | 429 | 500..)
        }
        ClientError::Api(ApiError { plane: Plane::Data, status, .. }) => matches!(status, 429 | 500..),
        _ => false,
    }
}
