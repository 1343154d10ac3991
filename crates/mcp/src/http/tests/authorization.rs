//! OAuth beside keys: what clients are told, and what becomes of their tokens.

use std::sync::{Arc, Mutex};

use domain::Secret;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::*;
use crate::http::{Authorization, Exchange, NoExchange};

/// Knows one token, and remembers which it was asked about.
#[derive(Debug, Default)]
struct Known(Mutex<Vec<String>>);

impl Exchange for Known {
    fn exchange<'a>(&'a self, token: &'a Secret) -> BoxFuture<'a, Result<Secret, NoExchange>> {
        let token = token.expose_secret();
        self.0.lock().unwrap().push(token.to_owned());
        let exchanged = match token {
            "pre_good" => Ok(Secret::new("internal")),
            "pre_busy" => Err(NoExchange::Unavailable),
            _ => Err(NoExchange::Invalid),
        };
        async { exchanged }.boxed()
    }
}

fn open_to_tokens() -> (HttpServer, Arc<Known>) {
    let known = Arc::new(Known::default());
    let mut config = HttpConfig { base_url: Some("http://127.0.0.1:9".to_owned()), ..HttpConfig::default() };
    config.authorization = Some(Authorization {
        prefix: "pre_",
        metadata_url: "https://mcp.example.com/meta".to_owned(),
        scope: "mcp",
        exchange: Arc::clone(&known) as Arc<dyn Exchange>,
    });
    config.allow_host("mcp.example.com").unwrap();
    (HttpServer::with_tools(config, tools::ALL).unwrap(), known)
}

const PLACE: &str = r#"resource_metadata="https://mcp.example.com/meta", scope="mcp""#;

#[tokio::test]
async fn who_has_no_token_is_told_where_tokens_are() {
    let (server, known) = open_to_tokens();
    let ping = || Asked::request("ping", json!({}));
    let got = ping().without("authorization").of(&server).await;
    assert_eq!(got.error(), (401, -32001));
    assert_eq!(got.headers["www-authenticate"], format!(r#"Bearer realm="superserve-mcp", {PLACE}"#));
    for token in ["pre_", "pre_bad", "pre_good"] {
        let got = ping().with("authorization", &format!("Bearer {token}x")).of(&server).await;
        assert_eq!(got.error(), (401, -32001), "{token}");
        let challenge = format!(r#"Bearer realm="superserve-mcp", error="invalid_token", {PLACE}"#);
        assert_eq!(got.headers["www-authenticate"], challenge, "{token}");
        assert!(!got.text.contains("pre_"));
    }
    let got = ping().with("authorization", "Bearer pre_busy").of(&server).await;
    assert_eq!(got.error(), (500, -32603));
    assert!(!got.headers.contains_key("www-authenticate"));
    // Where there is no authorization server, nothing points to one.
    let got = ping().without("authorization").of(&super::server()).await;
    assert_eq!(got.headers["www-authenticate"], r#"Bearer realm="superserve-mcp""#);
    let asked = known.0.lock().unwrap().clone();
    assert_eq!(asked, ["pre_x", "pre_badx", "pre_goodx", "pre_busy"]);
}

#[tokio::test]
async fn tokens_and_keys_both_open_it() {
    let (server, known) = open_to_tokens();
    for bearer in ["pre_good", KEY] {
        let got = Asked::request("ping", json!({}))
            .with("authorization", &format!("Bearer {bearer}"))
            .with("host", "mcp.example.com")
            .of(&server)
            .await;
        assert_eq!((got.status, got.json()["result"].clone()), (StatusCode::OK, json!({})));
    }
    assert_eq!(*known.0.lock().unwrap(), ["pre_good"], "a key is nobody else's business");
}

#[tokio::test]
async fn a_token_is_looked_at_before_the_body_and_after_the_host() {
    let (server, known) = open_to_tokens();
    let long = vec![b'x'; 17 << 20];
    let got = Asked::post(long).with("authorization", "Bearer pre_bad").of(&server).await;
    assert_eq!(got.error().0, 401);
    let got = Asked::post("")
        .with("authorization", "Bearer pre_bad")
        .with("host", "evil.example")
        .of(&server)
        .await;
    assert_eq!(got.error().0, 403);
    assert_eq!(known.0.lock().unwrap().len(), 1);
}
