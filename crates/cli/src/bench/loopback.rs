//! The yardstick for files: a plain HTTP server in this process that sends and swallows bytes, and speaks just enough
//! of the platform for the same client to use it.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// The sandbox it pretends to have.
pub(crate) const ID: &str = "00000000-0000-4000-8000-000000000000";
const CHUNK: usize = 64 * 1024;

/// Stops when dropped.
pub(crate) struct Loopback {
    pub(crate) address: SocketAddr,
    _server: JoinSet<()>,
}

impl Loopback {
    /// Serves files of `bytes` bytes.
    pub(crate) async fn start(bytes: usize) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                // The client's side reports what goes wrong with a connection.
                let service = service_fn(move |request| answer(request, bytes));
                connections.spawn(async move {
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self { address, _server: server })
    }
}

type Body = BoxBody<Bytes, Infallible>;

async fn answer(request: Request<Incoming>, bytes: usize) -> Result<Response<Body>, hyper::Error> {
    if request.method() == Method::GET {
        let chunk = Bytes::from(vec![0x5a; CHUNK]);
        let chunks = (0..bytes / CHUNK).map(move |_| Ok(Frame::data(chunk.clone())));
        let body = StreamBody::new(futures_util::stream::iter(chunks));
        return Ok(Response::new(BodyExt::boxed(body)));
    }
    let is_upload = request.uri().path() == "/files";
    let mut body = request.into_body();
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        size += frame?.data_ref().map_or(0, Bytes::len);
    }
    let text = if is_upload {
        serde_json::json!({ "path": "/", "size": size })
    } else {
        serde_json::json!({
            "id": ID, "name": "loopback", "status": "active", "vcpu_count": 1, "memory_mib": 1,
            "created_at": "2026-01-01T00:00:00.000000Z", "access_token": "none",
        })
    };
    Ok(Response::new(Full::new(Bytes::from(text.to_string())).boxed()))
}
