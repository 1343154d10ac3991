//! What of saving is told over HTTP that a quick host does not show.

use http::StatusCode;
use serde_json::json;

use super::Platform;

#[tokio::test]
async fn what_takes_long_is_told_and_can_be_looked_at() {
    let p = Platform::new().await;
    let id = p.sandbox_id().await;
    let path = format!("/sandboxes/{id}/snapshot");
    let body = r#"{"kind":"mem+fs","idempotency_key":"k","name":"n"}"#;
    p.host.may_save.send_replace(false);
    let slow = p.call("POST", &path, body).await;
    assert_eq!((slow.status, &slow.headers["retry-after"]), (StatusCode::ACCEPTED, &"60".parse().unwrap()));
    let shown = slow.json();
    assert_eq!(
        (&shown["status"], &shown["size_bytes"], &shown["ready_at"]),
        (&json!("creating"), &json!(0), &json!(null))
    );
    let again = p.call("POST", &path, body).await;
    assert_eq!((again.status, again.json()), (StatusCode::ACCEPTED, shown.clone()));
    let one = format!("/snapshots/{}", shown["id"].as_str().unwrap());
    let refused = p.call("DELETE", &one, "").await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::CONFLICT, "conflict"));
    let rules = r#"{"network":{"allow_out":["1.1.1.1"]}}"#;
    let refused = p.call("PATCH", &format!("/sandboxes/{id}"), rules).await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::CONFLICT, "snapshot_in_progress"));
    assert_eq!(refused.headers["retry-after"], "2");
    let create = format!(r#"{{"name":"f","from_snapshot":{}}}"#, shown["id"]);
    assert_eq!(p.call("POST", "/sandboxes", &create).await.status, StatusCode::CONFLICT);

    p.host.may_save.send_replace(true);
    while p.get(&one).await.json()["status"] == "creating" {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let ready = p.get(&one).await.json();
    assert_eq!(
        (&ready["status"], &ready["size_bytes"], &ready["captured"]),
        (&json!("ready"), &json!(7), &json!("disk"))
    );
    let again = p.call("POST", &path, body).await;
    assert_eq!((again.status, again.json()), (StatusCode::OK, ready));
    assert_eq!(p.call("POST", "/sandboxes", &create).await.status, StatusCode::CREATED);
    // Somebody else's is not there.
    let (other, _) = {
        let team = p.store.team_ensure("other", jiff::Timestamp::now()).await.unwrap().id;
        p.store.key_create(team, "other", jiff::Timestamp::now()).await.unwrap()
    };
    let key = other.expose_secret();
    assert_eq!(p.call_with("GET", &one, "", key).await.status, StatusCode::NOT_FOUND);
    assert_eq!(p.call_with("DELETE", &one, "", key).await.status, StatusCode::NOT_FOUND);
    assert_eq!(p.call_with("POST", "/sandboxes", &create, key).await.status, StatusCode::NOT_FOUND);
    let list = p.call_with("GET", &format!("{path}s"), "", key).await;
    assert_eq!((list.status, list.json()), (StatusCode::OK, json!([])));
}
