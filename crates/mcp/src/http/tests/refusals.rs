//! The table of `spec/mcp.md` §B.2, bearer keys, preflights, and the order of the checks.

use axum::body::{Body, Bytes};
use axum::response::IntoResponse;
use expect_test::expect_file;
use futures_util::stream;
use serde_json::json;

use super::super::body::{self, MAX_BYTES};
use super::super::refusal::Refusal;
use super::*;

#[tokio::test]
async fn golden() {
    let mut text = String::new();
    for refusal in Refusal::ALL {
        let (head, body) = refusal.into_response().into_parts();
        let body = axum::body::to_bytes(body, 1 << 16).await.unwrap();
        let mut body: Value = serde_json::from_slice(&body).unwrap();
        let code = body["error"]["code"].take();
        text.push_str(&format!("{refusal:?}: {} {code}\n", head.status.as_u16()));
        for (name, value) in head.headers.iter().filter(|(name, _)| *name != "content-type") {
            text.push_str(&format!("  {name}: {}\n", value.to_str().unwrap()));
        }
        text.push_str(&format!("  {}\n", body["error"]["message"].as_str().unwrap()));
        assert!(body["id"].is_null() && body.as_object().unwrap().contains_key("id"));
        assert_eq!(head.headers["content-type"], "application/json");
    }
    expect_file!["../../../tests/golden/http_refusals.txt"].assert_eq(&text);
}

#[tokio::test]
async fn routes() {
    let server = server();
    for path in ["/", "/mcp", "/mcp/", "/mcp?a=b", "/?x"] {
        let got = Asked::request("ping", json!({})).to("POST", path).of(&server).await;
        assert_eq!((got.status, got.json()["result"].clone()), (StatusCode::OK, json!({})), "{path}");
    }
    let open = || Asked::post("").without("authorization").without("accept").without("content-type");
    let got = open().without("host").to("GET", "/health").of(&server).await;
    let body = json!({"status": "ok", "server": "superserve", "version": env!("CARGO_PKG_VERSION")});
    assert_eq!((got.status, got.json()), (StatusCode::OK, body));
    let got = open().to("HEAD", "/health").of(&server).await;
    assert_eq!((got.status, got.text.as_str()), (StatusCode::OK, ""));
    for path in ["/", "/mcp"] {
        let got = open().to("HEAD", path).of(&server).await;
        assert_eq!((got.status.as_u16(), got.text.as_str()), (405, ""));
        for method in ["GET", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE"] {
            let got = open().to(method, path).of(&server).await;
            assert_eq!(got.error(), (405, -32600), "{method} {path}");
            assert_eq!(got.headers["allow"], "POST");
        }
    }
    for path in ["/mcp/x", "/MCP", "/.well-known/oauth-protected-resource", "/sandboxes"]
        .into_iter()
        .chain(["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"])
    {
        for method in ["GET", "POST", "DELETE"] {
            assert_eq!(open().to(method, path).of(&server).await.error(), (404, -32600), "{method} {path}");
        }
    }
    let got = open().to("POST", "/health").of(&server).await;
    assert_eq!(got.error(), (404, -32600), "health is asked with GET");
}

#[tokio::test]
async fn a_mounted_endpoint_leaves_the_rest_alone() {
    let rest = axum::Router::new().fallback(|| async { "rest" });
    let router = server().mounted_over(rest);
    for (path, mine) in [("/mcp", true), ("/mcp/", true), ("/", false), ("/health", false), ("/mcpx", false)]
    {
        let request = Request::builder().uri(path).header("host", "localhost").body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status() == 405, mine, "{path}");
    }
}

#[tokio::test]
async fn each_check_comes_before_the_next() {
    let server = server();
    let ask = async |asked: Asked| asked.of(&server).await.error();
    let bad = || Asked::post("{").without("authorization").without("accept").with("host", "evil.example");
    assert_eq!(ask(bad().to("GET", "/x")).await, (404, -32600));
    assert_eq!(ask(bad().to("GET", "/mcp")).await, (405, -32600));
    assert_eq!(ask(bad()).await, (403, -32600));
    let bad = || Asked::post("{").without("authorization").without("accept");
    assert_eq!(ask(bad().with("origin", "http://evil.example")).await, (403, -32600));
    assert_eq!(ask(bad()).await, (401, -32001));
    let huge = Body::from(vec![b' '; usize::try_from(MAX_BYTES).unwrap() + 1]);
    assert_eq!(ask(Asked::post(huge).without("accept")).await, (413, -32600));
    assert_eq!(ask(Asked::post("{").without("accept").without("content-type")).await, (406, -32600));
    assert_eq!(ask(Asked::post("{").without("content-type")).await, (415, -32600));
    assert_eq!(ask(Asked::post("{").with("mcp-protocol-version", "1")).await, (400, -32700));
    assert_eq!(ask(Asked::request("x", json!({})).with("mcp-protocol-version", "1")).await, (400, -32022));
}

#[tokio::test]
async fn keys() {
    let server = server();
    for none in ["", "Basic a2s=", "Bearer", "Bearer   "] {
        let got = Asked::request("ping", json!({})).with("authorization", none).of(&server).await;
        assert_eq!(got.error(), (401, -32001), "{none:?}");
        assert_eq!(got.headers["www-authenticate"], r#"Bearer realm="superserve-mcp""#);
        assert!(got.text.contains("SUPERSERVE_API_KEY") && got.text.contains("https://"));
    }
    // A staging key is as good as any; whether it works shows at the first call.
    let got = Asked::request("ping", json!({})).with("authorization", "bearer \t x ").of(&server).await;
    assert_eq!(got.status, 200);
    let got = Asked::request("ping", json!({})).with("authorization", "Bearer a b").of(&server).await;
    assert_eq!(got.error(), (401, -32001));
}

#[tokio::test]
async fn types() {
    let server = server();
    for accept in [
        "application/json, text/event-stream",
        "text/event-stream;q=0.5,APPLICATION/JSON",
        "*/*",
        "application/*, text/*;q=0.1",
    ] {
        assert_eq!(Asked::request("ping", json!({})).with("accept", accept).of(&server).await.status, 200);
    }
    for accept in
        ["", "application/json", "text/event-stream", "application/json, text/event-stream;q=0", "*"]
            .into_iter()
            .chain(["application/jsonx, text/event-stream", "text/html, application/xml"])
    {
        let got = Asked::request("ping", json!({})).with("accept", accept).of(&server).await;
        assert_eq!(got.error(), (406, -32600), "{accept}");
    }
    for kind in ["application/json; charset=utf-8", "Application/JSON"] {
        assert_eq!(
            Asked::request("ping", json!({})).with("content-type", kind).of(&server).await.status,
            200
        );
    }
    for kind in ["", "text/plain", "application/json-seq", "application/x-www-form-urlencoded"] {
        let got = Asked::request("ping", json!({})).with("content-type", kind).of(&server).await;
        assert_eq!(got.error(), (415, -32600), "{kind}");
    }
}

#[tokio::test]
async fn what_is_not_one_message() {
    let server = server();
    for body in ["", "{", "nonsense", "{\"a\":}", "\u{1}", "{}{}"] {
        assert_eq!(Asked::post(body).of(&server).await.error(), (400, -32700), "{body}");
    }
    assert_eq!(Asked::post(&b"\xff\xfe"[..]).of(&server).await.error(), (400, -32700));
    assert_eq!(Asked::post("[".repeat(1 << 20)).of(&server).await.error(), (400, -32700));
    for body in [
        "[]",
        r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
        "{}",
        "1",
        "null",
        r#""x""#,
        r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#,
        r#"{"id":7,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#,
    ] {
        let got = Asked::post(body).of(&server).await;
        assert_eq!(got.error(), (400, -32600), "{body}");
        assert!(got.json()["id"].is_null());
    }
    let bom = "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"ping\"}";
    assert_eq!(Asked::post(bom).of(&server).await.json()["id"], "x");
    for quiet in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/unheard_of"}"#,
        r#"{"jsonrpc":"2.0","id":9,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":9,"error":{"code":1,"message":"x"}}"#,
    ] {
        let got = Asked::post(quiet).of(&server).await;
        assert_eq!((got.status.as_u16(), got.text.as_str()), (202, ""), "{quiet}");
    }
}

/// A body in pieces whose length nobody announced.
fn chunked(pieces: Vec<Vec<u8>>) -> Body {
    Body::from_stream(stream::iter(
        pieces.into_iter().map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece))),
    ))
}

#[tokio::test]
async fn sixteen_mebibytes_and_no_more() {
    let server = server();
    let max = usize::try_from(MAX_BYTES).unwrap();
    let padded = |bytes: usize| {
        let message = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let mut body = message.as_bytes().to_vec();
        body.resize(bytes, b' ');
        body
    };
    assert_eq!(Asked::post(padded(max)).of(&server).await.status, 200);
    assert_eq!(Asked::post(padded(max + 1)).of(&server).await.error(), (413, -32600));
    let pieces = |bytes: usize| padded(bytes).chunks(1 << 20).map(<[u8]>::to_vec).collect();
    assert_eq!(Asked::post(chunked(pieces(max))).of(&server).await.status, 200);
    let got = Asked::post(chunked(pieces(max + 1))).of(&server).await;
    assert_eq!(got.error(), (413, -32600));
    assert!(got.text.contains("16777216"));
    assert!(body::parse(b"{} ").is_err());
}

#[tokio::test]
async fn browsers() {
    let plain = server();
    let preflight = |origin: &str| {
        Asked::post("")
            .without("authorization")
            .to("OPTIONS", "/mcp")
            .with("origin", origin)
            .with("access-control-request-method", "POST")
            .with("access-control-request-headers", "authorization, Mcp-Param-Region, x-evil")
    };
    assert_eq!(preflight("http://localhost:6274").of(&plain).await.error(), (405, -32600));
    let got = Asked::request("ping", json!({})).with("origin", "http://localhost:6274").of(&plain).await;
    assert_eq!(got.status, 200);
    assert!(!got.headers.contains_key("access-control-allow-origin") && !got.headers.contains_key("vary"));
    let got = Asked::request("ping", json!({})).with("origin", "null").of(&plain).await;
    assert_eq!(got.error(), (403, -32600));

    let vars = |name: &str| match name {
        "SUPERSERVE_MCP_ALLOWED_ORIGINS" => Some("https://app.example, https://b.example".to_owned()),
        "SUPERSERVE_BASE_URL" => Some("http://127.0.0.1:9".to_owned()),
        _ => None,
    };
    let open = HttpServer::new(HttpConfig::from_vars(vars, None).unwrap()).unwrap();
    let got = preflight("https://app.example").of(&open).await;
    assert_eq!((got.status.as_u16(), got.text.as_str()), (204, ""));
    assert_eq!(got.headers["access-control-allow-origin"], "https://app.example");
    assert_eq!(got.headers["access-control-allow-methods"], "POST");
    let allowed = got.headers["access-control-allow-headers"].to_str().unwrap();
    assert!(allowed.contains("authorization") && allowed.contains("mcp-param-region"), "{allowed}");
    assert!(!allowed.contains("evil"));
    assert_eq!(preflight("https://evil.example").of(&open).await.error(), (403, -32600));
    for (asked, status) in [
        (Asked::request("ping", json!({})), 200),
        (Asked::request("ping", json!({})).without("authorization"), 401),
        (Asked::post("{"), 400),
    ] {
        let got = asked.with("origin", "https://b.example").of(&open).await;
        assert_eq!(got.status, status);
        assert_eq!(got.headers["access-control-allow-origin"], "https://b.example");
        assert_eq!(got.headers["vary"], "Origin");
        assert!(got.headers["access-control-expose-headers"].to_str().unwrap().contains("www-authenticate"));
        assert!(!got.headers.contains_key("access-control-allow-credentials"));
    }
}
