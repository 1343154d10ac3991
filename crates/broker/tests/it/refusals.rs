//! Requests that are refused: status, headers, reason, and the row.

use domain::{AuthScheme, SandboxId, SecretOptions};
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::{Bench, HOST, STAND_IN, To, clean, full, get, get2, one, text, two};
use egress::DialError;

/// What a refusal looks like.
async fn refused(bench: &Bench, response: Response<Incoming>, status: u16, reason: &str, rows: usize) {
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()["x-superserve-proxy-error"], "true");
    assert_eq!(response.headers()["x-superserve-proxy-reason"], reason);
    let text = text(response).await;
    assert!(
        text.starts_with("Superserve did not pass this request on: ") && text.lines().count() == 2,
        "{text}"
    );
    assert!(!text.contains(STAND_IN), "{text}");
    clean(&text);
    let found = bench.rows();
    assert_eq!(found.len(), rows, "{found:?}");
    if let Some(row) = found.last() {
        assert_eq!((row.status, row.error.as_deref(), row.upstream_status), (status, Some(reason), None));
        assert!(row.secret.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_host_than_the_secrets() {
    let bench = Bench::start(&["http/1.1"]).await;
    let other = "ssrv_proxy_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";
    bench.bind(other, &["*.example.org"], AuthScheme::Bearer, SecretOptions::default());
    let mut guest = bench.http1().await;
    let request = Request::builder()
        .uri("/echo")
        .header("host", HOST)
        .header("authorization", format!("Bearer {other}"));
    let response = guest.send_request(request.body(full("")).unwrap()).await.unwrap();
    refused(&bench, response, 403, "credential_host_mismatch", 1).await;
    // The connection goes on.
    guest.ready().await.unwrap();
    let response = guest.send_request(get("/told").body(full("")).unwrap()).await.unwrap();
    assert_eq!(text(response).await, "1 true");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_host_than_the_connections() {
    let bench = Bench::start(&["h2", "http/1.1"]).await;
    let mut guest = bench.http1().await;
    for (uri, host) in
        [("/echo", "evil.example"), ("https://evil.example/echo", HOST), ("/echo", "u@api.example.com")]
    {
        guest.ready().await.unwrap();
        let request = Request::builder().uri(uri).header("host", host);
        let bearer = format!("Bearer {STAND_IN}");
        let with = request.header("authorization", bearer).body(full("")).unwrap();
        let rows = bench.rows().len();
        let response = guest.send_request(with).await.unwrap();
        refused(&bench, response, 403, "credential_host_mismatch", rows + 1).await;
    }
    guest.ready().await.unwrap();
    let without = Request::builder().uri("/echo").header("host", "evil.example").body(full("")).unwrap();
    let response = guest.send_request(without).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-superserve-proxy-reason"]),
        (403, &"host_not_allowed".parse().unwrap())
    );

    let mut guest = bench.http2().await;
    let bearer = format!("Bearer {STAND_IN}");
    let request = Request::builder().uri("https://evil.example/echo").header("authorization", &bearer);
    let response = guest.send_request(request.body(full("")).unwrap()).await.unwrap();
    refused(&bench, response, 403, "credential_host_mismatch", 4).await;
    let request = get2("/echo").header("host", "evil.example");
    let response = guest.send_request(request.body(full("")).unwrap()).await.unwrap();
    refused(&bench, response, 403, "credential_host_mismatch", 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stand_in_of_another_sandbox() {
    let bench = Bench::start(&["http/1.1"]).await;
    let theirs = "ssrv_proxy_THEIRS6789abcdefghijklmnopqrstuvwxyzABCDEFG";
    bench.bind(theirs, &[HOST], AuthScheme::Bearer, SecretOptions::default());
    bench.kept.all.lock().unwrap().last_mut().unwrap().sandbox = SandboxId::new();
    let mut guest = bench.http1().await;
    let request = Request::builder()
        .uri("/echo")
        .header("host", HOST)
        .header("authorization", format!("Bearer {theirs}"));
    let response = guest.send_request(request.body(full("")).unwrap()).await.unwrap();
    refused(&bench, response, 403, "sandbox_revoked", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_cannot_be_reached() {
    let bench = Bench::start(&["http/1.1"]).await;
    let mut rows = 0;
    let mut check = async |to: To, status, reason| {
        for h2 in [false, true] {
            rows += 1;
            let to = To(to.0);
            let response = if h2 {
                let tls = bench.tls_to(HOST, HOST, &["h2"], to).await;
                two(tls).await.send_request(get2("/echo").body(full("")).unwrap()).await.unwrap()
            } else {
                let tls = bench.tls_to(HOST, HOST, &["h2", "http/1.1"], to).await;
                one(tls).await.send_request(get("/echo").body(full("")).unwrap()).await.unwrap()
            };
            refused(&bench, response, status, reason, rows).await;
        }
    };
    check(To(Ok("127.0.0.1:1".parse().unwrap())), 502, "upstream_unreachable").await;
    check(To(Err(DialError::Blocked)), 403, "egress_blocked").await;
    check(To(Err(DialError::Failed("timeout"))), 502, "upstream_unreachable").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_whose_certificate_is_not_trusted() {
    let bench = Bench::start(&["http/1.1"]).await;
    let stranger = crate::kit::Service::start(&["http/1.1"]).await;
    let mut guest = one(bench.tls_to(HOST, HOST, &[], To(Ok(stranger.address))).await).await;
    let response = guest.send_request(get("/echo").body(full("")).unwrap()).await.unwrap();
    refused(&bench, response, 502, "upstream_unreachable", 1).await;
    // Trusted, but another name.
    bench.bind(STAND_IN, &["other.example"], AuthScheme::Bearer, SecretOptions::default());
    let tls = bench.tls_to("other.example", "other.example", &[], To(Ok(bench.service.address))).await;
    let request = Request::builder().uri("/echo").header("host", "other.example");
    let request = request.header("authorization", format!("Bearer {STAND_IN}")).body(full("")).unwrap();
    let response = one(tls).await.send_request(request).await.unwrap();
    refused(&bench, response, 502, "upstream_unreachable", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_for_another_name_than_was_judged() {
    let bench = Bench::start(&["http/1.1"]).await;
    let tcp = bench.connect("judged.example", To(Ok(bench.service.address))).await;
    let ca = bench.service.roots.clone();
    assert!(crate::kit::handshake(tcp, ca, HOST, &[]).await.is_err());
}

/// Raw HTTP/1 to the broker; what comes back until the connection ends or is silent.
async fn raw(bench: &Bench, bytes: &[u8]) -> String {
    let mut tls = bench.tls(&["http/1.1"]).await;
    tls.write_all(bytes).await.unwrap();
    let mut got = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(Ok(read)) =
        tokio::time::timeout(std::time::Duration::from_millis(500), tls.read(&mut buffer)).await
    {
        if read == 0 {
            break;
        }
        got.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8_lossy(&got).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_two_parties_could_read_differently() {
    let bench = Bench::start(&["http/1.1"]).await;
    let head = format!("Host: {HOST}\r\nAuthorization: Bearer {STAND_IN}\r\n");
    for (name, bytes) in [
        ("no host", format!("GET /told HTTP/1.1\r\nAuthorization: Bearer {STAND_IN}\r\n\r\n")),
        ("two hosts", format!("GET /told HTTP/1.1\r\n{head}Host: evil.example\r\n\r\n")),
        (
            "two lengths",
            format!("POST /told HTTP/1.1\r\n{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        ),
        (
            "strange coding",
            format!("POST /told HTTP/1.1\r\n{head}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        ),
        ("space in a name", format!("GET /told HTTP/1.1\r\n{head}X : 1\r\n\r\n")),
        ("connect", format!("CONNECT {HOST}:443 HTTP/1.1\r\n{head}\r\n")),
        ("folded", format!("GET /told HTTP/1.1\r\n{head}X: 1\r\n 2\r\n\r\n")),
        ("bare return", format!("GET /told HTTP/1.1\r\n{head}X: 1\rY: 2\r\n\r\n")),
        ("too many headers", format!("GET /told HTTP/1.1\r\n{head}{}\r\n", "X: 1\r\n".repeat(1000))),
        ("too long a head", format!("GET /told HTTP/1.1\r\n{head}X: {}\r\n\r\n", "x".repeat(200_000))),
    ] {
        let got = raw(&bench, bytes.as_bytes()).await;
        assert!(!got.contains("1 true") && !got.starts_with("HTTP/1.1 200"), "{name}: {got}");
    }
    // A body that is hidden behind a length: what follows is a request of its own, judged by itself.
    let hidden =
        format!("GET /told HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer {STAND_IN}\r\n\r\n");
    let both = format!(
        "POST /told HTTP/1.1\r\n{head}Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
        5 + hidden.len()
    );
    let got = raw(&bench, both.as_bytes()).await;
    let statuses: Vec<_> = got.match_indices("HTTP/1.1 ").map(|(at, _)| &got[at + 9..at + 12]).collect();
    assert!(!statuses.contains(&"200") || statuses == ["200", "403"] || statuses == ["200"], "{got}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sandbox_cannot_hold_all_connections() {
    let bench = Bench::start(&["http/1.1"]).await;
    let mut open = Vec::new();
    for _ in 0..256 {
        open.push(bench.connect(HOST, To(Err(DialError::Blocked))).await);
    }
    // All 256 wait for a hello; the next is dropped at once.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let mut next = bench.connect(HOST, To(Err(DialError::Blocked))).await;
    assert_eq!(next.read(&mut [0; 1]).await.unwrap_or(0), 0);
    drop(open);
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let mut guest = bench.http1().await;
    assert_eq!(text(guest.send_request(get("/told").body(full("")).unwrap()).await.unwrap()).await, "1 true");
}

/// A service answers these with the request it got, and nobody asked for bodies to be scrubbed.
#[tokio::test(flavor = "multi_thread")]
async fn methods_that_send_the_request_back() {
    let bench = Bench::start(&["http/1.1"]).await;
    let mut guest = bench.http1().await;
    for (before, method) in ["TRACE", "TRACK"].into_iter().enumerate() {
        guest.ready().await.unwrap();
        let request = get("/echo").method(method).body(full("")).unwrap();
        refused(&bench, guest.send_request(request).await.unwrap(), 400, "build_request", before + 1).await;
    }
}
