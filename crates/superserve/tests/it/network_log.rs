//! What a sandbox tried is in its network log within a second, whoever reads it, and a change of rules holds at once.
//! Everything here is refused, so that nothing leaves this machine; what is let through is tested with the gateway.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testing::Platform;

use crate::{BIN, platform, platform_with};

/// Of a documentation network: nobody is there, and no rule here lets anything go there.
const AWAY: &str = "198.51.100.1";

async fn rows(p: &Platform, id: &str, query: &str) -> Vec<Value> {
    let answer = p.rest("GET", &format!("/sandboxes/{id}/network?limit=200{query}"), None).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body["data"].as_array().unwrap().clone()
}

/// Tries to connect, and says how that ended.
async fn reach(p: &Platform, id: &str, token: &str, address: &str, port: u16) -> String {
    let command =
        format!("timeout 5 bash -c 'exec 3<>/dev/tcp/{address}/{port} && cat <&3' >/dev/null 2>&1; echo $?");
    p.run(id, token, &command).await.trim().to_owned()
}

#[tokio::test]
async fn refusals_are_rows_within_a_second_and_outlive_pause_and_restart() {
    let Some(mut p) = platform().await else { return };
    let (id, token) = p.create(json!({"network": {"deny_out": ["0.0.0.0/0"]}})).await;
    assert_eq!(rows(&p, &id, "").await, Vec::<Value>::new());
    let started = Instant::now();
    assert_ne!(reach(&p, &id, &token, AWAY, 80).await, "124", "refused at once, not silently");
    reach(&p, &id, &token, "10.11.12.13", 443).await;
    // Whoever leaves without a word would have been refused as well.
    p.run(&id, &token, "bash -c 'exec 3<>/dev/tcp/10.11.12.14/443; exec 3>&-'").await;
    let seen = testing::wait_for("the rows", Duration::from_secs(1), || async {
        let seen = rows(&p, &id, "").await;
        (seen.len() == 3).then_some(seen)
    })
    .await;
    let shown: Vec<_> = seen
        .iter()
        .map(|row| {
            format!(
                "{} {} {} {} {}",
                row["kind"], row["verdict"], row["dst_ip"], row["dst_port"], row["match_rule"]
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            r#""connection" "blocked" "10.11.12.14" 443 "internal-ip""#,
            r#""connection" "blocked" "10.11.12.13" 443 "internal-ip""#,
            r#""connection" "blocked" "198.51.100.1" 80 "cidr""#
        ]
    );
    assert!(started.elapsed() < Duration::from_secs(20));
    p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await;
    assert_eq!(p.stop().await, Some(0));
    p.spawn().await;
    assert_eq!(rows(&p, &id, "").await, seen);
    assert_eq!(
        p.rest("GET", &format!("/sandboxes/{id}"), None).await.body["status"],
        "paused",
        "nobody woke it"
    );
    assert_eq!(rows(&p, &id, "&verdict=allowed").await.len(), 0);
    let metrics = p.rest("GET", "/metrics", None).await.body.as_str().unwrap().to_owned();
    assert!(metrics.contains("superserve_network_log_dropped_total 0"), "{metrics}");
    p.rest("DELETE", &format!("/sandboxes/{id}"), None).await;
    assert_eq!(p.rest("GET", &format!("/sandboxes/{id}/network"), None).await.status, 404);
}

#[tokio::test]
async fn rules_change_while_it_runs_but_not_while_it_is_paused() {
    let Some(p) = platform().await else { return };
    // Closed from the first moment: what runs first is refused.
    let (id, token) =
        p.create(json!({"network": {"allow_out": ["192.168.7.7"], "deny_out": ["0.0.0.0/0"]}})).await;
    let path = format!("/sandboxes/{id}");
    let last = async |address: &str| {
        reach(&p, &id, &token, address, 80).await;
        testing::wait_for("the row", Duration::from_secs(2), || async {
            let row = rows(&p, &id, "").await.into_iter().next()?;
            (row["dst_ip"] == address).then(|| row["match_rule"].as_str().unwrap().to_owned())
        })
        .await
    };
    assert_eq!(last(AWAY).await, "cidr");
    // No rule opens a private address.
    assert_eq!(last("192.168.7.7").await, "internal-ip");
    let strict = json!({"network": {"allow_out": ["a.example"], "strict": true}});
    assert_eq!(p.rest("PATCH", &path, Some(strict)).await.status, 204);
    assert_eq!(last("198.51.100.2").await, "implicit-deny");
    let shown = p.rest("GET", &path, None).await.body["network"].clone();
    assert_eq!(shown, json!({"allow_out": ["a.example"], "strict": true}));
    p.rest("POST", &format!("{path}/pause"), None).await;
    let refused = p.rest("PATCH", &path, Some(json!({"network": {"strict": false}}))).await;
    assert_eq!((refused.status, refused.code()), (409, "conflict"));
    let resumed = p.rest("POST", &format!("{path}/activate"), None).await;
    let token = resumed.body["access_token"].as_str().unwrap();
    reach(&p, &id, token, "198.51.100.3", 80).await;
    let row = testing::wait_for("the row", Duration::from_secs(2), || async {
        rows(&p, &id, "").await.into_iter().next().filter(|row| row["dst_ip"] == "198.51.100.3")
    })
    .await;
    assert_eq!(row["match_rule"], "implicit-deny", "rules survive pause and resume");
}

#[tokio::test]
async fn look_ups_are_shown_when_asked_for() {
    // A resolver nobody is at: what is let through fails here, and goes nowhere.
    let Some(p) = platform_with(&["--resolvers", "127.0.0.1:9"]).await else { return };
    let (id, token) = p.create(json!({"network": {"allow_out": ["a.example"], "strict": true}})).await;
    p.run(&id, &token, "getent hosts evil.test || true").await;
    let dns = testing::wait_for("the row", Duration::from_secs(5), || async {
        rows(&p, &id, "&kinds=dns").await.into_iter().next()
    })
    .await;
    let shown = (&dns["host"], &dns["verdict"], &dns["match_rule"], &dns["dst_port"]);
    assert_eq!(shown, (&json!("evil.test"), &json!("blocked"), &json!("implicit-deny"), &json!(53)));
    assert_eq!(rows(&p, &id, "").await.len(), 0, "older clients know two kinds");
}

#[tokio::test]
async fn the_command_line_follows() {
    let Some(p) = platform().await else { return };
    let command = |args: &[&str]| {
        let mut command = Command::new(BIN);
        command.args(["sandbox", "--state-dir"]).arg(p.state_dir()).args(args);
        command.env_remove("SUPERSERVE_API_KEY").env_remove("SUPERSERVE_BASE_URL");
        command
    };
    let (id, token) = p.create(json!({"network": {"deny_out": ["0.0.0.0/0"]}})).await;
    reach(&p, &id, &token, AWAY, 80).await;
    testing::wait_for("the row", Duration::from_secs(2), || async {
        (rows(&p, &id, "").await.len() == 1).then_some(())
    })
    .await;
    let mut follow = command(&["network", &id, "--follow", "--verdict", "blocked"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(follow.stdout.take().unwrap());
    let reading =
        tokio::task::spawn_blocking(move || output.lines().take(2).map(Result::unwrap).collect::<Vec<_>>());
    tokio::time::sleep(Duration::from_millis(500)).await;
    reach(&p, &id, &token, "198.51.100.2", 443).await;
    let lines = tokio::time::timeout(Duration::from_secs(20), reading).await;
    follow.kill().unwrap();
    follow.wait().unwrap();
    let lines = lines.expect("the second one is shown").unwrap();
    assert!(lines[0].contains("blocked  198.51.100.1:80") && lines[0].contains("rule: cidr"), "{lines:?}");
    assert!(lines[1].contains("blocked  198.51.100.2:443"), "{lines:?}");

    let rules = command(&["rules", &id, "--allow-out", "*.Example.com", "--strict", "on"]).output().unwrap();
    assert!(rules.status.success(), "{rules:?}");
    let rules = String::from_utf8(rules.stdout).unwrap();
    assert_eq!(rules, "allow out  *.example.com\ndeny out   0.0.0.0/0\nstrict     on\n");
    let refused = command(&["rules", &id, "--deny-out", "example.com"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("domains are not accepted"), "{refused:?}");
}
