//! Large files and many of them: whole, without memory, and without remains when somebody goes away half-way.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use serde_json::json;
use sha2::{Digest, Sha256};
use testing::{Platform, wait_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::platform;

const GIB: usize = 1 << 30;
const PIECE: usize = 1 << 20;
/// What server and agent may grow by while a file passes through: some buffers on the way, far from the file's size.
const FLAT_KIB: u64 = 48 * 1024;

/// Resident memory, KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Open descriptors.
fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

fn agent(p: &Platform, id: &str) -> u32 {
    p.remains().init_of(id).expect("a first process").as_raw_pid().cast_unsigned()
}

/// Watches a process until dropped, and gives the most it had.
struct Peak(tokio::task::JoinHandle<()>, std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Peak {
    fn of(pid: u32) -> Self {
        let most = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let kept = std::sync::Arc::clone(&most);
        let watch = tokio::spawn(async move {
            loop {
                kept.fetch_max(resident(pid), std::sync::atomic::Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Self(watch, most)
    }

    fn end(self) -> u64 {
        self.0.abort();
        self.1.load(std::sync::atomic::Ordering::Relaxed)
    }
}

fn request(
    p: &Platform,
    method: reqwest::Method,
    path: &str,
    id: &str,
    token: &str,
) -> reqwest::RequestBuilder {
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    http.request(method, format!("http://{}/files?path={path}", p.edge()))
        .header("x-superserve-sandbox-id", id)
        .header("x-access-token", token)
}

/// A piece that is different at each place, and cheap to make.
fn piece(number: usize) -> Bytes {
    let mut bytes = vec![0; PIECE];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::try_from((at * 31 + number * 7 + at / 251) % 256).unwrap_or(0);
    }
    Bytes::from(bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gibibyte_up_and_down() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    p.run(&id, &token, "true").await;
    let (server, agent) = (p.pid(), agent(&p, &id));
    let before = (resident(server), resident(agent));
    let peaks = (Peak::of(server), Peak::of(agent));

    let hash = std::sync::Arc::new(std::sync::Mutex::new(Sha256::new()));
    let hasher = std::sync::Arc::clone(&hash);
    let pieces = stream::iter((0..GIB / PIECE).map(move |number| {
        let piece = piece(number);
        hasher.lock().unwrap().update(&piece);
        Ok::<_, std::io::Error>(piece)
    }));
    let begun = std::time::Instant::now();
    let stored = request(&p, reqwest::Method::POST, "/home/user/big", &id, &token)
        .body(reqwest::Body::wrap_stream(pieces))
        .send()
        .await
        .unwrap();
    assert_eq!(stored.status(), 200);
    let up = begun.elapsed();
    let sent = format!("{:x}", std::sync::Arc::into_inner(hash).unwrap().into_inner().unwrap().finalize());
    let inside = p.run(&id, &token, "sha256sum /home/user/big | cut -d' ' -f1").await;
    assert_eq!(inside.trim(), sent, "what arrived");

    let begun = std::time::Instant::now();
    let mut read = request(&p, reqwest::Method::GET, "/home/user/big", &id, &token).send().await.unwrap();
    assert_eq!((read.status().as_u16(), read.content_length()), (200, Some(GIB as u64)));
    let mut hash = Sha256::new();
    while let Some(chunk) = read.chunk().await.unwrap() {
        hash.update(&chunk);
    }
    let down = begun.elapsed();
    assert_eq!(format!("{:x}", hash.finalize()), sent, "what came back");
    let most = (peaks.0.end(), peaks.1.end());
    eprintln!("1 GiB: up {up:?}, down {down:?}; resident KiB before {before:?}, most {most:?}");
    assert!(most.0 - before.0 < FLAT_KIB, "the server grew from {} to {} KiB", before.0, most.0);
    assert!(most.1 - before.1 < FLAT_KIB, "the agent grew from {} to {} KiB", before.1, most.1);
}

#[tokio::test]
async fn fifty_writers_into_one_new_directory() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let writes = (0..50).map(|n| {
        let (p, id, token) = (&p, &id, &token);
        async move {
            let path = format!("/files?path=/home/user/deep/new/dir/file-{n}");
            p.data("POST", &path, id, token, format!("content {n}").into()).await
        }
    });
    for answer in futures_util::future::join_all(writes).await {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let seen = p
        .run(
            &id,
            &token,
            "cd /home/user/deep/new/dir; find . -mindepth 1 | wc -l; cat file-* | sort | uniq | wc -c",
        )
        .await;
    let bytes: usize = (0..50).map(|n| format!("content {n}").len()).sum();
    assert_eq!(seen, format!("50\n{}\n", bytes + 1), "no file is missing, mixed up or left half made");
}

/// Sends a request by hand over a socket of its own.
async fn open(p: &Platform, head: &str, id: &str, token: &str) -> TcpStream {
    let mut stream = TcpStream::connect(p.edge()).await.unwrap();
    let head = format!(
        "{head}\r\nhost: localhost\r\nx-superserve-sandbox-id: {id}\r\nx-access-token: {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn who_vanishes_half_way_leaves_nothing() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    p.run(&id, &token, "head -c 300000000 /dev/zero > /home/user/big; mkdir /home/user/up").await;
    let (server, agent) = (p.pid(), agent(&p, &id));
    let settled = || async { (descriptors(server), descriptors(agent)) };
    // Connections that are kept on purpose are there before and after.
    let before = settled().await;
    let listing = p.run(&id, &token, "find /home/user/up -mindepth 1 | wc -l").await;
    assert_eq!(listing, "0\n");
    for round in 0..20 {
        let mut up = open(
            &p,
            &format!("POST /files?path=/home/user/up/half-{round} HTTP/1.1\r\ncontent-length: 100000000"),
            &id,
            &token,
        )
        .await;
        up.write_all(&vec![7; 3 << 20]).await.unwrap();
        let mut down = open(&p, "GET /files?path=/home/user/big HTTP/1.1", &id, &token).await;
        let mut some = vec![0; 1 << 20];
        down.read_exact(&mut some).await.unwrap();
        // Both end as if the machine had lost power: a reset, not a farewell.
        for stream in [up, down] {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
    }
    wait_for("half uploads go", Duration::from_secs(20), || async {
        (p.run(&id, &token, "find /home/user/up -mindepth 1 | wc -l").await == "0\n").then_some(())
    })
    .await;
    wait_for("descriptors come back", Duration::from_secs(20), || async {
        let now = settled().await;
        // A kept connection or two may have been made meanwhile.
        (now.0 <= before.0 + 4 && now.1 <= before.1 + 4).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_reader_who_does_not_read_holds_up_only_itself() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    p.run(&id, &token, "head -c 300000000 /dev/zero > /home/user/big").await;
    let (server, agent) = (p.pid(), agent(&p, &id));
    let before = (resident(server), resident(agent));
    let mut slow = Vec::new();
    for _ in 0..30 {
        let mut stream = open(&p, "GET /files?path=/home/user/big HTTP/1.1", &id, &token).await;
        let mut some = [0; 64];
        stream.read_exact(&mut some).await.unwrap();
        slow.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begun = std::time::Instant::now();
    assert_eq!(p.data("GET", "/files?path=/etc/hostname", &id, &token, vec![]).await.status, 200);
    p.run(&id, &token, "true").await;
    assert!(begun.elapsed() < Duration::from_secs(5), "others waited {:?}", begun.elapsed());
    let after = (resident(server), resident(agent));
    eprintln!("30 slow readers: resident KiB before {before:?}, with them {after:?}");
    assert!(
        after.0.saturating_sub(before.0) < FLAT_KIB && after.1.saturating_sub(before.1) < FLAT_KIB,
        "{before:?} {after:?}"
    );
    // A sandbox with readers can be paused and deleted; they learn it.
    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);
    for mut stream in slow {
        let ended = tokio::time::timeout(Duration::from_secs(10), async {
            let mut rest = vec![0; 1 << 20];
            while stream.read(&mut rest).await.is_ok_and(|n| n > 0) {}
        });
        assert!(ended.await.is_ok(), "a reader of a deleted sandbox hangs");
    }
}

/// Clients wake a sandbox when they are told that it sleeps, so an upload must end in being told.
#[tokio::test]
async fn an_upload_to_a_paused_sandbox_hears_why() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 204);
    for round in 0..20 {
        let refused = p.data("POST", "/files?path=/tmp/x", &id, &token, vec![7; 20_000_000]).await;
        assert_eq!((refused.status, refused.code()), (503, "sandbox_unavailable"), "{round}: {refused:?}");
    }
    // On the very connection that was refused.
    let again = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    p.run(&id, again.body["access_token"].as_str().unwrap(), "true").await;
}
