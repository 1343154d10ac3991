//! What a hostile guest can write into its answers, and what a client must not get to the guest.

use std::sync::atomic::Ordering;

use http::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::support::{World, body, read_head};

/// Answers every connection with these bytes after one request head, and closes.
async fn answer_with(mut stream: UnixStream, bytes: Vec<u8>) {
    read_head(&mut stream).await;
    let _ = stream.write_all(&bytes).await;
}

#[tokio::test]
async fn a_guest_cannot_write_policy_or_cookies() {
    let world = World::start().await;
    let sandbox = world.raw_sandbox(|stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nSet-Cookie: a=b\r\n\
            Strict-Transport-Security: max-age=1\r\nAlt-Svc: h3=\":1\"\r\nAccess-Control-Allow-Origin: *\r\n\
            Clear-Site-Data: \"*\"\r\nConnection: upgrade, x-evil\r\nUpgrade: evil\r\nX-Evil: 1\r\nServer: evil\r\n\
            X-Access-Token: t\r\nReferrer-Policy: unsafe-url\r\nLocation: http://evil.example\r\n\
            Content-Disposition: inline; filename=\"a\"\r\nETag: \"1\"\r\n\r\nok";
        answer_with(stream, head.into())
    });
    let answer = world.send(&sandbox, "GET", "/files?path=/x", "").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
    let mut names: Vec<_> =
        answer.head.lines().skip(1).filter_map(|l| l.split(':').next()).map(str::to_lowercase).collect();
    names.sort();
    let expected = [
        "connection",
        "content-disposition",
        "content-length",
        "content-type",
        "date",
        "etag",
        "referrer-policy",
        "x-content-type-options",
        "x-request-id",
    ];
    assert_eq!(names, expected, "{answer:?}");
    assert!(answer.has("referrer-policy: no-referrer") && answer.has("connection: close"), "{answer:?}");
}

#[tokio::test]
async fn nonsense_from_a_guest_is_a_502() {
    let world = World::start().await;
    let check = async |what: &str, bytes: Vec<u8>| {
        let sandbox = world.raw_sandbox(move |stream| answer_with(stream, bytes.clone()));
        let answer = world.send(&sandbox, "POST", "/exec", "Content-Length: 0\r\n").await;
        assert_eq!(answer.status, 502, "{what}: {answer:?}");
        assert!(answer.has("retry-after: 2"), "{what}: {answer:?}");
        assert_eq!(sandbox.opened.load(Ordering::Relaxed), 1, "{what}: a command was sent twice");
    };
    check("silence", Vec::new()).await;
    check("no HTTP", b"SSH-2.0-OpenSSH\r\n\r\n".to_vec()).await;
    check("half a head", b"HTTP/1.1 200 OK\r\nContent-".to_vec()).await;
    check("a huge head", format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "a".repeat(200_000)).into()).await;
    check("many headers", format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(200)).into()).await;
    check("two lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab".to_vec())
        .await;
    check("a strange length", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".to_vec()).await;
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    check("an upgrade nobody asked for", switch.into()).await;
}

#[tokio::test]
async fn a_guest_that_is_not_there_is_a_502() {
    let world = World::start().await;
    let sandbox = world.sandbox_at(None);
    let answer = world.send(&sandbox, "GET", "/files?path=/x", "").await;
    assert_eq!(answer.status, 502);
    assert!(answer.has("retry-after: 2"), "{answer:?}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_seen_to_break_off() {
    let world = World::start().await;
    let sandbox = world.raw_sandbox(|stream| {
        answer_with(stream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n".to_vec())
    });
    let answer = world.send(&sandbox, "GET", "/files?path=/x", "").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body, "3\r\nabc\r\n", "the end of the body must be missing");
}

#[tokio::test]
async fn a_length_that_contradicts_the_body_is_not_passed_on() {
    let world = World::start().await;
    let sandbox = world.raw_sandbox(|stream| {
        let answer =
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        answer_with(stream, answer.into())
    });
    let answer = world.send(&sandbox, "GET", "/files?path=/x", "").await;
    assert!(
        answer.status == 502
            || (answer.body == "3\r\nabc\r\n0\r\n\r\n"
                && !answer.head.to_lowercase().contains("content-length")),
        "{answer:?}"
    );
    let sandbox = world.sandbox(|request| async move {
        let claimed = request.headers().contains_key("content-length");
        let size = http_body_util::BodyExt::collect(request.into_body()).await.unwrap().to_bytes().len();
        Response::new(body(format!("{claimed} {size}")))
    });
    let both = "Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let answer = world.send(&sandbox, "POST", "/exec", both).await;
    assert!(answer.status == 400 || answer.body == "false 3", "{answer:?}");
}

#[tokio::test]
async fn a_guest_gets_no_credential() {
    let world = World::start().await;
    let sandbox = world.sandbox(|request| async move {
        let mut names: Vec<_> = request.headers().keys().map(ToString::to_string).collect();
        names.sort();
        Response::new(body(format!("{} {} {names:?}", request.method(), request.uri())))
    });
    let headers = "Authorization: Bearer a\r\nCookie: a=b\r\nProxy-Authorization: x\r\nForwarded: for=1\r\n\
        X-Forwarded-For: 1\r\nX-Superserve-Routing-Hint: h\r\nX-Superserve-Preview-Token: t\r\nExpect: 100-continue\r\n\
        Origin: https://a.example\r\nKeep-Alive: 1\r\nTE: trailers\r\nAccept: */*\r\nRange: bytes=0-1\r\n\
        Content-Type: application/json\r\nUser-Agent: test\r\nContent-Length: 2\r\n\r\n{}";
    let answer = world.send(&sandbox, "POST", "/exec?a=%20b", headers).await;
    assert_eq!(answer.status, 100, "the body is asked for: {answer:?}");
    let seen = answer.body.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(
        seen,
        r#"POST /exec?a=%20b ["accept", "content-length", "content-type", "host", "range", "user-agent"]"#
    );
}

#[tokio::test]
async fn request_heads_are_bounded() {
    let world = World::start().await;
    let sandbox = world.sandbox(|_| async { Response::new(body("in")) });
    let many = "A: b\r\n".repeat(150);
    assert_eq!(world.send(&sandbox, "GET", "/files", &many).await.status, 431);
    let long = format!("A: {}\r\n", "a".repeat(60_000));
    assert_eq!(world.send(&sandbox, "GET", "/files", &long).await.status, 431);
    let smuggled =
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /files HTTP/1.1\r\n\r\n";
    let answer = world.send(&sandbox, "POST", "/exec", smuggled).await;
    assert!(answer.status == 400 || !answer.body.contains("HTTP/1.1"), "{answer:?}");
}

#[tokio::test]
async fn a_broken_stream_does_not_come_back() {
    // The guest answers before it has read the body: this connection must not serve another request.
    let world = World::start().await;
    let sandbox = world.raw_sandbox(|mut stream| async move {
        read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n").await;
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    for expected in 1..=2 {
        let answer = world.send(&sandbox, "POST", "/files?path=/x", "Content-Length: 9\r\n\r\nabc").await;
        assert_eq!(answer.status, 413);
        assert_eq!(sandbox.opened.load(Ordering::Relaxed), expected);
    }
}
