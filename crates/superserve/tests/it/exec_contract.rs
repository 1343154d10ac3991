//! The exec contract through the whole system: API, edge, engine, agent. The agent's own suite has the fine print.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::platform;

#[tokio::test]
async fn the_contract_holds_end_to_end() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let run = |command: &'static str| p.exec(&id, &token, command);

    assert_eq!(run("exit 42").await.body["exit_code"], 42);
    assert_eq!(run("no-such-program").await.body["exit_code"], 127);
    assert_eq!(run("touch /tmp/x; /tmp/x").await.body["exit_code"], 126);
    assert_eq!(run("kill -9 $$").await.body["exit_code"], 137);
    assert_eq!(run("cat; echo end").await.body["stdout"], "end\n", "stdin is empty");
    let odd = run("printf 'a\\n\\n\\0b\\r\\n\\377c'; printf err >&2").await;
    assert_eq!(odd.body["stdout"], "a\n\n\u{0}b\r\n\u{fffd}c");
    assert_eq!(odd.body["stderr"], "err");

    // A child that holds the pipes, in and out of the process group, neither delays the answer nor dies.
    for command in ["sleep 321 & echo started", "setsid sleep 322 & echo started"] {
        let begun = Instant::now();
        assert_eq!(p.exec(&id, &token, command).await.body["stdout"], "started\n");
        assert!(begun.elapsed() < Duration::from_secs(10), "{command} was delayed");
    }
    p.run(&id, &token, "pgrep -fx 'sleep 321' && pgrep -fx 'sleep 322'").await;

    // A timeout keeps what was printed and ends the whole tree, the stubborn too.
    let body = json!({"command": "trap '' TERM; setsid sleep 333 & echo out; echo err >&2; while :; do sleep 1; done", "timeout_s": 1});
    let late = p.data("POST", "/exec", &id, &token, body.to_string().into_bytes()).await;
    assert_eq!(late.status, 200);
    assert_eq!(late.body["exit_code"], 124);
    assert_eq!((&late.body["stdout"], &late.body["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!(run("pgrep -fx 'sleep 333'").await.body["exit_code"], 1, "the tree is gone");
    p.run(&id, &token, "pgrep -fx 'sleep 321'").await;

    let long = format!("printf %s {}", "x".repeat(300 * 1024));
    assert_eq!(p.run(&id, &token, &long).await.len(), 300 * 1024);

    let user = p.run(&id, &token, "id -u; echo $HOME $USER; pwd; hostname; umask").await;
    assert_eq!(user, format!("0\n/home/user user\n/home/user\nsandbox-{}\n0022\n", &id[..8]));
}

#[tokio::test]
async fn two_hundred_at_once_leave_no_zombie() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let calls = (0..200).map(|n| {
        let (p, id, token) = (&p, &id, &token);
        async move {
            // The per-sandbox cap answers 429 to what is above it; a client waits and repeats.
            for _ in 0..100 {
                let answer = p.exec(id, token, &format!("exit {}", n % 200)).await;
                if answer.status != 429 {
                    assert_eq!(answer.status, 200, "{answer:?}");
                    return answer.body["exit_code"].as_i64();
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            None
        }
    });
    let codes = futures_util::future::join_all(calls).await;
    for (n, code) in codes.into_iter().enumerate() {
        assert_eq!(code, Some(i64::try_from(n % 200).unwrap()));
    }
    let zombies = p.run(&id, &token, "ps -eo stat= | grep -c ^Z || true").await;
    assert_eq!(zombies.trim(), "0");
}

#[tokio::test]
async fn a_flood_of_output_stays_in_its_sandbox() {
    let Some(p) = platform().await else { return };
    let (loud, loud_token) = p.create(json!({"name": "loud"})).await;
    let (quiet, quiet_token) = p.create(json!({"name": "quiet"})).await;
    let server = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", p.pid())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = server();
    let flood = p.exec(&loud, &loud_token, "head -c 5000000000 /dev/zero | tr '\\0' x");
    let probes = async {
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            let begun = Instant::now();
            p.run(&quiet, &quiet_token, "true").await;
            slowest = slowest.max(begun.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        slowest
    };
    let (flood, slowest) = tokio::join!(flood, probes);
    assert_eq!(flood.status, 200);
    assert_eq!(flood.body["truncated"], true);
    assert!(flood.body["stdout"].as_str().unwrap().len() <= 8 * 1024 * 1024);
    assert!(slowest < Duration::from_secs(10), "the other sandbox hung: {slowest:?}");
    let grown = server().saturating_sub(before);
    assert!(grown < 128 * 1024, "the server grew by {grown} KiB");
}
