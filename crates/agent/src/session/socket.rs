//! The WebSocket side of sessions: `/exec/connect`, `/terminal`, and attaching to either (`spec/data-plane.md` §5, §8).

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::{HeaderValue, StatusCode};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::{Error, Message};
use wire::data_plane::{
    Attached, CHANNEL_STDIN, EXEC_SUBPROTOCOL, ExecRequest, MAX_SESSION_FRAME_BYTES, MAX_SESSION_S,
    MAX_TERMINAL_FRAME_BYTES, SESSION_ID_HEADER, SessionControl, SessionEnd, SessionKind, SessionNews,
    SessionStart, TERMINAL_SUBPROTOCOL, TtySize, close,
};

use super::{Session, could_not_run, list, record, signal};
use crate::agent::{Agent, Counted};
use crate::exec::{self, Launch};
use crate::reply::{Refusal, Response};
use crate::route::{Request, configured};
use crate::serve::TunnelSlot;
use crate::ws::{self, Meter, Socket};

/// WebSockets of one sandbox; each may hold a large frame for a moment.
const MAX_SOCKETS: usize = 64;
/// §5.2.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// §5.3.
const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WITHIN: Duration = Duration::from_secs(10);
/// A client that takes nothing for so long is treated as gone, or its command would wait for it for ever.
const STALLED: Duration = Duration::from_secs(300);
/// §8.
const TERMINAL_LIMIT: Duration = Duration::from_secs(4 * 3600);
const TERMINAL_SIZE: TtySize = TtySize { cols: 80, rows: 24 };
const SHELL: &str = "/bin/bash";

/// What a client's frames mean and how output is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// Binary frames begin with a channel; the end is told in a text frame.
    Exec,
    /// Binary frames are the terminal's bytes.
    Terminal,
}

/// Why a conversation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The command is over, and the client has everything.
    Over,
    /// The command could not run, and the client knows.
    Failed,
    TakenOver,
    /// The connection broke, or the client is silent.
    Gone,
    /// The client closed with this code, if with any.
    Closed(Option<u16>),
    TooBig,
}

/// `GET /exec/connect`.
pub(crate) fn connect(agent: &Rc<Agent>, request: Request, slot: &TunnelSlot) -> Result<Response, Refusal> {
    configured(agent)?;
    let id = new_id()?;
    let (agent, session_id) = (Rc::clone(agent), id.clone());
    open(&Rc::clone(&agent), request, slot, Dialect::Exec, Some(&id), move |socket| {
        start(agent, socket, session_id)
    })
}

/// `GET /terminal`.
pub(crate) fn terminal(agent: &Rc<Agent>, request: Request, slot: &TunnelSlot) -> Result<Response, Refusal> {
    configured(agent)?;
    let id = new_id()?;
    let (agent, session_id) = (Rc::clone(agent), id.clone());
    open(&Rc::clone(&agent), request, slot, Dialect::Terminal, Some(&id), move |socket| async move {
        let shell =
            ExecRequest { command: SHELL.to_owned(), args: Some(Vec::new()), ..ExecRequest::default() };
        let launch = Launch {
            request: &shell,
            kind: SessionKind::Terminal,
            limit: TERMINAL_LIMIT,
            tty: Some(TERMINAL_SIZE),
            id: session_id,
        };
        match begin(&agent, launch).await {
            Ok(session) => talk(&agent, socket, session, Dialect::Terminal, None).await,
            Err(_) => ws::close(socket, close::ERROR, "the shell could not be started").await,
        }
    })
}

/// `GET /exec/sessions/{id}/attach`.
pub(crate) fn attach(
    agent: &Rc<Agent>,
    request: Request,
    id: &str,
    slot: &TunnelSlot,
) -> Result<Response, Refusal> {
    let session = agent.sessions.find(id).ok_or_else(|| list::unknown(id))?;
    if !session.is_kept() {
        return Err(Refusal::new(
            StatusCode::CONFLICT,
            "conflict",
            "only sessions of /exec/connect and /terminal can be attached to; this one can be listed and killed",
        ));
    }
    let mut pairs = request.uri().query().into_iter().flat_map(|query| query.split('&'));
    let offset = match pairs.find_map(|pair| pair.strip_prefix("offset=")) {
        None => 0,
        Some(text) => text.parse().map_err(|_| Refusal::bad_request("offset must be a number of bytes"))?,
    };
    let agent = Rc::clone(agent);
    open(&Rc::clone(&agent), request, slot, Dialect::Exec, None, move |socket| async move {
        talk(&agent, socket, session, Dialect::Exec, Some(offset)).await;
    })
}

fn new_id() -> Result<String, Refusal> {
    Session::new_id().map_err(|error| Refusal::internal(format!("no random numbers: {error}")))
}

fn open<F: Future<Output = ()> + 'static>(
    agent: &Rc<Agent>,
    request: Request,
    slot: &TunnelSlot,
    dialect: Dialect,
    id: Option<&str>,
    then: impl FnOnce(Socket) -> F + 'static,
) -> Result<Response, Refusal> {
    let counted = Counted::new(agent, |agent| &agent.sockets, MAX_SOCKETS).ok_or_else(|| {
        Refusal::busy(format!("{MAX_SOCKETS} sessions and terminals are connected; close some of them"))
    })?;
    let (subprotocol, max_frame) = match dialect {
        Dialect::Exec => (EXEC_SUBPROTOCOL, MAX_SESSION_FRAME_BYTES),
        Dialect::Terminal => (TERMINAL_SUBPROTOCOL, MAX_TERMINAL_FRAME_BYTES),
    };
    let large = agent.large_frames.clone();
    let mut response = ws::accept(request, slot, subprotocol, max_frame, large, move |socket| async move {
        let _counted = counted;
        then(socket).await;
    })?;
    if let Some(value) = id.and_then(|id| HeaderValue::from_str(id).ok()) {
        response.headers_mut().insert(SESSION_ID_HEADER, value);
    }
    Ok(response)
}

/// Waits for the start frame and does what it says.
async fn start(agent: Rc<Agent>, mut socket: Socket, id: String) {
    let expected = "expected start message";
    let first = timeout(START_TIMEOUT, async {
        loop {
            match socket.next().await {
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                other => break other,
            }
        }
    });
    let text = match first.await {
        Ok(Some(Ok(Message::Text(text)))) => text,
        Ok(Some(Ok(Message::Binary(_)))) => {
            return ws::close(socket, close::UNSUPPORTED, "the start message must be text").await;
        }
        Ok(Some(Err(Error::Capacity(_)))) => {
            return ws::close(socket, close::TOO_BIG, "message too big").await;
        }
        Ok(Some(Ok(_))) => return ws::closed(socket).await,
        Ok(Some(Err(_)) | None) => return,
        Err(_late) => return ws::close(socket, close::POLICY, expected).await,
    };
    let start: SessionStart = match serde_json::from_str(text.as_str()) {
        Ok(start) => start,
        Err(_) => return ws::close(socket, close::POLICY, "the start message is malformed").await,
    };
    if start.exec.command.is_empty() {
        return ws::close(socket, close::POLICY, "command must not be empty").await;
    }
    let launch = Launch {
        request: &start.exec,
        kind: SessionKind::Connect,
        limit: exec::time_limit(&start.exec, Duration::from_secs(MAX_SESSION_S)),
        tty: start.tty,
        id,
    };
    match begin(&agent, launch).await {
        Ok(session) => talk(&agent, socket, session, Dialect::Exec, None).await,
        Err(refusal) => {
            let code = if refusal.status == StatusCode::BAD_REQUEST { "bad_request" } else { "exec_failed" };
            let end = could_not_run(refusal.message, code);
            if timeout(START_TIMEOUT, socket.send(told(&end))).await.is_ok_and(|sent| sent.is_ok()) {
                ws::close(socket, close::ERROR, "the command could not be started").await;
            }
        }
    }
}

async fn begin(agent: &Rc<Agent>, launch: Launch<'_>) -> Result<Rc<Session>, Refusal> {
    let config = configured(agent)?;
    let limit = launch.limit.min(Duration::from_secs(MAX_SESSION_S));
    let run = exec::launch(agent, &config, Launch { limit, ..launch }).await?;
    let session = Rc::clone(run.session());
    agent.spawn(record(run, Rc::clone(&session)));
    Ok(session)
}

/// A client's hold on a session; dropped, the client is gone.
struct Place {
    session: Rc<Session>,
    generation: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.session.transcript.borrow_mut().detach(self.generation);
        self.session.changed.notify_waiters();
    }
}

/// What both halves of a conversation know.
#[derive(Default)]
struct Signs {
    /// When the client last sent anything.
    heard: Cell<Option<Instant>>,
    /// The client is not being listened to, since the command does not read.
    deaf: Cell<bool>,
    /// The client decides itself what it has got.
    acknowledges: Cell<bool>,
    /// The client has asked the command to end.
    asked: Cell<bool>,
}

/// Carries a conversation until either side ends it. `wanted` is set for a client that attaches.
async fn talk(
    agent: &Rc<Agent>,
    socket: Socket,
    session: Rc<Session>,
    dialect: Dialect,
    wanted: Option<u64>,
) {
    let start = session.transcript.borrow_mut().attach(wanted.unwrap_or(0));
    session.changed.notify_waiters();
    session.touch();
    let place = Place { session: Rc::clone(&session), generation: start.generation };
    let hello = wanted.map(|_| Attached {
        session_id: session.id.clone(),
        offset: start.offset,
        lost: start.lost,
        next_offset: session.transcript.borrow().next(),
        tty: session.tty,
        stdin_offset: session.input.borrow().as_ref().map(super::Input::taken),
    });
    let signs = Signs::default();
    let meter = socket.get_ref().meter();
    meter.reset();
    let (mut sink, mut stream) = socket.split();
    let outcome = tokio::select! {
        outcome = listen(&mut stream, &meter, &place, dialect, &signs) => outcome,
        outcome = speak(&mut sink, &place, dialect, hello, start.offset, &signs) => outcome,
    };
    drop(place);
    let reunited = stream.reunite(sink);
    if let Outcome::Closed(None | Some(close::NORMAL)) = outcome {
        let asked = signs.asked.get();
        agent.spawn({
            let session = Rc::clone(&session);
            async move { session.end_gently(asked).await }
        });
    }
    let Ok(socket) = reunited else { return };
    let (code, reason) = match outcome {
        Outcome::Gone => return,
        Outcome::Closed(_) => return ws::closed(socket).await,
        Outcome::Over if dialect == Dialect::Exec => (close::NORMAL, "command exited"),
        Outcome::Over => (close::NORMAL, session.cause.get().unwrap_or("shell exited")),
        Outcome::Failed => (close::ERROR, "the command could not be started"),
        Outcome::TakenOver => (close::TAKEN_OVER, "session taken over"),
        Outcome::TooBig => (close::TOO_BIG, "message too big"),
    };
    ws::close(socket, code, reason).await;
}

/// Client to command.
async fn listen(
    stream: &mut SplitStream<Socket>,
    meter: &Meter,
    place: &Place,
    dialect: Dialect,
    signs: &Signs,
) -> Outcome {
    let session = &place.session;
    while let Some(message) = stream.next().await {
        signs.heard.set(Some(Instant::now()));
        match message {
            Ok(Message::Binary(bytes)) => {
                session.touch();
                let bytes = match dialect {
                    Dialect::Terminal => bytes,
                    Dialect::Exec if bytes.first() == Some(&CHANNEL_STDIN) => bytes.slice(1..),
                    // No input.
                    Dialect::Exec => Default::default(),
                };
                let input = session.input.borrow().clone();
                if let Some(input) = input {
                    signs.deaf.set(true);
                    let wanted = || session.transcript.borrow().is_current(place.generation);
                    input.push(bytes, wanted).await;
                    signs.deaf.set(false);
                    signs.heard.set(Some(Instant::now()));
                }
            }
            Ok(Message::Text(text)) => {
                session.touch();
                // Whatever is not known is ignored (§5.2).
                if let Ok(control) = serde_json::from_str(text.as_str()) {
                    obey(place, control, dialect, signs).await;
                }
            }
            Ok(Message::Close(frame)) => return Outcome::Closed(frame.map(|frame| frame.code.into())),
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
            Err(Error::Capacity(_)) => return Outcome::TooBig,
            Err(_) => return Outcome::Gone,
        }
        meter.reset();
    }
    Outcome::Gone
}

async fn obey(place: &Place, control: SessionControl, dialect: Dialect, signs: &Signs) {
    let session = &place.session;
    match control {
        SessionControl::StdinClose => {
            let input = session.input.borrow().clone();
            if let (Some(input), Dialect::Exec) = (input, dialect) {
                signs.deaf.set(true);
                input.end().await;
                signs.deaf.set(false);
            }
        }
        SessionControl::Signal { name } => {
            if let Some(signal) = signal::named(&name) {
                session.running_or_over().await;
                session.signal(signal);
                signs.asked.set(signs.asked.get() || signal::ends(signal));
            }
        }
        SessionControl::Resize { cols, rows } => session.resize(TtySize { cols, rows }),
        SessionControl::Ack { offset } => {
            signs.acknowledges.set(true);
            session.transcript.borrow_mut().got(place.generation, offset);
            session.changed.notify_waiters();
        }
    }
}

/// What to do for the client next.
enum Next {
    Output(u8, Vec<u8>),
    End(SessionEnd),
    TakenOver,
    Wait,
}

fn next(place: &Place, position: u64) -> Next {
    let transcript = place.session.transcript.borrow();
    if !transcript.is_current(place.generation) {
        return Next::TakenOver;
    }
    match (transcript.piece(position), transcript.end()) {
        (Some((channel, bytes)), _) => Next::Output(channel, bytes),
        (None, Some(end)) => Next::End(end.clone()),
        (None, None) => Next::Wait,
    }
}

/// Command to client, and the question whether it is still there.
async fn speak(
    sink: &mut SplitSink<Socket, Message>,
    place: &Place,
    dialect: Dialect,
    hello: Option<Attached>,
    mut position: u64,
    signs: &Signs,
) -> Outcome {
    if let Some(hello) = hello {
        // Our own struct of strings and numbers: this cannot fail.
        let text = serde_json::to_string(&hello).unwrap_or_default();
        if !send(sink, Message::text(text)).await {
            return Outcome::Gone;
        }
    }
    let mut quiet_since = Instant::now();
    let mut pinged: Option<Instant> = None;
    let mut told_input = None;
    loop {
        let changed = place.session.changed.notified();
        let news = place.session.input.borrow().as_ref().and_then(|input| input.news(told_input));
        if let Some(offset) = news.filter(|_| signs.acknowledges.get()) {
            told_input = Some(offset);
            // A number: this cannot fail.
            let text = serde_json::to_string(&SessionNews::Stdin { offset }).unwrap_or_default();
            if !send(sink, Message::text(text)).await {
                return Outcome::Gone;
            }
        }
        match next(place, position) {
            Next::Output(channel, bytes) => {
                let length = bytes.len() as u64;
                if !send(sink, output(dialect, channel, bytes)).await {
                    return Outcome::Gone;
                }
                position += length;
                if !signs.acknowledges.get() {
                    place.session.transcript.borrow_mut().got(place.generation, position);
                    place.session.changed.notify_waiters();
                }
                place.session.touch();
                // What is on its way to a slow client would be in front of the ping.
                quiet_since = Instant::now();
                pinged = None;
                continue;
            }
            Next::End(end) => {
                if dialect == Dialect::Exec && !send(sink, told(&end)).await {
                    return Outcome::Gone;
                }
                return if end.error.is_some() { Outcome::Failed } else { Outcome::Over };
            }
            Next::TakenOver => return Outcome::TakenOver,
            Next::Wait => {}
        }
        let due = pinged.map_or(quiet_since + PING_EVERY, |pinged| pinged + PONG_WITHIN);
        tokio::select! {
            () = changed => {}
            () = sleep_until(due) => match pinged {
                Some(pinged) if !signs.deaf.get() && signs.heard.get().is_none_or(|heard| heard < pinged) => {
                    return Outcome::Gone;
                }
                Some(_) => {
                    quiet_since = Instant::now();
                    pinged = None;
                }
                None => {
                    pinged = Some(Instant::now());
                    if !send(sink, Message::Ping(Default::default())).await {
                        return Outcome::Gone;
                    }
                }
            },
        }
    }
}

fn output(dialect: Dialect, channel: u8, bytes: Vec<u8>) -> Message {
    let framed = match dialect {
        Dialect::Terminal => bytes,
        Dialect::Exec => [&[channel], bytes.as_slice()].concat(),
    };
    Message::binary(framed)
}

fn told(end: &SessionEnd) -> Message {
    // Our own struct of strings and numbers: this cannot fail.
    Message::text(serde_json::to_string(end).unwrap_or_default())
}

/// False when the client is gone or takes nothing.
async fn send(sink: &mut SplitSink<Socket, Message>, message: Message) -> bool {
    matches!(timeout(STALLED, pin!(sink.send(message))).await, Ok(Ok(())))
}
