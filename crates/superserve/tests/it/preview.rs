//! Previews of real sandboxes: every way a server may be bound, every way a token ends, a gibibyte to a slow reader, and
//! nothing left behind.

use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use testing::{Platform, wait_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::platform;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
/// What the server may grow by while a gibibyte passes: buffers on the way, far from its size.
const FLAT_KIB: u64 = 48 * 1024;
/// A server in Python: answers with what `/bytes/N` asks for, or with the port it listens on.
const SERVER: &str = r#"
import socket, sys, threading
block = bytes(i * 31 % 251 for i in range(1 << 20))
def talk(peer, port):
    try:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            more = peer.recv(65536)
            if not more: return
            head += more
        path = head.split()[1].decode()
        if path.startswith("/bytes/"):
            size = int(path[7:])
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(size >> 20): peer.sendall(block)
        else:
            text = b"port %d" % port
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
    except OSError: pass
    finally: peer.close()
def listen(family, address, port, only6):
    s = socket.socket(family)
    if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only6)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, port)); s.listen(128)
    while True:
        peer, _ = s.accept()
        threading.Thread(target=talk, args=(peer, port), daemon=True).start()
towards = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
towards.connect(("198.51.100.1", 9))
own = towards.getsockname()
where = [(socket.AF_INET, "0.0.0.0", 0), (socket.AF_INET, "127.0.0.1", 0), (socket.AF_INET6, "::", 0),
         (socket.AF_INET6, "::", 1), (socket.AF_INET6, "::1", 1), (socket.AF_INET, own[0], 0)]
for i, (family, address, only6) in enumerate(where):
    threading.Thread(target=listen, args=(family, address, 4000 + i, only6)).start()
"#;
/// Ports of [`SERVER`].
const BINDINGS: [(u16, &str); 6] = [
    (4000, "0.0.0.0"),
    (4001, "127.0.0.1"),
    (4002, "::"),
    (4003, ":: without IPv4"),
    (4004, "::1"),
    (4005, "the link's address"),
];

struct Web {
    p: Platform,
    id: String,
    token: String,
    http: reqwest::Client,
}

impl Web {
    async fn start() -> Option<Self> {
        let p = platform().await?;
        let (id, token) = p.create(json!({})).await;
        let put = p.data("POST", "/files?path=/tmp/server.py", &id, &token, SERVER.into()).await;
        assert_eq!(put.status, 200, "{put:?}");
        let start = "(nohup python3 /tmp/server.py >/tmp/server.log 2>&1 &); for i in $(seq 100); do \
                     curl -s -o /dev/null localhost:4000 && exit 0; sleep 0.05; done; cat /tmp/server.log; exit 1";
        p.run(&id, &token, start).await;
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        Some(Self { p, id, token, http })
    }

    fn host(&self, port: u16) -> String {
        format!("{port}-{}.sandbox.localhost", self.id)
    }

    async fn call(&self, method: &str, rest: &str, body: Value) -> Value {
        let path = format!("/sandboxes/{}/preview-ports{rest}", self.id);
        let answer = self.p.rest(method, &path, (!body.is_null()).then_some(body)).await;
        assert!(answer.status < 300, "{method} {path}: {answer:?}");
        answer.body
    }

    async fn publish(&self, port: u16, access: &str) -> Value {
        self.call("POST", "", json!({"port": port, "access": access})).await
    }

    async fn mint(&self, port: u16, body: Value) -> String {
        let minted = self.call("POST", &format!("/{port}/token"), body).await;
        minted["token"].as_str().unwrap().to_owned()
    }

    /// Status and text of a visit, with a token or without.
    async fn visit(&self, port: u16, token: &str) -> (u16, String) {
        self.visit_at(&self.host(port), token).await
    }

    async fn visit_at(&self, host: &str, token: &str) -> (u16, String) {
        let request = self.http.get(format!("http://{}/", self.p.edge())).header("host", host);
        let answer = request.header("x-superserve-preview-token", token).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Open descriptors of a process, and how many of them are network namespaces.
fn descriptors(pid: u32) -> (usize, usize) {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets: Vec<_> = open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    let namespaces = targets.iter().filter(|target| target.to_string_lossy().contains("net:[")).count();
    (targets.len(), namespaces)
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_are_reached_however_they_are_bound() {
    let Some(web) = Web::start().await else { return };
    for (port, bound) in BINDINGS {
        assert_eq!(web.visit(port, "").await.0, 404, "{bound}: not yet");
        web.publish(port, "public").await;
        assert_eq!(web.visit(port, "").await, (200, format!("port {port}")), "{bound}");
    }
    web.publish(4006, "public").await;
    let (status, text) = web.visit(4006, "").await;
    assert!(status == 502 && text.contains("nothing listens on port 4006"), "{status} {text}");
    // Neither the agent nor privileged ports, whoever asks.
    web.p.run(&web.id, &web.token, "(nohup python3 -m http.server 80 >/dev/null 2>&1 &); sleep 0.5").await;
    for (port, status) in [(80, 403), (1023, 403), (49_983, 400)] {
        assert_eq!(web.visit(port, &web.token).await.0, status, "{port}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_end_of_a_token_is_the_end() {
    let Some(mut web) = Web::start().await else { return };
    web.publish(4000, "private").await;
    web.publish(4001, "private").await;
    let (other, other_data_token) = web.p.create(json!({"preview_access": "private"})).await;
    web.p.rest("POST", &format!("/sandboxes/{other}/preview-ports"), Some(json!({"port": 4000}))).await;
    let minted = web.p.rest("POST", &format!("/sandboxes/{other}/preview-ports/4000/token"), None).await;
    let others = minted.body["token"].as_str().unwrap().to_owned();

    let good = web.mint(4000, Value::Null).await;
    let sibling = web.mint(4001, Value::Null).await;
    assert_eq!(web.visit(4000, &good).await.0, 200);
    assert_eq!(web.visit(4001, &sibling).await.0, 200);
    let refused = |what: &'static str, token: String| {
        let web = &web;
        async move { assert_eq!(web.visit(4000, &token).await.0, 401, "{what}") }
    };
    refused("none", String::new()).await;
    refused("another port's", sibling.clone()).await;
    refused("another sandbox's", others.clone()).await;
    refused("a data-plane token", web.token.clone()).await;
    refused("another sandbox's data-plane token", other_data_token).await;
    let swapped = web.visit_at(&format!("4000-{other}.sandbox.localhost"), &good).await.0;
    assert_eq!(swapped, 401, "in another sandbox");
    // The reverse: it opens neither commands nor files.
    for path in ["/files?path=/etc/passwd", "/exec"] {
        let answer = web.p.data("GET", path, &web.id, &good, Vec::new()).await;
        assert_eq!((answer.status, answer.body), (401, "invalid access token".into()), "{path}");
    }
    let ending = web.mint(4000, json!({"expires_in_seconds": 1})).await;
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(web.visit(4000, &ending).await, (401, "the preview token has expired".to_owned()));
    assert_eq!(web.visit(4000, &good).await.0, 200, "one that does not end");

    web.call("POST", "/4000/token/rotate", Value::Null).await;
    refused("after a rotation", good).await;
    let second = web.mint(4000, Value::Null).await;
    web.call("DELETE", "/4000", Value::Null).await;
    assert_eq!(web.visit(4000, &second).await.0, 404, "while it is taken back");
    web.publish(4000, "private").await;
    refused("after it was taken back and published again", second).await;
    let third = web.mint(4000, Value::Null).await;
    web.publish(4000, "public").await;
    assert_eq!(web.visit(4000, "").await.0, 200);
    web.publish(4000, "private").await;
    refused("after another mode", third).await;

    // A pause: 503 after the token, and no visitor ends it. A crash of the server changes none of it.
    let fourth = web.mint(4000, Value::Null).await;
    web.p.rest("POST", &format!("/sandboxes/{}/pause", web.id), None).await;
    assert_eq!(web.visit(4000, &fourth).await, (503, "sandbox is paused".to_owned()));
    refused("while it is paused", sibling.clone()).await;
    web.p.kill_hard();
    web.p.spawn().await;
    assert_eq!(web.visit(4000, &fourth).await.0, 503);
    web.p.rest("POST", &format!("/sandboxes/{}/resume", web.id), None).await;
    assert_eq!(web.visit(4000, &fourth).await, (200, "port 4000".to_owned()));
    assert_eq!(web.visit(4001, &sibling).await.0, 200, "nothing of this concerned a sibling");
    let log = web.p.log();
    for token in [&fourth, &sibling, &others] {
        assert!(!log.contains(token.as_str()), "a token is in the log");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gibibyte_to_a_slow_reader() {
    let Some(web) = Web::start().await else { return };
    web.publish(4000, "public").await;
    // Warm, so that what is measured is the gibibyte.
    web.visit(4000, "").await;
    let server = web.p.pid();
    let before = resident(server);
    let mut stream = TcpStream::connect(web.p.edge()).await.unwrap();
    let request =
        format!("GET /bytes/{GIB} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", web.host(4000));
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.contains(&format!("content-length: {GIB}")), "{head}");
    // At first 64 KiB at a time with pauses, while the guest would send at full speed.
    let (mut hash, mut read, mut most) = (Sha256::new(), 0, 0);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if read < 8 * MIB {
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        match stream.read(&mut buffer).await.unwrap() {
            0 => break,
            bytes => {
                hash.update(&buffer[..bytes]);
                read += bytes;
            }
        }
        if read % (16 * MIB) < buffer.len() || read < 8 * MIB {
            most = most.max(resident(server));
        }
    }
    assert_eq!(read, GIB);
    let block: Vec<u8> = (0..MIB).map(|i| u8::try_from(i * 31 % 251).unwrap()).collect();
    let mut expected = Sha256::new();
    (0..GIB / MIB).for_each(|_| expected.update(&block));
    assert_eq!(hash.finalize(), expected.finalize());
    assert!(most < before + FLAT_KIB, "the server grew from {before} to {most} KiB");
    let traffic = web.p.rest("GET", "/previews", None).await.body;
    assert_eq!(traffic[0]["traffic"]["bytes_out"], GIB as u64 + "port 4000".len() as u64, "{traffic}");
}

#[tokio::test(flavor = "multi_thread")]
async fn visitors_leave_nothing_behind() {
    let Some(web) = Web::start().await else { return };
    web.publish(4000, "public").await;
    for _ in 0..20 {
        assert_eq!(web.visit(4000, "").await.0, 200);
    }
    let server = web.p.pid();
    let (before, namespaces) = descriptors(server);
    let remains = web.p.remains();
    for round in 0..30 {
        let visits = (0..10).map(|_| web.visit(4000, ""));
        for (status, _) in futures_util::future::join_all(visits).await {
            assert_eq!(status, 200);
        }
        // Somebody who leaves in the middle of a large answer, and a port where nothing listens.
        let mut stream = TcpStream::connect(web.p.edge()).await.unwrap();
        let request = format!("GET /bytes/{GIB} HTTP/1.1\r\nHost: {}\r\n\r\n", web.host(4000));
        stream.write_all(request.as_bytes()).await.unwrap();
        if round % 2 == 0 {
            stream.read_exact(&mut [0; 4096]).await.unwrap();
        }
        drop(stream);
        web.visit(4009, "").await;
    }
    // The test's own kept connections are the server's descriptors too.
    let web_count = before + 16;
    let settled = || async {
        let (now, now_namespaces) = descriptors(server);
        (now <= web_count && now_namespaces <= namespaces).then_some(())
    };
    wait_for("descriptors to be given back", Duration::from_secs(20), settled).await;
    let open = || async {
        let rows = web.p.rest("GET", "/previews", None).await.body;
        (rows[0]["traffic"]["open"] == 0).then_some(rows)
    };
    let rows = wait_for("all visits to be over", Duration::from_secs(20), open).await;
    // Who left at once may have left before the request was looked at.
    let requests = rows[0]["traffic"]["requests"].as_u64().unwrap();
    assert!((20 + 300 + 15..=20 + 300 + 30).contains(&requests), "{rows}");
    assert_eq!(web.p.remains().links, remains.links);
    let log =
        web.p.rest("GET", &format!("/sandboxes/{}/preview-ports/4000/requests", web.id), None).await.body;
    assert_eq!(log.as_array().unwrap().len(), 100, "the latest are kept");
    web.p.rest("DELETE", &format!("/sandboxes/{}", web.id), None).await;
    assert_eq!(web.visit(4000, "").await, (404, "sandbox not found".to_owned()));
    assert_eq!(web.p.rest("GET", "/previews", None).await.body, json!([]));
}
