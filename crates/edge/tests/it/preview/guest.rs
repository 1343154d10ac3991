//! What a guest gets to see, what it may answer, and requests that try to be two.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use domain::PreviewAccess::Public;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{PORT, mirror, public_mirror, request, send};
use edge::Limits;

use crate::support::{HOST, Sandbox, World, body, exchange, read_all, read_head, within};

#[tokio::test]
async fn everything_that_is_not_for_one_connection_passes() {
    let world = World::start().await;
    let sandbox = public_mirror(&world);
    let rest = "X-A: 1\r\nX-a: 2\r\nAuthorization: Basic eA==\r\nCookie: a=\"x; y\"\r\nX-Forwarded-For: 6.6.6.6\r\n\
                Forwarded: for=6.6.6.6\r\nX-Forwarded-Host: evil\r\nX-Real-IP: 6.6.6.6\r\nKeep-Alive: 9\r\nX-Hop: 1\r\n\
                Proxy-Authorization: p\r\nTE: trailers, gzip\r\nX-Utf8: \u{e9}\r\nAccept-Encoding: br\r\n";
    let target = "/a%2Fb/../c;d?x=1&x=2&y=a+b%20c&z";
    let message =
        request(&sandbox, "PROPFIND", target, rest).replace("Connection: close", "Connection: close, X-Hop");
    let answer = world.raw(message).await;
    let seen: Vec<&str> = answer.body.lines().collect();
    assert_eq!(seen[0], format!("PROPFIND {target} HTTP/1.1"));
    for line in [
        "x-a: 1",
        "x-a: 2",
        "authorization: Basic eA==",
        "cookie: a=\"x; y\"",
        "x-forwarded-for: 127.0.0.1",
        "x-forwarded-proto: http",
        "te: trailers",
        "x-utf8: \u{e9}",
        "accept-encoding: br",
        "connection: close",
    ] {
        assert!(seen.contains(&line), "{line} in {seen:?}");
    }
    assert!(seen.contains(&format!("x-forwarded-host: {}", sandbox.preview_host(PORT)).as_str()), "{seen:?}");
    for gone in ["6.6.6.6", "evil", "x-hop", "keep-alive", "proxy-", "gzip", "x-real-ip", "transfer-encoding"]
    {
        assert!(!answer.body.contains(gone), "{gone} in {seen:?}");
    }
}

#[tokio::test]
async fn the_guests_answer_goes_back_as_it_is() {
    let world = World::start().await;
    let sandbox = world.raw_sandbox(|mut stream| async move {
        read_head(&mut stream).await;
        let answer = "HTTP/1.1 418 Whatever\r\nSet-Cookie: a=1; Domain=x\r\nSet-Cookie: b=2\r\nServer: mine\r\n\
                      X-Request-Id: theirs\r\nAccess-Control-Allow-Origin: *\r\nContent-Security-Policy: c\r\n\
                      Connection: close, X-Hop\r\nX-Hop: 1\r\nLocation: //x/%2F?a=1&a=2\r\nContent-Length: 2\r\n\r\nok";
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    sandbox.publish(PORT, Some(Public), 1);
    // As if it were a file: none of the data plane's rules may touch it.
    let answer = send(&world, &sandbox, "GET", "/files?path=/x", "Origin: https://console.example\r\n").await;
    assert_eq!((answer.status, answer.body.as_str()), (418, "ok"), "{answer:?}");
    for line in [
        "set-cookie: a=1; Domain=x",
        "set-cookie: b=2",
        "server: mine",
        "x-request-id: theirs",
        "access-control-allow-origin: *",
        "content-security-policy: c",
        "location: //x/%2F?a=1&a=2",
        "content-length: 2",
    ] {
        assert!(answer.has(line), "{line} in {answer:?}");
    }
    for gone in ["x-hop", "referrer-policy", "nosniff", "vary"] {
        assert!(!answer.head.to_lowercase().contains(gone), "{gone} in {answer:?}");
    }
}

#[tokio::test]
async fn one_request_is_one_request() {
    let world = World::start().await;
    // Collects whatever arrives on any connection.
    let seen = Arc::new(Mutex::new(Vec::<u8>::new()));
    let log = Arc::clone(&seen);
    let sandbox = world.raw_sandbox(move |mut stream| {
        let log = Arc::clone(&log);
        async move {
            read_head(&mut stream).await.bytes().for_each(|byte| log.lock().unwrap().push(byte));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            let mut rest = [0; 4096];
            while let Ok(read @ 1..) = stream.read(&mut rest).await {
                log.lock().unwrap().extend(&rest[..read]);
            }
        }
    });
    sandbox.publish(PORT, Some(Public), 1);
    let inner = format!("GET /smuggled HTTP/1.1\r\nHost: {}\r\n\r\n", sandbox.preview_host(PORT));
    let length = inner.len();
    for lines in [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n{length:x}\r\n{inner}\r\n0\r\n\r\n"),
        format!("Transfer-Encoding: xchunked\r\nContent-Length: {length}\r\n\r\n{inner}"),
        format!("Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{inner}"),
        format!("Transfer-Encoding : chunked\r\nContent-Length: {length}\r\n\r\n{inner}"),
        format!("Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{inner}"),
        format!("Content-Length: +{length}\r\n\r\n{inner}"),
        format!("X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n{inner}"),
        format!("Connection: Content-Length\r\nContent-Length: {length}\r\n\r\n{inner}"),
        String::from(
            "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
        ),
    ] {
        seen.lock().unwrap().clear();
        let answer = send(&world, &sandbox, "POST", "/", &lines).await;
        assert!([200, 400, 502].contains(&answer.status), "{lines}: {answer:?}");
        let text = String::from_utf8_lossy(&seen.lock().unwrap()).into_owned();
        let Some((head, content)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        // Whatever came, the guest can tell where it ends in one way only.
        let (chunked, sized) = (head.contains("transfer-encoding:"), head.contains("content-length:"));
        assert!(!(chunked && sized), "{lines}: {text}");
        assert!(
            head.matches("content-length:").count() <= 1 && !head.contains("xchunked"),
            "{lines}: {text}"
        );
        if content.contains("smuggled") {
            let inside = if chunked { content.ends_with("\r\n0\r\n\r\n") } else { content.len() == length };
            assert!(inside, "a second request outside of the body: {lines}: {text}");
            assert!(chunked || head.contains(&format!("content-length: {length}")), "{lines}: {text}");
        }
        assert!(!head.contains("h2c") && !head.contains("http2-settings"), "{text}");
    }
}

#[tokio::test]
async fn a_guest_cannot_answer_twice_or_in_rubbish() {
    let world = World::start().await;
    for (answer, status) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
            200,
        ),
        ("SSH-2.0-OpenSSH_9.2\r\n", 502),
        ("\u{16}\u{3}\u{1}\0\0", 502),
        ("", 502),
        ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", 502),
    ] {
        let sandbox = world.raw_sandbox(move |mut stream| async move {
            read_head(&mut stream).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        });
        sandbox.publish(PORT, Some(Public), 1);
        // On one connection, so that a second answer would be taken for that of the second request.
        let mut stream = world.tcp().await;
        let keep = request(&sandbox, "GET", "/", "").replace("Connection: close\r\n", "");
        stream.write_all(keep.as_bytes()).await.unwrap();
        stream.write_all(request(&sandbox, "GET", "/", "").as_bytes()).await.unwrap();
        let all = read_all(stream).await;
        assert_eq!(all.status, status, "{answer:?}: {all:?}");
        let text = format!("{}{}", all.head, all.body);
        assert!(!text.contains("evil") && text.matches("HTTP/1.1 ").count() == 2, "{answer:?}: {text}");
    }
    // A head without end is given up.
    let sandbox = world.raw_sandbox(|mut stream| async move {
        read_head(&mut stream).await;
        let line = format!("X-A: {}\r\n", "a".repeat(1000));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
        while stream.write_all(line.as_bytes()).await.is_ok() {}
    });
    sandbox.publish(PORT, Some(Public), 1);
    assert_eq!(send(&world, &sandbox, "GET", "/", "").await.status, 502);
}

async fn over_http2(world: &World, sandbox: &Sandbox, request: Request<Full<Bytes>>) -> Response<Bytes> {
    let name = rustls::pki_types::ServerName::try_from(sandbox.preview_host(PORT)).unwrap();
    let stream = world.connector(&["h2"]).connect(name, world.tcp().await).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let driver = tokio::spawn(connection);
    let response = within("an answer", sender.send_request(request)).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = within("its body", body.collect()).await.unwrap().to_bytes();
    driver.abort();
    Response::from_parts(parts, body)
}

#[tokio::test]
async fn http2_becomes_http1_for_the_guest() {
    let world = World::start().await;
    let sandbox = public_mirror(&world);
    let host = sandbox.preview_host(PORT);
    let request = Request::get(format!("https://{host}/a%2Fb?x=1&x=2"))
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .header("x-forwarded-proto", "gopher")
        .body(Full::default())
        .unwrap();
    let answer = over_http2(&world, &sandbox, request).await;
    assert_eq!(answer.status(), 200);
    let seen = String::from_utf8(answer.into_body().to_vec()).unwrap();
    assert!(seen.starts_with("GET /a%2Fb?x=1&x=2 HTTP/1.1\r\n"), "{seen}");
    for line in [&format!("host: {host}"), "cookie: a=1; b=2", "x-forwarded-proto: https"] {
        assert!(seen.lines().any(|l| l == line), "{line} in {seen}");
    }
    assert_eq!(seen.matches("cookie:").count(), 1, "{seen}");
}

#[tokio::test]
async fn methods_bodies_and_heads() {
    let world = World::start().await;
    let sandbox = world.sandbox(|request| async move {
        let method = request.method().clone();
        let length = format!("{:?}", request.headers().get("content-length"));
        let bytes = request.into_body().collect().await.unwrap().to_bytes();
        let mut response = Response::new(body(format!("{method} {length} {}", bytes.len())));
        if method == http::Method::HEAD {
            response = Response::new(body(""));
            response.headers_mut().insert("content-length", "12345".parse().unwrap());
        }
        response
    });
    sandbox.publish(PORT, Some(Public), 1);
    let check = async |method: &str, rest: &str, expected: &str| {
        let answer = send(&world, &sandbox, method, "/", rest).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, expected), "{method}");
    };
    check("GET", "", "GET None 0").await;
    check("POST", "Content-Length: 5\r\n\r\nhello", "POST Some(\"5\") 5").await;
    check("PUT", "Content-Length: 0\r\n", "PUT Some(\"0\") 0").await;
    check("DELETE", "", "DELETE Some(\"0\") 0").await;
    check("PATCH", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n", "PATCH None 7")
        .await;
    let head = send(&world, &sandbox, "HEAD", "/", "").await;
    assert!(head.status == 200 && head.has("content-length: 12345") && head.body.is_empty(), "{head:?}");
}

#[tokio::test]
async fn caps_are_kept_and_count_per_port() {
    let limits =
        Limits { preview_requests_per_second: Some(3), preview_body_bytes: Some(1000), ..Limits::default() };
    let world = World::with(limits).await;
    let sandbox = mirror(&world);
    sandbox.publish(PORT, Some(Public), 1);
    sandbox.publish(3001, Some(Public), 1);
    let large = format!("Content-Length: 1001\r\n\r\n{}", "x".repeat(1001));
    assert_eq!(send(&world, &sandbox, "POST", "/", &large).await.status, 413);
    assert_eq!(sandbox.opened.load(Ordering::Relaxed), 0);
    let other = request(&sandbox, "GET", "/", "").replace("3000-", "3001-");
    for _ in 0..3 {
        assert_eq!(world.raw(other.clone()).await.status, 200);
    }
    let refused = world.raw(other).await;
    assert!(refused.status == 429 && refused.has("retry-after: 1"), "{refused:?}");
    assert_eq!(send(&world, &sandbox, "GET", "/", "").await.status, 200, "another port has its own");
    // A longer answer is refused where its length is known, and cut where it is not.
    for (head, statuses) in [("Content-Length: 1001\r\n", &[413][..]), ("Connection: close\r\n", &[0, 200])] {
        let big = world.raw_sandbox(move |mut stream| async move {
            read_head(&mut stream).await;
            let answer = format!("HTTP/1.1 200 OK\r\n{head}\r\n{}", "x".repeat(1001));
            let _ = stream.write_all(answer.as_bytes()).await;
        });
        big.publish(PORT, Some(Public), 1);
        let answer = send(&world, &big, "GET", "/", "").await;
        assert!(statuses.contains(&answer.status), "{answer:?}");
        assert!(!answer.body.ends_with("0\r\n\r\n"), "the end does not look like one: {answer:?}");
    }
}

#[tokio::test]
async fn too_many_at_once_are_turned_away() {
    let world = World::with(Limits { per_preview_port: 2, ..Limits::default() }).await;
    let sandbox = world.sandbox(|_| std::future::pending::<Response<crate::support::Body>>());
    sandbox.publish(PORT, Some(Public), 1);
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = world.tcp().await;
        stream.write_all(request(&sandbox, "GET", "/", "").as_bytes()).await.unwrap();
        open.push(stream);
    }
    let port = domain::PreviewPort::new(PORT.into()).unwrap();
    while world.traffic.of(sandbox.id, port).open < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(send(&world, &sandbox, "GET", "/", "").await.status, 429);
    // Who leaves makes room, and the guest's connection is closed.
    drop(open);
    while world.traffic.of(sandbox.id, port).open > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(world.traffic.of(sandbox.id, port).refused, 1);
}

#[tokio::test]
async fn traffic_and_the_latest_requests_are_known() {
    let world = World::start().await;
    let (sandbox, token) = super::private_mirror(&world);
    let target = format!("/secret/path?superserve_preview_token={token}&password=x");
    let answer = send(&world, &sandbox, "POST", &target, "Content-Length: 5\r\n\r\nhello").await;
    assert_eq!(answer.status, 200);
    let event = world.ended().await;
    assert_eq!((event.kind, event.status, event.bytes_in), (edge::Kind::Preview, 200, 5));
    send(&world, &sandbox, "GET", "/exec", "").await;
    assert_eq!(world.ended().await.kind, edge::Kind::Preview, "whatever the path looks like");
    let port = domain::PreviewPort::new(PORT.into()).unwrap();
    let traffic = world.traffic.of(sandbox.id, port);
    assert_eq!((traffic.requests, traffic.refused, traffic.open), (1, 1, 0));
    assert_eq!((traffic.bytes_in, traffic.bytes_out), (5, answer.body.len() as u64));
    assert!(traffic.last.is_some());
    let visits = world.traffic.visits(sandbox.id, port);
    assert_eq!(visits.len(), 1, "{visits:?}");
    let visit = &visits[0];
    assert_eq!((visit.method.as_str(), visit.path.as_str(), visit.status), ("POST", "/secret/path", 200));
    assert!(visit.client.is_loopback() && visit.outcome == edge::Outcome::Answered);
    assert!(!format!("{visits:?}").contains("password"), "no query: {visits:?}");
}

#[tokio::test]
async fn hosts_that_disagree_are_refused() {
    let world = World::start().await;
    let sandbox = public_mirror(&world);
    let twice = request(&sandbox, "GET", "/", &format!("Host: 3001-{}.{HOST}\r\n", sandbox.id));
    assert_eq!(world.raw(twice).await.status, 400);
    let user = format!(
        "GET http://user@{}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        sandbox.preview_host(PORT)
    );
    assert_ne!(world.raw(user).await.status, 200);
    let host = sandbox.preview_host(PORT);
    let tls = exchange(world.tls(&host).await, request(&sandbox, "GET", "/", "")).await;
    assert!(tls.body.contains("x-forwarded-proto: https"), "{tls:?}");
}
