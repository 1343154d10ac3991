//! `GET /authorize`: what is answered where, and that no browser is led astray.

use super::*;

#[tokio::test]
async fn nothing_goes_to_an_address_that_was_not_registered() {
    let f = fixture().await;
    let client = f.client().await;
    let asked = Fixture::asked(&client);
    let other = uuid::Uuid::new_v4().to_string();
    let changes: &[(&str, Option<&str>)] = &[
        ("client_id", None),
        ("client_id", Some("x")),
        ("client_id", Some(&other)),
        ("redirect_uri", None),
        ("redirect_uri", Some("https://evil.example/cb")),
        ("redirect_uri", Some("https://client.example/cb/")),
        ("redirect_uri", Some("https://client.example/cb?x=1")),
        ("redirect_uri", Some("https://client.example/cb#x")),
        ("redirect_uri", Some("https://client.example/cb/../x")),
        ("redirect_uri", Some("https://client.example@evil.example/cb")),
        ("redirect_uri", Some("https://client.example\\@evil.example/cb")),
        ("redirect_uri", Some("//client.example/cb")),
        ("redirect_uri", Some("https://client.example:444/cb")),
        ("redirect_uri", Some("http://client.example/cb")),
        ("redirect_uri", Some("http://127.0.0.1/other")),
        ("redirect_uri", Some("http://localhost/cb")),
        ("redirect_uri", Some("javascript:alert(1)")),
    ];
    for change in changes {
        for spoiled in [&[][..], &[("response_type", Some("token"))]] {
            let got = f.page(&changed(&changed(&asked, &[*change]), spoiled)).await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST, "{change:?}");
            assert!(
                !got.headers.contains_key("location") && !got.text.contains("<a "),
                "{change:?}: {got:?}"
            );
            assert!(!got.text.contains("evil") && got.text.contains("cannot be made"), "{got:?}");
        }
    }
    for twice in [("client_id", client.as_str()), ("redirect_uri", REDIRECT)] {
        let mut pairs = asked.clone();
        pairs.push(twice);
        let got = f.page(&pairs).await;
        assert!(got.status == StatusCode::BAD_REQUEST && !got.text.contains("<a "), "{got:?}");
    }
    let long = "x".repeat(17_000);
    assert_eq!(f.page(&changed(&asked, &[("state", Some(&long))])).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_request_that_is_not_in_order_is_told_to_its_client() {
    let f = fixture().await;
    let client = f.client().await;
    let long = "x".repeat(4097);
    let changes: &[((&str, Option<&str>), &str)] = &[
        (("response_type", None), "invalid_request"),
        (("response_type", Some("token")), "unsupported_response_type"),
        (("response_type", Some("code token")), "unsupported_response_type"),
        (("response_mode", Some("fragment")), "invalid_request"),
        (("code_challenge", None), "invalid_request"),
        (("code_challenge", Some("")), "invalid_request"),
        (("code_challenge", Some(VERIFIER.split_at(42).0)), "invalid_request"),
        (("code_challenge", Some("E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-c+")), "invalid_request"),
        (("code_challenge_method", None), "invalid_request"),
        (("code_challenge_method", Some("plain")), "invalid_request"),
        (("code_challenge_method", Some("s256")), "invalid_request"),
        (("resource", Some("https://other.example/mcp")), "invalid_target"),
        (("resource", Some("https://mcp.example.com/mcp/x")), "invalid_target"),
        (("resource", Some("http://mcp.example.com/mcp")), "invalid_target"),
        (("request", Some("x")), "request_not_supported"),
        (("request_uri", Some("https://evil.example/")), "request_uri_not_supported"),
        (("state", Some(&long)), "invalid_request"),
    ];
    for (change, error) in changes {
        // At a site: offered, not followed, so that this server cannot be used to send people to one.
        let asked = changed(&Fixture::asked(&client), &[*change]);
        let got = f.page(&asked).await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{change:?}");
        assert!(!got.headers.contains_key("location") && !got.headers.contains_key("set-cookie"));
        assert!(
            got.text.contains(&format!("<a href=\"{REDIRECT}?error={error}&amp;")),
            "{change:?}: {got:?}"
        );
        // On the user's machine: at once.
        let local = [("redirect_uri", Some("http://127.0.0.1:5555/cb"))];
        let (uri, answer) = f.page(&changed(&asked, &local)).await.location();
        assert_eq!((uri.as_str(), answer["error"].as_str()), ("http://127.0.0.1:5555/cb", *error));
        assert_eq!(answer["iss"], ORIGIN);
        assert_eq!(answer.get("state").map(String::as_str), (change.0 != "state").then_some("the state"));
        assert!(!answer.contains_key("code"));
    }
    let mut twice = changed(&Fixture::asked(&client), &[]);
    twice.push(("code_challenge", CHALLENGE));
    assert!(f.page(&twice).await.text.contains("error=invalid_request"));
    let mut targets = changed(&Fixture::asked(&client), &[("resource", Some("https://mcp.example.com"))]);
    targets.push(("resource", "https://mcp.example.com/mcp/"));
    assert_eq!(f.page(&targets).await.status, StatusCode::OK, "both name the one resource there is");
    targets.push(("resource", "https://other.example"));
    assert!(f.page(&targets).await.text.contains("error=invalid_target"));
    for fine in
        [("resource", None), ("state", None), ("scope", Some("openid profile")), ("prompt", Some("none"))]
    {
        assert_eq!(
            f.page(&changed(&Fixture::asked(&client), &[fine])).await.status,
            StatusCode::OK,
            "{fine:?}"
        );
    }
}

#[tokio::test]
async fn the_page_is_inert() {
    let f = fixture().await;
    let name = "</h1><script>alert(1)</script>\"'&<img src=x onerror=alert(1)>";
    let uris = json!(["https://client.example/cb?a='x", REDIRECT]);
    assert_eq!(f.register(&json!({"redirect_uris": uris})).await.status, StatusCode::BAD_REQUEST);
    let got = f.register(&json!({"client_name": name, "redirect_uris": [REDIRECT, "cursor://a.b/cb"]})).await;
    let client = got.json()["client_id"].as_str().unwrap().to_owned();
    let state = "\"><script>alert(1)</script>";
    let got = f.page(&changed(&Fixture::asked(&client), &[("state", Some(state))])).await;
    assert!(!got.text.contains("<script") && !got.text.contains("<img"), "{}", got.text);
    assert!(got.text.contains("&lt;/h1&gt;&lt;script&gt;alert(1)"));
    assert!(got.text.contains("<strong>client.example</strong>"));
    assert!(!got.text.contains("https://client.example/cb"), "the place is shown, not a link to it");
    let policy = got.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(
        policy.ends_with("'; frame-ancestors 'none'; base-uri 'none'"),
        "no hop of a client is cut: {policy}"
    );
    assert!(!policy.contains("unsafe"));
    let cookie = got.headers["set-cookie"].to_str().unwrap();
    assert!(cookie.starts_with("__Host-superserve-consent="), "{cookie}");
    for part in ["; Path=/;", "; HttpOnly", "; SameSite=Lax", "; Secure"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    // The error page, too.
    let got =
        f.page(&changed(&Fixture::asked(&client), &[("state", Some(state)), ("resource", Some("x"))])).await;
    assert!(!got.text.contains("<script") && got.text.contains("state=%22%3E%3Cscript"), "{}", got.text);
    assert!(got.headers["content-security-policy"].to_str().unwrap().contains("form-action 'none'"));
}
