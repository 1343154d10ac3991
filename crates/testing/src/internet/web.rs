//! The test internet's web: HTTP on port 80 and HTTPS on port 443 of every address.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::Arrivals;

/// What is special about some hosts.
pub(super) type Files = Arc<Mutex<HashMap<String, Site>>>;

/// One host.
#[derive(Debug, Default)]
pub(super) struct Site {
    /// By path; a host that has any has nothing else.
    pub(super) files: HashMap<String, Bytes>,
    /// A header that all requests must have, with this value. Such a host says nothing of what it was sent.
    pub(super) lock: Option<(String, String)>,
}

type Body = BoxBody<Bytes, Infallible>;

/// Serves one port, with TLS if there is something to do it with.
pub(super) async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, files: Files, arrivals: Arrivals) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let Ok(to) = stream.local_addr() else { continue };
        arrivals.add(to);
        let (tls, files) = (tls.clone(), Arc::clone(&files));
        connections.spawn(async move {
            match tls {
                None => talk(stream, to, &files, None).await,
                Some(tls) => {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let sni = stream.get_ref().1.server_name().map(str::to_owned);
                    talk(stream, to, &files, sni).await;
                }
            }
        });
    }
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    to: SocketAddr,
    files: &Files,
    sni: Option<String>,
) {
    let service = service_fn(|request| {
        let (files, sni) = (Arc::clone(files), sni.clone());
        async move { Ok::<_, Infallible>(answer(request, to, files, sni).await) }
    });
    let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    builder.http1().half_close(true);
    let _whatever_ended_it = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    to: SocketAddr,
    files: Files,
    sni: Option<String>,
) -> Response<Body> {
    let authority = request.uri().authority().map(ToString::to_string);
    let header = |name: &str| request.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let host = header("host").or(authority).unwrap_or_default();
    let path = request.uri().path().to_owned();
    let mut locked = false;
    {
        let sites = files.lock().expect("nobody panics while holding it");
        let site = sites.get(host.split(':').next().unwrap_or_default());
        if let Some((name, value)) = site.and_then(|site| site.lock.as_ref()) {
            locked = true;
            if header(name).as_ref() != Some(value) {
                let mut refused = status(StatusCode::UNAUTHORIZED);
                let challenge = hyper::header::HeaderValue::from_static("Basic realm=\"test\"");
                refused.headers_mut().insert("www-authenticate", challenge);
                return refused;
            }
        }
        if let Some(files) = site.map(|site| &site.files).filter(|files| !files.is_empty()) {
            let found =
                files.get(&path).map_or_else(|| status(StatusCode::NOT_FOUND), |file| whole(file.clone()));
            return if path.ends_with('/') { with_type(found, "text/html") } else { found };
        }
    }
    if let Some(count) = path.strip_prefix("/bytes/").and_then(|count| count.parse().ok()) {
        return many(count);
    }
    if path == "/hash" {
        let Ok(body) = request.into_body().collect().await else { return status(StatusCode::BAD_REQUEST) };
        let body = body.to_bytes();
        let hash: String = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
        return whole(serde_json::json!({"bytes": body.len(), "sha256": hash}).to_string().into());
    }
    if path == "/events" {
        return events();
    }
    if let Some(key) = request.headers().get(SEC_WEBSOCKET_KEY) {
        let accept = derive_accept_key(key.as_bytes());
        tokio::spawn(echo(request));
        return Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_ACCEPT, accept)
            .body(Full::new(Bytes::new()).boxed())
            .expect("a response");
    }
    if locked {
        return whole(format!("welcome {:?}", request.version()).into());
    }
    let headers: HashMap<String, String> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let about = serde_json::json!({
        "host": host, "to": to.to_string(), "path": path, "method": request.method().as_str(), "sni": sni,
        "version": format!("{:?}", request.version()), "headers": headers,
    });
    whole(about.to_string().into())
}

fn status(status: StatusCode) -> Response<Body> {
    Response::builder().status(status).body(Full::new(Bytes::new()).boxed()).expect("a response")
}

fn whole(body: Bytes) -> Response<Body> {
    Response::new(Full::new(body).boxed())
}

/// As many bytes as wanted, made while they are sent.
fn many(mut left: usize) -> Response<Body> {
    static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
    let frames = std::iter::from_fn(move || {
        let part = left.min(ZEROS.len());
        left -= part;
        (part > 0).then(|| Ok(Frame::data(Bytes::from_static(&ZEROS[..part]))))
    });
    Response::new(BodyExt::boxed(StreamBody::new(stream::iter(frames))))
}

/// Three events, half a second apart.
fn events() -> Response<Body> {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        for number in 0..3 {
            let event = Bytes::from(format!("data: {number}\n\n"));
            if sender.send(Ok(Frame::data(event))).await.is_err() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
    });
    let events = stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
    let response = Response::new(BodyExt::boxed(StreamBody::new(events)));
    with_type(response, "text/event-stream")
}

fn with_type(mut response: Response<Body>, kind: &'static str) -> Response<Body> {
    response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static(kind));
    response
}

/// A WebSocket that says everything again.
async fn echo(request: Request<Incoming>) {
    let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
    let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    while let Some(Ok(message)) = socket.next().await {
        if message.is_close() || socket.send(message).await.is_err() {
            break;
        }
    }
}
