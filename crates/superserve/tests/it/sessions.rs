//! Sessions and terminals through the edge, with a real WebSocket client over TLS and without.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use rustix::process::Pid;
use serde_json::{Value, json};
use testing::{Platform, wait_for};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::{BIN, platform, platform_with};

const EXEC: &str = "superserve.exec.v1";
const TERMINAL: &str = "superserve.terminal.v1";
/// What a loaded machine may take for something that is felt at once.
const LIMIT: Duration = Duration::from_secs(30);

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A sandbox, and how to reach it.
struct Door<'a> {
    platform: &'a Platform,
    id: String,
    token: String,
    /// The vendor's names over TLS instead of the header over plain HTTP.
    tls: Option<TlsConnector>,
}

struct Client {
    socket: WebSocketStream<Box<dyn Stream>>,
    session: String,
    got: u64,
}

#[derive(Debug, Default)]
struct Heard {
    output: Vec<u8>,
    end: Value,
    close: Option<(u16, String)>,
}

impl<'a> Door<'a> {
    async fn open(platform: &'a Platform, tls: bool) -> Self {
        let (id, token) = platform.create(json!({})).await;
        let tls = tls.then(|| {
            let shown = Command::new(BIN)
                .args(["client-env", "--format", "json", "--state-dir"])
                .arg(platform.state_dir())
                .output()
                .unwrap();
            assert!(shown.status.success(), "{shown:?}");
            let env: Value = serde_json::from_slice(&shown.stdout).unwrap();
            let ca = env["NODE_EXTRA_CA_CERTS"].as_str().unwrap();
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
            let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
            TlsConnector::from(Arc::new(config))
        });
        Self { platform, id, token, tls }
    }

    async fn connect(
        &self,
        path: &str,
        protocols: &str,
        more: &[(&'static str, &str)],
    ) -> Result<Client, u16> {
        let host = match self.tls {
            Some(_) => format!("boxd-{}.sandbox.superserve.ai", self.id),
            None => self.platform.edge().to_string(),
        };
        let mut request = format!("ws://{host}{path}").into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert("sec-websocket-protocol", protocols.parse().unwrap());
        if self.tls.is_none() {
            headers.insert("host", "sandbox.superserve.ai".parse().unwrap());
            headers.insert("x-superserve-sandbox-id", self.id.parse().unwrap());
        }
        for (name, value) in more {
            headers.insert(*name, value.parse().unwrap());
        }
        let tcp = TcpStream::connect(self.platform.edge()).await.unwrap();
        let stream: Box<dyn Stream> = match &self.tls {
            Some(tls) => Box::new(tls.connect(ServerName::try_from(host).unwrap(), tcp).await.unwrap()),
            None => Box::new(tcp),
        };
        match client_async(request, stream).await {
            Ok((socket, response)) => {
                let chosen = response.headers()["sec-websocket-protocol"].to_str().unwrap();
                assert_eq!(Some(chosen), protocols.split(", ").next(), "the token's entry is never chosen");
                let session = response.headers().get("x-superserve-session-id");
                let session = session.map_or(String::new(), |id| id.to_str().unwrap().to_owned());
                Ok(Client { socket, session, got: 0 })
            }
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}\n{}", self.platform.log()),
        }
    }

    fn protocols(&self, first: &str) -> String {
        format!("{first}, token.{}", self.token)
    }

    async fn start(&self, start: &Value) -> Client {
        let mut client = self.connect("/exec/connect", &self.protocols(EXEC), &[]).await.unwrap();
        client.text(start).await;
        client
    }

    async fn run(&self, command: &str) -> Client {
        self.start(&json!({"command": command})).await
    }

    async fn attach(&self, session: &str, offset: u64) -> (Client, Value) {
        let path = format!("/exec/sessions/{session}/attach?offset={offset}");
        let mut client = self.connect(&path, &self.protocols(EXEC), &[]).await.unwrap();
        let Some(Ok(Message::Text(text))) = client.socket.next().await else { panic!("no hello") };
        let hello: Value = serde_json::from_str(text.as_str()).unwrap();
        client.got = hello["offset"].as_u64().unwrap();
        (client, hello)
    }

    async fn session(&self, session: &str) -> Value {
        let listed = self.platform.data("GET", "/exec/sessions", &self.id, &self.token, vec![]).await;
        assert_eq!(listed.status, 200, "{listed:?}");
        let all = listed.body["sessions"].as_array().unwrap().clone();
        all.into_iter().find(|one| one["id"] == session).unwrap_or(Value::Null)
    }

    async fn sh(&self, command: &str) -> String {
        self.platform.run(&self.id, &self.token, command).await
    }
}

impl Client {
    async fn text(&mut self, value: &Value) {
        self.socket.send(Message::text(value.to_string())).await.unwrap();
    }

    async fn stdin(&mut self, bytes: &[u8]) {
        self.socket.send(Message::binary([&[0], bytes].concat())).await.unwrap();
    }

    /// Reads until standard output holds a text; `channel` bytes stand in front of each piece. The other stream has its
    /// own pace and would stand between the pieces of this one.
    async fn until(&mut self, channel: usize, wanted: &str) -> String {
        let mut seen = Vec::new();
        loop {
            let message = tokio::time::timeout(LIMIT, self.socket.next()).await;
            match message.unwrap_or_else(|_| panic!("only {:?}", String::from_utf8_lossy(&seen))) {
                Some(Ok(Message::Binary(bytes))) => {
                    self.got += (bytes.len() - channel) as u64;
                    if channel == 0 || bytes[0] == 1 {
                        seen.extend_from_slice(&bytes[channel..]);
                    }
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&seen)),
            }
            let seen = String::from_utf8_lossy(&seen);
            if seen.contains(wanted) {
                return seen.into_owned();
            }
        }
    }

    /// Everything to the close.
    async fn finish(mut self, channel: usize) -> Heard {
        let mut heard = Heard::default();
        loop {
            let message = tokio::time::timeout(LIMIT, self.socket.next()).await;
            match message.unwrap_or_else(|_| panic!("no end: {:?}", heard.end)) {
                Some(Ok(Message::Binary(bytes))) => {
                    assert!(heard.end.is_null(), "output after the end");
                    heard.output.extend_from_slice(&bytes[channel..]);
                }
                Some(Ok(Message::Text(text))) => {
                    assert!(heard.end.is_null(), "told twice");
                    heard.end = serde_json::from_str(text.as_str()).unwrap();
                }
                Some(Ok(Message::Close(frame))) => {
                    heard.close = frame.map(|frame| (frame.code.into(), frame.reason.to_string()));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return heard,
            }
        }
    }
}

fn exited(code: i32) -> Value {
    json!({"exit_code": code, "finished": true})
}

/// Descriptors of the server and of the agent inside.
fn descriptors(p: &Platform, id: &str) -> (usize, usize) {
    let count = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let agent = p.remains().init_of(id).map(Pid::as_raw_nonzero).unwrap();
    (count(p.pid()), count(u32::try_from(agent.get()).unwrap()))
}

#[tokio::test]
async fn an_interpreter_is_spoken_with() {
    let Some(p) = platform().await else { return };
    for tls in [true, false] {
        let door = Door::open(&p, tls).await;
        let mut client =
            door.start(&json!({"command": "exec python3 -i -q -u", "env": {"ANSWER": "42"}})).await;
        client.stdin(b"import os\nprint('answer', os.environ['ANSWER'], os.getcwd())\n").await;
        client.until(1, "answer 42 /home/user").await;
        client.stdin(b"1 + 1\n").await;
        client.until(1, "2\n").await;
        client.stdin("print('\u{fc}\u{1f980}')\nraise SystemExit(9)\n".as_bytes()).await;
        let heard = client.finish(1).await;
        assert!(String::from_utf8_lossy(&heard.output).contains("ü🦀"));
        assert_eq!((heard.end, heard.close), (exited(9), Some((1000, "command exited".to_owned()))));
    }
}

#[tokio::test]
async fn ten_mebibytes_go_through_and_come_back() {
    let Some(p) = platform().await else { return };
    for tls in [true, false] {
        let door = Door::open(&p, tls).await;
        let sent: Vec<u8> =
            (0..2_621_440u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let client = door.run("tee copy").await;
        let (mut sink, mut stream) = client.socket.split();
        let write = async {
            for chunk in sent.chunks(32 * 1024) {
                sink.send(Message::binary([&[0], chunk].concat())).await.unwrap();
            }
            sink.send(Message::text(r#"{"type":"stdin_close"}"#)).await.unwrap();
        };
        let read = async {
            let (mut came, mut end) = (Vec::new(), Value::Null);
            while let Some(Ok(message)) = stream.next().await {
                match message {
                    Message::Binary(bytes) => came.extend_from_slice(&bytes[1..]),
                    Message::Text(text) => end = serde_json::from_str(text.as_str()).unwrap(),
                    _ => {}
                }
            }
            (came, end)
        };
        let ((), (came, end)) = tokio::join!(write, read);
        assert!(came == sent, "{} bytes came back, {end}", came.len());
        assert_eq!(end, exited(0));
        let here = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(here.path(), &sent).unwrap();
        let sum = Command::new("sha256sum").arg(here.path()).output().unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap();
        assert_eq!(door.sh("sha256sum < copy").await[..64], sum[..64], "hashes differ");
    }
}

#[tokio::test]
async fn refusals_come_before_the_upgrade() {
    let Some(p) = platform().await else { return };
    let mut door = Door::open(&p, true).await;
    let refused =
        async |door: &Door<'_>, path: &str, protocols: &str| door.connect(path, protocols, &[]).await.err();
    let good = door.protocols(EXEC);
    assert_eq!(refused(&door, "/exec/connect", EXEC).await, Some(401));
    assert_eq!(refused(&door, "/exec/connect", &format!("{EXEC}, token.wrong")).await, Some(401));
    assert_eq!(refused(&door, "/exec/sessions/0abc/attach", &good).await, Some(404));
    assert_eq!(refused(&door, "/exec/other", &good).await, Some(404));
    let terminal = door.protocols(TERMINAL);
    let evil = door.connect("/terminal", &terminal, &[("origin", "https://evil.example")]).await;
    assert_eq!(evil.err(), Some(403));
    assert_eq!(p.data("GET", "/exec/connect", &door.id, &door.token, vec![]).await.status, 426);
    assert_eq!(p.rest("POST", &format!("/sandboxes/{}/pause", door.id), None).await.status / 100, 2);
    p.wait_state(&door.id, "paused", LIMIT).await;
    assert!(matches!(refused(&door, "/exec/connect", &good).await, Some(401 | 503)));
    door.id = "00000000-0000-4000-8000-000000000000".to_owned();
    assert_eq!(refused(&door, "/exec/connect", &good).await, Some(404));
}

#[tokio::test]
async fn the_token_stays_outside() {
    let Some(p) = platform().await else { return };
    let door = Door::open(&p, false).await;
    let mut client =
        door.run("read x; tr '\\0' '\\n' < /proc/$$/environ; cat /proc/1/environ | tr '\\0' '\\n'").await;
    client.stdin(b"\n").await;
    let heard = client.finish(1).await;
    assert!(!String::from_utf8_lossy(&heard.output).contains(&door.token));
    assert!(!p.log().contains(&door.token));
}

#[tokio::test]
async fn a_session_outlives_its_connection_and_a_pause() {
    let Some(p) = platform().await else { return };
    let mut door = Door::open(&p, true).await;
    let mut client = door
        .run("i=0; while [ $i -lt 800 ]; do i=$((i+1)); echo tick $i; sleep 0.005; done; read x; echo $x")
        .await;
    let mut text = client.until(1, "tick 20\n").await;
    let (session, got) = (client.session.clone(), client.got);
    // Without a word.
    drop(client);
    wait_for("the client's end to be noticed", LIMIT, async || {
        (door.session(&session).await["attached"] == false).then_some(())
    })
    .await;
    let (mut client, hello) = door.attach(&session, got).await;
    assert_eq!(hello["lost"], 0, "{hello}");
    text += &client.until(1, "tick 60\n").await;

    let paused = p.rest("POST", &format!("/sandboxes/{}/pause", door.id), None).await;
    assert!(paused.status / 100 == 2, "{paused:?}");
    // What was on its way still comes, then the connection ends: nobody is left waiting.
    let cut = Instant::now();
    while let Some(Ok(message)) = client.socket.next().await {
        if let Message::Binary(bytes) = message {
            client.got += bytes.len() as u64 - 1;
            text += &String::from_utf8_lossy(&bytes[1..]);
        }
    }
    assert!(cut.elapsed() < Duration::from_secs(5));
    p.wait_state(&door.id, "paused", LIMIT).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let resumed = p.rest("POST", &format!("/sandboxes/{}/activate", door.id), None).await;
    assert_eq!(resumed.status, 200, "{resumed:?}");
    door.token = resumed.body["access_token"].as_str().unwrap().to_owned();
    let (mut client, hello) = door.attach(&session, client.got).await;
    assert_eq!(hello["lost"], 0, "{hello}");
    text += &client.until(1, "tick 800\n").await;
    client.stdin(b"and on\n").await;
    let heard = client.finish(1).await;
    text += &String::from_utf8_lossy(&heard.output);
    let expected: String = (1..=800).map(|n| format!("tick {n}\n")).collect();
    assert!(text == expected + "and on\n", "{} bytes", text.len());
    assert_eq!(heard.end, exited(0));
    let ended = door.session(&session).await;
    assert_eq!((&ended["exit_code"], &ended["kind"]), (&json!(0), &json!("connect")));
}

#[tokio::test]
async fn a_session_outlives_the_server() {
    let Some(mut p) = platform().await else { return };
    let door = Door::open(&p, false).await;
    let mut client = door.run("echo one; read x; echo $x").await;
    client.until(1, "one\n").await;
    let (id, token, session, got) = (door.id, door.token, client.session.clone(), client.got);
    p.kill_hard();
    while let Some(Ok(_)) = client.socket.next().await {}
    p.spawn().await;
    p.wait_state(&id, "active", LIMIT).await;
    let door = Door { platform: &p, id, token, tls: None };
    let (mut client, hello) = door.attach(&session, got).await;
    assert_eq!((&hello["lost"], &hello["offset"]), (&json!(0), &json!(4)));
    client.stdin(b"two\n").await;
    let heard = client.finish(1).await;
    assert_eq!((heard.output.as_slice(), heard.end), (&b"two\n"[..], exited(0)));
}

#[tokio::test]
async fn sessions_are_ended_by_id_and_by_closing() {
    let Some(p) = platform().await else { return };
    let door = Door::open(&p, true).await;
    let mut client = door.run("trap '' TERM HUP; setsid sleep 701 & sleep 702 & echo up; sleep 703").await;
    client.until(1, "up").await;
    let path = format!("/exec/sessions/{}", client.session);
    assert_eq!(p.data("DELETE", &path, &door.id, &door.token, vec![]).await.status, 204);
    assert_eq!(client.finish(1).await.end, exited(137));
    assert_eq!(door.sh("pgrep -fc 'sleep 70[123]$' || true").await.trim(), "0");

    let mut client = door.run("echo up; sleep 704").await;
    client.until(1, "up").await;
    client.text(&json!({"type": "signal", "name": "SIGUSR1"})).await;
    assert_eq!(client.finish(1).await.end, exited(138));

    let mut client = door.run("echo up; exec sleep 705").await;
    client.until(1, "up").await;
    let begun = Instant::now();
    client.socket.close(Some(CloseFrame { code: 1000.into(), reason: "".into() })).await.unwrap();
    while let Some(Ok(_)) = client.socket.next().await {}
    assert!(begun.elapsed() < Duration::from_secs(2), "the close was answered");
    wait_for("the command's end", LIMIT, async || {
        (door.sh("pgrep -fc 'sleep 705$' || true").await.trim() == "0").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_terminal_is_used_and_left() {
    let Some(p) = platform_with(&["--cors-origins", "https://console.example"]).await else { return };
    for tls in [true, false] {
        let door = Door::open(&p, tls).await;
        let origin = [("origin", "https://console.example")];
        let mut client = door.connect("/terminal", &door.protocols(TERMINAL), &origin).await.unwrap();
        let type_in = async |client: &mut Client, text: &str| {
            client.socket.send(Message::binary(text.as_bytes().to_vec())).await.unwrap();
        };
        type_in(&mut client, "stty size; echo \"$TERM:$0:$HOME:$(id -un)\"\r").await;
        let seen = client.until(0, "xterm-256color:/bin/bash:/home/user:root").await;
        assert!(seen.contains("24 80") && !seen.contains("job control"), "{seen}");
        client.text(&json!({"type": "resize", "cols": 133, "rows": 41})).await;
        type_in(&mut client, "stty size\r").await;
        client.until(0, "41 133").await;
        type_in(&mut client, "sleep 706\r").await;
        wait_for("the job", LIMIT, async || {
            (door.sh("pgrep -fc 'sleep 706$' || true").await.trim() == "1").then_some(())
        })
        .await;
        client.text(&json!({"type": "signal", "name": "SIGINT"})).await;
        type_in(&mut client, "echo code=$?\r").await;
        client.until(0, "code=130").await;
        type_in(&mut client, "python3 -c 'import os, pty; print(os.ttyname(0)); pty.openpty()' && exit\r")
            .await;
        let heard = client.finish(0).await;
        assert!(String::from_utf8_lossy(&heard.output).contains("/dev/pts/"));
        assert_eq!(heard.close, Some((1000, "shell exited".to_owned())));
    }
}

#[tokio::test]
async fn users_groups_and_terminals_for_everybody() {
    let Some(p) = platform().await else { return };
    let door = Door::open(&p, false).await;
    door.sh("useradd -m -s /bin/bash -G tty,video worker").await;
    // Anybody gets a terminal of his own.
    let as_worker =
        "su worker -c 'python3 -c \"import os, pty; m, s = pty.openpty(); print(os.ttyname(s))\"; id -Gn'";
    let seen = door.sh(as_worker).await;
    assert!(seen.starts_with("/dev/pts/") && seen.contains("video"), "{seen}");
    assert_eq!(door.sh("find -L /dev/ptmx -printf '%m\\n'").await, "666\n");
    assert_eq!(door.sh("umask; hostname").await, format!("0022\nsandbox-{}\n", &door.id[..8]));
    let heard = door
        .start(&json!({"command": "umask; pwd; echo $HOME $USER $ANSWER; tty", "env": {"ANSWER": "1"}}))
        .await;
    let mut heard = heard;
    heard.text(&json!({"type": "stdin_close"})).await;
    let text = String::from_utf8(heard.finish(1).await.output).unwrap();
    assert_eq!(text, "0022\n/home/user\n/home/user user 1\nnot a tty\n");
}

#[tokio::test]
async fn nothing_is_left_of_many_sessions() {
    let Some(p) = platform().await else { return };
    let door = Door::open(&p, true).await;
    door.run("true").await.finish(1).await;
    door.sh("true").await;
    // Connections kept for a moment are part of a quiet platform.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let before = descriptors(&p, &door.id);
    for round in 0..5 {
        let mut clients = Vec::new();
        for n in 0..20 {
            let tty = (n % 2 == 0).then(|| json!({"cols": 80, "rows": 24}));
            let mut start = json!({"command": "echo up; cat"});
            if let Some(tty) = tty {
                start["tty"] = tty;
            }
            clients.push(door.start(&start).await);
        }
        for (n, mut client) in clients.into_iter().enumerate() {
            client.until(1, "up").await;
            match (n + round) % 3 {
                0 => drop(client),
                1 => {
                    client.text(&json!({"type": "stdin_close"})).await;
                    assert_eq!(client.finish(1).await.end, exited(0));
                }
                _ => client.socket.close(None).await.unwrap(),
            }
        }
        let listed = p.data("GET", "/exec/sessions", &door.id, &door.token, vec![]).await;
        for one in listed.body["sessions"].as_array().unwrap().iter().filter(|one| one["ended_at"].is_null())
        {
            let path = format!("/exec/sessions/{}", one["id"].as_str().unwrap());
            assert_eq!(p.data("DELETE", &path, &door.id, &door.token, vec![]).await.status, 204);
        }
    }
    wait_for("descriptors to be what they were", LIMIT, async || {
        let now = descriptors(&p, &door.id);
        (now.0 <= before.0 && now.1 <= before.1).then_some(())
    })
    .await;
    assert_eq!(
        door.sh("pgrep -c cat || true; ls /dev/pts | wc -l; ps -eo stat= | grep -c ^Z || true").await,
        "0\n1\n0\n"
    );
}
