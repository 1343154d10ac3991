//! Streams both ways: size, order, ends.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use domain::SandboxState;
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};

use crate::support::{Body, HOST, World, body, exchange, read_head, request, within};

/// A body of frames as they are sent.
fn channel() -> (mpsc::Sender<Bytes>, Body) {
    let (sender, mut receiver) = mpsc::channel::<Bytes>(1);
    let stream = futures_util::stream::poll_fn(move |cx| {
        receiver.poll_recv(cx).map(|bytes| bytes.map(|b| Ok::<_, Infallible>(Frame::data(b))))
    });
    (sender, BoxBody::new(StreamBody::new(stream)))
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

const GIB: usize = 1024 * 1024 * 1024;
const FLAT: usize = 48 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gibibyte_each_way_leaves_memory_flat() {
    let world = World::start().await;
    let sandbox = world.sandbox(|mut request| async move {
        if request.method() == http::Method::GET {
            let (sender, body) = channel();
            tokio::spawn(async move {
                let chunk = Bytes::from(vec![7; 64 * 1024]);
                for _ in 0..GIB / chunk.len() {
                    if sender.send(chunk.clone()).await.is_err() {
                        return;
                    }
                }
            });
            return Response::new(body);
        }
        let mut size = 0;
        while let Some(frame) = request.body_mut().frame().await {
            size += frame.unwrap().into_data().map_or(0, |d| d.len());
        }
        Response::new(body(size.to_string()))
    });
    let before = resident();
    let mut most = before;
    let mut stream = world.tls(HOST).await;
    stream.write_all(request(&sandbox, "GET", "/files?path=/big", "").as_bytes()).await.unwrap();
    let mut buffer = vec![0; 256 * 1024];
    let mut size = 0;
    loop {
        let n = within("a piece", stream.read(&mut buffer)).await.unwrap_or(0);
        if n == 0 {
            break;
        }
        size += n;
        most = most.max(resident());
    }
    assert!(size > GIB, "only {size} bytes came down");
    let mut stream = world.tls(HOST).await;
    let head = request(&sandbox, "POST", "/files?path=/big", &format!("Content-Length: {GIB}\r\n"));
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..GIB / buffer.len() {
        within("a piece", stream.write_all(&buffer)).await.unwrap();
        most = most.max(resident());
    }
    let answer = crate::support::read_all(stream).await;
    assert_eq!(answer.body, GIB.to_string());
    assert!(most - before < FLAT, "memory grew by {} MiB", (most - before) >> 20);
}

#[tokio::test]
async fn events_arrive_one_by_one() {
    let world = World::start().await;
    let (events, body) = channel();
    let body = Arc::new(std::sync::Mutex::new(Some(body)));
    let sandbox = world.sandbox(move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Response::builder().header("content-type", "text/event-stream").body(body).unwrap() }
    });
    let mut stream = world.tls(HOST).await;
    stream
        .write_all(request(&sandbox, "POST", "/exec/stream", "Content-Length: 0\r\n").as_bytes())
        .await
        .unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.to_lowercase().contains("content-type: text/event-stream"), "{head}");
    for n in 0..5 {
        // The next one is only sent when this one has arrived, so nothing may hold it back.
        events.send(Bytes::from(format!("data: {n}\n\n"))).await.unwrap();
        let mut chunk = vec![0; "9\r\ndata: 0\n\n\r\n".len()];
        within("an event", stream.read_exact(&mut chunk)).await.unwrap();
        assert_eq!(String::from_utf8(chunk).unwrap(), format!("9\r\ndata: {n}\n\n\r\n"));
    }
}

#[tokio::test]
async fn a_client_that_goes_ends_the_agents_connection() {
    let world = World::start().await;
    let started = Arc::new(Notify::new());
    let ended = Arc::new(Notify::new());
    let (start, end) = (Arc::clone(&started), Arc::clone(&ended));
    let sandbox = world.raw_sandbox(move |mut stream| {
        let (start, end) = (Arc::clone(&start), Arc::clone(&end));
        async move {
            read_head(&mut stream).await;
            start.notify_one();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            end.notify_one();
        }
    });
    let send = request(&sandbox, "POST", "/exec", "Content-Length: 0\r\n");
    let mut plain = world.tcp().await;
    plain.write_all(send.as_bytes()).await.unwrap();
    within("the command", started.notified()).await;
    drop(plain);
    tokio::time::timeout(Duration::from_millis(500), ended.notified()).await.expect("plain HTTP");
    let mut tls = world.tls(HOST).await;
    tls.write_all(send.as_bytes()).await.unwrap();
    within("the command", started.notified()).await;
    drop(tls);
    tokio::time::timeout(Duration::from_millis(500), ended.notified()).await.expect("TLS");
}

#[tokio::test]
async fn a_pause_ends_what_is_in_flight() {
    let world = World::start().await;
    let (events, body) = channel();
    let body = Arc::new(std::sync::Mutex::new(Some(body)));
    let sandbox = world.sandbox(move |_| {
        let body = body.lock().unwrap().take();
        async move {
            match body {
                Some(body) => Response::new(body),
                None => std::future::pending().await,
            }
        }
    });
    let mut streaming = world.tcp().await;
    streaming.write_all(request(&sandbox, "POST", "/exec/stream", "").as_bytes()).await.unwrap();
    read_head(&mut streaming).await;
    events.send(Bytes::from("x")).await.unwrap();
    let waiting = exchange(world.tcp().await, request(&sandbox, "POST", "/exec", ""));
    let pause = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        sandbox.state.send_replace(SandboxState::Pausing);
    };
    let (answer, ()) = tokio::join!(waiting, pause);
    // Not 503: a client would run the command again.
    assert_eq!(answer.status, 502, "{answer:?}");
    let mut rest = String::new();
    let _ = within("the end of the stream", streaming.read_to_string(&mut rest)).await;
    assert!(!rest.ends_with("0\r\n\r\n"), "a cut stream must not look complete: {rest:?}");
}

#[tokio::test]
async fn a_pause_before_the_guest_saw_anything_is_not_running() {
    let world = World::start().await;
    let sandbox = world.sandbox(|_| async { Response::new(body("x")) });
    let gate = sandbox.gate.lock().await;
    let waiting = exchange(world.tcp().await, request(&sandbox, "POST", "/exec", "Content-Length: 0\r\n"));
    let pause = async {
        while sandbox.opened.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        sandbox.state.send_replace(SandboxState::Paused);
    };
    let (answer, ()) = within("the answer", async { tokio::join!(waiting, pause) }).await;
    drop(gate);
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.body.contains("sandbox is paused"), "{answer:?}");
}

#[tokio::test]
async fn connections_are_kept_for_the_next_request() {
    let world = World::start().await;
    let sandbox = world.sandbox(|request| async move {
        request.into_body().collect().await.unwrap();
        Response::new(body("x"))
    });
    for _ in 0..20 {
        let answer = world.send(&sandbox, "POST", "/exec", "Content-Length: 2\r\n\r\nab").await;
        assert_eq!(answer.body, "x");
    }
    assert_eq!(sandbox.opened.load(Ordering::Relaxed), 1);
    // A pause in between: the old connection is not used any more.
    sandbox.state.send_replace(SandboxState::Paused);
    assert_eq!(world.send(&sandbox, "POST", "/exec", "").await.status, 503);
    sandbox.state.send_replace(SandboxState::Active);
    assert_eq!(world.send(&sandbox, "POST", "/exec", "Content-Length: 0\r\n").await.body, "x");
    assert_eq!(sandbox.opened.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn kept_connections_do_not_stay() {
    let world = World::start().await;
    let ended = Arc::new(Notify::new());
    let end = Arc::clone(&ended);
    let sandbox = world.raw_sandbox(move |mut stream| {
        let end = Arc::clone(&end);
        async move {
            read_head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx").await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
            end.notify_one();
        }
    });
    assert_eq!(world.send(&sandbox, "POST", "/exec", "Content-Length: 0\r\n").await.body, "x");
    tokio::time::timeout(Duration::from_secs(15), ended.notified()).await.expect("it is still open");
}

#[tokio::test]
async fn a_kept_connection_that_died_is_no_failure() {
    let world = World::start().await;
    // Says it keeps the connection, and closes it.
    let sandbox = world.raw_sandbox(|mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx").await.unwrap();
    });
    for _ in 0..20 {
        let answer = world.send(&sandbox, "POST", "/exec", "Content-Length: 0\r\n").await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[tokio::test]
async fn heads_ranges_and_continue_pass() {
    let world = World::start().await;
    let polled = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&polled);
    let sandbox = world.sandbox(move |request| {
        let seen = Arc::clone(&seen);
        async move {
            let range = request.headers().contains_key("range");
            let (parts, incoming) = request.into_parts();
            if parts.method == http::Method::HEAD {
                return Response::builder().header("content-length", 5).body(body("")).unwrap();
            }
            let size = incoming.collect().await.unwrap().to_bytes().len();
            seen.store(true, Ordering::Relaxed);
            let status = if range { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
            Response::builder().status(status).body(body(size.to_string())).unwrap()
        }
    });
    let answer = world.send(&sandbox, "HEAD", "/files?path=/x", "").await;
    assert!(answer.status == 200 && answer.has("content-length: 5") && answer.body.is_empty(), "{answer:?}");
    assert_eq!(world.send(&sandbox, "GET", "/files?path=/x", "Range: bytes=0-1\r\n").await.status, 206);
    let mut stream = world.tcp().await;
    let head = request(&sandbox, "POST", "/files?path=/x", "Expect: 100-continue\r\nContent-Length: 4\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 100"));
    let answer = exchange(stream, "abcd".to_owned()).await;
    assert_eq!(answer.body, "4");
    // A refused upload is never asked for.
    let head = head.replace("token-of-", "no-token-of-");
    assert_eq!(exchange(world.tcp().await, head).await.status, 401);
}

#[tokio::test]
async fn a_websocket_is_passed_through_without_its_token() {
    let world = World::start().await;
    let sandbox = world.raw_sandbox(|mut stream| async move {
        let head = read_head(&mut stream).await;
        let protocol = head.lines().find(|l| l.to_lowercase().starts_with("sec-websocket-protocol")).unwrap_or("");
        let accepted = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Accept: abc\r\nSec-WebSocket-Protocol: superserve.exec.v1\r\nSet-Cookie: a=b\r\n\r\n";
        stream.write_all(format!("{accepted}{protocol}\n{}\n", head.contains("token")).as_bytes()).await.unwrap();
        let mut piece = [0; 4];
        while stream.read_exact(&mut piece).await.is_ok() {
            stream.write_all(&piece).await.unwrap();
        }
    });
    let upgrade = |protocols: &str| {
        format!(
            "GET /exec/connect HTTP/1.1\r\nHost: boxd-{}.{HOST}\r\nConnection: keep-alive, Upgrade\r\n\
             Upgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: a2V5\r\n\
             Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Protocol: {protocols}\r\n\r\n",
            sandbox.id
        )
    };
    let mut stream = world.tls(&format!("boxd-{}.{HOST}", sandbox.id)).await;
    let offer = upgrade(&format!("superserve.exec.v1, token.{}, route.hint", sandbox.token));
    stream.write_all(offer.as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await.to_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(head.contains("sec-websocket-protocol: superserve.exec.v1\r\n"), "{head}");
    assert!(head.contains("sec-websocket-accept: abc\r\n") && !head.contains("cookie"), "{head}");
    let mut seen = String::new();
    while seen.lines().count() < 2 || !seen.ends_with('\n') {
        seen.push(within("what the agent saw", stream.read_u8()).await.unwrap().into());
    }
    assert_eq!(seen.to_lowercase(), "sec-websocket-protocol: superserve.exec.v1\nfalse\n");
    for _ in 0..3 {
        let mut piece = [0; 4];
        stream.write_all(b"ping").await.unwrap();
        within("an echo", stream.read_exact(&mut piece)).await.unwrap();
        assert_eq!(&piece, b"ping");
    }
    sandbox.state.send_replace(SandboxState::Pausing);
    assert_eq!(within("the end of the session", stream.read(&mut [0; 4])).await.unwrap_or(0), 0);
    sandbox.state.send_replace(SandboxState::Active);
    let refused = |protocols: &str| upgrade(protocols).replace("keep-alive", "close");
    let answer = exchange(world.tcp().await, refused("superserve.exec.v1, token.wrong")).await;
    assert_eq!((answer.status, answer.body.as_str()), (401, "invalid access token"));
    // The agent selects what was not offered to it.
    let answer = exchange(world.tcp().await, refused(&format!("other, token.{}", sandbox.token))).await;
    assert_eq!(answer.status, 502);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_requests_do_not_mix() {
    let world = Arc::new(World::start().await);
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let sandbox = world.sandbox(move |request| {
        count.fetch_add(1, Ordering::Relaxed);
        async move { Response::new(BoxBody::new(request.into_body().map_err(|_| unreachable!()))) }
    });
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..150 {
        let (world, sandbox) = (Arc::clone(&world), Arc::clone(&sandbox));
        clients.spawn(async move {
            let text = format!("client {client} ").repeat(client + 1);
            let rest = format!("Content-Length: {}\r\n\r\n{text}", text.len());
            let answer = world.send(&sandbox, "POST", "/exec", &rest).await;
            assert_eq!((answer.status, answer.body), (200, text));
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    assert_eq!(served.load(Ordering::Relaxed), 150);
}
