//! The control plane over a real machine: what `spec/rest-api.md` §3 and §4 promise.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{platform, platform_with};

#[tokio::test]
async fn a_sandbox_lives_its_life() {
    let Some(p) = platform().await else { return };
    let made = p
        .rest(
            "POST",
            "/sandboxes",
            Some(json!({"name": "first", "metadata": {"env": "prod"}, "env_vars": {"GREETING": "hé \"there\" $HOME"},
                        "network": {"allow_out": null, "deny_out": ["1.2.3.4"]}})),
        )
        .await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(made.body["status"], "active");
    assert_eq!(made.body["network"], json!({"deny_out": ["1.2.3.4/32"]}));
    let id = made.body["id"].as_str().unwrap().to_owned();
    let token = made.body["access_token"].as_str().unwrap().to_owned();
    assert_eq!(p.run(&id, &token, "printf %s \"$GREETING\"").await, "hé \"there\" $HOME");
    assert!(!made.body.to_string().contains("GREETING"), "env_vars are never echoed");

    let listed = p.rest("GET", "/sandboxes?metadata.env=prod&status=active,paused&q=FIR", None).await;
    assert_eq!(listed.status, 200);
    assert_eq!(listed.headers["x-total-count"], "1");
    assert_eq!(listed.body[0]["id"], id.as_str());
    for private in ["access_token", "secrets", "routing_hint"] {
        assert!(listed.body[0].get(private).is_none(), "{private} in a list item");
    }

    let patched =
        p.rest("PATCH", &format!("/sandboxes/{id}"), Some(json!({"metadata": {"env": "dev"}}))).await;
    assert_eq!(patched.status, 204);
    let seen = p.rest("GET", &format!("/sandboxes/{id}"), None).await;
    assert_eq!(seen.body["metadata"], json!({"env": "dev"}));

    // Memory and processes are kept across a pause, and the old token dies with it.
    p.run(&id, &token, "sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid; date +%s > /tmp/started").await;
    assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 204);
    assert_eq!(p.rest("GET", &format!("/sandboxes/{id}"), None).await.body["status"], "paused");
    assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 409);
    let refused = p.exec(&id, &token, "true").await;
    assert!(refused.status == 503 || refused.status == 401, "{refused:?}");
    let resumed = p.rest("POST", &format!("/sandboxes/{id}/resume"), None).await;
    assert_eq!(resumed.status, 200, "{resumed:?}");
    let fresh = resumed.body["access_token"].as_str().unwrap().to_owned();
    assert_ne!(fresh, token);
    assert_eq!(p.exec(&id, &token, "true").await.status, 401, "a token does not outlive a pause");
    p.run(&id, &fresh, "kill -0 $(cat /tmp/pid)").await;
    assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/resume"), None).await.status, 409);

    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);
    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 404);
    assert_eq!(p.rest("GET", &format!("/sandboxes/{id}"), None).await.status, 404);
    let stale = p.exec(&id, &fresh, "true").await;
    assert_eq!((stale.status, stale.code()), (404, "sandbox_route_stale"));
    assert_eq!(p.remains().machines, 0);
}

#[tokio::test]
async fn clocks_pause_and_delete() {
    let Some(p) = platform().await else { return };
    let (id, _) = p.create(json!({"timeout_seconds": 1, "auto_delete_seconds": 3600})).await;
    p.wait_state(&id, "paused", Duration::from_secs(20)).await;
    let seen = p.rest("GET", &format!("/sandboxes/{id}"), None).await;
    assert!(seen.body["auto_delete_at"].is_string(), "{seen:?}");
    let cleared =
        p.rest("PATCH", &format!("/sandboxes/{id}"), Some(json!({"auto_delete_seconds": null}))).await;
    assert_eq!(cleared.status, 204);
    assert!(p.rest("GET", &format!("/sandboxes/{id}"), None).await.body["auto_delete_at"].is_null());
    let at_once = p.rest("PATCH", &format!("/sandboxes/{id}"), Some(json!({"auto_delete_seconds": 0}))).await;
    assert_eq!(at_once.status, 204);
    testing::wait_for("auto-delete", Duration::from_secs(20), || async {
        (p.rest("GET", &format!("/sandboxes/{id}"), None).await.status == 404).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_quota_is_exact() {
    let Some(p) = platform_with(&["--max-active-sandboxes", "3"]).await else { return };
    let body = || Some(json!({"name": "q"}));
    let (a, b, c, d, e, f) = tokio::join!(
        p.rest("POST", "/sandboxes", body()),
        p.rest("POST", "/sandboxes", body()),
        p.rest("POST", "/sandboxes", body()),
        p.rest("POST", "/sandboxes", body()),
        p.rest("POST", "/sandboxes", body()),
        p.rest("POST", "/sandboxes", body()),
    );
    let answers = [a, b, c, d, e, f];
    assert_eq!(answers.iter().filter(|a| a.status == 201).count(), 3, "{answers:?}");
    for refused in answers.iter().filter(|a| a.status != 201) {
        assert_eq!((refused.status, refused.code()), (429, "too_many_sandboxes"));
    }
    let id = answers.iter().find(|a| a.status == 201).unwrap().body["id"].as_str().unwrap().to_owned();
    assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 204);
    assert_eq!(p.rest("POST", "/sandboxes", body()).await.status, 201, "a paused one is free");
    let refused = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert_eq!((refused.status, refused.code()), (429, "too_many_sandboxes"));
}

#[tokio::test]
async fn bad_requests_are_named() {
    let Some(p) = platform().await else { return };
    let cases: &[(Value, &str)] = &[
        (json!({}), "name"),
        (json!({"name": ""}), "name"),
        (json!({"name": "x".repeat(65)}), "name"),
        (json!({"name": "x", "nme": 1}), "nme"),
        (json!({"name": "x", "timeout_seconds": 0}), "timeout_seconds"),
        (json!({"name": "x", "timeout_seconds": 604_801}), "timeout_seconds"),
        (json!({"name": "x", "auto_delete_seconds": -1}), "auto_delete_seconds"),
        (json!({"name": "x", "metadata": {"superserve.a": "b"}}), "metadata"),
        (json!({"name": "x", "env_vars": {"A=B": "c"}}), "env_vars"),
        (json!({"name": "x", "network": {"deny_out": ["example.com"]}}), "deny_out"),
        (json!({"name": "x", "preview_access": "legacy_public"}), "preview_access"),
    ];
    for (body, field) in cases {
        let answer = p.rest("POST", "/sandboxes", Some(body.clone())).await;
        assert_eq!((answer.status, answer.code()), (400, "bad_request"), "{body}");
        let message = answer.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(field), "{body}: {message}");
    }
    let missing = p.rest("POST", "/sandboxes", Some(json!({"name": "x", "from_template": "no/such"}))).await;
    assert_eq!((missing.status, missing.code()), (404, "not_found"));
    let unknown = p.rest("POST", "/sandboxes", Some(json!({"name": "x", "secrets": {"K": "nope"}}))).await;
    assert_eq!((unknown.status, unknown.code()), (400, "secret_not_found"));
    assert_eq!(p.rest("GET", "/sandboxes/missing-id", None).await.status, 400);
    assert_eq!(p.rest("GET", "/nowhere", None).await.code(), "not_found");
    assert_eq!(p.rest("GET", "/sandboxes", None).await.body, json!([]), "nothing was made on the way");
}

#[tokio::test]
async fn the_base_template_is_listed() {
    let Some(p) = platform().await else { return };
    let listed = p.rest("GET", "/templates?name_prefix=superserve/", None).await;
    assert_eq!(listed.status, 200);
    // Beside it, the others of the platform, which are not built yet.
    let rows = listed.body.as_array().unwrap();
    let base = rows.iter().find(|row| row["name"] == "superserve/base").unwrap();
    assert_eq!(base["status"], "ready");
    assert!(
        rows.iter().all(|row| row["name"] == "superserve/base" || row["status"] == "pending"),
        "{rows:?}"
    );
    for path in ["/templates/superserve%2Fbase", "/templates/superserve/base"] {
        assert_eq!(p.rest("GET", path, None).await.body["name"], "superserve/base", "{path}");
    }
}

#[tokio::test]
async fn a_directory_is_listed_and_wakes_the_sandbox() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    p.run(&id, &token, "mkdir -p /app/sub && printf 12345 > /app/five").await;
    assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 204);
    let listed = p.rest("GET", &format!("/sandboxes/{id}/files?path=/app"), None).await;
    assert_eq!(listed.status, 200, "{listed:?}");
    let entry = |name: &str| {
        listed.body["entries"]
            .as_array()
            .unwrap()
            .iter()
            .find(|e| e["name"] == name)
            .cloned()
            .unwrap_or_default()
    };
    assert_eq!(entry("five")["size"], 5);
    assert_eq!(entry("sub")["is_dir"], true);
    assert_eq!(p.rest("GET", &format!("/sandboxes/{id}"), None).await.body["status"], "active");
    assert_eq!(p.rest("GET", &format!("/sandboxes/{id}/files?path=app"), None).await.status, 400);
    assert_eq!(p.rest("GET", &format!("/sandboxes/{id}/files?path=/nope"), None).await.status, 404);
    assert_eq!(p.rest("GET", &format!("/sandboxes/{id}/files?path=/app/five"), None).await.status, 400);
}
