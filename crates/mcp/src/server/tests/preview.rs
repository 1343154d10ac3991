//! `sandbox_preview_url`: which calls it makes, and what it makes of the answers.

use axum::body::Body;
use axum::http::{Method, Response};
use serde_json::{Value, json};

use super::session::{ID, Platform, Seen, json_answer};

const TOKEN: &str = "spv1-1-0-n-m";

/// A platform whose port has this mode, and whose sandbox has that default.
async fn platform(access: &'static str, default: &'static str) -> Platform {
    Platform::start(move |seen: Seen| async move { answer(&seen, access, default) }).await
}

fn answer(seen: &Seen, access: &str, default: &str) -> Response<Body> {
    let port = json!({"port": 8000, "access": access, "token_version": 1});
    if seen.path.ends_with("/token") {
        let body = json!({"token": TOKEN, "port": 8000, "header": "h", "query_param": "superserve_preview_token",
            "token_version": 1, "access": "private", "preview_access": default,
            "expires_at": "2026-01-02T03:04:05.000000Z"});
        return json_answer(200, &body);
    }
    match seen.method {
        Method::POST => json_answer(200, &port),
        _ => json_answer(200, &json!({"preview_access": default, "ports": [port]})),
    }
}

#[tokio::test]
async fn the_mode_of_the_port_decides() {
    for (access, default) in [("public", "public"), ("public", "private"), ("public", "legacy_public")] {
        let platform = platform(access, default).await;
        let mut session = platform.session();
        let result = session.call("sandbox_preview_url", json!({"sandbox_id": ID, "port": 8000})).await;
        let url = format!("http://8000-{ID}.box.localhost:1234");
        assert_eq!(result["content"][0]["text"], url);
        assert_eq!(
            result["structuredContent"],
            json!({"sandbox_id": ID, "port": 8000, "url": url, "access": access, "previewAccess": default,
                "authenticated": false})
        );
        let seen = platform.seen();
        assert_eq!(seen.len(), 2, "{seen:?}");
        assert_eq!(
            (&seen[0].method, seen[0].path.as_str()),
            (&Method::POST, &*format!("/sandboxes/{ID}/preview-ports"))
        );
        assert_eq!(serde_json::from_slice::<Value>(&seen[0].body).unwrap(), json!({"port": 8000}));
    }
    for (seconds, sent) in [(None, 3600), (Some(90), 90)] {
        let platform = platform("private", "public").await;
        let mut session = platform.session();
        let arguments = json!({"sandbox_id": ID, "port": "8000", "expires_in_seconds": seconds});
        let result = session.call("sandbox_preview_url", arguments).await;
        let url = format!("http://8000-{ID}.box.localhost:1234/?superserve_preview_token={TOKEN}");
        assert_eq!(result["content"][0]["text"], url);
        let told = &result["structuredContent"];
        assert_eq!((&told["access"], &told["previewAccess"]), (&"private".into(), &"public".into()));
        assert_eq!(
            (&told["authenticated"], &told["expires_at"]),
            (&true.into(), &"2026-01-02T03:04:05.000Z".into())
        );
        let last = platform.seen().pop().unwrap();
        assert_eq!(last.path, format!("/sandboxes/{ID}/preview-ports/8000/token"));
        let body = serde_json::from_slice::<Value>(&last.body).unwrap();
        assert_eq!(body, json!({"expires_in_seconds": sent}));
    }
}

#[tokio::test]
async fn bad_ports_and_ids_go_nowhere() {
    let platform = platform("public", "public").await;
    let mut session = platform.session();
    for port in [json!(0), json!(80), json!(1023), json!(65_536), json!(80.5), json!(-1), Value::Null] {
        let text = session.fail("sandbox_preview_url", json!({"sandbox_id": ID, "port": port})).await;
        assert!(text.contains("validation") && text.contains("`port`"), "{port}: {text}");
    }
    let text = session.fail("sandbox_preview_url", json!({"sandbox_id": ID, "port": 49_983})).await;
    assert!(text.contains("reserved for sandbox control traffic"), "{text}");
    for id in ["a.b", "a/b", "a@b"] {
        session.fail("sandbox_preview_url", json!({"sandbox_id": id, "port": 8000})).await;
    }
    let arguments = json!({"sandbox_id": ID, "port": 8000, "expires_in_seconds": 604_801});
    session.fail("sandbox_preview_url", arguments).await;
    assert!(platform.seen().is_empty(), "{:?}", platform.seen());
    session.call("sandbox_preview_url", json!({"sandbox_id": ID, "port": 1024})).await;
}

#[tokio::test]
async fn half_an_answer_makes_no_address() {
    // The list fails: a public port has its address without it, a private one does not guess.
    for (access, works) in [("public", true), ("private", false)] {
        let platform = Platform::start(move |seen: Seen| async move {
            match seen.method {
                Method::GET => json_answer(404, &json!({"error": {"code": "not_found", "message": "gone"}})),
                _ => answer(&seen, access, "public"),
            }
        })
        .await;
        let mut session = platform.session();
        let arguments = json!({"sandbox_id": ID, "port": 8000});
        if works {
            let result = session.call("sandbox_preview_url", arguments).await;
            assert_eq!(result["structuredContent"]["previewAccess"], "public");
        } else {
            let text = session.fail("sandbox_preview_url", arguments).await;
            assert!(text.contains("not found") && !text.contains("http"), "{text}");
        }
    }
    // A mode nobody knows, and a token that is none.
    for (path, body) in [
        ("/preview-ports", json!({"port": 8000, "access": "secret", "token_version": 1})),
        (
            "/token",
            json!({"token": "", "port": 8000, "header": "h", "query_param": "q", "token_version": 1,
            "access": "private", "preview_access": "public"}),
        ),
    ] {
        let platform = Platform::start(move |seen: Seen| {
            let body = body.clone();
            async move {
                match seen.method == Method::POST && seen.path.ends_with(path) {
                    true => json_answer(200, &body),
                    false => answer(&seen, "private", "public"),
                }
            }
        })
        .await;
        let text =
            platform.session().fail("sandbox_preview_url", json!({"sandbox_id": ID, "port": 8000})).await;
        assert!(!text.contains("://"), "{text}");
    }
}
