//! Certificates: the authority and what it may sign, the operator's own, and HTTP/2.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use edge::{Ca, Hosts};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;

use crate::support::{HOST, World, body, connector, within};

#[test]
fn the_authority_is_kept_until_it_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let hosts = Hosts::default();
    let first = Ca::open(dir.path(), &hosts).unwrap().pem().to_owned();
    let mode = std::fs::metadata(dir.path().join("ca-key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(Ca::open(dir.path(), &hosts).unwrap().pem(), first);
    let fewer = Hosts::new([HOST]).unwrap();
    assert_eq!(Ca::open(dir.path(), &fewer).unwrap().pem(), first, "fewer hosts are no reason");
    let more = Hosts::new([HOST, "box.example.com"]).unwrap();
    let second = Ca::open(dir.path(), &more).unwrap().pem().to_owned();
    assert_ne!(second, first, "it may not sign for the new host");
    // Interrupted between the files: the key is kept.
    std::fs::remove_file(dir.path().join("ca.pem")).unwrap();
    assert_ne!(Ca::open(dir.path(), &more).unwrap().pem(), second);
    std::fs::write(dir.path().join("ca.pem"), "rubbish").unwrap();
    let error = Ca::open(dir.path(), &more).unwrap_err().to_string();
    assert!(error.contains("ca.pem is damaged"), "{error}");
    std::fs::write(dir.path().join("ca-key.pem"), "rubbish").unwrap();
    assert!(Ca::open(dir.path(), &more).unwrap_err().to_string().contains("ca-key.pem is damaged"));
}

#[tokio::test]
async fn certificates_cover_every_form_of_a_host() {
    let world = World::start().await;
    for name in [
        HOST,
        "usw-sandbox.superserve.ai",
        "boxd-x.sandbox.superserve.ai",
        "3000-x.sandbox.localhost",
        "localhost",
        "127.0.0.1",
    ] {
        world.tls(name).await;
    }
    for other in
        ["superserve.ai", "api.superserve.ai", "a.b.sandbox.superserve.ai", "example.com", "10.0.0.1"]
    {
        let name = ServerName::try_from(other).unwrap();
        assert!(world.connector(&[]).connect(name, world.tcp().await).await.is_err(), "{other}");
    }
}

#[tokio::test]
async fn http2_is_spoken() {
    let world = World::start().await;
    let sandbox = world.sandbox(|request| async move {
        let size = request.into_body().collect().await.unwrap().to_bytes().len();
        Response::new(body(size.to_string()))
    });
    let name = ServerName::try_from(HOST).unwrap();
    let stream = world.connector(&["h2", "http/1.1"]).connect(name, world.tcp().await).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let driver = tokio::spawn(connection);
    for (token, status) in [(sandbox.token.as_str(), 200), ("wrong", 401)] {
        let request = Request::post(format!("https://boxd-{}.{HOST}/exec", sandbox.id))
            .header("x-access-token", token)
            .body(Empty::<bytes::Bytes>::new())
            .unwrap();
        let response = within("an answer", sender.send_request(request)).await.unwrap();
        assert_eq!(response.status(), status);
    }
    driver.abort();
}

#[tokio::test]
async fn an_operator_brings_files_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let cert =
        rcgen::CertificateParams::new(vec!["box.example.com".to_owned(), "*.box.example.com".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
    let (cert_path, key_path) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert_path, cert.pem()).unwrap();
    let hosts = Hosts::new(["sandbox.localhost", "box.example.com"]).unwrap();
    let ca = Arc::new(Ca::open(dir.path(), &hosts).unwrap());
    let config =
        || edge::server_config_with_own(ca.clone(), &hosts, "Box.example.com", &cert_path, &key_path);
    assert!(config().is_err(), "there is no key");
    std::fs::write(&key_path, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(config().is_err(), "the key is another one");
    std::fs::write(&key_path, key.serialize_pem()).unwrap();
    let config = config().unwrap();
    // The operator's names get the operator's certificate, all others the platform's.
    for (name, issuer) in [
        ("box.example.com", cert.pem()),
        ("3000-x.BOX.example.com", cert.pem()),
        ("3000-x.sandbox.localhost", ca.pem().to_owned()),
    ] {
        let (client, server) = tokio::io::duplex(16 * 1024);
        let accept = tokio_rustls::TlsAcceptor::from(Arc::clone(&config)).accept(server);
        let name = ServerName::try_from(name).unwrap();
        let connector = connector(&issuer, &["http/1.1"]);
        let (accepted, connected) = tokio::join!(accept, connector.connect(name, client));
        accepted.unwrap();
        connected.unwrap();
    }
}
