//! Files and streams through the edge.

use std::time::{Duration, Instant};

use serde_json::json;

use testing::Platform;

use crate::platform;

/// A data-plane request whose body is read by the test, as it comes.
fn raw(p: &Platform, method: &str, path: &str, id: &str, token: &str) -> reqwest::RequestBuilder {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    http.request(method.parse().unwrap(), format!("http://{}{path}", p.edge()))
        .header("x-superserve-sandbox-id", id)
        .header("x-access-token", token)
}

#[tokio::test]
async fn files_come_back_as_they_went() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let bytes: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    let path = "/files?path=/app/new/dir/h%C3%A9%20%E2%9C%93.bin";
    let stored = p.data("POST", path, &id, &token, bytes.clone()).await;
    assert_eq!(stored.status, 200, "{stored:?}");
    assert_eq!(stored.body, json!({"path": "/app/new/dir/hé ✓.bin", "size": 3_000_000}));
    let read = raw(&p, "GET", path, &id, &token).send().await.unwrap();
    assert_eq!(read.status(), 200);
    assert_eq!(read.bytes().await.unwrap(), bytes);
    assert_eq!(p.run(&id, &token, "find '/app/new/dir/hé ✓.bin' -printf '%m %u\\n'").await, "644 root\n");
    for (path, status) in [
        ("/files", 400),
        ("/files?path=relative", 400),
        ("/files?path=/a/../b", 400),
        ("/files?path=/app", 400),
        ("/files?path=/nope", 404),
    ] {
        assert_eq!(p.data("GET", path, &id, &token, vec![]).await.status, status, "{path}");
    }
    for path in ["/files?path=/", "/files?path=/proc/x", "/files?path=/dev/x", "/files?path=/app"] {
        assert_eq!(p.data("POST", path, &id, &token, vec![1]).await.status, 400, "{path}");
    }
}

#[tokio::test]
async fn a_tree_comes_as_a_zip() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    p.run(&id, &token, "mkdir -p /app/tree/sub && echo one > /app/tree/a && echo two > /app/tree/sub/b && ln -s /etc/passwd /app/tree/link").await;
    let zip = raw(&p, "GET", "/files?path=/app/tree&format=zip", &id, &token).send().await.unwrap();
    assert_eq!(zip.headers()["content-type"], "application/zip");
    let bytes = zip.bytes().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.zip");
    std::fs::write(&file, &bytes).unwrap();
    let listed =
        std::process::Command::new("python3").args(["-m", "zipfile", "-l"]).arg(&file).output().unwrap();
    let names = String::from_utf8(listed.stdout).unwrap();
    assert!(names.contains("tree/a") && names.contains("tree/sub/b") && !names.contains("link"), "{names}");
}

#[tokio::test]
async fn a_stream_arrives_while_the_command_runs() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let mut response = raw(&p, "POST", "/exec/stream", &id, &token)
        .body(json!({"command": "echo first; sleep 2; echo second >&2; exit 3"}).to_string())
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let begun = Instant::now();
    let first = response.chunk().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("first"), "{first:?}");
    assert!(begun.elapsed() < Duration::from_secs(2), "the first line waited for the second");
    let mut rest = String::new();
    while let Some(chunk) = response.chunk().await.unwrap() {
        rest.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(rest.contains("\"stderr\":\"second\\n\""), "{rest}");
    assert!(rest.contains("\"exit_code\":3") && rest.contains("\"finished\":true"), "{rest}");
}

#[tokio::test]
async fn a_caller_that_leaves_ends_its_command() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let call = p.exec(&id, &token, "sleep 987");
    assert!(tokio::time::timeout(Duration::from_secs(2), call).await.is_err(), "it should still run");
    testing::wait_for("the command's end", Duration::from_secs(10), || async {
        (p.exec(&id, &token, "pgrep -fx 'sleep 987'").await.body["exit_code"] == 1).then_some(())
    })
    .await;
}
