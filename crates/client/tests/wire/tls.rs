//! `https` with a certificate authority of the platform's own.

use std::convert::Infallible;
use std::sync::Arc;

use client::{Client, ClientConfig, ClientError, ExecRequest, ListFilter, SessionEvent};
use domain::Secret;
use futures_util::{SinkExt, StreamExt};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{
    ErrorResponse, Request as ServerRequest, Response as ServerResponse,
};

use crate::platform::{ID, Platform};

/// A server's side of TLS for `localhost`, and its authority's certificate.
fn acceptor() -> (TlsAcceptor, String) {
    let mut ca = rcgen::CertificateParams::default();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(vec!["localhost".to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let provider = tokio_rustls::rustls::crypto::ring::default_provider();
    let config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), ca_pem)
}

/// Serves `[]` over TLS and returns its port and its authority's certificate.
async fn serve() -> (u16, String) {
    let (acceptor, ca_pem) = acceptor();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let answer = service_fn(|_| async {
                    Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from("[]"))))
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), answer)
                    .await;
            });
        }
    });
    (port, ca_pem)
}

#[tokio::test]
async fn only_trusted_authorities_are_talked_to() {
    let (port, ca) = serve().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), ca).unwrap();
    let config = |ca_file| ClientConfig {
        ca_file,
        ..ClientConfig::new(format!("https://localhost:{port}"), Secret::new("k"))
    };

    let trusting = Client::new(config(Some(file.path().to_owned()))).unwrap();
    assert!(trusting.list_sandboxes(&ListFilter::default()).await.unwrap().items.is_empty());

    // Some other authority, as this machine may have none of its own.
    let other = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(other.path(), serve().await.1).unwrap();
    let stranger = Client::new(config(Some(other.path().to_owned()))).unwrap();
    let refused = stranger.list_sandboxes(&ListFilter::default()).await.unwrap_err();
    let ClientError::Connect { host, reason } = &refused else { panic!("{refused:?}") };
    assert_eq!(*host, format!("localhost:{port}"));
    assert!(reason.contains("certificate"), "{reason}");
}

#[tokio::test]
async fn sessions_go_over_tls_as_well() {
    let (acceptor, ca) = acceptor();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), ca).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let control = Platform::start().await;
    control.activates();
    let config = ClientConfig {
        data_plane: Some(format!("https://localhost:{}", listener.local_addr().unwrap().port())),
        ca_file: Some(file.path().to_owned()),
        ..ClientConfig::new(&control.url, Secret::new("k"))
    };
    let guest = async {
        let stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
        let mut socket = tokio_tungstenite::accept_hdr_async(stream, choose).await.unwrap();
        let start = socket.next().await.unwrap().unwrap();
        assert_eq!(start.to_text().unwrap(), r#"{"command":"run"}"#);
        socket.send(Message::text(r#"{"exit_code":5,"finished":true}"#)).await.unwrap();
    };
    let client = Client::new(config).unwrap();
    let command = ExecRequest { command: "run".to_owned(), ..ExecRequest::default() };
    let (session, ()) = tokio::join!(client.start_session(ID, command, None), guest);
    let (_input, mut events) = session.unwrap().split();
    assert_eq!(events.next().await.unwrap().unwrap(), SessionEvent::Exit(5));
}

#[expect(clippy::result_large_err, clippy::unnecessary_wraps, reason = "the signature is the library's")]
fn choose(_: &ServerRequest, mut response: ServerResponse) -> Result<ServerResponse, ErrorResponse> {
    let protocol = http::HeaderValue::from_static("superserve.exec.v1");
    response.headers_mut().insert("sec-websocket-protocol", protocol);
    Ok(response)
}

#[tokio::test]
async fn an_unreadable_authority_is_named() {
    let config = ClientConfig {
        ca_file: Some("/nonexistent/ca.pem".into()),
        ..ClientConfig::new("https://localhost:1", Secret::new("k"))
    };
    let refused = Client::new(config).unwrap().list_sandboxes(&ListFilter::default()).await.unwrap_err();
    assert!(matches!(refused, ClientError::Local(_)), "{refused:?}");
    assert!(refused.to_string().contains("/nonexistent/ca.pem"), "{refused}");
}
