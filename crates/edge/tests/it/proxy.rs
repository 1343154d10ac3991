//! CONNECT reaches the sandbox hosts and nothing else.

use http::Response;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{HOST, World, body, exchange, read_head, request, within};

#[tokio::test]
async fn a_tunnel_leads_to_the_tls_side() {
    let world = World::start().await;
    let sandbox = world.sandbox(|_| async { Response::new(body("in")) });
    for host in
        [HOST.to_owned(), format!("boxd-{}.{HOST}", sandbox.id), "STAGING-sandbox.superserve.ai".to_owned()]
    {
        let mut tunnel = world.tcp().await;
        tunnel
            .write_all(format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let head = read_head(&mut tunnel).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let name = ServerName::try_from(host.to_lowercase()).unwrap();
        let stream = world.connector(&["http/1.1"]).connect(name, tunnel).await.unwrap();
        let answer = exchange(stream, request(&sandbox, "POST", "/exec", "Content-Length: 0\r\n")).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "in"));
    }
}

#[tokio::test]
async fn it_is_never_an_open_proxy() {
    let world = World::start().await;
    let refused = [
        "127.0.0.1:22",
        "127.0.0.1:443",
        "localhost:443",
        "[::1]:443",
        "169.254.169.254:80",
        "169.254.169.254:443",
        "metadata.google.internal:443",
        "sandbox.superserve.ai:22",
        "sandbox.superserve.ai:80",
        "sandbox.superserve.ai.evil.com:443",
        "evilsandbox.superserve.ai:443",
        "superserve.ai:443",
        "api.superserve.ai:443",
        "x@sandbox.superserve.ai:443",
        "sandbox.superserve.ai@evil.com:443",
        "example.com:443",
    ];
    for target in refused {
        let answer = world.raw(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")).await;
        // Some of these are no authority at all for the parser.
        assert!(matches!(answer.status, 403 | 400), "{target}: {answer:?}");
        if answer.status == 403 {
            assert!(answer.body.contains("NO_PROXY"), "{target}: {answer:?}");
        }
    }
    // Neither does the Host header decide, nor is there a second tunnel inside TLS.
    let answer = world.raw(format!("CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n")).await;
    assert_eq!(answer.status, 403);
    let inner = format!("CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n");
    assert_eq!(exchange(world.tls(HOST).await, inner).await.status, 403);
}

#[tokio::test]
async fn inside_a_tunnel_there_is_only_tls() {
    let world = World::start().await;
    let mut tunnel = world.tcp().await;
    tunnel.write_all(format!("CONNECT {HOST}:443 HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    read_head(&mut tunnel).await;
    tunnel.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = within("the end of the tunnel", tunnel.read_to_end(&mut rest)).await;
    assert!(!rest.starts_with(b"HTTP"), "plain HTTP was served inside a tunnel");
}
