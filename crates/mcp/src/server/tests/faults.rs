//! What goes to the platform, and what comes back, when things go wrong.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Response};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::session::{ID, PATIENCE, Platform, TOKEN, cancel, json_answer, sandbox};

#[tokio::test]
async fn a_cancelled_create_is_finished_all_the_same() {
    let (arrived, created) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (on_arrival, on_end) = (Arc::clone(&arrived), Arc::clone(&created));
    let platform = Platform::start(move |_| {
        let (arrived, created) = (Arc::clone(&on_arrival), Arc::clone(&on_end));
        async move {
            arrived.notify_one();
            tokio::time::sleep(Duration::from_millis(200)).await;
            // Not reached when the connection is dropped.
            created.notify_one();
            json_answer(201, &sandbox())
        }
    })
    .await;
    let mut session = platform.session();
    let id = session.send("tools/call", json!({"name": "sandbox_create"})).await;
    tokio::time::timeout(PATIENCE, arrived.notified()).await.unwrap();
    cancel(&mut session, id).await;
    tokio::time::timeout(PATIENCE, created.notified()).await.expect("the request is finished");
    assert_eq!(session.ask("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn what_is_refused_here_never_reaches_the_platform() {
    let platform = Platform::start(|_| async { json_answer(500, &json!({})) }).await;
    let mut session = platform.session();
    let write = |content: String, encoding: &str| json!({"sandbox_id": ID, "path": "/a", "content": content, "encoding": encoding});
    let text = session.fail("sandbox_files_write", write("x".repeat(8 * 1024 * 1024 + 1), "text")).await;
    assert!(text.contains("Refusing to write 8388609 bytes") && text.contains("limited to 8 MiB"), "{text}");
    for bad in ["AA!C", "AA=C", "A", "Zg===", "AAEC="] {
        let text = session.fail("sandbox_files_write", write(bad.to_owned(), "base64")).await;
        assert!(text.starts_with("Invalid base64 content: "), "{text}");
    }
    session.fail("sandbox_create", json!({"timeout_seconds": 0})).await;
    assert!(platform.seen().is_empty(), "{:?}", platform.seen());
}

#[tokio::test]
async fn sizes_are_limited_to_the_byte() {
    let size = Arc::new(AtomicUsize::new(0));
    let answer = Arc::clone(&size);
    let platform = Platform::start(move |_| {
        let bytes = answer.load(Ordering::SeqCst);
        async move { Response::new(Body::from(vec![b'x'; bytes])) }
    })
    .await;
    let mut session = platform.session();
    let arguments = json!({"sandbox_id": ID, "path": "/it's big"});
    size.store(1 << 20, Ordering::SeqCst);
    let result = session.call("sandbox_files_read", arguments.clone()).await;
    assert_eq!(result["structuredContent"]["bytes"], 1 << 20);
    size.store((1 << 20) + 1, Ordering::SeqCst);
    let text = session.fail("sandbox_files_read", arguments.clone()).await;
    for part in
        ["larger than the 1 MiB sandbox_files_read limit", "sandbox_exec", r"'/it'\''s big'", "head -c"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("xxxx"), "no partial content");
    size.store((10 << 20) + 1, Ordering::SeqCst);
    let text = session.fail("sandbox_files_download_dir", arguments.clone()).await;
    assert!(text.contains("more than the 10 MiB limit") && text.contains("sandbox_files_read"), "{text}");
    size.store(5, Ordering::SeqCst);
    let text = session.fail("sandbox_files_download_dir", arguments).await;
    assert!(text.contains("is a regular file") && text.contains("sandbox_files_read"), "{text}");
}

#[tokio::test]
async fn bytes_that_are_no_text_are_said_to_be_none() {
    let platform = Platform::start(|_| async { Response::new(Body::from(&[0x61, 0xff, 0x62][..])) }).await;
    let mut session = platform.session();
    let result = session.call("sandbox_files_read", json!({"sandbox_id": ID, "path": "/a"})).await;
    assert_eq!(result["structuredContent"]["lossy"], true);
    assert_eq!(result["structuredContent"]["bytes"], 3);
    assert!(result["content"][0]["text"].as_str().unwrap().contains("not valid UTF-8"));
    let arguments = json!({"sandbox_id": ID, "path": "/a", "encoding": "base64"});
    let result = session.call("sandbox_files_read", arguments).await;
    assert_eq!(result["structuredContent"]["content"], "Yf9i");
    assert!(result["structuredContent"].get("lossy").is_none());
}

#[tokio::test]
async fn info_says_what_isolates_and_never_the_token() {
    let platform = Platform::start(|_| async {
        let mut body = sandbox();
        body["secrets"] = json!([{"env_key": "K", "secret_name": "s", "value": TOKEN}]);
        body["auto_delete_seconds"] = 3600.into();
        body["isolation"] = "container".into();
        json_answer(200, &body)
    })
    .await;
    let mut session = platform.session();
    let result = session.call("sandbox_info", json!({"sandbox_id": ID})).await;
    assert_eq!(
        result["structuredContent"],
        json!({"id": ID, "name": "a", "status": "active", "vcpu_count": 1, "memory_mib": 512,
            "created_at": "2026-01-02T03:04:05.000Z", "metadata": {}, "preview_access": "public",
            "auto_delete_seconds": 3600, "network": {"allow_out": ["a.example"], "deny_out": ["10.0.0.0/8"]},
            "secrets": [{"env_key": "K", "secret_name": "s", "revoked": false}], "isolation": "container"})
    );
    let text = result["content"][0]["text"].as_str().unwrap();
    for part in
        ["— active, 1 vCPU / 512 MiB", "allow_out: a.example", "secret: K = s", "isolation: container"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[tokio::test]
async fn an_update_of_one_list_keeps_the_other_and_null_is_not_absent() {
    let platform = Platform::start(|seen| async move {
        let body = if seen.method == Method::GET { sandbox() } else { json!({}) };
        json_answer(200, &body)
    })
    .await;
    let mut session = platform.session();
    let arguments = json!({"sandbox_id": ID, "deny_out": [], "auto_delete_seconds": null, "metadata": null});
    let result = session.call("sandbox_update", arguments).await;
    assert_eq!(result["structuredContent"], json!({"id": ID}));
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("allow_out is now: a.example") && text.contains("deny_out is now: (none)"),
        "{text}"
    );
    let patch: Value = serde_json::from_slice(&platform.seen().last().unwrap().body).unwrap();
    assert_eq!(
        patch,
        json!({"network": {"allow_out": ["a.example"], "deny_out": []}, "auto_delete_seconds": null})
    );
    // What the platform makes of a rule is its affair.
    let arguments = json!({"sandbox_id": ID, "deny_out": ["a.example"]});
    session.call("sandbox_update", arguments).await;
    let patch: Value = serde_json::from_slice(&platform.seen().last().unwrap().body).unwrap();
    assert_eq!(patch["network"]["deny_out"], json!(["a.example"]));
}

#[tokio::test]
async fn answers_of_the_platform_become_short_texts() {
    let next: Arc<Mutex<(u16, String)>> = Arc::default();
    let answers = Arc::clone(&next);
    let platform = Platform::start(move |_| {
        let (status, body) = answers.lock().unwrap().clone();
        async move { Response::builder().status(status).body(Body::from(body)).unwrap() }
    })
    .await;
    let mut session = platform.session();
    let nested = |code: &str, message: &str| json!({"error": {"code": code, "message": message}}).to_string();
    let flat = |message: &str| json!({"error": message}).to_string();
    let exec = json!({"sandbox_id": ID, "command": "x"});
    let id = json!({"sandbox_id": ID});
    let file = json!({"sandbox_id": ID, "path": "/a"});
    let none = json!({});
    let html = format!("<html>{TOKEN}</html>");
    let cases: [(u16, String, &str, &Value, &[&str]); 9] = [
        (404, nested("not_found", "sandbox not found"), "sandbox_info", &id, &["not found", "sandbox_list"]),
        (
            401,
            nested("auth_failed", "no"),
            "sandbox_pause",
            &id,
            &["Authentication failed", "SUPERSERVE_API_KEY"],
        ),
        (404, flat("no such file"), "sandbox_files_read", &file, &["/a", "sandbox_files_list"]),
        (
            400,
            flat("/a is a directory; add format=zip"),
            "sandbox_files_read",
            &file,
            &["sandbox_files_list"],
        ),
        (507, nested("sandbox_storage_full", "full"), "sandbox_exec", &exec, &["disk is full", "df -h"]),
        (500, html, "sandbox_exec", &exec, &["may have taken effect", "status 500"]),
        (200, "not json".to_owned(), "sandbox_info", &id, &["unexpected answer"]),
        (429, nested("too_many_sandboxes", "q"), "sandbox_create", &none, &["quota", "sandbox_kill"]),
        (
            404,
            nested("not_found", "template x not found"),
            "sandbox_create",
            &none,
            &["Template x not found"],
        ),
    ];
    for (status, body, tool, arguments, parts) in cases {
        *next.lock().unwrap() = (status, body);
        let text = session.fail(tool, arguments.clone()).await;
        for part in parts {
            assert!(text.contains(part), "{tool} {status}: {part} in {text}");
        }
        assert!(text.chars().count() < 600, "{text}");
    }
    // Deleting what is not there is done, however often.
    *next.lock().unwrap() = (404, nested("not_found", "sandbox not found"));
    for _ in 0..2 {
        assert_eq!(session.call("sandbox_kill", id.clone()).await["structuredContent"]["deleted"], true);
    }
}
