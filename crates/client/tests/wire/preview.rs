//! Preview ports, and addresses made of what a platform says of itself.

use client::{Client, ClientConfig, ClientError};
use domain::Secret;
use serde_json::json;
use wire::rest::PreviewToken;

use crate::platform::{ID, KEY, Platform};

fn token(text: &str, param: &str) -> PreviewToken {
    let body = json!({"token": text, "port": 3000, "header": "h", "query_param": param, "token_version": 1,
        "access": "private", "preview_access": "public"});
    serde_json::from_value(body).unwrap()
}

#[tokio::test]
async fn calls_have_the_documented_form() {
    let platform = Platform::start().await;
    let client = platform.client();
    let base = format!("/sandboxes/{ID}/preview-ports");
    let port = json!({"port": 3000, "access": "private", "token_version": 1}).to_string();
    let minted = json!({"token": "t", "port": 3000, "header": "h", "query_param": "q", "token_version": 1,
        "access": "private", "preview_access": "public"});
    platform.on(&format!("POST {base}"), 200, &port);
    platform.on(&format!("GET {base}"), 200, r#"{"ports":[]}"#);
    platform.on(&format!("DELETE {base}/3000"), 204, "");
    platform.on(&format!("POST {base}/3000/token"), 200, &minted.to_string());
    platform.on(&format!("POST {base}/3000/token/rotate"), 200, &minted.to_string());
    assert_eq!(client.publish_port(ID, 3000, None).await.unwrap().access, "private");
    client.publish_port(ID, 3000, Some("public")).await.unwrap();
    assert_eq!(client.list_ports(ID).await.unwrap().preview_access, "legacy_public", "an old platform");
    client.unpublish_port(ID, 3000).await.unwrap();
    client.preview_token(ID, 3000, Some(90)).await.unwrap();
    client.preview_token(ID, 3000, None).await.unwrap();
    client.rotate_preview_token(ID, 3000).await.unwrap();
    let bodies: Vec<String> =
        platform.seen().iter().map(|seen| String::from_utf8_lossy(&seen.body).into_owned()).collect();
    let expected = [
        r#"{"port":3000}"#,
        r#"{"port":3000,"access":"public"}"#,
        "",
        "",
        r#"{"expires_in_seconds":90}"#,
        "{}",
        "",
    ];
    assert_eq!(bodies, expected);
}

#[tokio::test]
async fn an_address_is_made_of_a_host_and_nothing_else() {
    let at = async |host: &str, scheme: &str| {
        let platform = Platform::start_with(host, scheme).await;
        platform.client().preview_url(ID, 3000, None).await
    };
    assert_eq!(
        at("sandbox.localhost:8443", "http").await.unwrap(),
        format!("http://3000-{ID}.sandbox.localhost:8443")
    );
    assert_eq!(at("box.example.com", "https").await.unwrap(), format!("https://3000-{ID}.box.example.com"));
    for host in ["", "evil.example/x", "x@evil.example", "x?y", "x#y", "x:y", "/evil.example", "a b"] {
        let error = at(host, "https").await.unwrap_err();
        assert!(matches!(error, ClientError::Protocol { .. }), "{host}: {error:?}");
    }
    let platform = Platform::start().await;
    let client = platform.client();
    let signed = client.preview_url(&ID.to_uppercase(), 3000, Some(&token("a b&c", "p"))).await.unwrap();
    assert_eq!(signed, format!("http://3000-{ID}.sandbox.localhost/?p=a+b%26c"));
    assert!(client.preview_url(ID, 3000, Some(&token("", "p"))).await.is_err());
    assert!(client.preview_url(ID, 3000, Some(&token("t", ""))).await.is_err());
    assert!(client.preview_url("a.b", 3000, None).await.is_err());
}

#[tokio::test]
async fn the_vendor_is_known() {
    let config = ClientConfig::new("https://api-usw.superserve.ai", Secret::new(KEY));
    let url = Client::new(config).unwrap().preview_url(ID, 8000, None).await.unwrap();
    assert_eq!(url, format!("https://8000-{ID}.usw-sandbox.superserve.ai"));
}
