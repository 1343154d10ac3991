//! Data-plane self-healing: which refusals activate, how often, and how many callers share one activation.

use axum::body::Body;
use axum::response::Response;
use client::{ClientError, ExecRequest, ExecResponse, Plane, UploadBody};

use crate::platform::{ID, KEY, Platform, Seen, error, sandbox};

fn command() -> ExecRequest {
    ExecRequest { command: "true".into(), ..ExecRequest::default() }
}

fn activations(platform: &Platform) -> usize {
    platform.lines().iter().filter(|line| line.ends_with("/activate")).count()
}

#[tokio::test]
async fn the_first_call_activates_and_later_ones_reuse_the_token() {
    let platform = Platform::start().await;
    platform.activates();
    platform.on("POST /exec", 200, r#"{"stdout":"hi\n","exit_code":3}"#);
    let client = platform.client();
    for _ in 0..2 {
        let done = client.exec(ID, &command()).await.unwrap();
        assert_eq!(done, ExecResponse { stdout: "hi\n".into(), exit_code: 3, ..ExecResponse::default() });
    }
    assert_eq!(activations(&platform), 1);
    let last = platform.seen().pop().unwrap();
    assert_eq!((last.header("x-access-token"), last.header("x-superserve-sandbox-id")), ("t1", ID));
    assert_eq!(last.header("x-api-key"), "", "the team's key never goes to the data plane");
}

#[tokio::test]
async fn stale_tokens_pauses_and_routes_are_healed_once() {
    for (status, body) in [
        (401, "invalid access token".to_owned()),
        (403, String::new()),
        (503, error("sandbox_unavailable", "sandbox is paused")),
        (503, "sandbox is paused\n".to_owned()),
        (404, error("sandbox_route_stale", "unknown")),
    ] {
        let platform = Platform::start().await;
        platform.activates();
        platform.on("POST /exec", status, &body);
        platform.on("POST /exec", 200, r#"{"exit_code":0}"#);
        platform.client().exec(ID, &command()).await.unwrap();
        assert_eq!(activations(&platform), 2, "{status}");
        assert_eq!(platform.seen().pop().unwrap().header("x-access-token"), "t2");

        let platform = Platform::start().await;
        platform.activates();
        platform.on("POST /exec", status, &body);
        let refused = platform.client().exec(ID, &command()).await.unwrap_err();
        assert_eq!(refused.status(), Some(status));
        assert_eq!(refused.api().unwrap().plane, Plane::Data);
        assert_eq!(platform.lines().iter().filter(|line| *line == "POST /exec").count(), 2, "{status}: once");
    }
}

#[tokio::test]
async fn other_refusals_are_not_healed() {
    for (status, code) in [
        (400, "bad_request"),
        (404, "not_found"),
        (500, "internal_error"),
        (502, ""),
        (507, "sandbox_storage_full"),
    ] {
        let platform = Platform::start().await;
        platform.activates();
        platform.on("POST /exec", status, &error(code, "no"));
        let refused = platform.client().exec(ID, &command()).await.unwrap_err();
        assert_eq!(refused.status(), Some(status));
        assert_eq!(refused.may_have_taken_effect(), status >= 500, "{status}");
        assert_eq!(platform.lines().len(), 2, "{status}: one activation, one command");
    }
}

#[tokio::test]
async fn reads_are_repeated_on_a_bad_gateway() {
    let platform = Platform::start().await;
    platform.activates();
    platform.on("GET /files", 502, "");
    platform.on("GET /files", 200, "content");
    let file = platform.client().read_file(ID, "/x", 100).await.unwrap();
    assert_eq!(file.bytes().await.unwrap(), "content");
}

#[tokio::test]
async fn one_refresh_serves_all_who_wait() {
    let platform = Platform::start().await;
    platform.activates();
    platform.handle("POST /exec", |seen: Seen| async move {
        let good = seen.header("x-access-token") == "t2";
        let (status, body) = if good { (200, r#"{"exit_code":0}"#) } else { (401, "invalid access token") };
        Response::builder().status(status).body(Body::from(body)).unwrap()
    });
    let client = platform.client();
    let calls = (0..20).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.exec(ID, &command()).await.unwrap() })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    assert_eq!(activations(&platform), 2);
}

#[tokio::test]
async fn an_activation_waits_for_a_pause_in_progress() {
    let platform = Platform::start().await;
    let activate = format!("POST /sandboxes/{ID}/activate");
    platform.on_with(&activate, 409, &[("retry-after", "0")], &error("sandbox_pausing", "still pausing"));
    platform.on(&activate, 200, &sandbox("active", "t1"));
    platform.on("POST /exec", 200, r#"{"exit_code":0}"#);
    platform.client().exec(ID, &command()).await.unwrap();
    assert_eq!(activations(&platform), 2);
}

#[tokio::test]
async fn a_refused_activation_is_the_answer() {
    let platform = Platform::start().await;
    let activate = format!("POST /sandboxes/{ID}/activate");
    platform.on(&activate, 429, &error("too_many_sandboxes", "quota"));
    let refused = platform.client().exec(ID, &command()).await.unwrap_err();
    let api = refused.api().unwrap();
    assert_eq!((api.plane, api.code.as_str()), (Plane::Control, "too_many_sandboxes"));
    assert!(!refused.may_have_taken_effect());
}

#[tokio::test]
async fn what_can_be_sent_once_is_preceded_by_an_activation() {
    let platform = Platform::start().await;
    platform.activates();
    platform.on("POST /files", 200, r#"{"path":"/x","size":3}"#);
    let client = platform.client();
    client.activate_sandbox(ID).await.unwrap();
    let body = UploadBody::once(std::io::Cursor::new(b"abc".to_vec()));
    assert_eq!(client.write_file(ID, "/x", body).await.unwrap().size, 3);
    assert_eq!(activations(&platform), 2);
    assert_eq!(platform.seen().pop().unwrap().body, "abc");

    let platform = Platform::start().await;
    platform.activates();
    platform.on("POST /files", 503, &error("sandbox_unavailable", "paused"));
    let body = UploadBody::once(std::io::Cursor::new(b"abc".to_vec()));
    assert_eq!(platform.client().write_file(ID, "/x", body).await.unwrap_err().status(), Some(503));
    assert_eq!(platform.lines().iter().filter(|line| *line == "POST /files").count(), 1);
}

#[tokio::test]
async fn a_token_goes_nowhere_else() {
    let platform = Platform::start().await;
    platform.activates();
    platform.handle("POST /exec", |_| async {
        Response::builder().status(307).header("location", "http://127.0.0.1:9/").body(Body::empty()).unwrap()
    });
    assert_eq!(platform.client().exec(ID, &command()).await.unwrap_err().status(), Some(307), "not followed");

    let without = Platform::start().await;
    let config = client::ClientConfig {
        base_url: format!("{}/elsewhere", without.url),
        ..client::ClientConfig::new("", domain::Secret::new(KEY))
    };
    let refused = client::Client::new(config).unwrap().exec(ID, &command()).await.unwrap_err();
    assert!(matches!(refused, ClientError::Protocol { .. }), "no descriptor, no guess: {refused:?}");
}
