//! One sandbox with files in memory.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io::Write;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post};
use client::{Client, ClientConfig, ExecRequest};
use domain::Secret;
use serde_json::json;

pub(crate) const ID: &str = "0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b";

#[derive(Default)]
struct Kept {
    files: BTreeMap<String, Bytes>,
    deleted: bool,
    /// Answers of the desktop still to come; the last one is repeated.
    pictures: Vec<(u16, String)>,
}

type Shared = Arc<Mutex<Kept>>;

/// Stops when dropped.
pub(crate) struct Platform {
    url: String,
    kept: Shared,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Platform {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Platform {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let kept = Shared::default();
        let app = Router::new()
            .route(&format!("/sandboxes/{ID}/activate"), post(activate))
            .route(&format!("/sandboxes/{ID}"), delete(remove))
            .route("/exec/stream", post(exec))
            .route("/files", get(read).post(write))
            .route("/superserve.boxd.v1.DesktopService/Screenshot", post(picture))
            .fallback(any(|| async { refused(404, "not_found") }))
            .with_state(Arc::clone(&kept));
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, kept, server }
    }

    pub(crate) fn client(&self) -> Client {
        let config = ClientConfig {
            data_plane: Some(self.url.clone()),
            ..ClientConfig::new(&self.url, Secret::new("k"))
        };
        Client::new(config).unwrap()
    }

    pub(crate) fn file(&self, path: &str) -> Vec<u8> {
        self.kept.lock().unwrap().files[path].to_vec()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.kept.lock().unwrap().files.keys().cloned().collect()
    }

    /// What the desktop answers, one after the other.
    pub(crate) fn shows(&self, pictures: Vec<(u16, serde_json::Value)>) {
        let mut pictures: Vec<_> =
            pictures.into_iter().map(|(status, body)| (status, body.to_string())).collect();
        pictures.reverse();
        self.kept.lock().unwrap().pictures = pictures;
    }

    pub(crate) fn deleted(&self) -> bool {
        self.kept.lock().unwrap().deleted
    }
}

fn refused(status: u16, code: &str) -> Response {
    let body = json!({ "error": { "code": code, "message": code } }).to_string();
    (StatusCode::from_u16(status).unwrap(), body).into_response()
}

async fn activate() -> String {
    json!({
        "id": ID, "name": "box", "status": "active", "vcpu_count": 1, "memory_mib": 1024,
        "created_at": "2026-01-02T03:04:05.000006Z", "access_token": "t",
    })
    .to_string()
}

async fn remove(State(kept): State<Shared>) -> Response {
    if std::mem::replace(&mut kept.lock().unwrap().deleted, true) {
        return refused(404, "not_found");
    }
    StatusCode::NO_CONTENT.into_response()
}

async fn picture(State(kept): State<Shared>) -> Response {
    let mut kept = kept.lock().unwrap();
    let last = kept.pictures.last().cloned();
    if kept.pictures.len() > 1 {
        kept.pictures.pop();
    }
    match last {
        Some((status, body)) => (StatusCode::from_u16(status).unwrap(), body).into_response(),
        None => refused(404, ""),
    }
}

/// Knows `exit N` only.
async fn exec(body: Bytes) -> String {
    let request: ExecRequest = serde_json::from_slice(&body).unwrap();
    let code: i32 = request.command.strip_prefix("exit ").unwrap().parse().unwrap();
    format!("data: {}\n\n", json!({ "exit_code": code, "finished": true }))
}

async fn write(
    State(kept): State<Shared>,
    Query(query): Query<HashMap<String, String>>,
    body: Bytes,
) -> String {
    let size = body.len();
    kept.lock().unwrap().files.insert(query["path"].clone(), body);
    json!({ "path": query["path"], "size": size }).to_string()
}

async fn read(State(kept): State<Shared>, Query(query): Query<HashMap<String, String>>) -> Response {
    let path = &query["path"];
    if path == "/breaks" {
        let pieces = [Ok::<_, String>(Bytes::from("half")), Err("broken".to_owned())];
        return Response::new(Body::from_stream(futures_util::stream::iter(pieces)));
    }
    let kept = kept.lock().unwrap();
    if let Some(file) = kept.files.get(path) {
        return file.clone().into_response();
    }
    let prefix = format!("{path}/");
    let below: Vec<_> = kept.files.iter().filter(|(name, _)| name.starts_with(&prefix)).collect();
    if below.is_empty() {
        return refused(404, "not_found");
    }
    if !query.contains_key("format") {
        return refused(400, "bad_request");
    }
    let base = path.rsplit('/').next().unwrap();
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, content) in below {
        let options = zip::write::SimpleFileOptions::default();
        zip.start_file(format!("{base}/{}", &name[prefix.len()..]), options).unwrap();
        zip.write_all(content).unwrap();
    }
    let body = Bytes::from(zip.finish().unwrap().into_inner());
    let pieces = futures_util::stream::iter([Ok::<_, Infallible>(body)]);
    ([("content-type", "application/zip")], Body::from_stream(pieces)).into_response()
}
