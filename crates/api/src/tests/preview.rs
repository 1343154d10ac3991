//! Preview ports (§7), as clients call them.

use http::StatusCode;

use super::{Answer, Platform};

const NEVER_STORED: &str = "no-store";

struct Ports {
    p: Platform,
    base: String,
}

async fn ports() -> Ports {
    let p = Platform::new().await;
    let base = format!("/sandboxes/{}/preview-ports", p.sandbox_id().await);
    Ports { p, base }
}

impl Ports {
    async fn call(&self, method: &str, rest: &str, body: &str) -> Answer {
        self.p.call(method, &format!("{}{rest}", self.base), body).await
    }
}

#[tokio::test]
async fn publish_list_mint_rotate_unpublish() {
    let p = ports().await;
    assert_eq!(
        p.call("GET", "", "").await.json(),
        serde_json::json!({"preview_access": "public", "ports": []})
    );
    let made = p.call("POST", "", r#"{"port":8080}"#).await;
    assert_eq!(made.status, StatusCode::OK);
    assert_eq!(made.json(), serde_json::json!({"port": 8080, "access": "public", "token_version": 1}));
    let made = p.call("POST", "", r#"{"port":3000,"access":"private"}"#).await;
    assert_eq!(made.json(), serde_json::json!({"port": 3000, "access": "private", "token_version": 1}));
    let listed = p.call("GET", "", "").await.json();
    assert_eq!(listed["ports"][0]["port"], 3000, "sorted: {listed}");
    assert!(!listed.to_string().contains("\"token\""), "{listed}");

    let minted = p.call("POST", "/3000/token", "").await;
    assert_eq!(
        (minted.status, &minted.headers["cache-control"]),
        (StatusCode::OK, &NEVER_STORED.parse().unwrap())
    );
    let minted = minted.json();
    let keys: Vec<_> = minted.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = ["access", "header", "port", "preview_access", "query_param", "token", "token_version"];
    assert_eq!(keys, expected, "no end: {minted}");
    assert_eq!(minted["header"], "X-Superserve-Preview-Token");
    assert_eq!(minted["query_param"], "superserve_preview_token");
    assert_eq!((&minted["access"], &minted["preview_access"]), (&"private".into(), &"public".into()));
    let text = minted["token"].as_str().unwrap();
    assert!(text.len() <= 512 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{text}");
    assert!(p.call("POST", "/3000/token", "{}").await.json().get("expires_at").is_none());
    let ending = p.call("POST", "/3000/token", r#"{"expires_in_seconds":60}"#).await.json();
    let ends: jiff::Timestamp = ending["expires_at"].as_str().unwrap().parse().unwrap();
    let left = ends.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((55..=60).contains(&left), "{left}");
    assert_ne!(ending["token"], minted["token"]);

    let rotated = p.call("POST", "/3000/token/rotate", "").await;
    assert_eq!(&rotated.headers["cache-control"], NEVER_STORED);
    assert_eq!(rotated.json()["token_version"], 2);
    assert!(rotated.json().get("expires_at").is_none());
    assert_eq!(p.call("POST", "", r#"{"port":3000,"access":"public"}"#).await.json()["token_version"], 3);

    for _ in 0..2 {
        let gone = p.call("DELETE", "/3000", "").await;
        assert_eq!((gone.status, gone.body.len()), (StatusCode::NO_CONTENT, 0));
    }
    assert_eq!(p.call("POST", "", r#"{"port":3000}"#).await.json()["token_version"], 4);
}

#[tokio::test]
async fn refusals_come_in_order() {
    let p = ports().await;
    let check = async |method: &str, rest: &str, body: &str, status: u16, text: &str| {
        let answer = p.call(method, rest, body).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {rest} {body}: {:?}", answer.body);
        assert!(answer.message().contains(text), "{method} {rest} {body}: {}", answer.message());
    };
    for bad in ["80", "1023", "65536", "-1", "99999999999"] {
        check("POST", "", &format!(r#"{{"port":{bad}}}"#), 400, "1024 to 65535").await;
        check("DELETE", &format!("/{bad}"), "", 400, "1024 to 65535").await;
        check("POST", &format!("/{bad}/token"), "", 400, "1024 to 65535").await;
    }
    check("POST", "", r#"{"port":49983}"#, 400, "reserved").await;
    check("DELETE", "/49983", "", 400, "reserved").await;
    check("POST", "/http/token/rotate", "", 400, "1024 to 65535").await;
    check("POST", "", r#"{"port":"3000"}"#, 400, "port: expected i64").await;
    check("POST", "", r#"{"port":3000.5}"#, 400, "port: expected i64").await;
    check("POST", "", r#"{"port":3000,"access":"legacy_public"}"#, 400, "public, private").await;
    check("POST", "", r#"{"port":3000,"mode":"x"}"#, 400, "unknown field").await;
    check("POST", "", "", 400, "a JSON object is required").await;
    // Not published comes before public.
    check("POST", "/3000/token", "", 404, "not published").await;
    check("POST", "/3000/token/rotate", "", 404, "not published").await;
    check("POST", "", r#"{"port":3000}"#, 200, "").await;
    check("POST", "/3000/token", "", 409, "public").await;
    check("POST", "/3000/token/rotate", "", 409, "public").await;
    check("POST", "", r#"{"port":3000,"access":"private"}"#, 200, "").await;
    for bad in ["0", "604801", "-1", "1.5", "\"60\""] {
        check(
            "POST",
            "/3000/token",
            &format!(r#"{{"expires_in_seconds":{bad}}}"#),
            400,
            "expires_in_seconds",
        )
        .await;
    }
    check("POST", "/3000/token", r#"{"expires":1}"#, 400, "unknown field").await;
    check("POST", "/3000/token", r#"{"expires_in_seconds":604800}"#, 200, "").await;
    let nobody = domain::SandboxId::new();
    for (method, rest, body) in [
        ("GET", "", ""),
        ("POST", "", r#"{"port":3000}"#),
        ("DELETE", "/3000", ""),
        ("POST", "/3000/token", ""),
        ("POST", "/3000/token/rotate", ""),
        ("GET", "/3000/requests", ""),
    ] {
        let path = format!("/sandboxes/{nobody}/preview-ports{rest}");
        assert_eq!(p.p.call(method, &path, body).await.code(), "not_found", "{method} {rest}");
        let path = format!("/sandboxes/nonsense/preview-ports{rest}");
        assert_eq!(p.p.call(method, &path, body).await.code(), "bad_request", "{method} {rest}");
    }
}

#[tokio::test]
async fn traffic_is_for_the_owner() {
    let p = ports().await;
    p.call("POST", "", r#"{"port":3000}"#).await;
    let rows = p.p.get("/previews").await.json();
    assert_eq!(rows[0]["port"], 3000);
    assert_eq!(
        (&rows[0]["sandbox_status"], &rows[0]["traffic"]["requests"]),
        (&"active".into(), &3000.into())
    );
    assert_eq!(p.call("GET", "/3000/requests", "").await.json(), serde_json::json!([]));
    let other = p.p.store.team_ensure("other", jiff::Timestamp::now()).await.unwrap().id;
    let (key, _) = p.p.store.key_create(other, "other", jiff::Timestamp::now()).await.unwrap();
    let ask = |path: &str| {
        let request = http::Request::get(path).header("x-api-key", key.expose_secret());
        p.p.send(request.body(axum::body::Body::empty()).unwrap())
    };
    assert_eq!(ask("/previews").await.json(), serde_json::json!([]));
    assert_eq!(ask(&format!("{}/3000/requests", p.base)).await.status, StatusCode::NOT_FOUND);
}
