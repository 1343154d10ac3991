//! A server that answers both planes as each test scripts it, and writes down what it was asked.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use client::{Client, ClientConfig};
use domain::Secret;

pub(crate) const KEY: &str = "ss_live_0123456789abcdef0123456789abcdef";
pub(crate) const ID: &str = "0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b";

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

type Handler = Box<dyn Fn(Seen) -> Pin<Box<dyn Future<Output = Response> + Send>> + Send + Sync>;

#[derive(Default)]
struct Script {
    answers: Mutex<HashMap<String, VecDeque<Handler>>>,
    seen: Mutex<Vec<Seen>>,
}

/// The server. Stops when dropped.
pub(crate) struct Platform {
    pub(crate) url: String,
    script: Arc<Script>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Platform {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Platform {
    pub(crate) async fn start() -> Self {
        Self::start_with("sandbox.localhost", "http").await
    }

    /// One that says where its sandboxes are.
    pub(crate) async fn start_with(sandbox_host: &str, scheme: &str) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let script = Arc::new(Script::default());
        let app = axum::Router::new().fallback(answer).with_state(Arc::clone(&script));
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let platform = Self { url, script, server };
        let descriptor = serde_json::json!({
            "version": "0", "data_plane_url": platform.url, "sandbox_host": sandbox_host,
            "scheme": scheme, "engine": "container",
        });
        platform.on("GET /.well-known/superserve", 200, &descriptor.to_string());
        platform
    }

    /// The next answer to `METHOD /path`; the last one of a line is repeated for ever.
    pub(crate) fn on(&self, line: &str, status: u16, body: &str) {
        self.on_with(line, status, &[], body);
    }

    pub(crate) fn on_with(&self, line: &str, status: u16, headers: &[(&str, &str)], body: &str) {
        let headers: Vec<_> = headers.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let body = body.to_owned();
        self.handle(line, move |_| {
            let mut response = Response::builder().status(status);
            for (name, value) in &headers {
                response = response.header(name, value);
            }
            let response = response.body(Body::from(body.clone())).unwrap();
            async move { response }
        });
    }

    pub(crate) fn handle<F, Fut>(&self, line: &str, handler: F)
    where
        F: Fn(Seen) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Response> + Send + 'static,
    {
        let handler: Handler = Box::new(move |seen| Box::pin(handler(seen)));
        self.script.answers.lock().unwrap().entry(line.to_owned()).or_default().push_back(handler);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.script.seen.lock().unwrap().clone()
    }

    /// The request lines without the query, in order, the descriptor left out.
    pub(crate) fn lines(&self) -> Vec<String> {
        let all = self.seen().into_iter().map(|seen| seen.line.split('?').next().unwrap().to_owned());
        all.filter(|line| !line.contains(".well-known")).collect()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(ClientConfig::new(&self.url, Secret::new(KEY))).unwrap()
    }

    /// Activations answer with a new token each: t1, t2, …
    pub(crate) fn activates(&self) {
        let count = std::sync::atomic::AtomicU32::new(0);
        self.handle(&format!("POST /sandboxes/{ID}/activate"), move |_| {
            let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            async move { Response::new(Body::from(sandbox("active", &format!("t{n}")))) }
        });
    }
}

async fn answer(State(script): State<Arc<Script>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 64 * 1024 * 1024).await.unwrap();
    let seen = Seen { line: format!("{} {}", parts.method, parts.uri), headers: parts.headers, body };
    script.seen.lock().unwrap().push(seen.clone());
    let key = seen.line.split('?').next().unwrap().to_owned();
    let future = {
        let mut answers = script.answers.lock().unwrap();
        match answers.get_mut(&key) {
            None => None,
            Some(queue) if queue.len() > 1 => queue.pop_front().map(|handler| handler(seen)),
            Some(queue) => queue.front().map(|handler| handler(seen)),
        }
    };
    match future {
        Some(future) => future.await,
        None => Response::builder()
            .status(404)
            .body(Body::from(error("not_found", &format!("nothing scripted for {key}"))))
            .unwrap(),
    }
}

pub(crate) fn sandbox(status: &str, token: &str) -> String {
    serde_json::json!({
        "id": ID, "name": "box", "status": status, "vcpu_count": 1, "memory_mib": 1024,
        "created_at": "2026-01-02T03:04:05.000006Z", "metadata": {}, "access_token": token,
    })
    .to_string()
}

pub(crate) fn error(code: &str, message: &str) -> String {
    serde_json::json!({"error": {"code": code, "message": message}}).to_string()
}

/// Waits until the condition holds; five seconds are far more than loopback needs.
pub(crate) async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not happen within 5 s");
}
