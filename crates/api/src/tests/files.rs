//! `GET /sandboxes/{id}/files`, with an agent that is hostile on demand.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::Platform;

async fn agent(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    assert!(query.ends_with("&format=json"), "{query}");
    let path = query.trim_start_matches("path=").trim_end_matches("&format=json");
    let answer = Response::builder();
    let listing =
        r#"{"entries":[{"name":"a b","is_dir":true,"size":4096,"modified_unix":7}],"truncated":false}"#;
    Ok(match path {
        "%2F" | "%2Fhome%2F%C3%BC%20%26x" => answer.body(Full::from(listing)),
        "%2Ffile" => {
            answer.header("content-disposition", "inline; filename=\"file\"").body(Full::from(listing))
        }
        "%2Fnone" => answer.status(404).body(Full::from(r#"{"error":"no such file"}"#)),
        "%2Fbad" => answer.status(400).body(Full::from(r#"{"error":"not a directory"}"#)),
        "%2Fbroken" => answer.status(500).body(Full::from("boom")),
        "%2Fliar" => answer.body(Full::from("<html>")),
        "%2Fhuge" => answer.body(Full::from(vec![b' '; 32 * 1024 * 1024])),
        other => panic!("{other}"),
    }
    .unwrap())
}

#[tokio::test]
async fn listings() {
    let p = Platform::new().await;
    let mut streams = p.host.served();
    let serving = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Some(stream) = streams.recv().await {
            let serve = hyper::server::conn::http1::Builder::new();
            connections.spawn(serve.serve_connection(TokioIo::new(stream), service_fn(agent)));
        }
    });
    let id = p.sandbox_id().await;
    p.post(&format!("/sandboxes/{id}/pause")).await;
    let path = format!("/sandboxes/{id}/files");
    let expected =
        serde_json::json!({"entries": [{"name": "a b", "is_dir": true, "size": 4096, "modified_unix": 7}]});
    let answer = p.get(&path).await;
    assert_eq!((answer.status, answer.json()), (StatusCode::OK, expected.clone()));
    assert_eq!(p.get(&format!("/sandboxes/{id}")).await.json()["status"], "active", "resumed, and left so");
    assert_eq!(p.get(&format!("{path}?path=/home/%C3%BC+%26x")).await.json(), expected);
    for (query, code) in [
        ("path=relative", "bad_request"),
        ("path=", "bad_request"),
        ("path=/a/../b", "bad_request"),
        ("path=/a%00", "bad_request"),
        ("path=/file", "bad_request"),
        ("path=/bad", "bad_request"),
        ("path=/none", "not_found"),
        ("path=/broken", "service_unavailable"),
        ("path=/liar", "service_unavailable"),
        ("path=/huge", "service_unavailable"),
    ] {
        assert_eq!(p.get(&format!("{path}?{query}")).await.code(), code, "{query}");
    }
    serving.abort();
}
