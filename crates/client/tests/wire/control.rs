//! Control-plane calls: form of requests, attempts, waits, refusals.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use client::{ClientError, CreateSandbox, Deletion, ListFilter, PatchSandbox, Pause};

use crate::platform::{ID, KEY, Platform, error, sandbox};

fn at(method: &str, rest: &str) -> String {
    format!("{method} /sandboxes/{ID}{rest}")
}

#[tokio::test]
async fn requests_have_the_documented_form() {
    let platform = Platform::start().await;
    let client = platform.client();
    platform.on("POST /sandboxes", 201, &sandbox("active", "t"));
    platform.on_with("GET /sandboxes", 200, &[("x-total-count", "7")], "[]");
    platform.on(&at("PATCH", ""), 204, "");
    platform.on("GET /templates/superserve%2Fbase", 200, "{}");

    let created = client
        .create_sandbox(&CreateSandbox { name: "box".into(), ..CreateSandbox::default() })
        .await
        .unwrap();
    assert_eq!(created.item.id, ID);
    let filter = ListFilter {
        metadata: BTreeMap::from([("env".into(), "a b&c".into())]),
        status: Some("active,paused".into()),
        limit: Some(5),
        ..ListFilter::default()
    };
    assert_eq!(client.list_sandboxes(&filter).await.unwrap().total, Some(7));
    client
        .patch_sandbox(ID, &PatchSandbox { timeout_seconds: Some(None), ..PatchSandbox::default() })
        .await
        .unwrap();
    let bad = client.get_template("superserve/base").await.unwrap_err();
    assert!(matches!(bad, ClientError::Protocol { may_have_taken_effect: false, .. }), "{bad:?}");

    let seen = platform.seen();
    assert_eq!(seen[0].body, r#"{"name":"box"}"#);
    assert_eq!(seen[0].header("content-type"), "application/json");
    assert_eq!(seen[1].line, "GET /sandboxes?metadata.env=a+b%26c&status=active%2Cpaused&limit=5");
    assert_eq!(seen[2].body, r#"{"timeout_seconds":null}"#);
    for request in &seen {
        assert_eq!(request.header("x-api-key"), KEY);
        assert!(request.header("user-agent").starts_with("superserve/"), "{request:?}");
    }
}

#[tokio::test]
async fn ids_are_checked_before_anything_is_sent() {
    let platform = Platform::start().await;
    let client = platform.client();
    for id in ["", "../templates", "a?b", "a/b", "a#b"] {
        let refused = client.get_sandbox(id).await.unwrap_err();
        assert!(matches!(refused, ClientError::Invalid { .. }), "{id}: {refused:?}");
        let refused = client.read_file(id, "/x", 1).await.unwrap_err();
        assert!(matches!(refused, ClientError::Invalid { .. }), "{id}: {refused:?}");
    }
    assert!(platform.seen().is_empty());
}

#[tokio::test]
async fn reads_are_repeated_and_posts_are_not() {
    let platform = Platform::start().await;
    let client = platform.client();
    for status in [502, 503] {
        platform.on(&at("GET", ""), status, "");
    }
    platform.on(&at("GET", ""), 200, &sandbox("active", "t"));
    assert_eq!(client.get_sandbox(ID).await.unwrap().item.status, "active");
    assert_eq!(platform.lines().len(), 3);

    platform.on("POST /sandboxes", 503, &error("service_unavailable", "no capacity"));
    let refused = client.create_sandbox(&CreateSandbox::default()).await.unwrap_err();
    assert_eq!(refused.status(), Some(503));
    assert!(refused.may_have_taken_effect(), "a 503 of a create proves nothing");
    assert_eq!(platform.lines().len(), 4);
}

#[tokio::test]
async fn three_attempts_and_no_more() {
    let platform = Platform::start().await;
    platform.on("GET /sandboxes", 504, "<html>gateway</html>");
    let refused = platform.client().list_sandboxes(&ListFilter::default()).await.unwrap_err();
    assert_eq!(platform.lines().len(), 3);
    assert_eq!(refused.to_string(), "the platform answered with status 504");
    assert!(!refused.may_have_taken_effect());
}

#[tokio::test]
async fn retry_after_is_honoured_on_429() {
    let platform = Platform::start().await;
    platform.on_with("GET /sandboxes", 429, &[("retry-after", "1")], &error("rate_limited", "slow down"));
    platform.on("GET /sandboxes", 200, "[]");
    let started = Instant::now();
    platform.client().list_sandboxes(&ListFilter::default()).await.unwrap();
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
}

#[tokio::test]
async fn refusals_keep_code_and_scrubbed_message() {
    let platform = Platform::start().await;
    let message = format!("bad key {KEY}: {}", "x ".repeat(600));
    platform.on_with("POST /sandboxes", 400, &[("x-request-id", "r1")], &error("bad_request", &message));
    let refused = platform.client().create_sandbox(&CreateSandbox::default()).await.unwrap_err();
    let api = refused.api().unwrap();
    assert_eq!((api.status, api.code.as_str(), api.request_id.as_deref()), (400, "bad_request", Some("r1")));
    assert!(api.message.starts_with("bad key ****: x x"), "{}", api.message);
    assert_eq!(api.message.chars().count(), client::MAX_QUOTE_CHARS + 1);
    assert!(!refused.may_have_taken_effect());
    assert!(!format!("{refused:?}").contains(KEY));
}

#[tokio::test]
async fn refused_connections_name_the_host_only() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let config = client::ClientConfig::new(format!("http://{address}/base"), domain::Secret::new(KEY));
    let client = client::Client::new(config).unwrap();
    let refused = client.create_sandbox(&CreateSandbox::default()).await.unwrap_err();
    let ClientError::Connect { host, reason } = &refused else { panic!("{refused:?}") };
    assert_eq!(*host, address.to_string());
    assert!(reason.contains("refused"), "{reason}");
    assert!(!refused.may_have_taken_effect());
}

#[tokio::test]
async fn a_broken_connection_may_have_taken_effect() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let mut accepted = 0;
        while let Ok((stream, _)) = listener.accept().await {
            accepted += 1;
            let mut buffer = [0; 4096];
            stream.readable().await.unwrap();
            let _ = stream.try_read(&mut buffer);
            if accepted == 4 {
                return;
            }
        }
    });
    let client = client::Client::new(client::ClientConfig::new(url, domain::Secret::new(KEY))).unwrap();
    let broken = client.create_sandbox(&CreateSandbox::default()).await.unwrap_err();
    assert!(matches!(broken, ClientError::Interrupted { may_have_taken_effect: true, .. }), "{broken:?}");
    let broken = client.list_sandboxes(&ListFilter::default()).await.unwrap_err();
    assert!(matches!(broken, ClientError::Interrupted { may_have_taken_effect: false, .. }), "{broken:?}");
    server.await.unwrap();
}

#[tokio::test]
async fn pause_finishes_at_once_or_is_watched() {
    let platform = Platform::start().await;
    let client = platform.client();
    platform.on(&at("POST", "/pause"), 204, "");
    assert_eq!(client.pause_sandbox(ID).await.unwrap(), Pause::Paused);
    assert_eq!(platform.seen()[0].header("prefer"), "respond-async");
    assert_eq!(platform.seen()[0].header("content-length"), "0");

    let platform = Platform::start().await;
    let client = platform.client();
    platform.on(&at("POST", "/pause"), 202, r#"{"status":"pausing"}"#);
    platform.on(&at("GET", ""), 200, &sandbox("pausing", "t"));
    platform.on(&at("GET", ""), 200, &sandbox("paused", "t"));
    assert_eq!(client.pause_sandbox(ID).await.unwrap(), Pause::Paused);
    assert_eq!(platform.lines().len(), 3);
}

#[tokio::test]
async fn pause_understands_conflicts_and_disappearance() {
    let check = async |pause: u16, states: &[&str]| {
        let platform = Platform::start().await;
        let body = if pause == 202 { r#"{"status":"pausing"}"#.into() } else { error("conflict", "no") };
        platform.on(&at("POST", "/pause"), pause, &body);
        for state in states {
            match *state {
                "gone" => platform.on(&at("GET", ""), 404, &error("not_found", "gone")),
                state => platform.on(&at("GET", ""), 200, &sandbox(state, "t")),
            }
        }
        platform.client().pause_sandbox(ID).await
    };
    assert_eq!(check(409, &["paused"]).await.unwrap(), Pause::AlreadyPaused);
    assert_eq!(check(409, &["pausing", "pausing", "paused"]).await.unwrap(), Pause::Paused);
    assert_eq!(check(202, &["pausing", "gone"]).await.unwrap(), Pause::Deleted);
    assert_eq!(check(409, &["failed"]).await.unwrap_err().status(), Some(409));
    let failed = check(202, &["failed"]).await.unwrap_err();
    assert!(failed.to_string().contains("failed"), "{failed}");
    assert_eq!(check(404, &[]).await.unwrap_err().status(), Some(404));
}

#[tokio::test]
async fn delete_waits_for_transitions_and_tells_gone_from_deleted() {
    let platform = Platform::start().await;
    platform.on(&at("DELETE", ""), 409, &error("conflict", "pausing"));
    platform.on(&at("DELETE", ""), 204, "");
    assert_eq!(platform.client().delete_sandbox(ID).await.unwrap(), Deletion::Deleted);
    assert_eq!(platform.lines().len(), 2);

    let platform = Platform::start().await;
    platform.on(&at("DELETE", ""), 404, &error("not_found", "no"));
    assert_eq!(platform.client().delete_sandbox(ID).await.unwrap(), Deletion::AlreadyGone);

    let platform = Platform::start().await;
    platform.on(&at("DELETE", ""), 502, "");
    platform.on(&at("DELETE", ""), 404, &error("not_found", "no"));
    assert_eq!(
        platform.client().delete_sandbox(ID).await.unwrap(),
        Deletion::Deleted,
        "the first one did it"
    );
}

#[tokio::test]
async fn resume_waits_for_a_pause_but_not_for_an_active_one() {
    let platform = Platform::start().await;
    platform.on(&at("POST", "/resume"), 409, &error("conflict", "pausing"));
    platform.on(&at("POST", "/resume"), 200, &sandbox("active", "t"));
    platform.on(&at("GET", ""), 200, &sandbox("pausing", "t"));
    platform.client().resume_sandbox(ID).await.unwrap();
    assert_eq!(platform.lines().len(), 3);

    let platform = Platform::start().await;
    platform.on(&at("POST", "/resume"), 409, &error("conflict", "it is active"));
    platform.on(&at("GET", ""), 200, &sandbox("active", "t"));
    assert_eq!(platform.client().resume_sandbox(ID).await.unwrap_err().to_string(), "it is active");
}
