//! Commands and their ends: what is streamed, what is killed, and what is said of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Method, Response};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::session::{COMMAND, ID, PATIENCE, Platform, Seen, Session, cancel, event_stream, json_answer};

fn end(code: i32) -> Value {
    json!({"exit_code": code, "finished": true})
}

fn gone() -> Response<Body> {
    Response::builder().status(204).body(Body::empty()).unwrap()
}

fn sleep() -> Value {
    json!({"name": "sandbox_exec", "arguments": {"sandbox_id": ID, "command": "sleep 300"}})
}

/// Kills among the requests so far.
fn kills(platform: &Platform) -> Vec<Seen> {
    platform.seen().into_iter().filter(|seen| seen.method == Method::DELETE).collect()
}

async fn killed(platform: &Platform) {
    let begun = Instant::now();
    while kills(platform).is_empty() {
        assert!(begun.elapsed() < PATIENCE, "no kill: {:?}", platform.seen());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let paths: Vec<String> = kills(platform).into_iter().map(|seen| seen.path).collect();
    assert_eq!(paths, [format!("/exec/sessions/{COMMAND}")]);
}

/// A platform whose command sleeps, and tells when it was asked for; its answer's head waits for `head`.
async fn sleeping(head: watch::Receiver<bool>) -> (Platform, Arc<Notify>) {
    let asked = Arc::new(Notify::new());
    let on_arrival = Arc::clone(&asked);
    let platform = Platform::start(move |seen| {
        let (mut head, asked) = (head.clone(), Arc::clone(&on_arrival));
        async move {
            if seen.method == Method::DELETE {
                return gone();
            }
            assert_eq!(seen.path, "/exec/stream");
            asked.notify_one();
            head.wait_for(|head| *head).await.unwrap();
            event_stream(&[json!({"stdout": "asleep\n"})], true)
        }
    })
    .await;
    (platform, asked)
}

async fn asleep(platform: &Platform, asked: &Notify) -> (Session, u64) {
    let mut session = platform.session();
    let id = session.send("tools/call", sleep()).await;
    tokio::time::timeout(PATIENCE, asked.notified()).await.unwrap();
    (session, id)
}

#[tokio::test]
async fn cancelling_a_command_kills_it_and_says_nothing_more() {
    let (_head, open) = watch::channel(true);
    let (platform, asked) = sleeping(open).await;
    let (mut session, id) = asleep(&platform, &asked).await;
    cancel(&mut session, id).await;
    killed(&platform).await;
    // The next message is the answer to the ping: `ask` checks that.
    assert_eq!(session.ask("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn a_command_cancelled_while_it_is_started_is_killed_once_it_has_a_name() {
    let (head, open) = watch::channel(false);
    let (platform, asked) = sleeping(open).await;
    let (mut session, id) = asleep(&platform, &asked).await;
    cancel(&mut session, id).await;
    assert_eq!(session.ask("ping", json!({})).await["result"], json!({}));
    assert!(kills(&platform).is_empty());
    head.send_replace(true);
    killed(&platform).await;
}

#[tokio::test]
async fn the_end_of_the_session_kills_what_still_runs() {
    for end in ["input", "output", "signal"] {
        let (_head, open) = watch::channel(true);
        let (platform, asked) = sleeping(open).await;
        let (mut session, _) = asleep(&platform, &asked).await;
        match end {
            "input" => session.close_input(),
            "output" => {
                session.close_output();
                session.send("ping", json!({})).await;
            }
            _ => session.signal(),
        }
        let took = session.ended().await;
        assert_eq!(kills(&platform).len(), 1, "{end}: before the process ends, or nobody does it");
        assert!(took < Duration::from_secs(2), "{end}: {took:?}");
    }
}

#[tokio::test]
async fn what_ends_by_itself_is_not_killed_and_what_is_cut_off_is() {
    let platform = Platform::start(|seen| async move {
        if seen.method == Method::DELETE {
            return gone();
        }
        let request: Value = serde_json::from_slice(&seen.body).unwrap();
        let events = match request["command"].as_str().unwrap() {
            "good" => vec![json!({"stdout": "a"}), json!({"stderr": "b"}), json!({"stdout": "c"}), end(3)],
            "unable" => vec![json!({"error": "no such directory", "code": "bad_request", "finished": true})],
            _ => vec![json!({"stdout": "a"})],
        };
        event_stream(&events, false)
    })
    .await;
    let mut session = platform.session();
    let mut exec = async |command: &str| {
        session.call("sandbox_exec", json!({"sandbox_id": ID, "command": command})).await
    };
    let good = exec("good").await;
    assert_eq!(
        good["structuredContent"],
        json!({"stdout": "ac", "stderr": "b", "exit_code": 3, "stdout_bytes": 2, "stderr_bytes": 1, "truncated": false})
    );
    assert!(good.get("isError").is_none() && kills(&platform).is_empty());
    let cut_off = exec("cut off").await;
    assert!(cut_off["content"][0]["text"].as_str().unwrap().contains("may have run"), "{cut_off}");
    killed(&platform).await;
    let unable = exec("unable").await;
    assert!(unable["content"][0]["text"].as_str().unwrap().contains("no such directory"), "{unable}");
}

#[tokio::test]
async fn a_kill_wakes_no_sandbox() {
    let (_head, open) = watch::channel(true);
    let asked = Arc::new(Notify::new());
    let on_arrival = Arc::clone(&asked);
    let platform = Platform::start(move |seen| {
        let (asked, _open) = (Arc::clone(&on_arrival), open.clone());
        async move {
            if seen.method == Method::DELETE {
                let body = json!({"error": {"code": "sandbox_unavailable", "message": "paused"}});
                return json_answer(503, &body);
            }
            asked.notify_one();
            event_stream(&[], true)
        }
    })
    .await;
    let (mut session, id) = asleep(&platform, &asked).await;
    let activations = platform.activations();
    cancel(&mut session, id).await;
    killed(&platform).await;
    assert_eq!(session.ask("ping", json!({})).await["result"], json!({}));
    assert_eq!((kills(&platform).len(), platform.activations()), (1, activations));
}

#[tokio::test]
async fn a_platform_that_does_not_end_a_command_in_time_is_not_waited_for() {
    let (_head, open) = watch::channel(true);
    let (platform, asked) = sleeping(open).await;
    let mut session = platform.session();
    let begun = Instant::now();
    let arguments = json!({"sandbox_id": ID, "command": "sleep 300", "timeout_ms": 1});
    let text = session.fail("sandbox_exec", arguments).await;
    assert!(text.contains("timed out after 1 ms") && text.ends_with("--- stdout ---\nasleep\n"), "{text}");
    assert!(begun.elapsed() > Duration::from_secs(5), "the platform comes first");
    assert_eq!(kills(&platform).len(), 1, "it was killed before it was said so");
    drop(asked);
}

#[tokio::test]
async fn progress_comes_before_the_result_and_never_after() {
    let platform = Platform::start(|_| async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        event_stream(&[json!({"stdout": "done\n"}), end(0)], false)
    })
    .await;
    let mut session = platform.session();
    let params = json!({
        "name": "sandbox_exec",
        "arguments": {"sandbox_id": ID, "command": "x", "timeout_ms": 999_999_999},
        "_meta": {"progressToken": "p1"},
    });
    let id = session.send("tools/call", params).await;
    let mut reports = Vec::new();
    let result = loop {
        let message = session.receive().await;
        if message.get("method").is_none() {
            break message;
        }
        assert_eq!(message["method"], "notifications/progress");
        assert_eq!(message["params"]["progressToken"], "p1");
        assert_eq!(message["params"]["total"].as_f64(), Some(600_000.0), "the clamped time");
        reports.push(message["params"]["progress"].as_f64().unwrap());
    };
    assert!(!reports.is_empty() && reports.is_sorted_by(|a, b| a < b), "{reports:?}");
    assert_eq!(result["id"], id);
    assert_eq!(result["result"]["structuredContent"]["stdout"], "done\n");
    assert_eq!(session.ask("ping", json!({})).await["result"], json!({}));
    // Times are rounded up to seconds, never beyond the largest.
    for (asked, sent) in [(999_999_999, 600), (5000, 5), (5001, 6), (1, 1)] {
        let arguments = json!({"sandbox_id": ID, "command": "x", "timeout_ms": asked});
        session.call("sandbox_exec", arguments).await;
        let seen: Value = serde_json::from_slice(&platform.seen().last().unwrap().body).unwrap();
        assert_eq!(seen["timeout_s"], sent, "{asked}");
    }
}

/// A command that never stops talking is told of twice a second, and little of what it says is kept.
#[tokio::test]
async fn news_hastens_progress_within_bounds() {
    let platform = Platform::start(|_| async {
        let pieces = futures_util::stream::unfold(0, |n: u32| async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let event = match n {
                0..130 => json!({"stdout": "x".repeat(30_000)}),
                130 => end(0),
                _ => return None,
            };
            Some((Ok::<_, std::convert::Infallible>(format!("data: {event}\n\n")), n + 1))
        });
        Response::builder().body(Body::from_stream(pieces)).unwrap()
    })
    .await;
    let mut session = platform.session();
    let mut params = sleep();
    params["_meta"]["progressToken"] = 1.into();
    session.send("tools/call", params).await;
    let begun = Instant::now();
    let mut reports = Vec::new();
    let result = loop {
        let message = session.receive().await;
        if message.get("method").is_none() {
            break message;
        }
        reports.push(message["params"]["message"].as_str().unwrap().to_owned());
    };
    let most = 2 + usize::try_from(begun.elapsed().as_millis() / 500).unwrap();
    assert!((3..=most).contains(&reports.len()), "{reports:?}");
    assert_eq!(reports[0], "running 0 s; 0 bytes of output");
    assert!(reports.last().unwrap().ends_with("000 bytes of output"), "{reports:?}");
    let output = &result["result"]["structuredContent"];
    assert_eq!((&output["stdout_bytes"], &output["truncated"]), (&json!(3_900_000), &json!(true)));
}
