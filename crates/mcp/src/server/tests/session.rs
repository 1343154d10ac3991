//! A session over in-memory pipes, and a platform that answers as a test wants.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response, StatusCode};
use domain::Secret;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;

use crate::config::McpConfig;
use crate::stdio::{ServeError, serve};
use crate::tools::{self, Tool};

/// A planted key: no output may contain it.
pub(super) const KEY: &str = "ss_live_planted_key_planted_key_planted_key";
/// A planted data-plane token: no output may contain it.
pub(super) const TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef";
/// A sandbox.
pub(super) const ID: &str = "0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b";
/// Longest wait for anything in a test.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Session {
    input: Option<DuplexStream>,
    output: Option<Lines<BufReader<DuplexStream>>>,
    stop: CancellationToken,
    server: JoinHandle<Result<(), ServeError>>,
    next_id: u64,
}

impl Session {
    /// A session with a platform nobody listens at.
    pub(super) fn offline() -> Self {
        Self::start("http://127.0.0.1:9", tools::ALL)
    }

    pub(super) fn start(base_url: &str, tools: &'static [&'static Tool]) -> Self {
        Self::run(base_url, tools, false)
    }

    /// One whose results have their structured form beside an image, too, or not.
    pub(super) fn start_with(base_url: &str, structured_images: bool) -> Self {
        Self::run(base_url, tools::ALL, structured_images)
    }

    fn run(base_url: &str, tools: &'static [&'static Tool], structured_images: bool) -> Self {
        let config = McpConfig {
            api_key: Secret::new(KEY),
            base_url: base_url.to_owned(),
            ca_file: None,
            log: LevelFilter::OFF,
            structured_images,
            warnings: Vec::new(),
        };
        let (input, server_input) = tokio::io::duplex(1 << 20);
        let (server_output, output) = tokio::io::duplex(1 << 20);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let server = tokio::spawn(async move {
            serve(&config, tools, server_input, server_output, stopped.cancelled_owned()).await
        });
        Self { input: Some(input), output: Some(BufReader::new(output).lines()), stop, server, next_id: 0 }
    }

    pub(super) async fn send_raw(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    pub(super) async fn send(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        let message = json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params});
        self.send_raw(&message.to_string()).await;
        self.next_id
    }

    /// The next message; every line must be JSON-RPC and hold nothing private.
    pub(super) async fn receive(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.output.as_mut().unwrap().next_line());
        let line = line.await.expect("an answer in time").unwrap().expect("the output is open");
        assert!(!line.contains(KEY) && !line.contains(TOKEN), "private: {line}");
        let message: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        message
    }

    /// Sends a request and takes its answer, which must be the next message.
    pub(super) async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params).await;
        let answer = self.receive().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// Calls a tool and takes its result.
    pub(super) async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert!(answer.get("result").is_some(), "{answer}");
        answer["result"].clone()
    }

    /// Calls a tool that must fail, and takes its text.
    pub(super) async fn fail(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await;
        assert_eq!(result["isError"], true, "{result}");
        assert!(result.get("structuredContent").is_none(), "{result}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    pub(super) fn close_output(&mut self) {
        self.output = None;
    }

    pub(super) fn signal(&self) {
        self.stop.cancel();
    }

    /// Waits for the end, which must be a good one, and says how long it took.
    pub(super) async fn ended(self) -> Duration {
        let started = std::time::Instant::now();
        let Self { input, output, server, .. } = self;
        tokio::time::timeout(PATIENCE, server).await.expect("an end in time").unwrap().unwrap();
        drop((input, output));
        started.elapsed()
    }
}

pub(super) async fn cancel(session: &mut Session, id: u64) {
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    session.send_raw(&cancel.to_string()).await;
}

/// What a request to the platform looked like.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Bytes,
}

type Answer = dyn Fn(Seen) -> BoxFuture<'static, Response<Body>> + Send + Sync;

/// A platform that answers as a test wants, and remembers the requests.
pub(super) struct Platform {
    pub(super) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    server: JoinHandle<()>,
}

impl Platform {
    /// `answer` is asked for everything but the descriptor and activation, which work.
    pub(super) async fn start<F, A>(answer: F) -> Self
    where
        F: Fn(Seen) -> A + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (base, log) = (url.clone(), Arc::clone(&seen));
        let answer: Arc<Answer> = Arc::new(move |seen| Box::pin(answer(seen)));
        let app = axum::Router::new().fallback(move |request: Request<Body>| {
            let (base, log, answer) = (base.clone(), Arc::clone(&log), Arc::clone(&answer));
            async move {
                let (head, body) = request.into_parts();
                let path = head.uri.path_and_query().unwrap().as_str().to_owned();
                if path == wire::well_known::PATH {
                    let descriptor = json!({"version": "0", "data_plane_url": base, "sandbox_host": "box.localhost:1234",
                        "scheme": "http", "engine": "container"});
                    return json_answer(200, &descriptor);
                }
                let body = axum::body::to_bytes(body, 1 << 24).await.unwrap();
                let seen = Seen { method: head.method, path, body };
                log.lock().unwrap().push(seen.clone());
                if seen.path.ends_with("/activate") {
                    return json_answer(200, &sandbox());
                }
                answer(seen).await
            }
        });
        let server = tokio::spawn(async move {
            axum::serve(listener, app).await.unwrap();
        });
        Self { url, seen, server }
    }

    pub(super) fn session(&self) -> Session {
        Session::start(&self.url, tools::ALL)
    }

    /// Requests so far, activations left out.
    pub(super) fn seen(&self) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap().clone();
        seen.into_iter().filter(|seen| !seen.path.ends_with("/activate")).collect()
    }

    pub(super) fn activations(&self) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| seen.path.ends_with("/activate")).count()
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        self.server.abort();
    }
}

pub(super) fn json_answer(status: u16, body: &Value) -> Response<Body> {
    Response::builder()
        .status(StatusCode::from_u16(status).unwrap())
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap()
}

/// The name of a streamed command.
pub(super) const COMMAND: &str = "5f0c2e9b7a1d4c38";

/// The answer to a streamed command: these events, and then, when `open`, silence.
pub(super) fn event_stream(events: &[Value], open: bool) -> Response<Body> {
    let events: Vec<_> =
        events.iter().map(|event| Ok::<_, Infallible>(format!("data: {event}\n\n"))).collect();
    let silence = if open { stream::pending().boxed() } else { stream::empty().boxed() };
    Response::builder()
        .header("content-type", "text/event-stream")
        .header("x-superserve-session-id", COMMAND)
        .body(Body::from_stream(stream::iter(events).chain(silence)))
        .unwrap()
}

/// A sandbox as the platform shows it.
pub(super) fn sandbox() -> Value {
    json!({"id": ID, "name": "a", "status": "active", "vcpu_count": 1, "memory_mib": 512,
        "created_at": "2026-01-02T03:04:05.000006Z", "metadata": {}, "preview_access": "public",
        "access_token": TOKEN, "network": {"allow_out": ["a.example"], "deny_out": ["10.0.0.0/8"]}})
}
