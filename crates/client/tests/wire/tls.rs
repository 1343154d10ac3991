//! `https` with a certificate authority of the platform's own.

use std::convert::Infallible;
use std::sync::Arc;

use client::{Client, ClientConfig, ClientError, ListFilter};
use domain::Secret;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// Serves `[]` over TLS and returns its port and its authority's certificate.
async fn serve() -> (u16, String) {
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
    let acceptor = TlsAcceptor::from(Arc::new(config));
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
async fn an_unreadable_authority_is_named() {
    let config = ClientConfig {
        ca_file: Some("/nonexistent/ca.pem".into()),
        ..ClientConfig::new("https://localhost:1", Secret::new("k"))
    };
    let refused = Client::new(config).unwrap().list_sandboxes(&ListFilter::default()).await.unwrap_err();
    assert!(matches!(refused, ClientError::Local(_)), "{refused:?}");
    assert!(refused.to_string().contains("/nonexistent/ca.pem"), "{refused}");
}
