//! Who may call what.

use axum::body::Body;
use http::{Request, StatusCode};
use jiff::Timestamp;

use super::Platform;
use crate::MetricsAccess;
use crate::routes::{Access, all};

fn filled(path: &str) -> String {
    let id = domain::SandboxId::new().to_string();
    path.replace("{id}", &id)
        .replace("{build}", &id)
        .replace("{name}", "base")
        .replace("{owner}", "superserve")
        .replace("{env_key}", "KEY")
        .replace("{port}", "3000")
}

/// Every route there is, without a key, with an empty, a wrong and a revoked one.
#[tokio::test]
async fn authorisation_walks_all_routes() {
    let p = Platform::new().await;
    let now = Timestamp::now();
    let (revoked, row) = p.store.key_create(p.team, "old", now).await.unwrap();
    p.store.key_revoke(row.id, now).await.unwrap();
    let long = "x".repeat(5000);
    let keys = [
        None,
        Some(""),
        Some("ss_live_nonsense"),
        Some("\u{e9}"),
        Some(&long),
        Some(revoked.expose_secret()),
    ];
    let routes = all(MetricsAccess::Local);
    assert!(routes.len() >= 16);
    let mut public = Vec::new();
    for route in &routes {
        for key in keys {
            let mut request = Request::builder().method(&route.method).uri(filled(route.path));
            if let Some(key) = key {
                request = request.header("x-api-key", key.as_bytes());
            }
            let answer = p.send(request.body(Body::empty()).unwrap()).await;
            let what = format!("{} {} with {key:?}", route.method, route.path);
            match route.access {
                Access::Public => assert_eq!(answer.status, StatusCode::OK, "{what}"),
                // No peer is known here, as if it came from another machine.
                Access::Key | Access::Local => {
                    assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{what}");
                    assert_eq!(answer.code(), "auth_failed", "{what}");
                    assert!(!answer.message().contains("nonsense"), "{what}");
                }
            }
        }
        if route.access == Access::Public {
            public.push(route.path);
        }
        // With the key, each route is really there.
        let answer = p.call(route.method.as_str(), &filled(route.path), "").await;
        let missing = answer.status == StatusCode::NOT_FOUND && answer.message().starts_with("there is no");
        assert!(!missing && answer.status != StatusCode::UNAUTHORIZED, "{} {}", route.method, route.path);
    }
    assert_eq!(public, ["/health", "/.well-known/superserve"], "a public route is a decision");
}

#[tokio::test]
async fn the_use_of_a_key_is_noted_once_a_minute() {
    let p = Platform::new().await;
    let used = async || p.store.key_list().await.unwrap()[0].last_used_at;
    assert_eq!(used().await, None);
    p.get("/sandboxes").await;
    let first = used().await.unwrap();
    p.get("/sandboxes").await;
    assert_eq!(used().await, Some(first));
}

#[tokio::test]
async fn another_teams_sandbox_is_not_there() {
    let p = Platform::new().await;
    let id = p.sandbox_id().await;
    let other = p.store.team_ensure("other", Timestamp::now()).await.unwrap().id;
    let (key, _) = p.store.key_create(other, "other", Timestamp::now()).await.unwrap();
    for (method, path) in [
        ("GET", format!("/sandboxes/{id}")),
        ("DELETE", format!("/sandboxes/{id}")),
        ("POST", format!("/sandboxes/{id}/pause")),
        ("POST", format!("/sandboxes/{id}/activate")),
        ("GET", format!("/sandboxes/{id}/files")),
    ] {
        let request = Request::builder().method(method).uri(path).header("x-api-key", key.expose_secret());
        let answer = p.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(p.get(&format!("/sandboxes/{id}")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn metrics_are_for_this_machine_or_for_a_key() {
    let from = |peer: &str| {
        let peer: std::net::SocketAddr = peer.parse().unwrap();
        Request::get("/metrics").extension(axum::extract::ConnectInfo(peer)).body(Body::empty()).unwrap()
    };
    let p = Platform::new().await;
    p.get("/sandboxes?q=private").await;
    for local in ["127.0.0.1:5", "127.9.9.9:5", "[::1]:5", "[::ffff:127.0.0.1]:5"] {
        let answer = p.send(from(local)).await;
        assert_eq!(answer.status, StatusCode::OK, "{local}");
        assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));
        let page = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(page.contains("GET /sandboxes 200 1") && !page.contains("private"), "{page}");
    }
    assert_eq!(p.send(from("10.0.0.1:5")).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(p.get("/metrics").await.status, StatusCode::OK);
    let p = Platform::with(50, MetricsAccess::Key).await;
    assert_eq!(p.send(from("127.0.0.1:5")).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(p.get("/metrics").await.status, StatusCode::OK);
    let p = Platform::with(50, MetricsAccess::Off).await;
    assert_eq!(p.get("/metrics").await.status, StatusCode::NOT_FOUND);
}
