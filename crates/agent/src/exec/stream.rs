//! `POST /exec/stream`: the same command as server-sent events.
//!
//! A client that goes away does not end the command (`spec/data-plane.md` §11.1); its time limit does.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, header};
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use wire::data_plane::{SessionKind, StreamEvent};

use super::text::Decoder;
use super::{Channel, Launch, Piece, Run, launch, name, parse, time_limit};
use crate::agent::Agent;
use crate::reply::{Body, Refusal, Response};
use crate::route::{Request, configured};

/// When no `timeout_s` is given (`spec/data-plane.md` §11.2).
const DEFAULT_LIMIT: Duration = Duration::from_secs(3600);
/// §4; clients give up after `timeout_s` + 5 s without a byte.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A client that takes nothing for so long is treated as gone, or its command would never be done reporting.
const STALLED: Duration = Duration::from_secs(300);
/// Events waiting for a slow client, each up to 32 KiB of text; then the command itself has to wait.
const WAITING_EVENTS: usize = 2;

pub(crate) async fn stream(agent: &Rc<Agent>, request: Request) -> Result<Response, Refusal> {
    let config = configured(agent)?;
    let request = parse(request).await?;
    let limit = time_limit(&request, DEFAULT_LIMIT);
    let started = launch(agent, &config, Launch::plain(&request, SessionKind::Stream, limit)?).await;
    let (sender, receiver) = mpsc::channel(WAITING_EVENTS);
    let mut id = None;
    match started {
        Ok(run) => {
            id = Some(run.session().id.clone());
            agent.spawn(report(run, Client { sender: Some(sender) }));
        }
        Err(refusal) => {
            let code = if refusal.status.is_client_error() { "bad_request" } else { "exec_failed" };
            // The channel is new and has room.
            let _ = sender.try_send(record(&could_not_run(refusal.message, code)));
        }
    }
    let events = stream::unfold(receiver, |mut receiver| async move {
        let event: Bytes = receiver.recv().await?;
        Some((Ok(Frame::data(event)), receiver))
    });
    let mut response = Response::new(Box::pin(StreamBody::new(events)) as Body);
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONNECTION, "keep-alive"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if let Some(id) = id {
        name(&mut response, &id);
    }
    Ok(response)
}

async fn report(mut run: Run, mut client: Client) {
    let mut decoders = [Decoder::default(), Decoder::default()];
    let mut silent_since = Instant::now();
    loop {
        let piece = {
            let mut next = pin!(run.next());
            loop {
                tokio::select! {
                    piece = &mut next => break piece,
                    () = sleep_until(silent_since + KEEP_ALIVE) => {
                        client.keep_alive();
                        silent_since = Instant::now();
                    }
                }
            }
        };
        let last = match piece {
            Piece::Output(channel, bytes) => {
                let text = decoders[channel as usize].push(bytes);
                if !text.is_empty() {
                    client.send(&mut run, output(channel, text)).await;
                    silent_since = Instant::now();
                }
                continue;
            }
            Piece::Ended(end) => {
                for channel in [Channel::Stdout, Channel::Stderr] {
                    let mut rest = decoders[channel as usize].finish();
                    if let (Channel::Stderr, Some(note)) = (channel, &end.note) {
                        rest.push_str(note);
                    }
                    if !rest.is_empty() {
                        client.send(&mut run, output(channel, rest)).await;
                    }
                }
                StreamEvent {
                    timestamp: now(),
                    exit_code: Some(end.code),
                    finished: true,
                    ..StreamEvent::default()
                }
            }
            Piece::Failed(failure) => {
                let (message, code) = failure.told();
                could_not_run(message, code)
            }
        };
        client.send(&mut run, last).await;
        return;
    }
}

/// The one who listens, as long as he does.
struct Client {
    sender: Option<mpsc::Sender<Bytes>>,
}

impl Client {
    /// Waits for a slow client, which makes the command wait; its time limit holds meanwhile.
    async fn send(&mut self, run: &mut Run, event: StreamEvent) {
        let stalled = Instant::now() + STALLED;
        while let Some(sender) = self.sender.clone() {
            let step = run.next_step().filter(|step| *step < stalled);
            tokio::select! {
                place = sender.reserve() => match place {
                    Ok(place) => {
                        place.send(record(&event));
                        return;
                    }
                    Err(_) => self.sender = None,
                },
                () = run.session().until_kill_wanted(), if step.is_some() => run.cut().await,
                () = sleep_until(step.unwrap_or(stalled)) => {
                    if step.is_none() {
                        self.sender = None;
                    } else if run.count() {
                        run.cut().await;
                    }
                }
            }
        }
    }

    /// Only into a free place: behind waiting events the connection is not silent.
    fn keep_alive(&self) {
        if let Some(sender) = &self.sender {
            let _ = sender.try_send(Bytes::from_static(b": keepalive\n\n"));
        }
    }
}

fn output(channel: Channel, text: String) -> StreamEvent {
    let (stdout, stderr) = match channel {
        Channel::Stdout => (Some(text), None),
        Channel::Stderr => (None, Some(text)),
    };
    StreamEvent { timestamp: now(), stdout, stderr, ..StreamEvent::default() }
}

fn could_not_run(message: String, code: &str) -> StreamEvent {
    StreamEvent {
        error: Some(message),
        code: Some(code.to_owned()),
        finished: true,
        ..StreamEvent::default()
    }
}

fn now() -> Option<String> {
    Some(jiff::Timestamp::now().to_string())
}

fn record(event: &StreamEvent) -> Bytes {
    let mut text = b"data: ".to_vec();
    // Our own struct of strings and numbers: this cannot fail.
    let _ = serde_json::to_writer(&mut text, event);
    text.extend_from_slice(b"\n\n");
    text.into()
}
