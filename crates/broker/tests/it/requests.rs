//! Requests that are let through, and what the service sees of them.

use std::sync::atomic::Ordering;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::{AuthScheme, SecretOptions};
use http::Request;

use crate::kit::{Bench, HOST, STAND_IN, VALUE, full, get, get2, text};

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_requests_on_one_http1_connection_carry_the_value_once_each() {
    let bench = Bench::start(&["http/1.1"]).await;
    let mut guest = bench.http1().await;
    for n in 0..100 {
        guest.ready().await.unwrap();
        let response = guest.send_request(get("/told").body(full("")).unwrap()).await.unwrap();
        assert_eq!(response.headers()["x-nth"], n.to_string(), "one connection on the other side, too");
        assert_eq!(text(response).await, "1 true");
    }
    assert_eq!(bench.service.connections.load(Ordering::Relaxed), 1);
    let rows = bench.rows();
    assert_eq!(rows.len(), 100);
    for row in rows {
        assert_eq!((row.method.as_str(), row.path.as_str(), row.host.as_str()), ("GET", "/told", HOST));
        assert_eq!((row.status, row.upstream_status, row.error), (200, Some(200), None));
        assert!(row.secret.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_parallel_requests_on_one_http2_connection_carry_the_value_once_each() {
    let bench = Bench::start(&["h2", "http/1.1"]).await;
    let guest = bench.http2().await;
    let all = (0..50).map(|_| {
        let mut guest = guest.clone();
        async move { text(guest.send_request(get2("/told").body(full("")).unwrap()).await.unwrap()).await }
    });
    for answer in futures_util::future::join_all(all).await {
        assert_eq!(answer, "1 true");
    }
    assert_eq!(bench.service.connections.load(Ordering::Relaxed), 1);
    assert_eq!(bench.rows().iter().filter(|row| row.status == 200).count(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_protocol_is_the_services() {
    let bench = Bench::start(&["http/1.1"]).await;
    let tls = bench.tls(&["h2", "http/1.1"]).await;
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    // A guest that does not negotiate gets what it would have had.
    let tls = bench.tls(&[]).await;
    assert_eq!(tls.get_ref().1.alpn_protocol(), None);
    let mut guest = crate::kit::one(tls).await;
    assert_eq!(text(guest.send_request(get("/told").body(full("")).unwrap()).await.unwrap()).await, "1 true");

    let bench = Bench::start(&["h2", "http/1.1"]).await;
    let tls = bench.tls(&["http/1.1"]).await;
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let tls = bench.tls(&["h2"]).await;
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_scheme_reaches_the_service_in_its_form() {
    let bench = Bench::start(&["http/1.1"]).await;
    let api_key = AuthScheme::ApiKey { header: "X-Api-Key".to_owned(), prefix: Some("key ".to_owned()) };
    let custom = AuthScheme::Custom { headers: vec![("X-Sign".to_owned(), "v={{ value }}!".to_owned())] };
    let basic = AuthScheme::Basic { username: Some("x-access-token".to_owned()) };
    let sent = STANDARD.encode(format!("me:{STAND_IN}"));
    let arrived = STANDARD.encode(format!("x-access-token:{VALUE}"));
    for (scheme, header, came, right) in [
        (AuthScheme::Bearer, "authorization", format!("bearer {STAND_IN}"), format!("Bearer {VALUE}")),
        (api_key, "x-api-key", STAND_IN.to_owned(), format!("key {VALUE}")),
        (custom, "x-sign", format!("v={STAND_IN}!"), format!("v={VALUE}!")),
        (basic, "authorization", format!("Basic {sent}"), format!("Basic {arrived}")),
    ] {
        bench.bind(STAND_IN, &[HOST], scheme, SecretOptions::default());
        let mut guest = bench.http1().await;
        let request =
            Request::builder().method("POST").uri("/echo?a=1").header("host", HOST).header(header, came);
        let answer = text(guest.send_request(request.body(full("body")).unwrap()).await.unwrap()).await;
        assert!(answer.contains(&format!("{header}: {right}\n")), "{answer}");
        assert!(answer.starts_with("POST /echo?a=1\n") && answer.contains("size=4"), "{answer}");
        assert!(!answer.contains(STAND_IN), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_stand_in_pass_unchanged_and_unrecorded() {
    let bench = Bench::start(&["http/1.1"]).await;
    let mut guest = bench.http1().await;
    let request = Request::builder().uri("/echo").header("host", HOST).header("authorization", "Bearer mine");
    let answer = text(guest.send_request(request.body(full("")).unwrap()).await.unwrap()).await;
    assert!(answer.contains("authorization: Bearer mine\n"), "{answer}");
    // The stand-in in a body or a URL is text like any other.
    guest.ready().await.unwrap();
    let request = Request::builder().method("PUT").uri(format!("/echo?k={STAND_IN}")).header("host", HOST);
    let answer = text(guest.send_request(request.body(full(STAND_IN)).unwrap()).await.unwrap()).await;
    assert!(answer.contains(&format!("/echo?k={STAND_IN}\n")), "{answer}");
    assert!(bench.rows().is_empty());
    assert_eq!(bench.kept.values.load(Ordering::Relaxed), 0, "a value is asked for only when it is used");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_or_revoked_secret_is_so_at_the_next_request() {
    let bench = Bench::start(&["http/1.1"]).await;
    let mut guest = bench.http1().await;
    assert_eq!(text(guest.send_request(get("/told").body(full("")).unwrap()).await.unwrap()).await, "1 true");
    bench.kept.all.lock().unwrap()[0].revoked = true;
    guest.ready().await.unwrap();
    let refused = guest.send_request(get("/told").body(full("")).unwrap()).await.unwrap();
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["x-superserve-proxy-reason"], "credential_revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_closes_is_dialled_again() {
    let bench = Bench::start(&["http/1.1"]).await;
    let mut guest = bench.http1().await;
    for _ in 0..3 {
        guest.ready().await.unwrap();
        assert_eq!(
            text(guest.send_request(get("/close").body(full("")).unwrap()).await.unwrap()).await,
            "closing"
        );
    }
    assert_eq!(bench.service.connections.load(Ordering::Relaxed), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_in_the_query_when_asked_for() {
    let bench = Bench::start(&["http/1.1"]).await;
    let options = SecretOptions { in_query: true, ..SecretOptions::default() };
    bench.bind(STAND_IN, &[HOST], AuthScheme::Bearer, options);
    let mut guest = bench.http1().await;
    let request = Request::builder().uri(format!("/echo?key={STAND_IN}")).header("host", HOST);
    let answer = text(guest.send_request(request.body(full("")).unwrap()).await.unwrap()).await;
    assert!(answer.starts_with("GET /echo?key=real-value%2Fwith%2Bsigns%3Dand%25more\n"), "{answer}");
    let rows = bench.rows();
    assert_eq!((rows.len(), rows[0].path.as_str()), (1, "/echo"));
}
