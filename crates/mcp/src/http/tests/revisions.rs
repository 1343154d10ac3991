//! `spec/mcp.md` §B.4: five revisions from one endpoint.

use serde_json::json;

use super::*;

fn hello(version: &str) -> Value {
    json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}})
}

#[tokio::test]
async fn every_handshake() {
    let server = server();
    for (asked, agreed) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        // No session is opened, and one that a client believes in is ignored.
        let got = Asked::request("initialize", hello(asked)).with("mcp-session-id", "mine").of(&server).await;
        assert_eq!(got.status, 200);
        assert!(!got.headers.contains_key("mcp-session-id"));
        let result = got.json()["result"].clone();
        assert_eq!(result["protocolVersion"], agreed);
        assert_eq!(result["serverInfo"]["name"], "superserve");
        assert_eq!(result["capabilities"], json!({"tools": {}}));
        assert!(result["instructions"].as_str().unwrap().contains("sandbox_create"));
        let got =
            Asked::request("tools/list", json!({})).with("mcp-protocol-version", agreed).of(&server).await;
        let list = got.json()["result"].clone();
        assert_eq!(list["tools"].as_array().unwrap().len(), tools::ALL.len());
        for key in ["resultType", "ttlMs", "cacheScope", "_meta", "nextCursor"] {
            assert!(list.get(key).is_none(), "{asked}: {key}");
        }
    }
    // Each message stands alone, and without the header it is of 2025-03-26.
    assert_eq!(Asked::request("tools/list", json!({})).of(&server).await.status, 200);
    let unknown =
        Asked::request("initialize", hello("2025-06-18")).with("mcp-protocol-version", "2099-01-01");
    assert_eq!(unknown.of(&server).await.error(), (400, -32022));
}

#[tokio::test]
async fn errors_of_the_older_revisions_are_ordinary_answers() {
    let server = server();
    for (method, params, code) in [
        ("nonsense", json!({}), -32601),
        ("resources/list", json!({}), -32601),
        ("subscriptions/listen", json!({}), -32601),
        ("logging/setLevel", json!({"level": "info"}), -32601),
        ("tools/call", json!({"name": "sandbox_explode"}), -32602),
        ("tools/call", json!({"name": 5}), -32602),
        ("initialize", json!({"protocolVersion": 5}), -32602),
    ] {
        let got = Asked::request(method, params).with("mcp-protocol-version", "2025-11-25").of(&server).await;
        assert_eq!(got.error(), (200, code), "{method}");
        assert_eq!(got.json()["id"], 7);
    }
    let got = Asked::request("tools/list", json!({})).with("mcp-protocol-version", "2025-01-01");
    let got = got.of(&server).await;
    assert_eq!(got.error(), (400, -32022));
    let data = got.json()["error"]["data"].clone();
    assert_eq!(data["requested"], "2025-01-01");
    assert_eq!(data["supported"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn the_newest_revision() {
    let server = server();
    let discovered = Asked::newest("server/discover", json!({})).of(&server).await.json()["result"].clone();
    assert_eq!(discovered["supportedVersions"].as_array().unwrap().len(), 5);
    assert_eq!(discovered["capabilities"], json!({"tools": {}}));
    let list = Asked::newest("tools/list", json!({})).of(&server).await.json()["result"].clone();
    for result in [&discovered, &list] {
        assert_eq!(result["cacheScope"], "public");
        assert!(result["ttlMs"].as_u64().unwrap() > 0);
    }
    let called = Asked::newest("tools/call", json!({"name": "sandbox_list"})).of(&server).await;
    let called = called.json()["result"].clone();
    assert_eq!(called["isError"], true, "nobody listens there");
    for result in [discovered, list, called] {
        assert_eq!(result["resultType"], "complete");
        assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "superserve");
    }
    for (method, params, expected) in [
        ("ping", json!({}), (404, -32601)),
        ("initialize", hello("2025-11-25"), (404, -32601)),
        ("logging/setLevel", json!({"level": "info"}), (404, -32601)),
        ("subscriptions/listen", json!({"notifications": {}}), (404, -32601)),
        ("nonsense", json!({}), (404, -32601)),
        ("tools/call", json!({"name": "sandbox_explode"}), (200, -32602)),
    ] {
        let got = Asked::newest(method, params).of(&server).await;
        assert_eq!(got.error(), expected, "{method}: {got:?}");
        assert_eq!(got.json()["id"], 7);
    }
    let bad = Asked::newest("tools/call", json!({"name": "sandbox_kill", "arguments": {}})).of(&server).await;
    assert_eq!(bad.json()["result"]["isError"], true, "bad arguments are a result");
}

#[tokio::test]
async fn headers_and_message_must_agree() {
    let server = server();
    let ask = async |asked: Asked| asked.of(&server).await;
    let call = || Asked::newest("tools/call", json!({"name": "sandbox_explode"}));
    let version = "mcp-protocol-version";
    for asked in [
        call().with(version, "2025-11-25"),
        call().without(version),
        call().with(version, "2099-01-01"),
        call().with("mcp-method", "tools/list"),
        call().with("mcp-method", "TOOLS/CALL"),
        call().without("mcp-method"),
        call().with("mcp-name", "sandbox_list"),
        call().without("mcp-name"),
        call().with("mcp-name", "=?base64?!!?="),
        call().with("mcp-name", "=?base64?//8=?="),
        Asked::newest("tools/list", json!({})).without(version),
        Asked::request("server/discover", json!({})),
    ] {
        let got = ask(asked).await;
        assert_eq!(got.error(), (400, -32020), "{got:?}");
        assert_eq!(got.json()["id"], 7);
    }
    let mut twice = call();
    twice.headers.push(("mcp-name", "sandbox_list".to_owned()));
    assert_eq!(ask(twice).await.error(), (400, -32020));
    // `sandbox_explode` in the form for values that do not fit a header: the call itself is what fails.
    let encoded = ask(call().with("mcp-name", "=?base64?c2FuZGJveF9leHBsb2Rl?=")).await;
    assert_eq!(encoded.error(), (200, -32602));
    assert_eq!(ask(call().with("mcp-name", " sandbox_explode ")).await.error(), (200, -32602));

    for missing in ["io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/clientCapabilities"] {
        let mut params = json!({"_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }});
        params["_meta"].as_object_mut().unwrap().remove(missing);
        let asked = Asked::request("tools/list", params).with(version, "2026-07-28");
        assert_eq!(ask(asked.with("mcp-method", "tools/list")).await.error(), (400, -32602), "{missing}");
    }
    let mut future = json!({"_meta": {"io.modelcontextprotocol/clientCapabilities": {}}});
    future["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    let got = ask(Asked::request("tools/list", future).with(version, "2099-01-01")).await;
    assert_eq!(got.error(), (400, -32022));
    assert_eq!(got.json()["error"]["data"]["requested"], "2099-01-01");

    let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    let note = || Asked::message(&note).with(version, "2026-07-28");
    assert_eq!(ask(note().with("mcp-method", "notifications/cancelled")).await.status, 202);
    assert_eq!(ask(note()).await.error(), (400, -32020));
    let old = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let old = || Asked::message(&old);
    assert_eq!(ask(old().with(version, "2025-06-18").with("mcp-method", "other")).await.status, 202);
    assert_eq!(ask(old().with(version, "x")).await.error(), (400, -32022));
}
