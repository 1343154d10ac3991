//! `POST /authorize`: whose answer counts, and what a key that does not work gets.

use super::*;

#[tokio::test]
async fn only_the_browser_that_was_asked_may_answer() {
    let f = fixture().await;
    let client = f.client().await;
    let (sealed, cookie) = f.page(&Fixture::asked(&client)).await.form();
    let (other_sealed, other_cookie) = f.page(&Fixture::asked(&client)).await.form();
    assert_ne!(cookie, other_cookie);
    let key = f.key.expose_secret();
    let allow = [("request", sealed.as_str()), ("api_key", key), ("decision", "allow")];
    let forged = format!("{}x", &sealed[..sealed.len() - 1]);
    for (cookie, request) in [
        ("", sealed.as_str()),
        (other_cookie.as_str(), &sealed),
        (&cookie, &other_sealed),
        (&cookie, &forged),
        (&cookie, ""),
        (cookie.trim_start_matches("__Host-"), &sealed),
    ] {
        let got = f.answer(cookie, &changed(&allow, &[("request", Some(request))])).await;
        assert_eq!(got.status, StatusCode::FORBIDDEN, "{cookie} {request}");
        assert!(got.text.contains("did not come from here"));
    }
    for header in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://mcp.example.com"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("sec-fetch-site", "none"),
    ] {
        let got = f.answer_with(&cookie, &allow, &[header]).await;
        assert_eq!(got.status, StatusCode::FORBIDDEN, "{header:?}");
    }
    // Neither does saying no work from elsewhere, nor with everything sent twice.
    let deny = changed(&allow, &[("decision", Some("deny")), ("api_key", None)]);
    assert_eq!(f.answer("", &deny).await.status, StatusCode::FORBIDDEN);
    let twice = [allow.as_slice(), &[("request", &sealed)]].concat();
    assert_eq!(f.answer(&cookie, &twice).await.status, StatusCode::FORBIDDEN);
    assert!(f.events().iter().all(|event| *event == "registered"));

    let own = [("origin", ORIGIN), ("sec-fetch-site", "same-origin")];
    let (uri, answer) = f.answer_with(&cookie, &allow, &own).await.location();
    assert!(uri == REDIRECT && answer.contains_key("code"));
    assert!(!format!("{answer:?}").contains(key));

    f.later(16 * 60);
    let got = f.answer(&cookie, &allow).await;
    assert_eq!(got.status, StatusCode::FORBIDDEN, "the page was open for too long");
}

#[tokio::test]
async fn saying_no_and_saying_nothing() {
    let f = fixture().await;
    let client = f.client().await;
    let (sealed, cookie) = f.page(&Fixture::asked(&client)).await.form();
    for decision in [("decision", Some("deny")), ("decision", None), ("decision", Some("ALLOW"))] {
        let pairs = [("request", sealed.as_str()), ("api_key", f.key.expose_secret())];
        let (uri, answer) = f.answer(&cookie, &changed(&pairs, &[decision])).await.location();
        assert_eq!((uri.as_str(), answer["error"].as_str()), (REDIRECT, "access_denied"), "{decision:?}");
        assert_eq!((answer["state"].as_str(), answer["iss"].as_str()), ("the state", ORIGIN));
        assert!(!answer.contains_key("code"));
    }
    assert_eq!(f.events(), ["registered", "denied", "denied", "denied"]);
}

#[tokio::test]
async fn keys_that_do_not_work_look_alike_and_are_limited() {
    let f = fixture().await;
    let client = f.client().await;
    let (sealed, cookie) = f.page(&Fixture::asked(&client)).await.form();
    let now = Timestamp::now();
    let (revoked, row) = f.store.key_create(f.row.team, "old", now).await.unwrap();
    f.store.key_revoke(row.id, now).await.unwrap();
    let (access, _) = f.tokens(&client).await;
    f.events();
    let long = format!("ss_live_{}", "x".repeat(5_000));
    let form = async |key: &str| {
        f.answer(&cookie, &[("request", sealed.as_str()), ("api_key", key), ("decision", "allow")]).await
    };
    let mut answers = Vec::new();
    for key in
        ["", " ", "x", "ss_live_00000000000000000000000000000000", revoked.expose_secret(), &access, &long]
    {
        let got = form(key).await;
        assert_eq!(got.status, StatusCode::FORBIDDEN, "{key}");
        answers.push(got.text);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "all are answered alike");
    assert!(answers[0].contains("not a working API key") && !answers[0].contains("ss_live_"));
    for _ in 0..3 {
        assert_eq!(form("x").await.status, StatusCode::FORBIDDEN);
    }
    for key in ["x", f.key.expose_secret()] {
        let got = form(key).await;
        assert_eq!(got.status, StatusCode::TOO_MANY_REQUESTS, "nobody learns anything any more");
        assert!(got.headers.contains_key("retry-after"));
    }
    let counted = f.events();
    assert_eq!((counted.iter().filter(|e| **e == "wrong_key").count(), counted.len()), (10, 12));
    // Others go on.
    let body = encoded(&[("request", &sealed), ("api_key", f.key.expose_secret()), ("decision", "allow")]);
    let mut request = Fixture::posted("/authorize", "application/x-www-form-urlencoded", body);
    request.headers_mut().insert("cookie", cookie.parse().unwrap());
    assert_eq!(f.send_to(&f.router, request, "198.51.100.2").await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn what_is_no_form() {
    let f = fixture().await;
    for (kind, size, status) in [
        ("text/plain", 10, 415),
        ("application/json", 10, 415),
        ("multipart/form-data; boundary=x", 10, 415),
        ("application/x-www-form-urlencoded", 17_000, 413),
        ("application/x-www-form-urlencoded; charset=utf-8", 10, 403),
    ] {
        for path in ["/authorize", "/token", "/revoke"] {
            let got = f.send(Fixture::posted(path, kind, "x".repeat(size))).await;
            let expected = if path == "/authorize" || status != 403 { status } else { 400 };
            assert_eq!(got.status.as_u16(), expected, "{path} {kind}");
        }
    }
}

#[tokio::test]
async fn a_key_has_a_bounded_number_of_grants() {
    let f = fixture().await;
    let client = f.client().await;
    let (first, _) = f.tokens(&client).await;
    for _ in 0..99 {
        f.later(1);
        f.code(&client).await;
    }
    assert!(f.opens(&first).await);
    f.later(1);
    f.code(&client).await;
    assert!(!f.opens(&first).await, "the one that was used least lately made room");
}
