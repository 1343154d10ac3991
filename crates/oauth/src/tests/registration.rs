//! Registering: what is refused, and how little a flood of it does.

use super::*;

#[tokio::test]
async fn a_client_gets_an_id_and_nothing_secret() {
    let f = fixture().await;
    let asked = json!({
        "client_name": "Claude\u{202e}",
        "redirect_uris": ["https://claude.ai/api/mcp/auth_callback"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "client_secret_post",
        "scope": "everything",
        "logo_uri": "javascript:alert(1)",
        "contacts": null,
        "unknown": {"a": [1]},
    });
    let got = f.register(&asked).await;
    assert_eq!(got.status, StatusCode::CREATED);
    let client = got.json();
    assert_eq!(client["client_name"], "Claude");
    assert_eq!(client["token_endpoint_auth_method"], "none");
    assert_eq!(client["redirect_uris"], asked["redirect_uris"]);
    assert!(client.get("client_secret").is_none() && client.get("logo_uri").is_none());
    assert_eq!(client["scope"], "mcp offline_access");
    assert_eq!(f.events(), ["registered"]);
}

#[tokio::test]
async fn what_is_no_registration() {
    let f = fixture().await;
    for (uris, name) in [
        (json!(["javascript:alert(1)"]), "x"),
        (json!(["http://evil.example/"]), "x"),
        (json!(["https://a.example/#f"]), "x"),
        (json!([REDIRECT, "data://x"]), "x"),
        (json!([]), "x"),
        (json!(vec![REDIRECT; 11]), "x"),
    ] {
        let got = f.register(&json!({"redirect_uris": uris, "client_name": name})).await;
        assert_eq!(got.error(), (400, "invalid_redirect_uri".to_owned()), "{uris}");
    }
    for body in [
        json!({"redirect_uris": [REDIRECT], "grant_types": ["client_credentials"]}),
        json!({"redirect_uris": [REDIRECT], "response_types": ["token"]}),
        json!({"redirect_uris": REDIRECT}),
        json!({"redirect_uris": [1]}),
        json!([]),
        json!("x"),
    ] {
        let got = f.register(&body).await;
        assert_eq!(got.error(), (400, "invalid_client_metadata".to_owned()), "{body}");
    }
    for (kind, body, status) in [
        ("text/plain", "{}".to_owned(), 415),
        ("application/x-www-form-urlencoded", "{}".to_owned(), 415),
        ("application/json", "{".to_owned(), 400),
        ("application/json", format!("{{\"x\":{}1", "[".repeat(15_000)), 400),
        ("application/json", format!("{{\"client_name\":\"{}\"}}", "x".repeat(16 * 1024)), 413),
    ] {
        let got = f.send(Fixture::posted("/register", kind, body)).await;
        assert_eq!(got.status.as_u16(), status, "{kind}");
    }
}

#[tokio::test]
async fn a_flood_from_one_address_is_refused_and_one_from_many_is_forgotten() {
    let f = fixture().await;
    let body = json!({"redirect_uris": [REDIRECT]}).to_string();
    let ask = async |from: &str| {
        f.send_to(&f.router, Fixture::posted("/register", "application/json", body.clone()), from).await
    };
    for _ in 0..30 {
        assert_eq!(ask("198.51.100.7").await.status, StatusCode::CREATED);
    }
    let got = ask("198.51.100.7").await;
    assert_eq!(got.error(), (429, "temporarily_unavailable".to_owned()));
    assert!(got.headers.contains_key("retry-after"));

    let used = f.client().await;
    f.tokens(&used).await;
    for n in 0..1_005_u32 {
        let [a, b, ..] = n.to_le_bytes();
        assert_eq!(ask(&format!("10.0.{b}.{a}")).await.status, StatusCode::CREATED);
    }
    // Whoever was granted something stays; of the others the newest do.
    assert_eq!(f.page(&Fixture::asked(&used)).await.status, StatusCode::OK);
    let kept = f.store.oauth_sweep(Timestamp::now(), Timestamp::MAX, Timestamp::MIN).await.unwrap();
    assert_eq!(kept, 1_000);
}

#[tokio::test]
async fn what_has_ended_is_swept() {
    let f = fixture().await;
    let (unused, used) = (f.client().await, f.client().await);
    f.tokens(&used).await;
    f.code(&used).await;
    f.later(25 * 3600);
    f.server.sweep_once().await;
    let unknown = f.page(&Fixture::asked(&unused)).await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
    assert_eq!(f.page(&Fixture::asked(&used)).await.status, StatusCode::OK);
    // The redeemed grant is there, the code that nobody redeemed is not.
    let now = f.server.inner.clock.now();
    assert_eq!(
        f.store.oauth_sweep(Timestamp::MAX, Timestamp::MIN, Timestamp::MIN).await.unwrap(),
        1,
        "{now}"
    );
    f.later(91 * 24 * 3600);
    f.server.sweep_once().await;
    assert_eq!(f.page(&Fixture::asked(&used)).await.status, StatusCode::BAD_REQUEST);
}
