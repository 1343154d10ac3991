//! Codes, tokens, and their ends.

use super::*;

/// What a refused code or token gets, whatever is wrong with it.
fn invalid() -> (u16, String) {
    (400, "invalid_grant".to_owned())
}

#[tokio::test]
async fn the_whole_way() {
    let f = fixture().await;
    let client = f.client().await;
    let code = f.code(&client).await;
    let got = f.token(&Fixture::redeeming(&client, &code)).await;
    let (access, refresh) = Fixture::pair(&got);
    let body = got.json();
    assert_eq!(
        (body["token_type"].as_str(), body["scope"].as_str()),
        (Some("Bearer"), Some("mcp offline_access"))
    );
    assert_eq!(body["expires_in"], 3600);
    assert_eq!(got.headers["cache-control"], "no-store");
    assert!(f.opens(&access).await);
    assert!(!f.opens(&refresh).await && !f.opens(&code).await && !f.opens(f.key.expose_secret()).await);
    let (second, _) = Fixture::pair(&f.refresh(&client, &refresh).await);
    assert!(f.opens(&second).await && f.opens(&access).await, "calls under way go on with the old one");
    assert_eq!(
        f.events(),
        ["registered", "granted", "token_refused", "token_refused", "token_refused", "refreshed"]
    );
    f.later(3601);
    assert!(!f.opens(&second).await, "an hour is over");
    // The database has neither the key nor anything that opens anything.
    let rows = f.store.oauth_grant_list(Timestamp::now()).await.unwrap();
    let kept = format!("{rows:?}");
    for text in [&access, &refresh, &second, &code, f.key.expose_secret(), VERIFIER] {
        assert!(!kept.contains(text.trim_start_matches(crate::PREFIX)));
    }
}

#[tokio::test]
async fn a_code_belongs_to_its_client_verifier_and_address() {
    let f = fixture().await;
    let (client, other) = (f.client().await, f.client().await);
    let wrong: &[(&str, Option<&str>)] = &[
        ("code_verifier", Some("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXl")),
        ("code_verifier", Some(CHALLENGE)),
        ("client_id", Some(&other)),
        ("redirect_uri", Some("https://client.example/other")),
        ("redirect_uri", Some("http://127.0.0.1/cb")),
    ];
    for change in wrong {
        let code = f.code(&client).await;
        let right = Fixture::redeeming(&client, &code);
        assert_eq!(f.token(&changed(&right, &[*change])).await.error(), invalid(), "{change:?}");
        assert_eq!(
            f.token(&right).await.error(),
            invalid(),
            "whoever had it does not get a second try: {change:?}"
        );
    }
    let code = f.code(&client).await;
    let right = Fixture::redeeming(&client, &code);
    for (change, error) in [
        (("code_verifier", None), (400, "invalid_request")),
        (("code", None), (400, "invalid_request")),
        (("code", Some("x")), (400, "invalid_grant")),
        (("resource", Some("https://other.example/mcp")), (400, "invalid_target")),
        (("client_id", None), (401, "invalid_client")),
        (("client_id", Some("00000000-0000-4000-8000-000000000000")), (401, "invalid_client")),
        (("grant_type", None), (400, "invalid_request")),
        (("grant_type", Some("client_credentials")), (400, "unsupported_grant_type")),
        (("grant_type", Some("password")), (400, "unsupported_grant_type")),
    ] {
        let (status, name) = error;
        assert_eq!(
            f.token(&changed(&right, &[change])).await.error(),
            (status, name.to_owned()),
            "{change:?}"
        );
    }
    let mut twice = right.clone();
    twice.push(("code_verifier", VERIFIER));
    assert_eq!(f.token(&twice).await.error(), (400, "invalid_request".to_owned()));
    // None of these used it up. Where the answer went need not be repeated (OAuth 2.1).
    Fixture::pair(&f.token(&changed(&right, &[("redirect_uri", None)])).await);
}

#[tokio::test]
async fn a_code_works_once_and_in_time() {
    let f = fixture().await;
    let client = f.client().await;
    let code = f.code(&client).await;
    let (access, refresh) = Fixture::pair(&f.token(&Fixture::redeeming(&client, &code)).await);
    assert!(f.opens(&access).await);
    f.later(1800);
    assert_eq!(f.token(&Fixture::redeeming(&client, &code)).await.error(), invalid());
    assert!(!f.opens(&access).await, "what came of the code has ended");
    assert_eq!(f.refresh(&client, &refresh).await.error(), invalid());

    // Of many at once, at most one gets tokens, and those are worth nothing once another has come.
    let code = f.code(&client).await;
    let redeeming = Fixture::redeeming(&client, &code);
    let (a, b, c) = tokio::join!(f.token(&redeeming), f.token(&redeeming), f.token(&redeeming));
    let made: Vec<_> = [a, b, c].into_iter().filter(|got| got.status == StatusCode::OK).collect();
    assert!(made.len() <= 1);
    for got in &made {
        assert!(!f.opens(&Fixture::pair(got).0).await);
    }

    let late = f.code(&client).await;
    f.later(121);
    assert_eq!(f.token(&Fixture::redeeming(&client, &late)).await.error(), invalid());
}

#[tokio::test]
async fn a_refresh_token_that_returns_ends_everything() {
    let f = fixture().await;
    let (client, other) = (f.client().await, f.client().await);
    let (first_access, first) = f.tokens(&client).await;
    assert_eq!(f.refresh(&other, &first).await.error(), invalid());
    assert_eq!(f.refresh(&client, &first_access).await.error(), invalid());
    let target =
        [("resource", "https://other.example"), ("grant_type", "refresh_token"), ("client_id", &client)];
    let got = f.token(&[&target[..], &[("refresh_token", &first)]].concat()).await;
    assert_eq!(got.error(), (400, "invalid_target".to_owned()));

    // Calls that renew at once, and one whose answer got lost, get the same pair.
    let (a, b) = tokio::join!(f.refresh(&client, &first), f.refresh(&client, &first));
    let (second_access, second) = Fixture::pair(&a);
    assert_eq!(Fixture::pair(&b), (second_access.clone(), second.clone()));
    assert_ne!(first, second);
    f.later(59);
    assert_eq!(Fixture::pair(&f.refresh(&client, &first).await).1, second);
    assert!(f.opens(&second_access).await);
    // Later it is somebody else.
    f.later(2);
    assert_eq!(f.refresh(&client, &first).await.error(), invalid());
    assert!(!f.opens(&second_access).await && !f.opens(&first_access).await);
    assert_eq!(f.refresh(&client, &second).await.error(), invalid());
    assert!(f.events().ends_with(&["ended", "token_refused", "token_refused"]));

    // Two generations back it is theft at once.
    let (_, first) = f.tokens(&client).await;
    let (_, second) = Fixture::pair(&f.refresh(&client, &first).await);
    let (access, third) = Fixture::pair(&f.refresh(&client, &second).await);
    assert_eq!(f.refresh(&client, &first).await.error(), invalid());
    assert!(!f.opens(&access).await);
    assert_eq!(f.refresh(&client, &third).await.error(), invalid());
}

#[tokio::test]
async fn an_unused_grant_ends_and_a_used_one_goes_on() {
    let f = fixture().await;
    let client = f.client().await;
    let (_, mut refresh) = f.tokens(&client).await;
    for _ in 0..3 {
        f.later(29 * 24 * 3600);
        f.server.sweep_once().await;
        refresh = Fixture::pair(&f.refresh(&client, &refresh).await).1;
    }
    f.later(30 * 24 * 3600);
    assert_eq!(f.refresh(&client, &refresh).await.error(), invalid());
}

#[tokio::test]
async fn either_token_can_be_revoked_by_its_client() {
    let f = fixture().await;
    let (client, other) = (f.client().await, f.client().await);
    for which in [0, 1] {
        let (access, refresh) = f.tokens(&client).await;
        let token = [&access, &refresh][which].as_str();
        let revoke = async |client: &str, token: &str| {
            f.post("/revoke", &[("token", token), ("client_id", client), ("token_type_hint", "x")]).await
        };
        assert_eq!(revoke(&other, token).await.error(), invalid());
        assert!(f.opens(&access).await);
        assert_eq!(revoke(&client, "x").await.status, StatusCode::OK);
        assert_eq!(revoke(&client, f.key.expose_secret()).await.status, StatusCode::OK);
        assert_eq!(revoke(&client, token).await.status, StatusCode::OK);
        assert_eq!(revoke(&client, token).await.status, StatusCode::OK);
        assert!(!f.opens(&access).await);
        assert_eq!(f.refresh(&client, &refresh).await.error(), invalid());
    }
    let got = f.post("/revoke", &[("token", "x")]).await;
    assert_eq!(got.error(), (401, "invalid_client".to_owned()));
}

#[tokio::test]
async fn revoking_the_key_ends_all_its_grants() {
    let f = fixture().await;
    let client = f.client().await;
    let (access, refresh) = f.tokens(&client).await;
    let credential = f.server.exchange(&Secret::new(access.as_str())).await.unwrap().unwrap();
    let pending = f.code(&client).await;
    let (sealed, cookie) = f.page(&Fixture::asked(&client)).await.form();
    f.store.key_revoke(f.row.id, Timestamp::now()).await.unwrap();
    assert!(!f.opens(&access).await);
    // Calls under way end as well.
    assert_eq!(f.server.delegation().key(credential.expose_secret()).await.unwrap(), None);
    assert_eq!(f.refresh(&client, &refresh).await.error(), invalid());
    assert_eq!(f.token(&Fixture::redeeming(&client, &pending)).await.error(), invalid());
    let pairs = [("request", sealed.as_str()), ("api_key", f.key.expose_secret()), ("decision", "allow")];
    assert_eq!(f.answer(&cookie, &pairs).await.status, StatusCode::FORBIDDEN);
    assert!(f.store.oauth_grant_list(Timestamp::now()).await.unwrap().is_empty());
}

#[tokio::test]
async fn tokens_are_for_one_audience() {
    let f = fixture().await;
    let client = f.client().await;
    let code = f.code(&client).await;
    let (access, refresh) = f.tokens(&client).await;
    for url in ["https://other.example", "https://mcp.example.com:8443", "http://127.0.0.1:8080"] {
        let other = server(&f.store, url, &f.seen);
        assert_eq!(other.exchange(&Secret::new(access.as_str())).await.unwrap(), None, "{url}");
        let router = other.mounted_over(Router::new());
        for pairs in [
            changed(&Fixture::redeeming(&client, &code), &[("resource", None)]),
            vec![
                ("grant_type", "refresh_token"),
                ("client_id", client.as_str()),
                ("refresh_token", refresh.as_str()),
            ],
        ] {
            let mut request = Fixture::posted("/token", "application/x-www-form-urlencoded", encoded(&pairs));
            request.headers_mut().insert("host", url.split_once("://").unwrap().1.parse().unwrap());
            assert_eq!(f.send_to(&router, request, "198.51.100.1").await.error(), invalid(), "{url}");
        }
    }
    let same = server(&f.store, ORIGIN, &f.seen);
    assert!(
        same.exchange(&Secret::new(access.as_str())).await.unwrap().is_some(),
        "a restart changes nothing"
    );
    // What stands for the key inside ends with the process, and is nothing outside.
    let credential = f.server.exchange(&Secret::new(access.as_str())).await.unwrap().unwrap();
    assert_eq!(same.delegation().key(credential.expose_secret()).await.unwrap(), None);
    for text in [access.as_str(), &refresh, f.key.expose_secret(), "", crate::PREFIX] {
        assert_eq!(f.server.delegation().key(text).await.unwrap(), None);
    }
    assert!(!f.opens(credential.expose_secret()).await);
}
