//! A service that repeats what it was given.

use domain::{AuthScheme, SecretOptions};

use crate::kit::{Bench, HOST, STAND_IN, VALUE, clean, full, get, get2, text};

#[tokio::test(flavor = "multi_thread")]
async fn headers_and_trailers_never_repeat_a_value() {
    let bench = Bench::start(&["h2", "http/1.1"]).await;
    let (mut one, mut two) = (bench.http1().await, bench.http2().await);
    for h2 in [false, true] {
        let response = if h2 {
            two.send_request(get2("/reflect").body(full("")).unwrap()).await.unwrap()
        } else {
            one.send_request(get("/reflect").body(full("")).unwrap()).await.unwrap()
        };
        assert_eq!(response.headers()["x-got"], format!("Bearer {STAND_IN}"));
        assert_eq!(response.headers()["location"], format!("https://x/?k={STAND_IN}"));
        clean(&format!("{:?}", response.headers()));
        // Bodies are foreign data; nobody asked to have them changed.
        assert_eq!(text(response).await, format!("before Bearer {VALUE} after"));
    }
    let body = two.send_request(get2("/trailers").body(full("")).unwrap()).await.unwrap().into_body();
    let body = http_body_util::BodyExt::collect(body).await.unwrap();
    assert_eq!(body.trailers().unwrap()["x-end"], STAND_IN);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_trailers_do_not_either_when_asked() {
    let bench = Bench::start(&["h2", "http/1.1"]).await;
    let options = SecretOptions { scrub_bodies: true, ..SecretOptions::default() };
    bench.bind(STAND_IN, &[HOST], AuthScheme::Bearer, options);
    let (mut one, mut two) = (bench.http1().await, bench.http2().await);
    for kind in ["text/html", "application/json", "text/event-stream", "application/problem+json"] {
        one.ready().await.unwrap();
        let path = format!("/reflect?{kind}");
        for request in [get(&path).header("accept-encoding", "gzip, br"), get(&path)] {
            one.ready().await.unwrap();
            let response = one.send_request(request.body(full("")).unwrap()).await.unwrap();
            assert_eq!(response.headers()["x-asked"], "identity");
            assert_eq!(text(response).await, format!("before Bearer {STAND_IN} after"), "{kind}");
        }
        let response = two.send_request(get2(&path).body(full("")).unwrap()).await.unwrap();
        assert_eq!(text(response).await, format!("before Bearer {STAND_IN} after"), "{kind}");
    }
    // A value that another request has left there.
    one.ready().await.unwrap();
    let other = http::Request::builder().uri("/reflect").header("host", HOST).body(full("")).unwrap();
    assert_eq!(text(one.send_request(other).await.unwrap()).await, format!("before {STAND_IN} after"));
    // What is not text is not touched.
    one.ready().await.unwrap();
    let response = one.send_request(get("/reflect?image/png").body(full("")).unwrap()).await.unwrap();
    assert!(response.headers().contains_key("content-length"));
    assert_eq!(text(response).await, format!("before Bearer {VALUE} after"));

    let body = two.send_request(get2("/trailers").body(full("")).unwrap()).await.unwrap().into_body();
    let body = http_body_util::BodyExt::collect(body).await.unwrap();
    assert_eq!(body.trailers().unwrap()["x-end"], STAND_IN);

    one.ready().await.unwrap();
    let response = one.send_request(get("/gzip").body(full("")).unwrap()).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-superserve-proxy-reason"]),
        (502, &"inject_error".parse().unwrap())
    );
}
