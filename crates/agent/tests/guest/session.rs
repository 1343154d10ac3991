//! `/exec/connect`, `/terminal` and what can be done with sessions, with a real WebSocket client.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocket};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::harness::{Agent, agent, alive, below, peak_kib, wait_for};

const EXEC: &str = "superserve.exec.v1";
const TERMINAL: &str = "superserve.terminal.v1";

/// A client of one conversation.
struct Client {
    socket: WebSocket<UnixStream>,
    id: String,
    /// Bytes of output that came.
    got: u64,
}

/// All that came until the end.
#[derive(Debug, Default)]
struct Heard {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    end: Value,
    close: Option<(u16, String)>,
}

impl Heard {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl Client {
    fn open(agent: &Agent, path: &str, subprotocols: &str) -> Self {
        Self::try_open(agent, path, subprotocols).expect("an upgrade")
    }

    fn try_open(agent: &Agent, path: &str, subprotocols: &str) -> Result<Self, u16> {
        let mut request =
            tungstenite::client::IntoClientRequest::into_client_request(format!("ws://agent{path}")).unwrap();
        request.headers_mut().insert("sec-websocket-protocol", subprotocols.parse().unwrap());
        match tungstenite::client(request, agent.connect()) {
            Ok((socket, response)) => {
                assert_eq!(
                    response.headers()["sec-websocket-protocol"],
                    subprotocols.split(',').next().unwrap().trim()
                );
                let id = response.headers().get("x-superserve-session-id");
                let id = id.map_or(String::new(), |id| id.to_str().unwrap().to_owned());
                Ok(Self { socket, id, got: 0 })
            }
            Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) => {
                Err(response.status().as_u16())
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    fn start(agent: &Agent, start: &Value) -> Self {
        let mut client = Self::open(agent, "/exec/connect", EXEC);
        client.text(start);
        client
    }

    fn run(agent: &Agent, command: &str) -> Self {
        Self::start(agent, &json!({"command": command}))
    }

    fn attach(agent: &Agent, id: &str, offset: u64) -> (Self, Value) {
        let mut client = Self::open(agent, &format!("/exec/sessions/{id}/attach?offset={offset}"), EXEC);
        let hello: Value = match client.socket.read().unwrap() {
            Message::Text(text) => serde_json::from_str(text.as_str()).unwrap(),
            other => panic!("{other:?}"),
        };
        client.got = hello["offset"].as_u64().unwrap();
        client.id = id.to_owned();
        (client, hello)
    }

    fn text(&mut self, value: &Value) {
        self.socket.send(Message::text(value.to_string())).unwrap();
    }

    fn stdin(&mut self, bytes: &[u8]) {
        self.socket.send(Message::binary([&[0], bytes].concat())).unwrap();
    }

    fn signal(&mut self, name: &str) {
        self.text(&json!({"type": "signal", "name": name}));
    }

    /// Reads until the output holds a text.
    fn until(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.socket.read().unwrap() {
                Message::Binary(bytes) => {
                    assert!(bytes.len() <= 32 * 1024 + 1);
                    self.got += bytes.len() as u64 - 1;
                    seen.extend_from_slice(&bytes[1..]);
                }
                Message::Ping(_) | Message::Pong(_) => {}
                Message::Text(text) if text.starts_with(r#"{"type":"stdin""#) => {}
                other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&seen)),
            }
            let seen = String::from_utf8_lossy(&seen);
            if seen.contains(text) {
                return seen.into_owned();
            }
        }
    }

    /// Reads everything to the close.
    fn finish(mut self) -> Heard {
        let mut heard = Heard::default();
        loop {
            match self.socket.read() {
                Ok(Message::Binary(bytes)) => {
                    assert!(heard.end.is_null(), "output after the end");
                    match bytes[0] {
                        1 => heard.stdout.extend_from_slice(&bytes[1..]),
                        2 => heard.stderr.extend_from_slice(&bytes[1..]),
                        other => panic!("channel {other}"),
                    }
                }
                Ok(Message::Text(text)) => {
                    assert!(heard.end.is_null(), "told twice");
                    heard.end = serde_json::from_str(text.as_str()).unwrap();
                }
                Ok(Message::Close(frame)) => {
                    heard.close = frame.map(|frame| (frame.code.into(), frame.reason.to_string()));
                }
                Ok(_) => {}
                Err(tungstenite::Error::ConnectionClosed) => return heard,
                Err(error) => panic!("{error}: {heard:?}"),
            }
        }
    }

    /// Goes without a word.
    fn drop_connection(self) {
        self.socket.get_ref().shutdown(std::net::Shutdown::Both).unwrap();
    }

    fn close(mut self, code: u16) {
        let frame = CloseFrame { code: code.into(), reason: "".into() };
        self.socket.close(Some(frame)).unwrap();
        while self.socket.read().is_ok() {}
    }
}

fn exited(code: i32) -> Value {
    json!({"exit_code": code, "finished": true})
}

fn normal() -> Option<(u16, String)> {
    Some((1000, "command exited".to_owned()))
}

fn sessions(agent: &Agent) -> Vec<Value> {
    agent.get("/exec/sessions").json()["sessions"].as_array().unwrap().clone()
}

fn session(agent: &Agent, id: &str) -> Value {
    sessions(agent).into_iter().find(|session| session["id"] == id).unwrap_or(Value::Null)
}

fn gone(pid: &str) {
    let pid = pid.to_owned();
    wait_for(|| (!alive(&pid)).then_some(()));
}

#[test]
fn a_command_from_start_to_end() {
    let agent = agent();
    let mut client = Client::start(
        &agent,
        &json!({"command": "read a; echo \"$a $B\"; pwd; echo err >&2; cat; exit 7", "env": {"B": "b"},
                "working_dir": "/tmp", "unknown": 1}),
    );
    assert_eq!(client.id.len(), 16);
    client.stdin(b"hel");
    client.socket.send(Message::text("{nonsense")).unwrap();
    client.text(&json!({"type": "dance"}));
    client.socket.send(Message::binary(vec![9, 9])).unwrap();
    client.socket.send(Message::binary(vec![])).unwrap();
    client.stdin(b"lo\nrest");
    client.text(&json!({"type": "stdin_close"}));
    let heard = client.finish();
    assert_eq!(heard.text(), "hello b\n/tmp\nrest");
    assert_eq!(heard.stderr, b"err\n");
    assert_eq!((heard.end, heard.close), (exited(7), normal()));
}

#[test]
fn arguments_without_a_shell() {
    let agent = agent();
    let heard =
        Client::start(&agent, &json!({"command": "printf", "args": ["%s|", "a b", "$HOME"]})).finish();
    assert_eq!((heard.text().as_str(), heard.end), ("a b|$HOME|", exited(0)));
}

#[test]
fn refused_starts() {
    let agent = agent();
    let code = |client: Client| client.finish().close.unwrap().0;
    let mut client = Client::open(&agent, "/exec/connect", EXEC);
    client.stdin(b"x");
    assert_eq!(code(client), 1003);
    for start in [json!({"command": ""}), json!({"cmd": "true"}), json!([1]), json!({"command": 5})] {
        assert_eq!(code(Client::start(&agent, &start)), 1008, "{start}");
    }
    for (start, expected) in [
        (json!({"command": "true", "working_dir": "/no/such"}), "bad_request"),
        (json!({"command": "no-such-program", "args": []}), "bad_request"),
        (json!({"command": "a\u{0}b"}), "bad_request"),
    ] {
        let heard = Client::start(&agent, &start).finish();
        assert_eq!((&heard.end["code"], heard.close.unwrap().0), (&json!(expected), 1011), "{start}");
        assert!(!heard.end["error"].as_str().unwrap().is_empty());
        assert_eq!(heard.end["finished"], true);
    }
    let mut client = Client::open(&agent, "/exec/connect", EXEC);
    let begun = Instant::now();
    client.socket.send(Message::Ping(vec![1].into())).unwrap();
    let heard = client.finish();
    assert_eq!(heard.close, Some((1008, "expected start message".to_owned())));
    assert!((9..13).contains(&begun.elapsed().as_secs()));
    assert_eq!(agent.get("/exec/connect").status, 426);
    assert_eq!(Client::try_open(&agent, "/exec/connect", "other.v1").err(), Some(400));
    assert_eq!(sessions(&agent).len(), 2, "those that got as far as a process");
}

#[test]
fn only_the_right_subprotocol_is_answered() {
    let agent = agent();
    let client = Client::open(&agent, "/exec/connect", "superserve.exec.v1, something.else");
    client.close(1000);
}

#[test]
fn frames_have_a_limit() {
    let agent = agent();
    let mut client = Client::run(&agent, "wc -c");
    client.stdin(&vec![b'x'; 4 * 1024 * 1024 - 1]);
    client.text(&json!({"type": "stdin_close"}));
    assert_eq!(client.finish().text().trim(), "4194303");
    let mut client = Client::run(&agent, "cat");
    let id = client.id.clone();
    // The answer may come before all of it is gone.
    let _ = client.socket.send(Message::binary(vec![0; 4 * 1024 * 1024 + 1]));
    assert_eq!(client.finish().close.unwrap().0, 1009);
    assert_eq!(session(&agent, &id)["exit_code"], Value::Null, "its command is not to blame");
}

#[test]
fn large_frames_of_many_clients_do_not_add_up() {
    let agent = agent();
    // Commands that do not read: their input stays where it is.
    let mut clients: Vec<_> = (0..40).map(|_| Client::run(&agent, "sleep 610")).collect();
    let large = vec![0; 4 * 1024 * 1024];
    for client in &mut clients {
        client.socket.get_ref().set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        let _ = client.socket.send(Message::binary(large.clone()));
    }
    assert!(peak_kib(agent.pid()) < 60 * 1024, "{} KiB", peak_kib(agent.pid()));
    let mut other = Client::run(&agent, "cat");
    other.stdin(b"small\n");
    other.until("small");
    for one in sessions(&agent) {
        let id = one["id"].as_str().unwrap();
        assert_eq!(agent.send("DELETE", &format!("/exec/sessions/{id}"), b"").status, 204);
    }
    let mut next = Client::run(&agent, "wc -c");
    next.stdin(&large[1..]);
    next.text(&json!({"type": "stdin_close"}));
    assert_eq!(next.finish().text().trim(), "4194303");
}

#[test]
fn a_terminal_belongs_to_its_user() {
    let agent = agent();
    let config = json!({"user": "54321:54322", "workdir": "/tmp", "template_env": {"TERM": "vt100", "A": "t"},
                        "env": {"A": "s", "B": "s"}});
    assert_eq!(agent.send("PUT", "/_agent/config", config.to_string().as_bytes()).status, 204);
    let start = json!({"command": "stat -c %u $(tty); id -u; id -G; echo $TERM $A $B $C; umask; pwd; echo > $(tty)",
                       "env": {"B": "c", "C": "c"}, "tty": {"cols": 80, "rows": 24}});
    let heard = Client::start(&agent, &start).finish();
    assert_eq!(heard.text().replace("\r\n", "\n"), "54321\n54321\n54322\nvt100 s c c\n0022\n/tmp\n\n");
    let start = json!({"command": "id -u; tty; echo $TERM", "env": {"TERM": ""}});
    let mut client = Client::start(&agent, &start);
    client.text(&json!({"type": "stdin_close"}));
    assert_eq!(client.finish().text(), "54321\nnot a tty\n\n");
}

#[test]
fn every_signal_reaches_the_group() {
    let agent = agent();
    for (name, code) in [("SIGTERM", 143), ("INT", 130), ("SIGKILL", 137), ("SIGUSR1", 138), ("sigxfsz", 153)]
    {
        let mut client = Client::run(&agent, "sleep 60 & sleep 60; wait");
        client.signal("SIGNOSUCH");
        client.signal(name);
        assert_eq!(client.finish().end, exited(code), "{name}");
    }
    let mut client =
        Client::run(&agent, "trap 'echo caught; exit 5' USR2; echo ready; while :; do sleep 0.05; done");
    client.until("ready");
    client.signal("USR2");
    let heard = client.finish();
    assert_eq!((heard.text().as_str(), heard.end), ("caught\n", exited(5)));
}

#[test]
fn time_limit() {
    let heard =
        Client::start(&agent(), &json!({"command": "echo a; exec sleep 60", "timeout_s": 1})).finish();
    assert_eq!((heard.text().as_str(), heard.end, heard.close), ("a\n", exited(124), normal()));
}

#[test]
fn ten_mebibytes_through_cat() {
    let agent = agent();
    let sent: Vec<u8> = (0..10 * 1024 * 1024u32).map(|n| (n * 31 % 251) as u8).collect();
    let mut client = Client::run(&agent, "cat");
    let reader = client.socket.get_ref().try_clone().unwrap();
    let mut speaking = WebSocket::from_raw_socket(reader, tungstenite::protocol::Role::Client, None);
    let bytes = sent.clone();
    let writer = std::thread::spawn(move || {
        for chunk in bytes.chunks(32 * 1024) {
            speaking.send(Message::binary([&[0], chunk].concat())).unwrap();
        }
        speaking.send(Message::text(json!({"type": "stdin_close"}).to_string())).unwrap();
        std::mem::forget(speaking);
    });
    client.socket.get_mut().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let heard = client.finish();
    writer.join().unwrap();
    assert_eq!(heard.end, exited(0));
    assert!(heard.stdout == sent, "{} bytes came back", heard.stdout.len());
    assert!(peak_kib(agent.pid()) < 20 * 1024, "{} KiB", peak_kib(agent.pid()));
}

#[test]
fn a_broken_connection_loses_nothing() {
    let agent = agent();
    let command =
        "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo err >&2; read x; echo $x";
    let mut client = Client::run(&agent, command);
    let mut text = client.until("line 100\n");
    let (id, got) = (client.id.clone(), client.got);
    client.drop_connection();
    wait_for(|| (session(&agent, &id)["attached"] == false).then_some(()));
    let (mut client, hello) = Client::attach(&agent, &id, got);
    assert_eq!((hello["offset"].as_u64(), hello["lost"].as_u64()), (Some(got), Some(0)));
    assert_eq!((&hello["type"], &hello["tty"]), (&json!("attached"), &json!(false)));
    text += &client.until("line 19999\n");
    client.stdin(b"typed\n");
    let heard = client.finish();
    let expected: String = (0..20000).map(|n| format!("line {n}\n")).collect();
    text += &heard.text();
    let text = text.replace("err\n", "");
    assert_eq!(text.len(), expected.len() + 6);
    assert!(text == expected + "typed\n");
    assert_eq!((heard.end, heard.close), (exited(0), normal()));

    // And afterwards it can be read again, the end included.
    let ended = session(&agent, &id);
    assert_eq!((&ended["exit_code"], &ended["attached"]), (&json!(0), &json!(false)));
    let heard = Client::attach(&agent, &id, 0).0.finish();
    assert!(heard.text().ends_with("typed\n"));
    assert_eq!((heard.stderr, heard.end), (b"err\n".to_vec(), exited(0)));
}

#[test]
fn a_flood_waits_for_a_slow_reader_and_is_bounded_without_one() {
    let agent = agent();
    let mut client = Client::run(&agent, "yes | head -c 30000000; echo done > done");
    client.until("y\n");
    std::thread::sleep(Duration::from_secs(1));
    let info = session(&agent, &client.id);
    let kept = info["next_offset"].as_u64().unwrap() - info["first_offset"].as_u64().unwrap();
    assert!(kept <= 1024 * 1024, "{info}");
    assert!(info["next_offset"].as_u64().unwrap() < 5_000_000, "the command waits: {info}");
    let other = Instant::now();
    assert_eq!(agent.run("echo hi").stdout, "hi\n");
    assert!(other.elapsed() < Duration::from_secs(2), "nobody else waits");
    let (id, got) = (client.id.clone(), client.got);
    client.drop_connection();
    // What was on its way to the client is still there, as it was less than is kept.
    let (client, hello) = Client::attach(&agent, &id, got);
    assert_eq!(hello["lost"], 0, "{hello}");
    let heard = client.finish();
    assert_eq!(heard.stdout.len() as u64 + got, 30_000_000);
    assert_eq!(heard.end, exited(0));
    assert!(peak_kib(agent.pid()) < 24 * 1024, "{} KiB", peak_kib(agent.pid()));
}

#[test]
fn acknowledged_output_is_never_overwritten() {
    let agent = agent();
    let mut client = Client::run(&agent, "yes | head -c 5000000");
    client.text(&json!({"type": "ack", "offset": 0}));
    client.until("y\n");
    // Taking everything without acknowledging it.
    let until = Instant::now() + Duration::from_secs(2);
    client.socket.get_ref().set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    while Instant::now() < until && client.socket.read().is_ok() {}
    assert_eq!(session(&agent, &client.id)["first_offset"], 0);
    let id = client.id.clone();
    client.drop_connection();
    let (client, hello) = Client::attach(&agent, &id, 0);
    assert_eq!(hello["lost"], 0);
    assert_eq!(client.finish().stdout.len(), 5_000_000);
}

#[test]
fn who_acknowledges_is_told_what_the_command_was_given() {
    let agent = agent();
    let mut client = Client::run(&agent, "head -c 100000 >/dev/null; sleep 600");
    let told = |client: &mut Client| {
        let news: Value = match client.socket.read().unwrap() {
            Message::Text(text) => serde_json::from_str(text.as_str()).unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(news["type"], "stdin");
        news["offset"].as_u64().unwrap()
    };
    client.text(&json!({"type": "ack", "offset": 0}));
    assert_eq!(told(&mut client), 0);
    client.stdin(b"ten bytes\n");
    assert_eq!(told(&mut client), 10);
    // What it does not read is taken all the same, and acknowledgements with it.
    for _ in 0..8 {
        client.stdin(&[7; 32 * 1024]);
    }
    while told(&mut client) < 100_000 {}
    client.socket.send(Message::Ping(Default::default())).unwrap();
    while !matches!(client.socket.read().unwrap(), Message::Pong(_)) {}
    let (mut back, hello) = Client::attach(&agent, &client.id.clone(), 0);
    assert_eq!(hello["stdin_offset"], 10 + 8 * 32 * 1024);
    back.text(&json!({"type": "ack", "offset": 0}));
    assert!(
        (100_000..10 + 8 * 32 * 1024).contains(&told(&mut back)),
        "it is not given what it does not read"
    );
}

#[test]
fn closing_ends_the_command_and_going_away_does_not() {
    let agent = agent();
    let mut polite = Client::run(&agent, "echo $$; exec sleep 600");
    let pid = polite.until("\n");
    polite.close(1000);
    gone(&pid);

    let mut stubborn = Client::run(&agent, "trap '' TERM; sleep 600 & echo $$; while :; do sleep 1; done");
    let id = stubborn.id.clone();
    let pid = stubborn.until("\n");
    // As the official client does it.
    stubborn.signal("SIGTERM");
    stubborn.close(1000);
    assert!(alive(&pid), "it gets time");
    wait_for(|| (session(&agent, &id)["exit_code"] == 137).then_some(()));
    gone(&pid);

    let mut left = Client::run(&agent, "echo $$; read x; echo got $x");
    let id = left.id.clone();
    let pid = left.until("\n");
    left.close(1001);
    assert!(alive(&pid));
    let (mut back, _) = Client::attach(&agent, &id, 0);
    back.stdin(b"in");
    back.drop_connection();
    wait_for(|| (session(&agent, &id)["attached"] == false).then_some(()));
    let (mut back, hello) = Client::attach(&agent, &id, 0);
    // What was taken before the end of the connection is known, and the rest can be sent again.
    let taken = usize::try_from(hello["stdin_offset"].as_u64().unwrap()).unwrap();
    assert!(taken == 0 || taken == 2);
    back.stdin(&b"input\n"[taken..]);
    assert!(back.finish().text().ends_with("got input\n"));
}

#[test]
fn a_newer_connection_takes_over() {
    let agent = agent();
    let mut first = Client::run(&agent, "echo one; read x; echo $x");
    first.until("one\n");
    let (mut second, hello) = Client::attach(&agent, &first.id, 0);
    assert_eq!((&hello["next_offset"], &hello["stdin_offset"]), (&json!(4), &json!(0)));
    assert_eq!(first.finish().close, Some((4001, "session taken over".to_owned())));
    second.stdin(b"two\n");
    assert_eq!(second.finish().text(), "one\ntwo\n");
}

#[test]
fn a_session_is_ended_by_its_id() {
    let agent = agent();
    let mut client =
        Client::run(&agent, "trap '' TERM HUP INT; setsid sleep 601 & (sleep 602 &) ; echo $! $$; sleep 603");
    let pids = client.until("\n");
    let id = client.id.clone();
    assert_eq!(agent.send("DELETE", &format!("/exec/sessions/{id}?signal=TERM"), b"").status, 204);
    assert_eq!(agent.send("DELETE", &format!("/exec/sessions/{id}?signal=BOOM"), b"").status, 400);
    assert_eq!(session(&agent, &id)["ended_at"], Value::Null);
    assert_eq!(agent.send("DELETE", &format!("/exec/sessions/{id}"), b"").status, 204);
    for pid in pids.split_whitespace() {
        gone(pid);
    }
    assert_eq!(client.finish().end, exited(137));
    assert_eq!(agent.run("pgrep -fc 'sleep 60[123]' || true").stdout.trim(), "0");
    assert_eq!(agent.send("DELETE", &format!("/exec/sessions/{id}"), b"").status, 204);
    assert_eq!(agent.send("DELETE", "/exec/sessions/0000", b"").status, 404);
    assert_eq!(agent.get(&format!("/exec/sessions/{id}")).status, 405);
}

#[test]
fn plain_commands_are_listed_and_can_be_ended() {
    let agent = agent();
    let stream = agent.open("POST", "/exec/stream", &[], br#"{"command":"echo a; sleep 604"}"#);
    let waiting = agent.open("POST", "/exec", &[], br#"{"command":"sleep 605"}"#);
    let listed = wait_for(|| Some(sessions(&agent)).filter(|all| all.len() == 2));
    let kinds: Vec<_> = listed.iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"stream") && kinds.contains(&"exec"), "{listed:?}");
    for one in &listed {
        let id = one["id"].as_str().unwrap();
        assert!(one["command"].as_str().unwrap().contains("sleep 60"));
        assert_eq!(Client::try_open(&agent, &format!("/exec/sessions/{id}/attach"), EXEC).err(), Some(409));
        assert_eq!(agent.send("DELETE", &format!("/exec/sessions/{id}"), b"").status, 204);
    }
    let stream = crate::harness::Answer::read(stream, "POST");
    assert_eq!(stream.headers["x-superserve-session-id"].len(), 16);
    assert!(stream.text().contains("\"exit_code\":137"), "{}", stream.text());
    let waiting = crate::harness::Answer::read(waiting, "POST");
    assert_eq!(waiting.json()["exit_code"], 137);
    assert_eq!(waiting.headers["x-superserve-session-id"].len(), 16);
    assert_eq!(sessions(&agent), Vec::<Value>::new());
}

#[test]
fn sessions_are_bounded() {
    let agent = agent();
    let clients: Vec<_> = (0..64).map(|_| Client::run(&agent, "sleep 606")).collect();
    wait_for(|| (sessions(&agent).len() == 64).then_some(()));
    assert_eq!(Client::try_open(&agent, "/exec/connect", EXEC).err(), Some(429));
    clients.into_iter().for_each(Client::drop_connection);
    wait_for(|| sessions(&agent).iter().all(|one| one["attached"] == false).then_some(()));
    let refused = Client::run(&agent, "true").finish();
    assert_eq!((&refused.end["code"], refused.close.unwrap().0), (&json!("exec_failed"), 1011));
    for one in sessions(&agent) {
        let id = one["id"].as_str().unwrap();
        assert_eq!(agent.send("DELETE", &format!("/exec/sessions/{id}"), b"").status, 204);
    }
    for n in 0..70 {
        assert_eq!(Client::run(&agent, &format!("echo {n}")).finish().end, exited(0));
    }
    let left = sessions(&agent);
    assert_eq!(left.len(), 64);
    assert_eq!(left[63]["command"], "echo 69");
    assert_eq!(below(agent.pid()).len(), 0);
}

#[test]
fn a_session_on_a_terminal() {
    let agent = agent();
    let mut client = Client::start(
        &agent,
        &json!({"command": "bash --norc --noprofile -i", "tty": {"cols": 91, "rows": 17}, "env": {"PS1": "$ "}}),
    );
    client.stdin(b"stty size; echo $TERM; tty; ps -o tpgid= -p $$\n");
    let seen = client.until("/dev/pts/");
    assert!(seen.contains("17 91") && seen.contains("xterm-256color"), "{seen}");
    assert!(!seen.contains("no job control") && !seen.contains("cannot set terminal"), "{seen}");
    client.text(&json!({"type": "resize", "cols": 132, "rows": 43}));
    client.stdin(b"stty size\n");
    client.until("43 132");
    // Job control: the foreground job gets the interrupt and the shell goes on.
    client.stdin(b"sleep 607\n");
    wait_for(|| (agent.run("pgrep -fc 'sleep 607$' || true").stdout.trim() == "1").then_some(()));
    client.signal("SIGINT");
    client.stdin(b"echo code $?\n");
    client.until("code 130");
    client.stdin(b"sleep 608\n");
    wait_for(|| (agent.run("pgrep -fc 'sleep 608$' || true").stdout.trim() == "1").then_some(()));
    client.stdin(&[0x1a]);
    client.until("Stopped");
    client.stdin(b"jobs; kill %1; fg; echo bye; exit 4\n");
    let heard = client.finish();
    assert!(heard.text().contains("bye"), "{}", heard.text());
    assert_eq!((heard.end, heard.close), (exited(4), normal()));
}

#[test]
fn a_terminal_s_last_words_are_delivered() {
    let agent = agent();
    for _ in 0..20 {
        let heard = Client::start(
            &agent,
            &json!({"command": "stty -onlcr; seq 20000; exit 3", "tty": {"cols": 80, "rows": 24}}),
        )
        .finish();
        let expected: String = (1..=20000).map(|n| format!("{n}\n")).collect();
        assert!(heard.text() == expected, "{} of {} bytes", heard.stdout.len(), expected.len());
        assert_eq!(heard.end, exited(3));
    }
    let mut client =
        Client::start(&agent, &json!({"command": "cat; echo end", "tty": {"cols": 80, "rows": 24}}));
    client.text(&json!({"type": "stdin_close"}));
    assert_eq!(client.finish().text(), "end\r\n");
}

#[test]
fn closing_a_terminal_session_hangs_it_up() {
    let agent = agent();
    let mut client = Client::start(
        &agent,
        &json!({"command": "bash --norc -i", "tty": {"cols": 80, "rows": 24}, "env": {"PS1": "$ "}}),
    );
    client.stdin(b"echo pid $$ '.'\n");
    let seen = client.until(" .\r\n");
    let pid = seen.split("pid ").last().unwrap().split(' ').next().unwrap().to_owned();
    assert!(alive(&pid), "{seen}");
    let begun = Instant::now();
    client.close(1000);
    gone(&pid);
    assert!(begun.elapsed() < Duration::from_secs(4), "it went by itself");
}

#[test]
fn the_browser_terminal() {
    let agent = agent();
    let mut client = Client::open(&agent, "/terminal", TERMINAL);
    let id = client.id.clone();
    let send = |client: &mut Client, text: &str| {
        client.socket.send(Message::binary(text.as_bytes().to_vec())).unwrap();
    };
    let read = |client: &mut Client, text: &str| {
        let mut seen = String::new();
        while !seen.contains(text) {
            match client.socket.read().unwrap() {
                Message::Binary(bytes) => seen += &String::from_utf8_lossy(&bytes),
                other => panic!("{other:?} after {seen:?}"),
            }
        }
        seen
    };
    send(&mut client, "stty size; echo $TERM $0\n");
    let seen = read(&mut client, "xterm-256color /bin/bash");
    assert!(seen.contains("24 80") && !seen.contains("job control"), "{seen}");
    client.text(&json!({"type": "resize", "cols": 100, "rows": 30}));
    send(&mut client, "stty size\n");
    read(&mut client, "30 100");
    send(&mut client, "sleep 609\n");
    wait_for(|| (agent.run("pgrep -fc 'sleep 609$' || true").stdout.trim() == "1").then_some(()));
    client.signal("SIGINT");
    send(&mut client, "echo st$?\n");
    read(&mut client, "st130");
    // A page that reloads: the shell is there for who wants it.
    client.close(1001);
    let (mut client, hello) = Client::attach(&agent, &id, 0);
    assert_eq!((&hello["tty"], &hello["lost"]), (&json!(true), &json!(0)));
    client.stdin(b"exit\n");
    assert_eq!(client.finish().end, exited(0));

    let mut client = Client::open(&agent, "/terminal", TERMINAL);
    send(&mut client, "exit 3\n");
    let close = loop {
        match client.socket.read().unwrap() {
            Message::Close(frame) => break frame.unwrap(),
            Message::Binary(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((u16::from(close.code), close.reason.as_str()), (1000, "shell exited"));
    let mut client = Client::open(&agent, "/terminal", TERMINAL);
    let _ = client.socket.send(Message::binary(vec![b'x'; 64 * 1024 + 1]));
    loop {
        if let Message::Close(frame) = client.socket.read().unwrap() {
            assert_eq!(u16::from(frame.unwrap().code), 1009);
            break;
        }
    }
}
