//! The template tools: what they show, and what they ask for.

use axum::http::Method;
use serde_json::{Value, json};

use super::session::{ID, Platform, json_answer};

fn template(name: &str, status: &str) -> Value {
    json!({"id": ID, "team_id": ID, "name": name, "status": status, "vcpu": 2, "memory_mib": 8192, "disk_mib": 4096,
        "created_at": "2026-01-02T03:04:05Z"})
}

#[tokio::test]
async fn templates_are_listed_and_built() {
    let platform = Platform::start(|seen| async move {
        if seen.method == Method::POST {
            let mut made = template("mine", "building");
            made["build_id"] = ID.into();
            return json_answer(202, &made);
        }
        let failed = {
            let mut failed = template("broken", "failed");
            failed["error_message"] = "step_failed: exit 1\nof step 2".into();
            failed
        };
        match seen.path.as_str() {
            "/templates" => json_answer(200, &json!([template("superserve/base", "ready"), failed])),
            path => {
                assert!(path.starts_with("/templates?"), "{path}");
                json_answer(200, &json!([]))
            }
        }
    })
    .await;
    let mut session = platform.session();
    // A call without `arguments` is one without arguments.
    let listed = session.ask("tools/call", json!({"name": "sandbox_template_list"})).await;
    let listed = &listed["result"];
    let text = listed["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("superserve/base\tready\t2 vCPU / 8192 MiB\nbroken\tfailed\t"), "{text}");
    assert!(text.contains("step_failed") && text.lines().count() == 2, "{text}");
    let rows = listed["structuredContent"]["templates"].as_array().unwrap();
    assert_eq!(
        rows[0],
        json!({"id": ID, "name": "superserve/base", "status": "ready", "vcpu": 2, "memoryMib": 8192, "diskMib": 4096})
    );
    assert_eq!(rows[1]["status"], "failed");

    let none = session.call("sandbox_template_list", json!({"name_prefix": "no/such"})).await;
    assert_eq!(none["content"][0]["text"], "(no templates)");
    assert_eq!(none["structuredContent"], json!({"templates": []}));

    // The platform's limits are the platform's affair.
    let arguments =
        json!({"name": "mine", "from": "python:3.11", "memory_mib": 8192, "run_steps": ["pip install x"]});
    let made = session.call("sandbox_template_create", arguments).await;
    assert_eq!(made["structuredContent"]["template"]["status"], "building");
    assert_eq!(made["structuredContent"]["template"]["memoryMib"], 8192);
    let text = made["content"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("8192 MiB") && text.contains("ready") && text.contains("sandbox_template_list"),
        "{text}"
    );
    let sent: Value = serde_json::from_slice(&platform.seen().last().unwrap().body).unwrap();
    assert_eq!(sent["memory_mib"], 8192);
    assert_eq!(sent["build_spec"]["steps"], json!([{"run": "pip install x"}]));
    let refused = session.fail("sandbox_template_create", json!({"name": "mine"})).await;
    assert!(refused.contains("`from` is required"), "{refused}");
}
