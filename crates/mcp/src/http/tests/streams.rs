//! `spec/mcp.md` §B.6 and §B.7: which form an answer takes, what keeps it alive, what ends its call, and overload.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::json;

use super::*;
use crate::params::{Kind, Param};
use crate::progress::Output;
use crate::text::Outcome;
use crate::tools::{Call, Hints};

/// Calls of [`SLOW`] whose future is alive.
static ALIVE: AtomicUsize = AtomicUsize::new(0);

struct Alive;

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes `timeout_ms`, and reports progress when asked to.
pub(super) const SLOW: Tool = Tool {
    name: "sandbox_exec",
    title: "Slow",
    description: "Slow.",
    hints: Hints::READ,
    params: &[Param::optional("timeout_ms", Kind::Integer { min: 1, max: None, default: None }, "Time.")],
    check: |_, _| {},
    run: |mut call: Call| {
        Box::pin(async move {
            ALIVE.fetch_add(1, Ordering::SeqCst);
            let _alive = Alive;
            let time = Duration::from_millis(call.args.integer("timeout_ms").unwrap_or(1).unsigned_abs());
            match &call.progress {
                Some(progress) => progress.during(time, &Output::default(), tokio::time::sleep(time)).await,
                None => tokio::time::sleep(time).await,
            }
            Ok(Outcome::new("done".to_owned(), json!({"done": true})))
        })
    },
};
pub(super) const TOOLS: &[&Tool] = &[&SLOW];

fn slow(ms: u64) -> Asked {
    Asked::call("sandbox_exec", json!({"timeout_ms": ms}))
}

async fn alive(expected: usize) {
    for _ in 0..500 {
        if ALIVE.load(Ordering::SeqCst) == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} calls are alive, not {expected}", ALIVE.load(Ordering::SeqCst));
}

// One test, because the counter is one.
#[tokio::test]
async fn forms_of_an_answer() {
    let second = Duration::from_secs(1);
    let server = server_with(Limits::default(), TOOLS);
    tokio::time::pause();

    let got = slow(9_000).of(&server).await;
    assert_eq!(got.json()["result"]["structuredContent"], json!({"done": true}), "within ten seconds: JSON");
    let got = slow(60_000).of(&server).await;
    let (messages, comments) = got.events();
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0]["result"]["content"][0]["text"], "done");
    // The head leaves after 10 s with the first comment, then one every 15 s: at 25, 40 and 55 s.
    assert_eq!(comments, 4, "{got:?}");
    assert!(got.text.ends_with("}\n\n"), "nothing follows the result");

    // Progress needs a stream from the start, and comes before the result, rising.
    let params =
        json!({"name": "sandbox_exec", "arguments": {"timeout_ms": 12_000}, "_meta": {"progressToken": "t"}});
    let (messages, _) = Asked::request("tools/call", params).of(&server).await.events();
    let (last, notes) = messages.split_last().unwrap();
    assert!(notes.len() >= 2 && last["id"] == 7 && last.get("result").is_some(), "{messages:?}");
    let progress: Vec<f64> = notes.iter().map(|note| note["params"]["progress"].as_f64().unwrap()).collect();
    assert!(progress.is_sorted_by(|a, b| a < b), "{progress:?}");
    assert!(notes.iter().all(|note| note["params"]["progressToken"] == "t"
        && note["method"] == "notifications/progress"
        && note["params"]["total"] == 12_000.0));

    // The longest call there may be.
    let got = slow(3_600_000).of(&server).await;
    let (messages, _) = got.events();
    assert_eq!(messages[0]["error"]["code"], -32603);
    assert_eq!(messages[0]["id"], 7);
    alive(0).await;

    // A client that goes away ends its call, before the head and after it, in both eras.
    for newest in [false, true] {
        let ask = || {
            let params = json!({"name": "sandbox_exec", "arguments": {"timeout_ms": 100_000}});
            if newest { Asked::newest("tools/call", params) } else { Asked::request("tools/call", params) }
        };
        let waiting = ask();
        let early = tokio::time::timeout(second, waiting.response(&server)).await;
        assert!(early.is_err());
        alive(0).await;
        let mut body = ask().response(&server).await.into_body().into_data_stream();
        assert!(body.next().await.unwrap().unwrap().starts_with(b": keep-alive"));
        alive(1).await;
        drop(body);
        alive(0).await;
    }

    // With a handshake, clients say so instead, and keep the stream.
    let note = || {
        Asked::message(
            &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}),
        )
    };
    for head_first in [false, true] {
        let waiting = slow(100_000).response(&server);
        let cancel = async {
            tokio::time::sleep(if head_first { 15 * second } else { second }).await;
            assert_eq!(note().with("user-agent", "another").of(&server).await.status, 202);
            alive(1).await;
            assert_eq!(note().of(&server).await.status, 202);
        };
        let rest = async {
            let response = waiting.await;
            let status = response.status().as_u16();
            (status, axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap())
        };
        let ((status, rest), ()) = tokio::join!(rest, cancel);
        assert_eq!(status, if head_first { 200 } else { 202 });
        assert!(!rest.windows(4).any(|part| part == b"data"), "nothing is said of a cancelled call");
        alive(0).await;
    }
    assert!(server.inner.admission.is_idle(), "{:?}", server.inner.admission);
}

#[tokio::test]
async fn calls_wait_for_others_and_overload_is_said_when_that_takes_too_long() {
    const QUIET: Tool = Tool { run: |_| Box::pin(std::future::pending()), ..SLOW };
    let wait = Duration::from_millis(200);
    let server = server_with(Limits { calls: 4, waiting: 1, wait, ..Limits::default() }, const { &[&QUIET] });
    let ping = || Asked::request("ping", json!({}));
    let mut running: Vec<_> = (0..3).map(|_| Box::pin(slow(1).response(&server))).collect();
    for call in &mut running {
        assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
    }
    let begun = Instant::now();
    let got = ping().of(&server).await;
    assert_eq!(got.error(), (503, -32603), "one key may not take every place");
    assert_eq!(got.headers["retry-after"], "1");
    assert!(begun.elapsed() >= wait);
    assert_eq!(ping().with("authorization", "Bearer other").of(&server).await.status, 200);
    // Notifications wait for nothing.
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
    let begun = Instant::now();
    assert_eq!(Asked::message(&cancelled).of(&server).await.status, 202);
    // Two wait, one more than there is room for is refused at once, and then a place is free. A large message waits unread.
    let large =
        Asked::post(format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"{}}}", " ".repeat(5000)));
    let waiting = [ping(), large].map(|asked| {
        let server = server.clone();
        tokio::spawn(async move { asked.of(&server).await.status })
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(ping().of(&server).await.error(), (503, -32603));
    assert!(begun.elapsed() < wait);
    running.pop();
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), 200);
    }
    drop(running);
    assert!(server.inner.admission.is_idle());

    // A result that may be large needs its room beforehand, and so does a request.
    let server = server_with(Limits { bytes: 32 << 20, wait, ..Limits::default() }, tools::ALL);
    let got = Asked::call("sandbox_files_download_dir", json!({})).of(&server).await;
    assert_eq!(got.error(), (503, -32603));
    assert_eq!(Asked::post(vec![b' '; 13 << 20]).of(&server).await.error(), (503, -32603));
    assert_eq!(Asked::post(vec![b' '; 11 << 20]).of(&server).await.error(), (400, -32700));
    assert_eq!(Asked::call("sandbox_list", json!({})).of(&server).await.status, 200);
}
