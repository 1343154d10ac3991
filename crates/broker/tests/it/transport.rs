//! Bodies, framing and time: nothing is changed, held back or lost.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::{Bench, HOST, LONG, STAND_IN, download, full, get, get2, text};

fn random(size: usize) -> Bytes {
    let mut bytes = vec![0; size];
    getrandom::fill(&mut bytes).unwrap();
    bytes.into()
}

fn hash(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_arrive_as_they_were_sent() {
    let bench = Bench::start(&["h2", "http/1.1"]).await;
    let body = random(5 * 1024 * 1024);
    let right = hash(&body);
    let mut one = bench.http1().await;
    let mut two = bench.http2().await;
    let sized =
        text(one.send_request(get("/hash").method("POST").body(full(body.clone())).unwrap()).await.unwrap())
            .await;
    assert_eq!(sized, right);
    // Without a length, in pieces.
    let pieces: Vec<Result<_, hyper::Error>> =
        body.chunks(70_001).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
    let pieces = BodyExt::boxed(StreamBody::new(futures_util::stream::iter(pieces)));
    one.ready().await.unwrap();
    assert_eq!(
        text(one.send_request(get("/hash").method("POST").body(pieces).unwrap()).await.unwrap()).await,
        right
    );
    let sent = two.send_request(get2("/hash").method("POST").body(full(body.clone())).unwrap());
    assert_eq!(text(sent.await.unwrap()).await, right);

    let expected = download();
    one.ready().await.unwrap();
    let response = one.send_request(get("/bytes").body(full("")).unwrap()).await.unwrap();
    assert_eq!(response.headers()["content-length"], "5242880");
    assert_eq!(hash(&response.into_body().collect().await.unwrap().to_bytes()), hash(&expected));
    let response = two.send_request(get2("/bytes").body(full("")).unwrap()).await.unwrap();
    assert_eq!(hash(&response.into_body().collect().await.unwrap().to_bytes()), hash(&expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_event_does_not_wait_for_the_second() {
    let bench = Bench::start(&["h2", "http/1.1"]).await;
    let (mut one, mut two) = (bench.http1().await, bench.http2().await);
    for h2 in [false, true] {
        let begun = Instant::now();
        let response = if h2 {
            two.send_request(get2("/events").body(full("")).unwrap()).await.unwrap()
        } else {
            one.send_request(get("/events").body(full("")).unwrap()).await.unwrap()
        };
        let mut body = response.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let took = begun.elapsed();
        assert_eq!(first, "data: 0\n\n");
        assert!(took < Duration::from_millis(1_000), "{took:?}");
        let second = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(second, "data: 1\n\n");
        assert!(begun.elapsed() > Duration::from_millis(1_900));
        assert!(body.collect().await.unwrap().to_bytes().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_go_both_ways() {
    let bench = Bench::start(&["h2", "http/1.1"]).await;
    let trailers = || {
        let frames: [Result<_, hyper::Error>; 2] = [
            Ok(Frame::data(Bytes::from("abc"))),
            Ok(Frame::trailers([("x-sum".parse().unwrap(), "7".parse().unwrap())].into_iter().collect())),
        ];
        BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)))
    };
    let (mut one, mut two) = (bench.http1().await, bench.http2().await);
    let request = get("/echo").method("POST").header("trailer", "x-sum").body(trailers()).unwrap();
    let answer = text(one.send_request(request).await.unwrap()).await;
    assert!(answer.contains("size=3\ntrailers=x-sum: 7"), "{answer}");
    let answer =
        text(two.send_request(get2("/echo").method("POST").body(trailers()).unwrap()).await.unwrap()).await;
    assert!(answer.contains("size=3\ntrailers=x-sum: 7"), "{answer}");

    one.ready().await.unwrap();
    for h2 in [false, true] {
        let response = if h2 {
            two.send_request(get2("/trailers").body(full("")).unwrap()).await.unwrap()
        } else {
            one.send_request(get("/trailers").header("te", "trailers").body(full("")).unwrap()).await.unwrap()
        };
        let body = response.into_body().collect().await.unwrap();
        assert!(body.trailers().is_some_and(|trailers| trailers.contains_key("x-end")), "h2: {h2}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_in_many_records_and_pipelined_requests() {
    let bench = Bench::start(&["http/1.1"]).await;
    let request = format!("GET /told HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {STAND_IN}\r\n\r\n");
    let mut tls = bench.tls(&["http/1.1"]).await;
    // Each byte in a record and a segment of its own.
    for byte in request.as_bytes() {
        tls.write_all(&[*byte]).await.unwrap();
        tls.flush().await.unwrap();
    }
    let mut got = [0; 4096];
    let read = tls.read(&mut got).await.unwrap();
    assert!(String::from_utf8_lossy(&got[..read]).contains("1 true"));

    tls.write_all(request.repeat(20).as_bytes()).await.unwrap();
    let mut all = String::new();
    while all.matches("1 true").count() < 20 {
        let read = tokio::time::timeout(LONG, tls.read(&mut got)).await.unwrap().unwrap();
        assert!(read > 0, "{all}");
        all.push_str(&String::from_utf8_lossy(&got[..read]));
    }
    assert_eq!(bench.rows().len(), 21);
}

#[tokio::test(flavor = "multi_thread")]
async fn continue_is_said_when_the_service_says_it() {
    let bench = Bench::start(&["http/1.1"]).await;
    let head = |path: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {STAND_IN}\r\nContent-Length: 3\r\n\
             Expect: 100-continue\r\n\r\n"
        )
    };
    let mut tls = bench.tls(&["http/1.1"]).await;
    let begun = Instant::now();
    tls.write_all(head("/hash").as_bytes()).await.unwrap();
    let mut got = [0; 4096];
    let read = tls.read(&mut got).await.unwrap();
    assert!(got[..read].starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&got[..read]));
    assert!(begun.elapsed() < Duration::from_millis(900), "the service said it at once");
    tls.write_all(b"abc").await.unwrap();
    let read = tls.read(&mut got).await.unwrap();
    assert!(String::from_utf8_lossy(&got[..read]).ends_with(&hash(b"abc")));

    // A service that refuses is heard before the body is sent.
    tls.write_all(head("/refuse-upload").as_bytes()).await.unwrap();
    let read = tls.read(&mut got).await.unwrap();
    assert!(got[..read].starts_with(b"HTTP/1.1 417 "), "{}", String::from_utf8_lossy(&got[..read]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_request_keeps_its_length() {
    let bench = Bench::start(&["http/1.1"]).await;
    let mut guest = bench.http1().await;
    let response = guest.send_request(get("/bytes").method("HEAD").body(full("")).unwrap()).await.unwrap();
    assert_eq!(response.headers()["content-length"], "5242880");
    assert_eq!(text(response).await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_goes_ends_its_request_and_leaves_a_row() {
    let bench = Bench::start(&["http/1.1"]).await;
    let mut tls = bench.tls(&["http/1.1"]).await;
    let request = format!(
        "POST /hash HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {STAND_IN}\r\nContent-Length: 9\r\n\r\nabc"
    );
    tls.write_all(request.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(tls);
    let ended = async {
        while bench.tasks.lock().unwrap().try_join_next().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, ended).await.unwrap();
    let rows = bench.rows();
    // Whichever is noticed first: that nobody waits, or that the body is not whole.
    let seen = (rows[0].status, rows[0].error.as_deref());
    assert!(
        rows.len() == 1 && [(499, Some("client_gone")), (400, Some("build_request"))].contains(&seen),
        "{rows:?}"
    );
}

/// Search services take queries this way.
#[tokio::test(flavor = "multi_thread")]
async fn the_chunked_body_of_a_get_arrives() {
    let bench = Bench::start(&["http/1.1"]).await;
    let mut guest = bench.http1().await;
    let request = get("/hash").header("transfer-encoding", "chunked").body(full("{\"query\":1}")).unwrap();
    let hash = format!("{:x}", Sha256::digest("{\"query\":1}"));
    assert_eq!(text(guest.send_request(request).await.unwrap()).await, hash);
    guest.ready().await.unwrap();
    assert_eq!(text(guest.send_request(get("/told").body(full("")).unwrap()).await.unwrap()).await, "1 true");
}
