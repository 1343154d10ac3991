//! What only a connection shows: answers before the body, bodies that stall, peers that leave.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::streams::TOOLS;
use super::*;

/// Longest wait for an answer that must come at once.
const SOON: Duration = Duration::from_secs(5);

async fn listen(server: HttpServer) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, server.router()).await });
    address
}

fn head(more: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{more}\r\n"
    )
}

/// Sends a head and takes the status line of the answer.
async fn status(address: std::net::SocketAddr, head: &str) -> (u16, TcpStream) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut line = [0; 12];
    tokio::time::timeout(SOON, stream.read_exact(&mut line)).await.expect("an answer in time").unwrap();
    (std::str::from_utf8(&line[9..]).unwrap().parse().unwrap(), stream)
}

#[tokio::test]
async fn refusals_do_not_wait_for_the_body() {
    let address = listen(server()).await;
    for (more, expected) in [
        ("Host: evil.example\r\nContent-Length: 1000\r\n", 403),
        ("Host: localhost\r\nOrigin: http://evil.example\r\nContent-Length: 1000\r\n", 403),
        ("Host: localhost\r\nContent-Length: 16777217\r\n", 413),
        ("Host: localhost\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n", 413),
        ("Host: localhost\r\nAuthorization: Bearer 2\r\nContent-Length: 1000\r\n", 401),
    ] {
        assert_eq!(status(address, &head(more)).await.0, expected, "{more}");
    }
}

#[tokio::test]
async fn a_client_that_sends_everything_first_still_gets_its_413() {
    let address = listen(server()).await;
    for more in [
        "Host: localhost\r\nContent-Length: 17825792\r\n",
        "Host: localhost\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let chunked = more.contains("chunked");
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(head(more).as_bytes()).await.unwrap();
        let piece = vec![b'['; 1 << 20];
        for _ in 0..17 {
            if chunked {
                stream.write_all(b"100000\r\n").await.unwrap();
            }
            stream.write_all(&piece).await.unwrap();
            if chunked {
                stream.write_all(b"\r\n").await.unwrap();
            }
        }
        if chunked {
            stream.write_all(b"0\r\n\r\n").await.unwrap();
        }
        let mut answer = [0; 12];
        tokio::time::timeout(SOON, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 413");
    }
}

#[tokio::test]
async fn a_body_that_stalls_is_given_up() {
    let limits = Limits { body_idle: Duration::from_millis(200), ..Limits::default() };
    let address = listen(server_with(limits, tools::ALL)).await;
    let begun = Instant::now();
    let (status, _stream) = status(address, &head("Host: localhost\r\nContent-Length: 9\r\n")).await;
    assert_eq!(status, 408);
    assert!(begun.elapsed() >= limits.body_idle);
}

#[tokio::test]
async fn a_peer_that_leaves_gives_its_place_back() {
    let server = server_with(Limits { hold_back: Duration::from_millis(100), ..Limits::default() }, TOOLS);
    let address = listen(server.clone()).await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sandbox_exec","arguments":{"timeout_ms":90000}}}"#;
    let request =
        format!("{}{body}", head(&format!("Host: localhost\r\nContent-Length: {}\r\n", body.len())));
    let (status, stream) = status(address, &request).await;
    assert_eq!(status, 200);
    let busy = || !server.inner.admission.is_idle();
    assert!(busy());
    drop(stream);
    for _ in 0..200 {
        if !busy() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the call goes on without its client");
}
