//! What every answer has in common, and what is not here.

use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse;
use domain::{Action, Code, NextStep, Problem, SandboxId};
use expect_test::expect;
use http::{Request, StatusCode};
use http_body_util::BodyExt;

use super::Platform;
use crate::reply::Failure;

fn next_step(code: Code) -> NextStep {
    let id: SandboxId = "0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b".parse().unwrap();
    match code {
        Code::BadRequest | Code::SecretNotFound | Code::TooLarge => {
            NextStep::Fix { field: "name".to_owned(), accepted: "1 to 64 bytes are accepted".to_owned() }
        }
        Code::AuthFailed | Code::Forbidden => NextStep::Do(Action::CheckKey),
        Code::NotFound | Code::RouteStale => NextStep::Do(Action::ListSandboxes),
        Code::Conflict => NextStep::Do(Action::Inspect(id)),
        Code::SandboxPausing | Code::SnapshotInProgress | Code::RateLimited | Code::ServiceUnavailable => {
            NextStep::Retry { after: Duration::from_secs(2) }
        }
        Code::TooManyBuilds => NextStep::Do(Action::WaitForBuild),
        Code::TooManyTemplates => NextStep::Do(Action::DeleteTemplates),
        Code::TooManySnapshots => NextStep::Do(Action::DeleteSnapshots),
        Code::TooManySnapshotsInFlight => NextStep::Do(Action::WaitForSnapshot),
        Code::Gone => NextStep::Do(Action::ListSnapshots),
        Code::TooManySandboxes => NextStep::Do(Action::FreeQuota),
        Code::HostCapacity => NextStep::AskOperator("free disk space on the host".to_owned()),
        Code::Internal | Code::Filesystem => NextStep::AskOperator("the server log has the cause".to_owned()),
        Code::SandboxUnavailable => NextStep::Do(Action::Resume(id)),
        Code::StorageFull => NextStep::Do(Action::FreeDisk(id)),
    }
}

/// Every code as a client sees it.
#[tokio::test]
async fn every_code() {
    let mut text = String::new();
    for code in Code::ALL {
        let problem = Problem::new(*code, "what happened", next_step(*code)).caused_by("a secret cause");
        let response = Failure(problem).into_response();
        let (status, retry) = (response.status(), response.headers().get("retry-after").cloned());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let retry = retry.map_or(String::new(), |value| format!(" Retry-After: {}", value.to_str().unwrap()));
        text.push_str(&format!("{}{retry} {}\n", status.as_u16(), String::from_utf8_lossy(&body)));
    }
    assert!(!text.contains("secret cause"));
    expect![[r#"
        400 {"error":{"code":"bad_request","message":"what happened; name: 1 to 64 bytes are accepted"}}
        400 {"error":{"code":"secret_not_found","message":"what happened; name: 1 to 64 bytes are accepted"}}
        401 {"error":{"code":"auth_failed","message":"what happened; send a valid key in the X-API-Key header; `superserve key create` makes one"}}
        403 {"error":{"code":"forbidden","message":"what happened; send a valid key in the X-API-Key header; `superserve key create` makes one"}}
        404 {"error":{"code":"not_found","message":"what happened; list the existing ones: GET /sandboxes"}}
        404 {"error":{"code":"sandbox_route_stale","message":"what happened; list the existing ones: GET /sandboxes"}}
        409 {"error":{"code":"conflict","message":"what happened; look at its state: GET /sandboxes/0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b"}}
        409 Retry-After: 2 {"error":{"code":"sandbox_pausing","message":"what happened; retry in 2 s"}}
        409 Retry-After: 2 {"error":{"code":"snapshot_in_progress","message":"what happened; retry in 2 s"}}
        410 {"error":{"code":"gone","message":"what happened; list those of a sandbox: GET /sandboxes/{id}/snapshots"}}
        413 {"error":{"code":"too_large","message":"what happened; name: 1 to 64 bytes are accepted"}}
        429 Retry-After: 2 {"error":{"code":"rate_limited","message":"what happened; retry in 2 s"}}
        429 Retry-After: 1 {"error":{"code":"too_many_sandboxes","message":"what happened; pause or delete a sandbox, or retry later"}}
        429 Retry-After: 1 {"error":{"code":"too_many_builds","message":"what happened; wait until a build ends, or cancel one"}}
        429 Retry-After: 1 {"error":{"code":"too_many_templates","message":"what happened; delete a template that is not needed: DELETE /templates/{name_or_id}"}}
        429 Retry-After: 1 {"error":{"code":"too_many_snapshots","message":"what happened; delete a snapshot that is not needed: DELETE /snapshots/{snapshot_id}"}}
        429 Retry-After: 1 {"error":{"code":"too_many_snapshots_in_flight","message":"what happened; wait until another snapshot is saved"}}
        500 {"error":{"code":"internal_error","message":"what happened; ask the operator of this platform: the server log has the cause"}}
        500 {"error":{"code":"sandbox_filesystem_error","message":"what happened; ask the operator of this platform: the server log has the cause"}}
        503 Retry-After: 2 {"error":{"code":"service_unavailable","message":"what happened; retry in 2 s"}}
        503 {"error":{"code":"host_capacity","message":"what happened; ask the operator of this platform: free disk space on the host"}}
        503 {"error":{"code":"sandbox_unavailable","message":"what happened; resume it first: POST /sandboxes/0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b/activate"}}
        507 {"error":{"code":"sandbox_storage_full","message":"what happened; delete files in the sandbox, or use a template with a larger disk"}}
    "#]].assert_eq(&text);
}

#[tokio::test]
async fn service_routes_and_headers() {
    let p = Platform::new().await;
    let health = p.get("/health").await;
    assert_eq!(health.json(), serde_json::json!({"status": "ok", "version": "0.1.0"}));
    let descriptor = p.get("/.well-known/superserve").await;
    assert_eq!(descriptor.json()["sandbox_host"], "sandbox.localhost:8443");
    for path in ["/health", "/sandboxes", "/nowhere", "/v1/agents"] {
        let answer = p.get(path).await;
        assert_eq!(answer.headers["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(answer.headers["x-frame-options"], "DENY", "{path}");
        assert!(answer.headers.contains_key("strict-transport-security"), "{path}");
        assert!(answer.headers.contains_key("x-request-id"), "{path}");
    }
}

#[tokio::test]
async fn what_is_not_here() {
    let p = Platform::new().await;
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/nowhere"),
        ("GET", "/sandboxes/"),
        ("PUT", "/sandboxes"),
        ("POST", "/health"),
    ] {
        let answer = p.call(method, path, "").await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (StatusCode::NOT_FOUND, "not_found"),
            "{method} {path}"
        );
    }
    for path in ["/v1", "/v1/agents", "/v1/auth/device-code", "/v1/"] {
        let answer = p.call("POST", path, "{}").await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert!(answer.json()["detail"].is_string() && answer.json()["error"].is_string(), "{path}");
    }
}

#[tokio::test]
async fn a_base_url_may_end_with_a_slash() {
    let p = Platform::new().await;
    assert_eq!(p.get("//sandboxes?limit=1").await.status, StatusCode::OK);
    assert_eq!(p.get("///health").await.status, StatusCode::OK);
    let id = p.sandbox_id().await;
    assert_eq!(p.post(&format!("//sandboxes/{id}/pause")).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn large_bodies_are_refused() {
    let p = Platform::new().await;
    let body = format!(r#"{{"name":"{}"}}"#, "x".repeat(2 * 1024 * 1024));
    let answer = p.call("POST", "/sandboxes", &body).await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::PAYLOAD_TOO_LARGE, "too_large"));
    // Also when its length is not announced.
    let frames = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 65536]));
    let request =
        Request::post("/sandboxes").header("x-api-key", &p.key).body(Body::from_stream(frames)).unwrap();
    assert_eq!(p.send(request).await.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn templates_by_name_and_id() {
    let p = Platform::new().await;
    let list = p.get("/templates").await;
    assert_eq!(list.headers["x-total-count"], "1");
    let rows = list.json();
    let template = &rows[0];
    expect![[r#"{"built_at":"2023-11-14T22:15:00.000000Z","created_at":"2023-11-14T22:13:20.000000Z","disk_mib":4096,"id":"…","memory_mib":1024,"name":"superserve/base","size_bytes":42,"status":"ready","team_id":"00000000-0000-4000-8000-000000000001","vcpu":1}"#]]
    .assert_eq(&template.to_string().replace(template["id"].as_str().unwrap(), "…"));
    let id = template["id"].as_str().unwrap();
    for path in ["superserve%2Fbase", "superserve/base", id] {
        let answer = p.get(&format!("/templates/{path}")).await;
        assert_eq!(answer.json(), *template, "{path}");
    }
    assert_eq!(p.get("/templates/none").await.code(), "not_found");
    assert_eq!(p.get("/templates/%ff").await.code(), "bad_request");
    assert_eq!(p.get("/templates/superserve/%ff").await.code(), "bad_request");
    assert_eq!(p.get("/templates?owner=team").await.json(), serde_json::json!([]));
    assert_eq!(p.get("/templates?name_prefix=superserve/&owner=system").await.headers["x-total-count"], "1");
    for bad in ["owner=me", "sort=x", "order=up", "limit=0"] {
        assert_eq!(p.get(&format!("/templates?{bad}")).await.status, StatusCode::BAD_REQUEST, "{bad}");
    }
}
