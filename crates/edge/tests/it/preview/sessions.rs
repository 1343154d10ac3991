//! WebSockets: let in by any carrier, passed on as they are, as quiet as they like, ended with what let them in.

use std::sync::Arc;
use std::time::Duration;

use domain::PreviewAccess::Private;
use domain::SandboxState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{PORT, request};
use crate::support::{Sandbox, World, read_head, within};

const UPGRADE: &str = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                       Sec-WebSocket-Protocol: vite-hmr, token.x\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\
                       Origin: http://somewhere\r\n";

/// Says hello with the head it saw, then repeats what comes.
fn echo(world: &World) -> Arc<Sandbox> {
    let sandbox = world.raw_sandbox(|mut stream| async move {
        let head = read_head(&mut stream).await;
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: vite-hmr\r\n\
                      Set-Cookie: a=1\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    });
    sandbox.publish(PORT, Some(Private), 1);
    sandbox
}

async fn open(world: &World, sandbox: &Sandbox, target: &str, rest: &str) -> (TcpStream, String) {
    let mut stream = world.tcp().await;
    let message =
        request(sandbox, "GET", target, &format!("{UPGRADE}{rest}")).replace("close", "keep-alive, Upgrade");
    stream.write_all(message.as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await;
    (stream, head)
}

async fn repeats(stream: &mut TcpStream, text: &[u8]) {
    stream.write_all(text).await.unwrap();
    let mut back = vec![0; text.len()];
    within("the echo", stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, text);
}

#[tokio::test]
async fn every_carrier_opens_one_and_the_guest_sees_none() {
    let world = World::start().await;
    let sandbox = echo(&world);
    let token = sandbox.preview_token(PORT, 1, "never");
    for (target, rest) in [
        (format!("/hmr?a=1&superserve_preview_token={token}"), String::new()),
        ("/hmr?a=1".to_owned(), format!("X-Superserve-Preview-Token: {token}\r\n")),
        ("/hmr?a=1".to_owned(), format!("Cookie: b=2; __Host-superserve_preview_token={token}\r\n")),
    ] {
        let (mut stream, head) = open(&world, &sandbox, &target, &rest).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{target} {rest}: {head}");
        let head = head.to_ascii_lowercase();
        for line in [
            "sec-websocket-protocol: vite-hmr",
            "set-cookie: a=1",
            "upgrade: websocket",
            "connection: upgrade",
        ] {
            assert!(head.lines().any(|l| l == line), "{line} in {head}");
        }
        let seen = read_head(&mut stream).await.to_ascii_lowercase();
        assert!(seen.starts_with("get /hmr?a=1 http/1.1\r\n"), "{seen}");
        for line in [
            "sec-websocket-protocol: vite-hmr, token.x",
            "sec-websocket-extensions: permessage-deflate",
            "sec-websocket-key: dghlihnhbxbszsbub25jzq==",
            "origin: http://somewhere",
            "connection: upgrade",
            "upgrade: websocket",
        ] {
            assert!(seen.lines().any(|l| l == line), "{line} in {seen}");
        }
        assert!(!seen.contains(&token) && !seen.contains("preview"), "{seen}");
        repeats(&mut stream, b"\x81\x02hi").await;
    }
    let (_, head) = open(&world, &sandbox, "/hmr", "").await;
    assert!(head.starts_with("HTTP/1.1 401"), "{head}");
}

/// Ten minutes pass in no time: the clock of all timers here, those of the edge included, is moved by hand. The kernel's
/// own keep-alive is not part of it.
#[tokio::test]
async fn a_quiet_one_stays_open() {
    let world = World::start().await;
    let sandbox = echo(&world);
    let token = format!("X-Superserve-Preview-Token: {}\r\n", sandbox.preview_token(PORT, 1, "never"));
    let (mut stream, _) = open(&world, &sandbox, "/", &token).await;
    read_head(&mut stream).await;
    repeats(&mut stream, b"before").await;
    tokio::time::pause();
    for _ in 0..11 {
        tokio::time::advance(Duration::from_secs(60)).await;
        tokio::task::yield_now().await;
    }
    tokio::time::resume();
    repeats(&mut stream, b"after").await;
    let port = domain::PreviewPort::new(PORT.into()).unwrap();
    assert_eq!(world.traffic.of(sandbox.id, port).open, 1, "it counts while it is open");
}

#[tokio::test]
async fn one_ends_with_what_let_it_in() {
    for end in ["rotated", "unpublished", "paused"] {
        let world = World::start().await;
        let sandbox = echo(&world);
        let token = format!("X-Superserve-Preview-Token: {}\r\n", sandbox.preview_token(PORT, 1, "never"));
        let (mut stream, _) = open(&world, &sandbox, "/", &token).await;
        read_head(&mut stream).await;
        repeats(&mut stream, b"before").await;
        match end {
            "rotated" => sandbox.publish(PORT, Some(Private), 2),
            "unpublished" => sandbox.publish(PORT, None, 1),
            _ => drop(sandbox.state.send_replace(SandboxState::Pausing)),
        }
        let read = within("the end", stream.read(&mut [0; 16])).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{end}: {read:?}");
        let (_, head) = open(&world, &sandbox, "/", &token).await;
        assert!(!head.starts_with("HTTP/1.1 101"), "{end}: {head}");
    }
}
