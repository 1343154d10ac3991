//! The endpoint as clients, proxies and attackers see it. Most tests call the router; what a connection decides (a head without
//! its body, a reset, a peer that goes away) goes over a socket.

mod authorization;
mod conformance;
mod refusals;
mod revisions;
mod sockets;
mod streams;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{HttpConfig, HttpServer, Limits};
use crate::tools::{self, Tool};

/// A planted key: no answer may contain it.
const KEY: &str = "ss_live_planted_key_planted_key_planted_key";

/// A server whose platform nobody listens at.
fn server() -> HttpServer {
    server_with(Limits::default(), tools::ALL)
}

fn server_with(limits: Limits, tools: &'static [&'static Tool]) -> HttpServer {
    let base_url = Some("http://127.0.0.1:9".to_owned());
    HttpServer::with_tools(HttpConfig { base_url, limits, ..HttpConfig::default() }, tools).unwrap()
}

/// A request that is in order; tests spoil what they are about.
struct Asked {
    method: &'static str,
    path: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Body,
}

impl Asked {
    fn post(body: impl Into<Body>) -> Self {
        let headers = [
            ("host", "localhost:8080"),
            ("authorization", "Bearer ss_live_planted_key_planted_key_planted_key"),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
        ];
        let headers = headers.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
        Self { method: "POST", path: "/mcp", headers, body: body.into() }
    }

    fn message(message: &Value) -> Self {
        Self::post(message.to_string())
    }

    fn request(method: &str, params: Value) -> Self {
        Self::message(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}))
    }

    /// A request of the newest revision, headers included.
    fn newest(method: &str, mut params: Value) -> Self {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let name = params["name"].as_str().map(str::to_owned);
        let mut asked = Self::request(method, params)
            .with("mcp-protocol-version", "2026-07-28")
            .with("mcp-method", method);
        if let Some(name) = name {
            asked = asked.with("mcp-name", &name);
        }
        asked
    }

    fn call(tool: &str, arguments: Value) -> Self {
        Self::request("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self
    }

    /// Sets a header, in place of one with the same name.
    fn with(self, name: &'static str, value: &str) -> Self {
        let mut asked = self.without(name);
        asked.headers.push((name, value.to_owned()));
        asked
    }

    fn to(mut self, method: &'static str, path: &'static str) -> Self {
        (self.method, self.path) = (method, path);
        self
    }

    async fn response(self, server: &HttpServer) -> Response {
        let mut request = Request::builder().method(self.method).uri(self.path);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        server.router().oneshot(request.body(self.body).unwrap()).await.unwrap()
    }

    async fn of(self, server: &HttpServer) -> Got {
        let (head, body) = self.response(server).await.into_parts();
        let body = axum::body::to_bytes(body, 1 << 24).await.unwrap();
        let text = String::from_utf8(body.into()).unwrap();
        assert!(!text.contains(KEY) && !format!("{head:?}").contains(KEY), "private: {text}");
        assert_eq!(head.headers["cache-control"], "no-store");
        assert_eq!(head.headers["x-content-type-options"], "nosniff");
        Got { status: head.status, headers: head.headers, text }
    }
}

#[derive(Debug)]
struct Got {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Got {
    fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json", "{self:?}");
        serde_json::from_str(&self.text).unwrap()
    }

    /// Status and code of an error; also what every error has.
    #[track_caller]
    fn error(&self) -> (u16, i64) {
        let body = self.json();
        assert_eq!(body["jsonrpc"], "2.0");
        assert!(body.get("id").is_some() && !body["error"]["message"].as_str().unwrap().is_empty(), "{body}");
        (self.status.as_u16(), body["error"]["code"].as_i64().unwrap())
    }

    /// The messages of an event stream, and how many comments came with them.
    fn events(&self) -> (Vec<Value>, usize) {
        assert_eq!(self.headers["content-type"], "text/event-stream", "{self:?}");
        assert_eq!(self.headers["x-accel-buffering"], "no");
        let data = self.text.lines().filter_map(|line| line.strip_prefix("data: "));
        let messages = data.map(|data| serde_json::from_str(data).unwrap()).collect();
        (messages, self.text.matches(": keep-alive\n\n").count())
    }
}
