//! What callers are told when something breaks under them: an error, soon, and never a success.

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::json;
use testing::{Platform, wait_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::platform;

/// A caller learns within this that its sandbox is gone.
const NOTICE: Duration = Duration::from_secs(5);

/// Starts a command that runs until something happens to it.
async fn started(p: &Platform, id: &str, token: &str) {
    wait_for("the command runs", Duration::from_secs(20), || async {
        (p.exec(id, token, "pgrep -fx 'sleep 1234'").await.body["exit_code"] == 0).then_some(())
    })
    .await;
}

/// Ends a sandbox under running calls, and checks that each gets an error in time.
async fn calls_end(p: &Platform, id: &str, token: &str, how: impl AsyncFnOnce()) {
    let exec = p.exec(id, token, "sleep 1234");
    let streamed = tokio::time::timeout(Duration::from_secs(60), streamed_text(p, id, token));
    let fault = async {
        started(p, id, token).await;
        let begun = Instant::now();
        how().await;
        begun
    };
    let (exec, streamed, begun) = tokio::join!(exec, streamed, fault);
    assert!(begun.elapsed() < NOTICE + Duration::from_secs(2), "callers waited {:?}", begun.elapsed());
    // Not a 503, which would make clients resume the sandbox and run the command a second time.
    assert_eq!(exec.status, 502, "{exec:?}");
    let streamed = streamed.expect("the stream ends");
    assert!(streamed.contains("begun"), "{streamed}");
    assert!(!streamed.contains("\"finished\":true,\"exit_code\":0"), "never a success: {streamed}");
    assert!(!streamed.contains("\"exit_code\":0"), "never a success: {streamed}");
}

/// All that a stream says until it ends, well or not.
async fn streamed_text(p: &Platform, id: &str, token: &str) -> String {
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let mut response = http
        .post(format!("http://{}/exec/stream", p.edge()))
        .header("x-superserve-sandbox-id", id)
        .header("x-access-token", token)
        .body(json!({"command": "echo begun; sleep 1235", "timeout_s": 60}).to_string())
        .send()
        .await
        .expect("an answer");
    let mut text = String::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    text
}

#[tokio::test]
async fn a_machine_that_dies_under_its_callers() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let init = p.remains().init_of(&id).expect("a first process");
    calls_end(&p, &id, &token, async || kill_process(init, Signal::KILL).unwrap()).await;
    p.wait_state(&id, "paused", NOTICE).await;
    let again = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(p.run(&id, again.body["access_token"].as_str().unwrap(), "echo alive").await, "alive\n");
}

#[tokio::test]
async fn a_delete_under_its_callers() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    calls_end(&p, &id, &token, async || {
        assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);
    })
    .await;
    assert_eq!(p.exec(&id, &token, "true").await.status, 404);
}

#[tokio::test]
async fn a_pause_under_its_callers() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    calls_end(&p, &id, &token, async || {
        assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 204);
    })
    .await;
    let again = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    let token = again.body["access_token"].as_str().unwrap().to_owned();
    assert_eq!(p.run(&id, &token, "echo alive").await, "alive\n");
    // The caller is gone, so the command goes too; none pile up behind pauses. A stream may go on to its limit.
    wait_for("a command without its caller ends", Duration::from_secs(20), || async {
        (p.exec(&id, &token, "pgrep -fx 'sleep 1234'").await.body["exit_code"] == 1).then_some(())
    })
    .await;
}

/// The agent stands still: the host cannot tell that from a slow one, but pausing and deleting do not need it.
#[tokio::test]
async fn a_stopped_agent_can_be_paused_and_deleted() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let init = p.remains().init_of(&id).expect("a first process");
    kill_process(init, Signal::STOP).unwrap();
    let exec = p.exec(&id, &token, "true");
    assert!(tokio::time::timeout(Duration::from_secs(1), exec).await.is_err(), "a stopped agent answers");
    assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 204);
    let begun = Instant::now();
    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);
    assert!(begun.elapsed() < Duration::from_secs(10), "the delete took {:?}", begun.elapsed());
}

async fn upload(p: &Platform, id: &str, token: &str, name: &str, announced: usize) -> TcpStream {
    let mut stream = TcpStream::connect(p.edge()).await.unwrap();
    let head = format!(
        "POST /files?path=/home/user/up/{name} HTTP/1.1\r\nhost: localhost\r\nx-superserve-sandbox-id: {id}\r\n\
         x-access-token: {token}\r\ncontent-length: {announced}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_server_that_dies_during_an_upload() {
    let Some(mut p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    p.run(&id, &token, "mkdir /home/user/up; echo old > /home/user/up/file").await;
    let mut stream = upload(&p, &id, &token, "file", 100_000_000).await;
    stream.write_all(&vec![7; 5 << 20]).await.unwrap();
    wait_for("the upload has begun", Duration::from_secs(10), || async {
        (p.run(&id, &token, "find /home/user/up -mindepth 1 | wc -l").await.trim() == "2").then_some(())
    })
    .await;
    p.kill_hard();
    let mut rest = Vec::new();
    let _a_reset_is_as_good = stream.read_to_end(&mut rest).await;
    assert!(!String::from_utf8_lossy(&rest).contains(" 200 "), "never a success");
    p.spawn().await;
    wait_for("the half file goes", Duration::from_secs(10), || async {
        (p.run(&id, &token, "find /home/user/up -mindepth 1 -printf '%f\\n'").await == "file\n").then_some(())
    })
    .await;
    assert_eq!(p.run(&id, &token, "cat /home/user/up/file").await, "old\n");
}

#[tokio::test]
async fn a_disk_that_fills_during_an_upload() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    p.run(
        &id,
        &token,
        "mkdir /home/user/up; fallocate -l $(($(df -B1 --output=avail / | tail -1) - 20000000)) /home/user/fill",
    )
    .await;
    let stored = p.data("POST", "/files?path=/home/user/up/file", &id, &token, vec![7; 60 << 20]).await;
    assert_eq!((stored.status, stored.code()), (507, "sandbox_storage_full"), "{stored:?}");
    assert_eq!(
        p.run(&id, &token, "find /home/user/up -mindepth 1 -printf '%f\\n'").await,
        "",
        "no partial file"
    );
    p.run(&id, &token, "rm /home/user/fill").await;
    let stored = p.data("POST", "/files?path=/home/user/up/file", &id, &token, vec![7; 60 << 20]).await;
    assert_eq!(stored.status, 200, "{stored:?}");
}
