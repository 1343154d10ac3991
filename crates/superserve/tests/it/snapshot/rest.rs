//! The published calls, and the command line over them.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use testing::Platform;

use super::{delete, fork, id_of, platform, save};
use crate::BIN;

#[tokio::test]
async fn the_calls_answer_as_published() {
    let Some(p) = platform(&[]).await else { return };
    let (id, token) = p.create(json!({})).await;
    let path = format!("/sandboxes/{id}/snapshot");
    for body in [
        json!({"kind": "fs"}),
        json!({"name": ""}),
        json!({"name": "x".repeat(65)}),
        json!({"idempotency_key": ""}),
        json!({"idempotency_key": "x".repeat(256)}),
        json!({"nonsense": 1}),
    ] {
        let refused = p.rest("POST", &path, Some(body.clone())).await;
        assert_eq!((refused.status, refused.code()), (400, "bad_request"), "{body}");
    }
    // What cannot be in a layer is named, and the sandbox goes on.
    p.run(&id, &token, "touch /srv/.wh.x").await;
    let refused = p.rest("POST", &path, None).await;
    assert_eq!((refused.status, refused.code()), (400, "bad_request"), "{:?}", refused.body);
    assert!(refused.body["error"]["message"].as_str().unwrap().contains("srv/.wh.x"), "{:?}", refused.body);
    let failed = p.rest("GET", &format!("{path}s"), None).await.body;
    assert_eq!((&failed[0]["status"], &failed[0]["size_bytes"]), (&json!("failed"), &json!(0)));
    delete(&p, &format!("/snapshots/{}", id_of(&failed[0]))).await;
    p.run(&id, &token, "rm /srv/.wh.x").await;
    // As the Python SDK asks, and asks again.
    let body =
        json!({"kind": "mem+fs", "idempotency_key": "0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b", "name": "first"});
    let first = save(&p, &id, body.clone()).await;
    assert_eq!(p.run(&id, &token, "echo on").await, "on\n", "the token it had");
    let template = p.rest("GET", "/templates/superserve%2Fbase", None).await.body;
    let sandbox = p.rest("GET", &format!("/sandboxes/{id}"), None).await.body;
    let resources = json!({
        "vcpu_count": sandbox["vcpu_count"], "memory_mib": sandbox["memory_mib"], "disk_mib": template["disk_mib"]
    });
    assert_eq!(
        (&first["sandbox_id"], &first["template_id"], &first["kind"], &first["name"], &first["resources"]),
        (&json!(id), &template["id"], &json!("mem+fs"), &json!("first"), &resources)
    );
    assert_eq!(first["captured"], "disk", "what it really holds");
    assert!(first["size_bytes"].is_u64() && first["created_at"].is_string() && first["ready_at"].is_string());
    let again = p.rest("POST", &path, Some(body.clone())).await;
    assert_eq!((again.status, &again.body), (200, &first));
    // Without a body, and paused.
    assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 204);
    let second = p.rest("POST", &path, None).await;
    assert_eq!((second.status, &second.body["name"]), (201, &Value::Null));
    assert_eq!(p.rest("GET", &format!("/sandboxes/{id}"), None).await.body["status"], "paused");

    let list = p.rest("GET", &format!("{path}s"), None).await;
    assert_eq!(
        (list.status, &list.headers["x-total-count"], &list.body),
        (200, &"2".to_owned(), &json!([second.body, first]))
    );
    let page = p.rest("GET", &format!("{path}s?limit=1&offset=1"), None).await;
    assert_eq!((&page.headers["x-total-count"], &page.body), (&"2".to_owned(), &json!([first])));
    assert_eq!(p.rest("GET", &format!("{path}s?limit=0"), None).await.status, 400);
    let one = format!("/snapshots/{}", id_of(&first));
    assert_eq!(p.rest("GET", &one, None).await.body, first);
    let renamed = p.rest("PATCH", &one, Some(json!({"name": "other"}))).await;
    assert_eq!((renamed.status, &renamed.body["name"]), (200, &json!("other")));
    for body in [json!({}), json!({"name": ""}), json!({"name": null})] {
        assert_eq!(p.rest("PATCH", &one, Some(body)).await.status, 400);
    }

    let (copy, _, made) = fork(&p, &id_of(&first), json!({})).await;
    assert_eq!(made["source_snapshot_id"], first["id"]);
    let of_fork = save(&p, &copy, json!({})).await;
    assert_eq!((&of_fork["source_snapshot_id"], &of_fork["template_id"]), (&first["id"], &template["id"]));
    let both = json!({"name": "x", "from_snapshot": id_of(&first), "from_template": "superserve/base"});
    assert_eq!(p.rest("POST", "/sandboxes", Some(both)).await.status, 400);
    let unknown = "00000000-0000-4000-8000-000000000000";
    for (name, status) in [(unknown, 404), ("nonsense", 400)] {
        let body = json!({"name": "x", "from_snapshot": name});
        assert_eq!(p.rest("POST", "/sandboxes", Some(body)).await.status, status, "{name}");
        for method in ["GET", "DELETE"] {
            assert_eq!(p.rest(method, &format!("/snapshots/{name}"), None).await.status, status, "{name}");
        }
        assert_eq!(p.rest("POST", &format!("/sandboxes/{name}/snapshot"), None).await.status, status);
    }

    delete(&p, &one).await;
    assert_eq!(p.rest("DELETE", &one, None).await.status, 404);
    assert_eq!(p.rest("GET", &one, None).await.status, 404);
    let gone = p.rest("POST", &path, Some(body)).await;
    assert_eq!((gone.status, gone.code()), (410, "gone"));
    // The list outlives the sandbox.
    delete(&p, &format!("/sandboxes/{id}")).await;
    let list = p.rest("GET", &format!("{path}s"), None).await;
    assert_eq!((list.status, &list.body), (200, &json!([second.body])));
    assert_eq!(p.rest("POST", &path, None).await.status, 404);
    let log = p.rest("GET", "/activity?category=snapshot", None).await.body;
    let log: Vec<_> = log.as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(log, ["deleted", "created", "renamed", "created", "created", "deleted", "created"]);
}

fn cli(p: &Platform, words: &[&str]) -> Output {
    let mut command = Command::new(BIN);
    command.args(words).env("SUPERSERVE_STATE_DIR", p.state_dir());
    command.env_remove("SUPERSERVE_API_KEY").env_remove("SUPERSERVE_BASE_URL").output().unwrap()
}

fn ok(p: &Platform, words: &[&str]) -> String {
    let output = cli(p, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

fn json_of(p: &Platform, words: &[&str]) -> Value {
    serde_json::from_str(&ok(p, &[&["--json"], words].concat())).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_saves_and_forks() {
    let Some(p) = platform(&["--max-active-sandboxes", "5"]).await else { return };
    let (id, token) = p.create(json!({})).await;
    p.run(&id, &token, "echo common > /srv/common").await;
    let snapshot = ok(&p, &["snapshot", "create", &id, "--name", "before"]);
    assert_eq!(json_of(&p, &["snapshot", "list", &id])[0]["id"], json!(snapshot));
    assert!(ok(&p, &["snapshot", "list", &id]).contains("disk"));
    let shown = ok(&p, &["snapshot", "get", &snapshot]);
    assert!(shown.contains("holds:             disk; processes are not kept"), "{shown}");
    ok(&p, &["snapshot", "rename", &snapshot, "after"]);
    assert_eq!(json_of(&p, &["snapshot", "get", &snapshot])["name"], "after");
    let made = ok(&p, &["sandbox", "create", "--from-snapshot", &snapshot]);
    assert_eq!(ok(&p, &["sandbox", "exec", &made, "cat /srv/common"]), "common");
    assert!(ok(&p, &["sandbox", "info", &made]).contains(&snapshot));
    ok(&p, &["sandbox", "kill", &made]);

    let forks = ok(&p, &["sandbox", "fork", &id, "-n", "3", "--name", "try", "--metadata", "job=1"]);
    let forks: Vec<&str> = forks.lines().collect();
    assert_eq!(forks.len(), 3);
    for fork in &forks {
        assert_eq!(ok(&p, &["sandbox", "exec", fork, "cat /srv/common"]), "common");
    }
    let listed = json_of(&p, &["sandbox", "list", "--metadata", "job=1"]);
    let mut names: Vec<_> =
        listed.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["try-1", "try-2", "try-3"]);
    assert_eq!(json_of(&p, &["snapshot", "list", &id]).as_array().unwrap().len(), 1, "its own is gone");

    // The source and three forks run: one more may.
    let partly = cli(&p, &["--json", "sandbox", "fork", &id, "-n", "3", "--keep=kept"]);
    assert_eq!(partly.status.code(), Some(1));
    let partly: Value = serde_json::from_slice(&partly.stdout).unwrap();
    assert_eq!(partly["forks"].as_array().unwrap().len(), 1, "{partly}");
    assert_eq!(partly["failed"].as_array().unwrap().len(), 2);
    assert_eq!(partly["failed"][0]["code"], "too_many_sandboxes");
    let kept = partly["snapshot_id"].as_str().unwrap();
    assert_eq!(json_of(&p, &["snapshot", "get", kept])["name"], "kept");
    let said = cli(&p, &["sandbox", "fork", "--keep", &id]);
    let list = json_of(&p, &["snapshot", "list", &id]);
    assert_eq!((said.status.code(), &list[0]["name"]), (Some(1), &Value::Null), "kept without a name");
    ok(&p, &["snapshot", "delete", list[0]["id"].as_str().unwrap()]);
    let said = cli(&p, &["sandbox", "fork", &id, "-n", "2"]);
    assert_eq!((said.status.code(), said.stdout.len()), (Some(1), 0));
    assert!(String::from_utf8_lossy(&said.stderr).contains("2 of 2 forks were not made"));
    assert_eq!(ok(&p, &["snapshot", "delete", kept, &snapshot]).lines().count(), 2);
    assert_eq!(cli(&p, &["snapshot", "delete", kept]).status.code(), Some(1));
    assert_eq!(json_of(&p, &["snapshot", "list", &id]), json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_during_a_fork_leaves_no_snapshot() {
    let Some(p) = platform(&[]).await else { return };
    let (id, _) = p.create(json!({})).await;
    let mut command = Command::new(BIN);
    command.args(["sandbox", "fork", &id, "-n", "40"]).env("SUPERSERVE_STATE_DIR", p.state_dir());
    command.env_remove("SUPERSERVE_API_KEY").env_remove("SUPERSERVE_BASE_URL");
    let forking = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let list = format!("/sandboxes/{id}/snapshots");
    testing::wait_for("the first forks", Duration::from_secs(30), || async {
        (p.rest("GET", "/sandboxes", None).await.body.as_array().unwrap().len() > 3).then_some(())
    })
    .await;
    let pid = rustix::process::Pid::from_child(&forking);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = tokio::task::spawn_blocking(move || forking.wait_with_output().unwrap()).await.unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let forks = String::from_utf8(output.stdout).unwrap();
    assert!(forks.lines().count() < 40, "it was interrupted");
    for fork in forks.lines() {
        assert_eq!(p.rest("GET", &format!("/sandboxes/{fork}"), None).await.body["status"], "active");
    }
    assert_eq!(p.rest("GET", &list, None).await.body, json!([]));
}
