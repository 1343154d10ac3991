//! `GET /activity`.

use http::StatusCode;
use serde_json::Value;

use super::Platform;

async fn rows(p: &Platform, query: &str) -> Vec<Value> {
    let answer = p.get(&format!("/activity{query}")).await;
    assert_eq!(answer.status, StatusCode::OK, "{query}: {:?}", answer.body);
    answer.json().as_array().unwrap().clone()
}

async fn actions(p: &Platform, query: &str) -> Vec<String> {
    rows(p, query).await.iter().map(|row| row["action"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn rows_say_who_did_what_and_how_it_ended() {
    let p = Platform::with_quota(1).await;
    let made = p.sandbox(r#"{"name":"Box","env_vars":{"TOKEN":"hunter2"},"metadata":{"a":"b"}}"#).await;
    let id = made["id"].as_str().unwrap().to_owned();
    let refused = p.call("POST", "/sandboxes", r#"{"name":"second"}"#).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    let activated = p.post(&format!("/sandboxes/{id}/activate")).await;
    p.post(&format!("/sandboxes/{id}/pause")).await;

    let all = rows(&p, "?order=asc").await;
    assert_eq!(actions(&p, "?order=asc").await, ["created", "created", "rotated", "paused"]);
    let key = p.store.key_list().await.unwrap()[0].id.to_string();
    let first = &all[0];
    let mut names: Vec<_> = first.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "action",
            "actor_id",
            "category",
            "created_at",
            "duration_ms",
            "error",
            "id",
            "metadata",
            "sandbox_id",
            "sandbox_name",
            "secret_id",
            "secret_name",
            "status",
            "template_id"
        ]
    );
    assert_eq!((&first["sandbox_id"], &first["sandbox_name"]), (&made["id"], &"Box".into()));
    assert_eq!((&first["category"], &first["status"]), (&"sandbox".into(), &"success".into()));
    assert_eq!(
        (first["actor_id"].as_str(), &first["metadata"]["actor_name"]),
        (Some(key.as_str()), &"test".into())
    );
    assert!(first["duration_ms"].is_u64() && first["template_id"].is_string() && first["error"].is_null());
    assert_eq!((&all[1]["status"], &all[1]["error"]), (&"error".into(), &"too_many_sandboxes".into()));
    assert_eq!(all[2]["metadata"]["request_id"], activated.headers["x-request-id"].to_str().unwrap());
    let text = serde_json::to_string(&all).unwrap();
    for private in ["hunter2", &p.key, made["access_token"].as_str().unwrap()] {
        assert!(!text.contains(private), "{text}");
    }

    assert_eq!(actions(&p, "").await[0], "paused", "newest first");
    assert_eq!(actions(&p, "?status=error").await, ["created"]);
    assert_eq!(actions(&p, "?status=success&category=sandbox&order=asc").await, ["created", "paused"]);
    assert_eq!(actions(&p, "?category=token").await, ["rotated"]);
    assert_eq!(actions(&p, "?category=template").await.len(), 0);
    assert_eq!(actions(&p, "?q=SECOND").await, ["created"]);
    assert_eq!(actions(&p, "?action=paused&sort=created_at").await, ["paused"]);
    assert_eq!(actions(&p, &format!("?sandbox_id={id}")).await.len(), 3);
    assert_eq!(actions(&p, "?limit=1&offset=1&order=asc").await, ["created"]);
    assert_eq!(p.get("/activity?limit=1").await.headers["x-total-count"], "4");
    let last = all[3]["created_at"].as_str().unwrap();
    assert_eq!(actions(&p, &format!("?start={last}")).await, ["paused"]);
    assert_eq!(actions(&p, &format!("?end={last}")).await.len(), 4);
    assert_eq!(actions(&p, "?end=2020-01-01T00:00:00Z").await.len(), 0);
    for bad in
        ["start=x", "end=1", "sort=name", "order=up", "limit=0", "status=ok", "sandbox_id=x", "offset=-1"]
    {
        let answer = p.get(&format!("/activity?{bad}")).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (StatusCode::BAD_REQUEST, "bad_request"),
            "{bad}"
        );
    }
}

#[tokio::test]
async fn another_teams_log_is_its_own() {
    let p = Platform::new().await;
    p.sandbox_id().await;
    let now = jiff::Timestamp::now();
    let other = p.store.team_ensure("other", now).await.unwrap().id;
    let (key, _) = p.store.key_create(other, "other", now).await.unwrap();
    let request = http::Request::get("/activity").header("x-api-key", key.expose_secret());
    let answer = p.send(request.body(axum::body::Body::empty()).unwrap()).await;
    assert_eq!((answer.status, answer.json()), (StatusCode::OK, serde_json::json!([])));
}
