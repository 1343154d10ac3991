//! What happened can be read afterwards, counted and followed, and nothing private is in any of it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use testing::Platform;

use crate::{BIN, platform, platform_with_env};

async fn rows(p: &Platform, query: &str) -> Vec<Value> {
    let answer = p.rest("GET", &format!("/activity?order=asc{query}"), None).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body.as_array().unwrap().clone()
}

fn named(rows: &[Value]) -> Vec<String> {
    rows.iter()
        .map(|row| {
            let error = row["error"].as_str().map_or_else(String::new, |error| format!(" {error}"));
            format!("{}.{}{error}", row["category"].as_str().unwrap(), row["action"].as_str().unwrap())
        })
        .collect()
}

/// The value of a metric, by its name with labels.
async fn metric(p: &Platform, name: &str) -> f64 {
    let page = p.rest("GET", "/metrics", None).await;
    assert_eq!(page.status, 200, "{page:?}");
    let page = page.body.as_str().unwrap().to_owned();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
}

/// Data-plane requests are recorded when they are over, which the client may learn a moment earlier.
async fn settled(p: &Platform, query: &str, count: usize) -> Vec<Value> {
    testing::wait_for("the activity log", Duration::from_secs(10), || async {
        let rows = rows(p, query).await;
        (rows.len() >= count).then_some(rows)
    })
    .await
}

#[tokio::test]
async fn a_life_is_recorded_and_survives_a_restart() {
    let Some(mut p) = platform().await else { return };
    let (id, token) = p.create(json!({"name": "box"})).await;
    p.run(&id, &token, "true").await;
    assert_eq!(p.exec(&id, &token, "exit 3").await.body["exit_code"], 3);
    assert_eq!(p.data("POST", "/files?path=/tmp/f", &id, &token, vec![7; 1000]).await.status, 200);
    assert_eq!(p.data("GET", "/files?path=/tmp/f", &id, &token, vec![]).await.status, 200);
    assert_eq!(p.data("GET", "/files?path=/nope", &id, &token, vec![]).await.status, 404);
    for _ in 0..5 {
        assert_eq!(p.exec(&id, "wrong", "true").await.status, 401);
    }
    let by_id = format!("&sandbox_id={id}");
    let seen = settled(&p, &by_id, 7).await;
    assert_eq!(
        named(&seen),
        [
            "sandbox.created",
            "exec.run",
            "exec.run",
            "file.written",
            "file.read",
            "file.read not_found",
            "token.refused auth_failed"
        ],
        "guesses are one entry"
    );
    assert_eq!(seen[0]["metadata"]["actor_name"], "first");
    assert_eq!((&seen[1]["metadata"]["actor_type"], &seen[1]["actor_id"]), (&"token".into(), &Value::Null));
    assert!(seen[3]["metadata"]["bytes_in"].as_u64() >= Some(1000), "{}", seen[3]);
    assert_eq!(seen[6]["metadata"]["actor_type"], "stranger");

    p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await;
    p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    let init = p.remains().init_of(&id).expect("the sandbox has a first process");
    rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
    p.wait_state(&id, "paused", Duration::from_secs(20)).await;
    p.rest("DELETE", &format!("/sandboxes/{id}"), None).await;
    let expected =
        ["sandbox.paused", "sandbox.resumed", "token.rotated", "sandbox.machine_died", "sandbox.deleted"];
    assert_eq!(named(&rows(&p, &by_id).await)[7..], expected);

    // Queued at the stop, read after the next start.
    let (other, _) = p.create(json!({"name": "other"})).await;
    assert_eq!(p.stop().await, Some(0));
    p.spawn().await;
    let all = rows(&p, "").await;
    assert_eq!(all.len(), 13, "{:?}", named(&all));
    assert_eq!(all[12]["sandbox_id"], other.as_str());
}

#[tokio::test]
async fn the_command_line_exports_and_follows() {
    let Some(p) = platform().await else { return };
    let command = |args: &[&str]| {
        let mut command = Command::new(BIN);
        command.args(["--json", "activity", "--state-dir"]).arg(p.state_dir()).args(args);
        command.env_remove("SUPERSERVE_API_KEY").env_remove("SUPERSERVE_BASE_URL");
        command
    };
    let (id, token) = p.create(json!({"name": "box"})).await;
    // More than one page.
    for _ in 0..230 {
        assert_eq!(p.exec(&id, &token, "true").await.status, 200);
    }
    settled(&p, "&category=exec&limit=1&offset=229", 1).await;
    let export = command(&["--category", "exec"]).output().unwrap();
    assert!(export.status.success(), "{export:?}");
    let lines: Vec<Value> = String::from_utf8(export.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 230);
    let ids: std::collections::BTreeSet<_> = lines.iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 230, "each once");
    assert!(lines.is_sorted_by_key(|row| row["created_at"].as_str().unwrap()));

    let mut follow = command(&["--follow", "--sandbox", &id, "--category", "sandbox"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(follow.stdout.take().unwrap());
    let reading = tokio::task::spawn_blocking(move || {
        let lines = output.lines().take(2).map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        named(&lines.collect::<Vec<_>>())
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await;
    let followed = tokio::time::timeout(Duration::from_secs(20), reading).await;
    follow.kill().unwrap();
    follow.wait().unwrap();
    assert_eq!(followed.expect("the pause is shown").unwrap(), ["sandbox.created", "sandbox.paused"]);
}

#[tokio::test]
async fn everything_is_counted() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let (paused, _) = p.create(json!({})).await;
    p.rest("POST", &format!("/sandboxes/{paused}/pause"), None).await;
    p.run(&id, &token, "true").await;
    p.data("POST", "/files?path=/tmp/f", &id, &token, vec![7; 5000]).await;
    p.exec(&id, "wrong", "true").await;
    p.rest("GET", "/sandboxes/not-an-id", None).await;
    settled(&p, "&category=file", 1).await;
    for (name, value) in [
        ("superserve_sandboxes{state=\"active\"}", 1.0),
        ("superserve_sandboxes{state=\"paused\"}", 1.0),
        ("superserve_sandboxes{state=\"failed\"}", 0.0),
        ("superserve_requests_total{method=\"POST\",route=\"/sandboxes\",status=\"201\"}", 2.0),
        ("superserve_requests_total{method=\"GET\",route=\"/sandboxes/{id}\",status=\"400\"}", 1.0),
        ("superserve_request_seconds_count{route=\"/sandboxes\"}", 2.0),
        ("superserve_data_plane_requests_total{kind=\"exec\",outcome=\"answered\",status=\"2xx\"}", 1.0),
        ("superserve_data_plane_requests_total{kind=\"exec\",outcome=\"refused\",status=\"4xx\"}", 1.0),
        ("superserve_data_plane_bytes_total{direction=\"in\",kind=\"file_write\"}", 5000.0),
        ("superserve_data_plane_request_seconds_count{kind=\"exec\"}", 1.0),
        ("superserve_activity_dropped_total", 0.0),
        ("superserve_queue_depth{queue=\"sandboxes\"}", 0.0),
    ] {
        assert!((metric(&p, name).await - value).abs() < f64::EPSILON, "{name} is not {value}");
    }
    assert!(metric(&p, "process_resident_memory_bytes").await > 1e6);
    assert!(metric(&p, "process_open_fds").await > 10.0);
    assert!(metric(&p, "process_start_time_seconds").await > 1.7e9);
}

/// Everything private that passes through the server, and everything the server writes.
#[tokio::test]
async fn nothing_private_is_in_logs_activity_or_metrics() {
    // Everything that could be logged is.
    let (flags, env) = (["--log-format", "json"], [("SUPERSERVE_LOG", "trace")]);
    let Some(p) = platform_with_env(&flags, &env).await else { return };
    let (env, tag) = ("planted-env-value-4711", "planted-tag-4711");
    let (id, token) = p.create(json!({"env_vars": {"PRIVATE": env}, "metadata": {"tag": tag}})).await;
    let wrong = "planted-wrong-token-4711";
    p.run(&id, &token, "echo planted-command-4711; echo planted-error-4711 >&2").await;
    let path = "/files?path=/tmp/planted-path-4711";
    p.data("POST", path, &id, &token, b"planted-content-4711".to_vec()).await;
    p.data("GET", path, &id, &token, vec![]).await;
    p.data("GET", "/files?path=/planted-missing-4711", &id, &token, vec![]).await;
    p.data("POST", "/exec", &id, &token, br#"{"command": ["planted-malformed-4711"]}"#.to_vec()).await;
    p.data("POST", "/planted-unknown-4711", &id, &token, vec![]).await;
    p.exec(&id, wrong, "planted-refused-4711").await;
    p.rest("GET", "/sandboxes?metadata.tag=planted-query-4711", None).await;
    p.rest("GET", &format!("/sandboxes/{id}/files?path=/planted-listing-4711"), None).await;
    p.rest("POST", "/sandboxes", Some(json!({"name": "x", "env_vars": {"A": ["planted-bad-env-4711"]}})))
        .await;
    p.rest("PATCH", &format!("/sandboxes/{id}"), Some(json!({"metadata": {"tag": "planted-patch-4711"}})))
        .await;
    p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await;
    let resumed = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    let fresh = resumed.body["access_token"].as_str().unwrap().to_owned();
    p.run(&id, &fresh, "printf %s \"$PRIVATE\"").await;

    let activity = serde_json::to_string(&settled(&p, "", 10).await).unwrap();
    let metrics = p.rest("GET", "/metrics", None).await.body.to_string();
    let log = p.log();
    assert!(log.len() > 10_000 && activity.len() > 1_000 && metrics.len() > 1_000);
    for (what, text) in [("log", &log), ("activity", &activity), ("metrics", &metrics)] {
        for private in ["planted-", p.key(), &token, &fresh] {
            let line = text.lines().find(|line| line.contains(private));
            assert!(line.is_none(), "{what} has {private}: {line:?}");
        }
    }
    // Ids of sandboxes are in the log and the activity log, where they belong, and not among the labels.
    assert!(log.contains(&id) && activity.contains(&id) && !metrics.contains(&id));
    // Each line is one JSON object; an answer's id finds its line.
    let request = resumed.headers["x-request-id"].as_str();
    let lines: Vec<Value> = log
        .lines()
        .filter(|line| !line.starts_with("superserve is ready"))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect();
    assert!(lines.iter().any(|line| line["span"]["id"] == request && line["status"] == 200), "{request}");
    assert!(activity.contains(request));
}
