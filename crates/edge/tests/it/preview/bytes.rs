//! How bytes pass: at once, with trailers, as slowly as either side likes, and no further than wanted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use domain::PreviewAccess::Public;
use domain::SandboxState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{PORT, request, send};
use crate::support::{World, read_all, read_head, within};

#[tokio::test]
async fn events_pass_as_they_come() {
    let world = World::start().await;
    let (go, gone) = tokio::sync::mpsc::channel::<()>(1);
    let gone = Arc::new(tokio::sync::Mutex::new(gone));
    let sandbox = world.raw_sandbox(move |mut stream| {
        let gone = Arc::clone(&gone);
        async move {
            read_head(&mut stream).await;
            let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 0\n\n";
            stream.write_all(head).await.unwrap();
            let mut count = 1;
            while gone.lock().await.recv().await.is_some() {
                stream.write_all(format!("data: {count}\n\n").as_bytes()).await.unwrap();
                count += 1;
            }
        }
    });
    sandbox.publish(PORT, Some(Public), 1);
    let mut stream = world.tcp().await;
    stream.write_all(request(&sandbox, "GET", "/", "").as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.contains("text/event-stream") && !head.contains("content-encoding"), "{head}");
    for count in 0..3 {
        // Each arrives before the next one is even written.
        let expected = format!("9\r\ndata: {count}\n\n\r\n");
        let mut seen = vec![0; expected.len()];
        within("an event", stream.read_exact(&mut seen)).await.unwrap();
        assert_eq!(String::from_utf8(seen).unwrap(), expected);
        go.send(()).await.unwrap();
    }
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let world = World::start().await;
    let sandbox = world.raw_sandbox(|mut stream| async move {
        let head = read_head(&mut stream).await;
        let mut body = Vec::new();
        while !body.ends_with(b"\r\n\r\n") {
            body.push(stream.read_u8().await.unwrap());
        }
        let seen = format!("{head}{}", String::from_utf8(body).unwrap());
        let answer = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n{:x}\r\n{seen}\r\n0\r\nX-Sum: 42\r\n\r\n",
            seen.len()
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    sandbox.publish(PORT, Some(Public), 1);
    let lines = "TE: trailers\r\nTrailer: X-Check\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Check: yes\r\n\r\n";
    let answer = send(&world, &sandbox, "POST", "/", lines).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body.contains("x-check: yes"), "to the guest: {answer:?}");
    assert!(answer.body.ends_with("0\r\nx-sum: 42\r\n\r\n"), "to the visitor: {answer:?}");
}

#[tokio::test]
async fn a_guest_decides_whether_it_wants_a_body() {
    let world = World::start().await;
    let sandbox = world.raw_sandbox(|mut stream| async move {
        let head = read_head(&mut stream).await;
        assert!(head.contains("expect: 100-continue"), "{head}");
        if head.starts_with("POST /no") {
            stream.write_all(b"HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            return;
        }
        // Nothing of the body comes before it is wanted.
        let early = tokio::time::timeout(Duration::from_millis(200), stream.read_u8()).await;
        assert!(early.is_err(), "{early:?}");
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
        let mut body = [0; 5];
        stream.read_exact(&mut body).await.unwrap();
        assert_eq!(&body, b"hello");
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    });
    sandbox.publish(PORT, Some(Public), 1);
    let expect = "Expect: 100-continue\r\nContent-Length: 5\r\n";
    let mut stream = world.tcp().await;
    stream.write_all(request(&sandbox, "POST", "/yes", expect).as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 100"), "{head}");
    stream.write_all(b"hello").await.unwrap();
    let answer = read_all(stream).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
    let mut stream = world.tcp().await;
    stream.write_all(request(&sandbox, "POST", "/no", expect).as_bytes()).await.unwrap();
    assert_eq!(read_all(stream).await.status, 417);
}

#[tokio::test]
async fn a_slow_reader_holds_the_guest_up_and_not_the_memory() {
    const ALL: usize = 256 * 1024 * 1024;
    let world = World::start().await;
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let sandbox = world.raw_sandbox(move |mut stream| {
        let count = Arc::clone(&count);
        async move {
            read_head(&mut stream).await;
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {ALL}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let piece = vec![7; 64 * 1024];
            while stream.write_all(&piece).await.is_ok() {
                count.fetch_add(piece.len(), Ordering::Relaxed);
            }
        }
    });
    sandbox.publish(PORT, Some(Public), 1);
    let mut stream = world.tcp().await;
    stream.write_all(request(&sandbox, "GET", "/", "").as_bytes()).await.unwrap();
    read_head(&mut stream).await;
    // Until nothing moves any more: what is written then sits in buffers between the two.
    let mut before = usize::MAX;
    while before != written.load(Ordering::Relaxed) {
        before = written.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(before < 16 * 1024 * 1024, "{before} bytes are under way to a reader that reads nothing");
    drop(stream);
}

#[tokio::test]
async fn an_answer_ends_with_its_publication_or_its_sandbox() {
    let world = World::start().await;
    let endless = || {
        let sandbox = world.raw_sandbox(|mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nstart").await.unwrap();
            // Until the edge lets go.
            let _ = stream.read(&mut [0]).await;
        });
        sandbox.publish(PORT, Some(Public), 1);
        sandbox
    };
    for end in ["unpublished", "rotated", "paused"] {
        let sandbox = endless();
        let mut stream = world.tcp().await;
        stream.write_all(request(&sandbox, "GET", "/", "").as_bytes()).await.unwrap();
        read_head(&mut stream).await;
        match end {
            "unpublished" => sandbox.publish(PORT, None, 1),
            "rotated" => sandbox.publish(PORT, Some(Public), 2),
            _ => drop(sandbox.state.send_replace(SandboxState::Pausing)),
        }
        let rest = read_all(stream).await;
        let all = format!("{}{}", rest.head, rest.body);
        assert!(!all.ends_with("0\r\n\r\n"), "{end}: the end does not look like one: {all}");
    }
    // Before there is any answer.
    let silent = world.raw_sandbox(|mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await;
        std::future::pending::<()>().await;
    });
    silent.publish(PORT, Some(Public), 1);
    let mut stream = world.tcp().await;
    stream.write_all(request(&silent, "GET", "/", "").as_bytes()).await.unwrap();
    let port = domain::PreviewPort::new(PORT.into()).unwrap();
    while world.traffic.of(silent.id, port).open == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    silent.state.send_replace(SandboxState::Pausing);
    assert_eq!(read_all(stream).await.status, 503);
}

/// What a server's queue is made for: no more than a browser would ask at once, until it is clear that it thinks.
#[tokio::test]
async fn a_burst_is_given_out_in_small_numbers_and_thinkers_hold_nobody_up() {
    let world = World::start().await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, peak) = (Arc::clone(&now), Arc::clone(&most));
    let sandbox = world.raw_sandbox(move |mut stream| {
        let (now, most) = (Arc::clone(&count), Arc::clone(&peak));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let head = read_head(&mut stream).await;
            if head.starts_with("GET /think") {
                let _ = stream.read(&mut [0]).await;
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        }
    });
    sandbox.publish(PORT, Some(Public), 1);
    let burst = (0..60).map(|_| send(&world, &sandbox, "GET", "/", ""));
    let answers = within("the burst", futures_util::future::join_all(burst)).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    assert!(most.load(Ordering::SeqCst) <= 6, "{} at once", most.load(Ordering::SeqCst));
    let mut thinkers = Vec::new();
    for _ in 0..30 {
        let mut stream = world.tcp().await;
        stream.write_all(request(&sandbox, "GET", "/think", "").as_bytes()).await.unwrap();
        thinkers.push(stream);
    }
    let port = domain::PreviewPort::new(PORT.into()).unwrap();
    while world.traffic.of(sandbox.id, port).open < 30 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(within("one more", send(&world, &sandbox, "GET", "/", "")).await.status, 200);
}
