//! What `POST /templates` and its builds accept. Building itself needs machines and is tested where there are some.

use domain::TemplateStatus;
use http::StatusCode;
use serde_json::{Value, json};

use super::{Platform, template};

/// Nobody listens there: the build ends at once.
const NOWHERE: &str = "127.0.0.1:1/x";

async fn post(p: &Platform, body: Value) -> super::Answer {
    p.call("POST", "/templates", &body.to_string()).await
}

#[tokio::test]
async fn bad_templates_are_refused_by_field() {
    let p = Platform::new().await;
    let whole = || json!({"name": "a", "build_spec": {"from": NOWHERE, "steps": []}});
    let with = |pointer: &str, value: Value| {
        let mut body = whole();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = if parent.is_empty() { &mut body } else { body.pointer_mut(parent).unwrap() };
        parent[key] = value;
        body
    };
    let step = |step: Value| with("/build_spec/steps", json!([{"run": "true"}, step]));
    for (body, field) in [
        (with("/name", json!("")), "name"),
        (with("/name", json!("Big")), "name"),
        (with("/name", json!("superserve/mine")), "name"),
        (with("/vcpu", json!(0)), "vcpu"),
        (with("/vcpu", json!(5)), "vcpu: 1 to 4"),
        (with("/memory_mib", json!(255)), "memory_mib: 256 to 4096"),
        (with("/disk_mib", json!(8193)), "disk_mib: 1024 to 8192"),
        (with("/disk_mib", json!(-1)), "disk_mib"),
        (with("/nonsense", json!(1)), "nonsense"),
        (with("/isolation", json!("vm")), "isolation"),
        (with("/isolation", json!("firecracker")), "container, qemu; left out: container"),
        (with("/build_spec/from", json!("python:3.11-alpine")), "build_spec.from: alpine"),
        (with("/build_spec/from", json!(" ")), "build_spec.from"),
        (step(json!({})), "build_spec.steps[1]: exactly one"),
        (step(json!({"run": "a", "workdir": "/b"})), "build_spec.steps[1]: exactly one"),
        (step(json!({"copy": {"src": "a", "dst": "b"}})), "unknown field `copy`"),
        (step(json!({"user": {"name": "No"}})), "build_spec.steps[1].user.name"),
        (step(json!({"env": {"key": "", "value": "x"}})), "build_spec.steps[1].env"),
    ] {
        let answer = post(&p, body.clone()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.message().contains(field), "{body}: {}", answer.message());
    }
    assert_eq!(p.get("/templates?owner=team").await.json(), json!([]), "nothing was made on the way");
}

#[tokio::test]
async fn a_template_is_made_with_its_build_and_counted() {
    let p = Platform::new().await;
    let body = |name: &str| json!({"name": format!(" {name} "), "build_spec": {"from": NOWHERE}});
    let mut first = body("my/first");
    first["isolation"] = json!("qemu");
    let made = post(&p, first).await;
    assert_eq!(made.status, StatusCode::ACCEPTED, "{:?}", made.body);
    let made = made.json();
    assert_eq!(made["isolation"], "qemu");
    assert_eq!(
        (&made["name"], &made["status"], &made["vcpu"]),
        (&json!("my/first"), &json!("building"), &json!(1))
    );
    let (id, build) = (made["id"].as_str().unwrap(), made["build_id"].as_str().unwrap());
    for path in [format!("/templates/{id}/builds/{build}"), format!("/templates/my%2Ffirst/builds/{build}")] {
        let shown = p.get(&path).await.json();
        assert_eq!(shown["template_id"], id);
        assert_eq!(shown["build_spec_hash"].as_str().unwrap().len(), 64);
    }
    // Its log ends, and then its status is final.
    let log = p.get(&format!("/templates/{id}/builds/{build}/logs")).await;
    assert_eq!(log.headers["content-type"], "text/event-stream");
    let text = String::from_utf8(log.body.to_vec()).unwrap();
    assert!(text.trim_end().rsplit("data: ").next().unwrap().contains(r#""finished":true"#), "{text}");
    let ended = p.get(&format!("/templates/{id}/builds/{build}")).await.json();
    assert_eq!(ended["status"], "failed");
    assert!(ended["error_message"].as_str().unwrap().starts_with("image_pull_failed: "), "{ended}");
    let again = post(&p, body("my/first")).await;
    assert_eq!((again.status, again.code().as_str()), (StatusCode::CONFLICT, "conflict"));

    assert_eq!(post(&p, body("second")).await.status, StatusCode::ACCEPTED);
    p.store.template_put(&template("third", p.team, TemplateStatus::Ready)).await.unwrap();
    let refused = post(&p, body("fourth")).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (429, "too_many_templates"));
    assert!(refused.headers.contains_key("retry-after"));
    // An imported one has nothing to build again.
    let imported = p.post("/templates/third/builds").await;
    assert_eq!((imported.status, imported.code().as_str()), (StatusCode::CONFLICT, "conflict"));

    let unknown = domain::BuildId::new();
    for (method, path, status) in [
        ("GET", format!("/templates/{id}/builds/{unknown}"), 404),
        ("GET", format!("/templates/{id}/builds/{unknown}/logs"), 404),
        ("DELETE", format!("/templates/{id}/builds/{unknown}"), 404),
        ("DELETE", format!("/templates/{id}/builds/{build}"), 204),
        ("GET", format!("/templates/{id}/builds/no-id"), 400),
        ("GET", "/templates/none/builds".to_owned(), 404),
        ("POST", "/templates/none/builds".to_owned(), 404),
        ("DELETE", "/templates/superserve/base".to_owned(), 403),
        ("POST", "/templates/superserve%2Fbase/builds".to_owned(), 409),
        ("DELETE", "/templates/my/first".to_owned(), 204),
        ("DELETE", "/templates/my/first".to_owned(), 404),
    ] {
        assert_eq!(p.call(method, &path, "").await.status.as_u16(), status, "{method} {path}");
    }
}
