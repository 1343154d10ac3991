//! Data-plane tokens, and how clients find their way back when one has ended or a sandbox does not run
//! (`spec/data-plane.md` §2). That an older token ends after an hour is tested where the clock is an argument:
//! `lifecycle/src/tokens.rs`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use client::{Client, ClientConfig, ExecRequest, UploadBody};
use futures_util::StreamExt;
use serde_json::{Value, json};
use testing::{Answer, Platform};

use crate::platform;

/// One data-plane call of the official SDKs: method, target, body.
type Call = (&'static str, &'static str, &'static str);

const CALLS: [Call; 6] = [
    ("POST", "/exec", r#"{"command": "true"}"#),
    ("POST", "/exec/stream", r#"{"command": "true"}"#),
    ("POST", "/files?path=/tmp/file", "content"),
    ("GET", "/files?path=/tmp/file", ""),
    ("GET", "/files?path=/tmp&format=zip", ""),
    ("GET", "/files?path=/tmp&format=json", ""),
];

async fn send(p: &Platform, call: Call, id: &str, token: &str) -> Answer {
    let (method, target, body) = call;
    p.data(method, target, id, token, body.as_bytes().to_vec()).await
}

/// As the SDKs do it: one activation and one more attempt after a refusal that says it may help.
async fn send_and_heal(p: &Platform, call: Call, id: &str, token: &mut String) -> (u16, Answer) {
    let first = send(p, call, id, token).await;
    let stale = first.status == 404 && first.code() == "sandbox_route_stale";
    let down = first.status == 503 && first.code() == "sandbox_unavailable";
    if !(matches!(first.status, 401 | 403) || stale || down) {
        return (first.status, first);
    }
    let activated = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    if activated.status != 200 {
        return (first.status, activated);
    }
    *token = activated.body["access_token"].as_str().unwrap().to_owned();
    (first.status, send(p, call, id, token).await)
}

async fn activate(p: &Platform, id: &str) -> String {
    let activated = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert_eq!(activated.status, 200, "{activated:?}");
    activated.body["access_token"].as_str().unwrap().to_owned()
}

async fn pause(p: &Platform, id: &str) {
    assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 204);
}

#[tokio::test]
async fn every_call_finds_its_way_back() {
    let Some(p) = platform().await else { return };
    let (id, mut token) = p.create(json!({})).await;
    for call in CALLS {
        let what = format!("{} {}", call.0, call.1);
        let (first, answer) = send_and_heal(&p, call, &id, &mut token).await;
        assert_eq!((first, answer.status), (200, 200), "{what}: {answer:?}");
        // It was paused: by its clock, or by somebody else.
        pause(&p, &id).await;
        let (first, answer) = send_and_heal(&p, call, &id, &mut token).await;
        assert_eq!((first, answer.status), (503, 200), "{what}, paused: {answer:?}");
        // It was paused and resumed: the token is of an earlier session.
        pause(&p, &id).await;
        activate(&p, &id).await;
        let (first, answer) = send_and_heal(&p, call, &id, &mut token).await;
        assert_eq!((first, answer.status), (401, 200), "{what}, stale token: {answer:?}");
        // The client lost it.
        for bad in ["", "nonsense"] {
            bad.clone_into(&mut token);
            let (first, answer) = send_and_heal(&p, call, &id, &mut token).await;
            assert_eq!((first, answer.status), (401, 200), "{what}, token {bad:?}: {answer:?}");
        }
    }
    // Gone is gone: the activation says so.
    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);
    for call in CALLS {
        let (first, answer) = send_and_heal(&p, call, &id, &mut token).await;
        assert_eq!((first, answer.status, answer.code()), (404, 404, "not_found"), "{answer:?}");
    }
}

#[tokio::test]
async fn tokens_rotate_overlap_and_end() {
    let Some(mut p) = platform().await else { return };
    let (id, first) = p.create(json!({})).await;
    let (other, other_token) = p.create(json!({})).await;
    let second = activate(&p, &id).await;
    assert_ne!(first, second);
    let newest = p.rest("GET", &format!("/sandboxes/{id}"), None).await;
    assert_eq!(newest.body["access_token"], second.as_str(), "a look at it gives the newest and makes none");
    p.run(&id, &first, "true").await;
    p.run(&id, &second, "true").await;
    assert_eq!(p.exec(&id, &other_token, "true").await.status, 401, "another sandbox's token");
    assert_eq!(p.exec(&other, &second, "true").await.status, 401);
    // A restart ends none of them, a resume all.
    assert_eq!(p.stop().await, Some(0));
    p.spawn().await;
    p.run(&id, &first, "true").await;
    p.run(&id, &second, "true").await;
    pause(&p, &id).await;
    let third = p.rest("POST", &format!("/sandboxes/{id}/resume"), None).await;
    let third = third.body["access_token"].as_str().unwrap().to_owned();
    for ended in [&first, &second] {
        assert_eq!(p.exec(&id, ended, "true").await.status, 401);
    }
    p.run(&id, &third, "true").await;
}

#[tokio::test]
async fn any_number_may_activate_at_once() {
    let Some(p) = platform().await else { return };
    let (id, _) = p.create(json!({})).await;
    for round in 1..=3 {
        pause(&p, &id).await;
        let path = format!("/sandboxes/{id}/activate");
        let asks = (0..20).map(|_| p.rest("POST", &path, None));
        let answers = futures_util::future::join_all(asks).await;
        let mut tokens = Vec::new();
        for answer in answers {
            assert_eq!((answer.status, &answer.body["status"]), (200, &"active".into()), "{answer:?}");
            tokens.push(answer.body["access_token"].as_str().unwrap().to_owned());
        }
        for token in &tokens {
            assert_eq!(p.exec(&id, token, "true").await.status, 200, "every one of them works");
        }
        let resumed = p.rest("GET", "/activity?category=sandbox&action=resumed", None).await;
        assert_eq!(resumed.body.as_array().unwrap().len(), round, "and it was resumed once");
    }
}

/// Everything at once for some seconds: nothing but documented answers, nothing hangs, and it works afterwards.
#[tokio::test]
async fn pauses_activations_and_commands_do_not_confuse_each_other() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let until = Instant::now() + Duration::from_secs(4);
    let pausing = async {
        let mut seen = BTreeMap::new();
        while Instant::now() < until {
            let answer = p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await;
            *seen.entry((answer.status, answer.code().to_owned())).or_insert(0) += 1;
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        seen
    };
    let working = async |mut token: String| {
        let mut seen = BTreeMap::new();
        while Instant::now() < until {
            let (_, answer) = send_and_heal(&p, CALLS[0], &id, &mut token).await;
            let code = answer.body["error"]["code"].as_str().unwrap_or_default();
            *seen.entry((answer.status, code.to_owned())).or_insert(0) += 1;
        }
        seen
    };
    let workers = futures_util::future::join_all((0..4).map(|_| working(token.clone())));
    let (paused, worked) = futures_util::future::join(pausing, workers).await;
    println!("pauses {paused:?}, commands {worked:?}");
    assert!(paused.keys().all(|(status, _)| matches!(status, 204 | 409)), "{paused:?}");
    assert!(paused.keys().any(|(status, _)| *status == 204), "{paused:?}");
    for seen in &worked {
        assert!(seen.get(&(200, String::new())).is_some_and(|count| *count > 3), "{seen:?}");
        // 502: cut off by the pause after it was sent. 401, 503: paused again after it was activated.
        let documented = |status: u16| matches!(status, 200 | 401 | 409 | 502 | 503);
        assert!(seen.keys().all(|(status, _)| documented(*status)), "{seen:?}");
    }
    let token = activate(&p, &id).await;
    assert_eq!(p.run(&id, &token, "echo works").await, "works\n");
}

/// Our own client, whose calls the command line and the MCP server are made of.
#[tokio::test]
async fn our_client_wakes_a_sandbox_with_every_call() {
    let Some(p) = platform().await else { return };
    let (id, _) = p.create(json!({})).await;
    let client = Client::new(ClientConfig::new(p.base_url(), domain::Secret::new(p.key()))).unwrap();
    let exec = ExecRequest { command: "echo awake".to_owned(), ..ExecRequest::default() };
    pause(&p, &id).await;
    assert_eq!(client.exec(&id, &exec).await.unwrap().stdout, "awake\n");
    pause(&p, &id).await;
    let mut stream = client.exec_stream(&id, &exec).await.unwrap();
    assert!(stream.next().await.unwrap().is_ok());
    drop(stream);
    pause(&p, &id).await;
    let bytes = UploadBody::Bytes("content".into());
    assert_eq!(client.write_file(&id, "/tmp/f", bytes).await.unwrap().size, 7);
    pause(&p, &id).await;
    let once = UploadBody::once(&b"more content"[..]);
    assert_eq!(client.write_file(&id, "/tmp/f", once).await.unwrap().size, 12);
    pause(&p, &id).await;
    let read = client.read_file(&id, "/tmp/f", 100).await.unwrap();
    assert_eq!(read.bytes().await.unwrap(), "more content");
    pause(&p, &id).await;
    assert!(
        client.download_zip(&id, "/tmp", 10_000).await.unwrap().bytes().await.unwrap().starts_with(b"PK")
    );
    pause(&p, &id).await;
    assert!(client.list_directory(&id, "/tmp").await.is_ok());
    let state: Value = p.rest("GET", &format!("/sandboxes/{id}"), None).await.body;
    assert_eq!(state["status"], "active");
}
