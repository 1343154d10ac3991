//! Sessions against a server that does exactly what each test says, connection by connection.

use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientConfig, ClientError, ExecRequest, SessionEvent, SessionEvents, TtySize};
use domain::Secret;
use futures_util::{SinkExt, StreamExt};
use http::{HeaderValue, StatusCode};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use crate::platform::{ID, KEY, Platform, error, sandbox};

/// Far more than loopback needs.
const LIMIT: Duration = Duration::from_secs(10);
const PROTOCOL: &str = "superserve.exec.v1";

/// A data plane that takes one connection at a time.
struct Guest {
    listener: TcpListener,
    control: Platform,
    client: Client,
}

/// One WebSocket, from the guest's side.
struct Wire {
    uri: String,
    token: String,
    socket: WebSocketStream<TcpStream>,
}

impl Guest {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let control = Platform::start().await;
        control.activates();
        let config = ClientConfig {
            data_plane: Some(format!("http://{}", listener.local_addr().unwrap())),
            ..ClientConfig::new(&control.url, Secret::new(KEY))
        };
        Self { listener, control, client: Client::new(config).unwrap() }
    }

    fn running(&self) {
        self.control.on(&format!("GET /sandboxes/{ID}"), 200, &sandbox("active", ""));
    }

    async fn accept(&self) -> Wire {
        self.handshake(None).await.unwrap()
    }

    /// Refuses one connection with this status.
    async fn refuse(&self, status: u16, code: &str) {
        assert!(self.handshake(Some((status, code))).await.is_none());
    }

    // The type of a refusal is the library's.
    #[expect(clippy::result_large_err, reason = "the callback's signature is given")]
    async fn handshake(&self, refusal: Option<(u16, &str)>) -> Option<Wire> {
        let (stream, _) = tokio::time::timeout(LIMIT, self.listener.accept()).await.unwrap().unwrap();
        let (mut uri, mut token) = (String::new(), String::new());
        let callback = |request: &Request, mut response: Response| {
            let header = |name: &str| request.headers()[name].to_str().unwrap().to_owned();
            uri = request.uri().to_string();
            token = header("x-access-token");
            assert_eq!(
                (header("x-superserve-sandbox-id"), header("sec-websocket-protocol")),
                (ID.into(), PROTOCOL.into())
            );
            if let Some((status, code)) = refusal {
                let mut refused = ErrorResponse::new(Some(error(code, code)));
                *refused.status_mut() = StatusCode::from_u16(status).unwrap();
                return Err(refused);
            }
            response.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(PROTOCOL));
            response.headers_mut().insert("x-superserve-session-id", HeaderValue::from_static("s1"));
            Ok(response)
        };
        let socket = tokio_tungstenite::accept_hdr_async(stream, callback).await.ok()?;
        Some(Wire { uri, token, socket })
    }

    async fn session(&self, tty: Option<TtySize>) -> (client::Session, Wire) {
        let command = ExecRequest { command: "run".to_owned(), ..ExecRequest::default() };
        let (session, mut wire) =
            tokio::join!(async { self.client.start_session(ID, command, tty).await.unwrap() }, self.accept());
        assert_eq!(wire.uri, "/exec/connect");
        let tty = tty.map_or(String::new(), |TtySize { cols, rows }| {
            format!(r#","tty":{{"cols":{cols},"rows":{rows}}}"#)
        });
        assert_eq!(wire.text().await, format!(r#"{{"command":"run"{tty}}}"#));
        (session, wire)
    }

    /// The next connection, which must ask for this offset.
    async fn attached(&self, offset: u64, answer: &str) -> Wire {
        let mut wire = self.accept().await;
        assert_eq!(wire.uri, format!("/exec/sessions/s1/attach?offset={offset}"));
        wire.say(answer).await;
        let taken: serde_json::Value = serde_json::from_str(answer).unwrap();
        wire.say(&format!(r#"{{"type":"stdin","offset":{}}}"#, taken["stdin_offset"])).await;
        wire
    }
}

impl Wire {
    /// The next frame that is no acknowledgement.
    async fn frame(&mut self) -> Message {
        loop {
            let frame = tokio::time::timeout(LIMIT, self.socket.next()).await.expect("a frame in time");
            match frame.unwrap().unwrap() {
                Message::Text(text) if text.contains(r#""ack""#) => {}
                Message::Ping(_) | Message::Pong(_) => {}
                frame => return frame,
            }
        }
    }

    async fn text(&mut self) -> String {
        self.frame().await.into_text().unwrap().to_string()
    }

    /// Standard input until there are so many bytes.
    async fn stdin(&mut self, length: usize) -> Vec<u8> {
        let mut input = Vec::new();
        while input.len() < length {
            let frame = self.frame().await.into_data();
            assert_eq!(frame[0], 0);
            input.extend_from_slice(&frame[1..]);
        }
        input
    }

    async fn say(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    async fn write(&mut self, channel: u8, bytes: &[u8]) {
        let frame: Vec<u8> = std::iter::once(channel).chain(bytes.iter().copied()).collect();
        self.socket.send(Message::binary(frame)).await.unwrap();
    }

    async fn close(&mut self, code: u16) {
        let frame = CloseFrame { code: code.into(), reason: "because".into() };
        self.socket.send(Message::Close(Some(frame))).await.unwrap();
    }
}

async fn next(events: &mut SessionEvents) -> Result<SessionEvent, ClientError> {
    tokio::time::timeout(LIMIT, events.next()).await.expect("an event in time").expect("an event")
}

async fn expect(events: &mut SessionEvents, expected: SessionEvent) {
    assert_eq!(next(events).await.unwrap(), expected);
}

fn out(text: &'static str) -> SessionEvent {
    SessionEvent::Stdout(Bytes::from(text))
}

#[tokio::test]
async fn everything_goes_both_ways_in_order() {
    let guest = Guest::start().await;
    let (session, mut wire) = guest.session(None).await;
    assert_eq!((session.id(), session.tty(), wire.token.as_str()), (Some("s1"), false, "t1"));
    let (input, mut events) = session.split();
    wire.write(1, b"out").await;
    wire.write(2, b"err").await;
    wire.write(9, b"a later channel").await;
    wire.say(r#"{"type":"of a later server"}"#).await;
    input.write(Bytes::from("abc")).await;
    assert_eq!(wire.stdin(3).await, b"abc");
    input.signal("INT").await;
    assert_eq!(wire.text().await, r#"{"type":"signal","name":"INT"}"#);
    input.close().await;
    assert_eq!(wire.text().await, r#"{"type":"stdin_close"}"#);
    wire.say(r#"{"exit_code":7,"finished":true}"#).await;
    expect(&mut events, out("out")).await;
    expect(&mut events, SessionEvent::Stderr(Bytes::from("err"))).await;
    expect(&mut events, SessionEvent::Exit(7)).await;
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn a_broken_connection_loses_and_repeats_nothing() {
    let guest = Guest::start().await;
    guest.running();
    let size = TtySize { cols: 100, rows: 30 };
    let (session, mut wire) = guest.session(Some(size)).await;
    let (input, mut events) = session.split();
    input.write(Bytes::from("abcdef")).await;
    assert_eq!(wire.stdin(6).await, b"abcdef");
    wire.write(1, b"12345").await;
    expect(&mut events, out("12345")).await;
    drop(wire);
    expect(&mut events, SessionEvent::Reconnecting { attempt: 1, of: 10 }).await;
    // Written while there is no connection.
    input.write(Bytes::from("gh")).await;
    let answer = r#"{"type":"attached","session_id":"s1","offset":5,"lost":0,"next_offset":7,"tty":true,"stdin_offset":4}"#;
    let mut wire = guest.attached(5, answer).await;
    wire.write(1, b"67").await;
    assert_eq!(wire.text().await, r#"{"type":"resize","cols":100,"rows":30}"#);
    assert_eq!(wire.stdin(4).await, b"efgh");
    expect(&mut events, SessionEvent::Reconnected { lost: 0, input_unsure: false }).await;
    expect(&mut events, out("67")).await;
    input.resize(TtySize { cols: 1, rows: 2 });
    assert_eq!(wire.text().await, r#"{"type":"resize","cols":1,"rows":2}"#);
    // Says that output went by while nobody was there.
    wire.close(1001).await;
    drop(wire);
    expect(&mut events, SessionEvent::Reconnecting { attempt: 1, of: 10 }).await;
    let answer = r#"{"type":"attached","session_id":"s1","offset":10,"lost":3,"next_offset":10,"tty":true,"stdin_offset":8}"#;
    let mut wire = guest.attached(7, answer).await;
    wire.say(r#"{"exit_code":0,"finished":true}"#).await;
    expect(&mut events, SessionEvent::Reconnected { lost: 3, input_unsure: false }).await;
    expect(&mut events, SessionEvent::Exit(0)).await;
}

#[tokio::test]
async fn a_stale_token_and_a_paused_sandbox_are_healed_at_the_start() {
    let guest = Guest::start().await;
    let command = ExecRequest { command: "run".to_owned(), ..ExecRequest::default() };
    let (session, token) = tokio::join!(guest.client.start_session(ID, command, None), async {
        guest.refuse(503, "sandbox_unavailable").await;
        guest.accept().await.token
    });
    session.unwrap();
    assert_eq!(token, "t2");
}

#[tokio::test]
async fn what_cannot_run_says_why() {
    let guest = Guest::start().await;
    let (session, mut wire) = guest.session(None).await;
    let (_input, mut events) = session.split();
    wire.say(r#"{"error":"no such directory","code":"bad_request","finished":true}"#).await;
    let refused = next(&mut events).await.unwrap_err();
    assert_eq!((refused.status(), refused.to_string().as_str()), (Some(400), "no such directory"));
    assert!(events.next().await.is_none());
    let empty = guest.client.start_session(ID, ExecRequest::default(), None).await;
    assert!(matches!(empty, Err(ClientError::Invalid { field: "command", .. })));
    let odd = guest.client.kill_session(ID, "../x").await;
    assert!(matches!(odd, Err(ClientError::Invalid { field: "session id", .. })));
}

#[tokio::test]
async fn a_session_that_is_gone_or_taken_over_ends() {
    let guest = Guest::start().await;
    guest.running();
    let (session, wire) = guest.session(None).await;
    let (_input, mut events) = session.split();
    drop(wire);
    expect(&mut events, SessionEvent::Reconnecting { attempt: 1, of: 10 }).await;
    guest.refuse(404, "not_found").await;
    assert_eq!(next(&mut events).await.unwrap_err().status(), Some(404));
    assert!(events.next().await.is_none());

    let (session, mut wire) = guest.session(None).await;
    let (_input, mut events) = session.split();
    wire.close(4001).await;
    expect(&mut events, SessionEvent::TakenOver).await;
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn only_input_wakes_a_sandbox_that_was_paused() {
    let guest = Guest::start().await;
    guest.control.on(&format!("GET /sandboxes/{ID}"), 200, &sandbox("paused", ""));
    let (session, wire) = guest.session(None).await;
    let (input, mut events) = session.split();
    drop(wire);
    expect(&mut events, SessionEvent::Reconnecting { attempt: 1, of: 10 }).await;
    expect(&mut events, SessionEvent::Paused).await;
    let activations = || guest.control.lines().iter().filter(|line| line.ends_with("/activate")).count();
    assert_eq!(activations(), 1, "for the start only");
    input.write(Bytes::from("x")).await;
    guest.refuse(503, "sandbox_unavailable").await;
    let answer = r#"{"type":"attached","session_id":"s1","offset":0,"lost":0,"next_offset":0,"tty":false,"stdin_offset":0}"#;
    let mut wire = guest.attached(0, answer).await;
    assert_eq!(activations(), 2);
    assert_eq!(wire.stdin(1).await, b"x");
}

#[tokio::test]
async fn output_is_acknowledged_and_held_back_for_slow_readers() {
    let guest = Guest::start().await;
    let (session, wire) = guest.session(None).await;
    let (_input, mut events) = session.split();
    let (mut sink, mut stream) = wire.socket.split();
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = std::sync::Arc::clone(&sent);
    let sender = tokio::spawn(async move {
        let piece = vec![1; 32 * 1024 + 1];
        loop {
            if sink.send(Message::binary(piece.clone())).await.is_err() {
                return;
            }
            counter.fetch_add(32 * 1024, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let now = || sent.load(std::sync::atomic::Ordering::Relaxed);
    // Nobody reads events, so what is on its way stays what the buffers hold.
    let mut before = usize::MAX;
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        if std::mem::replace(&mut before, now()) == now() {
            break;
        }
    }
    assert!(before > 0 && before < 64 * 1024 * 1024, "{before}");
    let mut taken = 0;
    while taken < 2 * before.max(1024 * 1024) {
        let SessionEvent::Stdout(piece) = next(&mut events).await.unwrap() else { panic!() };
        taken += piece.len();
    }
    let mut acknowledged = Vec::new();
    while acknowledged.len() < 4 {
        let frame = tokio::time::timeout(LIMIT, stream.next()).await.unwrap().unwrap().unwrap();
        let text: serde_json::Value = serde_json::from_str(frame.to_text().unwrap()).unwrap();
        assert_eq!(text["type"], "ack");
        acknowledged.push(text["offset"].as_u64().unwrap());
    }
    assert_eq!(acknowledged[0], 0);
    assert!(acknowledged.windows(2).all(|pair| pair[1] - pair[0] == 32 * 1024), "{acknowledged:?}");
    sender.abort();
}

#[tokio::test]
async fn input_waits_for_a_command_that_does_not_read() {
    let guest = Guest::start().await;
    let (session, mut wire) = guest.session(None).await;
    let (input, _events) = session.split();
    let mut written = 0_usize;
    let piece = Bytes::from(vec![7; 64 * 1024]);
    while tokio::time::timeout(Duration::from_millis(500), input.write(piece.clone())).await.is_ok() {
        written += piece.len();
        assert!(written < 8 * 1024 * 1024, "input is taken without end");
    }
    // As much as a server takes for a command that does not read, in pieces of the usual size.
    assert_eq!(wire.stdin(128 * 1024).await.len(), 128 * 1024);
    let more = tokio::time::timeout(Duration::from_millis(300), wire.frame()).await;
    assert!(more.is_err(), "{more:?}");
    wire.say(r#"{"type":"stdin","offset":100000}"#).await;
    assert_eq!(wire.stdin(100_000).await.len(), 100_000);
    tokio::time::timeout(LIMIT, input.write(piece)).await.expect("there is room again");
}
