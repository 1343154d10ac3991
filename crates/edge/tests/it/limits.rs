//! Caps, slow clients, and the end of a server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edge::{Drained, Limits};
use http::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use crate::support::{HOST, World, body, exchange, request, within};

#[tokio::test]
async fn a_sandbox_has_so_many_requests_at_once() {
    let world = World::with(Limits { per_sandbox: 3, ..Limits::default() }).await;
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let sandbox = world.sandbox(move |_| {
        let held = Arc::clone(&held);
        async move {
            held.acquire().await.unwrap().forget();
            Response::new(body("x"))
        }
    });
    let other = world.sandbox(|_| async { Response::new(body("other")) });
    let mut busy = Vec::new();
    for _ in 0..3 {
        let mut stream = world.tcp().await;
        stream.write_all(request(&sandbox, "POST", "/exec", "").as_bytes()).await.unwrap();
        busy.push(stream);
    }
    let waited = Instant::now();
    while world.send(&sandbox, "POST", "/exec", "Expect: x\r\n").await.status != 429 {
        assert!(waited.elapsed() < Duration::from_secs(5), "no cap");
    }
    assert_eq!(world.send(&other, "POST", "/exec", "").await.status, 200, "another sandbox suffers");
    gate.add_permits(100);
    for stream in busy {
        assert_eq!(crate::support::read_all(stream).await.status, 200);
    }
    assert_eq!(world.send(&sandbox, "POST", "/exec", "").await.status, 200);
}

#[tokio::test]
async fn strangers_are_few_and_known_clients_many() {
    let limits = Limits { per_client: 4, per_client_authenticated: 12, ..Limits::default() };
    let world = World::with(limits).await;
    let sandbox = world.sandbox(|_| async { Response::new(body("x")) });
    let keep =
        request(&sandbox, "POST", "/exec", "Content-Length: 0\r\n").replace("Connection: close\r\n", "");
    let mut known = Vec::new();
    for _ in 0..7 {
        let mut stream = world.tcp().await;
        stream.write_all(keep.as_bytes()).await.unwrap();
        let head = crate::support::read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        known.push(stream);
    }
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(world.tcp().await);
    }
    let answer = world.raw(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await;
    assert_eq!(answer.status, 429, "{answer:?}");
    // Eleven are open; the twelfth is the last.
    silent.push(world.tcp().await);
    let mut more = world.tcp().await;
    assert_eq!(within("the refusal", more.read(&mut [0; 1])).await.unwrap_or(0), 0);
    drop(silent);
    drop(known);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.send(&sandbox, "POST", "/exec", "").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn slow_heads_are_cut() {
    let world = World::start().await;
    // The clock is paused and runs ahead whenever nothing moves, so this takes no time.
    let started = tokio::time::Instant::now();
    let mut silent = world.tcp().await;
    assert_eq!(silent.read(&mut [0; 1]).await.unwrap_or(0), 0);
    assert!(started.elapsed() <= Duration::from_secs(11), "{:?}", started.elapsed());
    let started = tokio::time::Instant::now();
    let mut slow = world.tcp().await;
    let drip = async {
        let _ = slow.write_all(b"GET /files HTTP/1.1\r\n").await;
        while started.elapsed() < Duration::from_secs(300) {
            if slow.write_all(b"A: b\r\n").await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(900)).await;
        }
    };
    drip.await;
    assert!(started.elapsed() < Duration::from_secs(90), "{:?}", started.elapsed());
    let started = tokio::time::Instant::now();
    let mut half = world.tcp().await;
    half.write_all(&[0x16, 3, 1]).await.unwrap();
    let mut rest = Vec::new();
    let _ = half.read_to_end(&mut rest).await;
    assert!(started.elapsed() <= Duration::from_secs(11), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_stop_finishes_what_is_in_flight() {
    let mut world = World::start().await;
    let sandbox = world.sandbox(|_| async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        Response::new(body("done"))
    });
    let idle = world.tls(HOST).await;
    let stream = world.tcp().await;
    let send = request(&sandbox, "POST", "/exec", "Content-Length: 0\r\n");
    let running = tokio::spawn(exchange(stream, send));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(within("the stop", world.stop()).await, Drained::Clean);
    assert_eq!(running.await.unwrap().body, "done");
    drop(idle);
    assert!(tokio::net::TcpStream::connect(world.address).await.is_err());
}
