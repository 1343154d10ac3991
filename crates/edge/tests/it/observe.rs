//! What is told about a request once it is over.

use domain::SandboxState;
use edge::{Event, Kind, Outcome};
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{HOST, World, body, read_head, request, within};

/// Kind, whether it was admitted, outcome, status.
fn ending(event: &Event) -> (Kind, bool, Outcome, u16) {
    (event.kind, event.admitted, event.outcome, event.status)
}

#[tokio::test]
async fn what_it_was_and_how_much() {
    let world = World::start().await;
    let sandbox = world.sandbox(|request| async move {
        let read = request.into_body().collect().await.unwrap().to_bytes();
        let mut answer = Response::new(body(vec![b'x'; read.len() + 100]));
        if read.is_empty() {
            *answer.status_mut() = StatusCode::NOT_FOUND;
        }
        answer
    });
    for (method, target, kind) in [
        ("POST", "/exec", Kind::Exec),
        ("POST", "/exec/stream", Kind::ExecStream),
        ("POST", "/files?path=/secret", Kind::FileWrite),
    ] {
        let answer = world.send(&sandbox, method, target, "Content-Length: 5\r\n\r\nhello").await;
        assert_eq!(answer.status, 200);
        let event = world.ended().await;
        assert_eq!(ending(&event), (kind, true, Outcome::Answered, 200), "{target}");
        assert_eq!((event.bytes_in, event.bytes_out, event.sandbox), (5, 105, Some(sandbox.id)));
        assert!(answer.has(&format!("x-request-id: {}", event.request)), "{}", answer.head);
    }
    assert_eq!(world.send(&sandbox, "GET", "/files?path=/nope", "").await.status, 404);
    let event = world.ended().await;
    assert_eq!(ending(&event), (Kind::FileRead, true, Outcome::Answered, 404), "the guest's own answer");
    assert_eq!((event.bytes_in, event.bytes_out), (0, 100));

    // What the edge answers by itself.
    assert_eq!(world.send(&sandbox, "POST", "/nothing", "").await.status, 404);
    assert_eq!(ending(&world.ended().await), (Kind::Other, false, Outcome::Refused, 404));
    let stranger = request(&sandbox, "POST", "/exec", "").replace(&sandbox.token, "wrong");
    assert_eq!(world.raw(stranger).await.status, 401);
    let event = world.ended().await;
    assert_eq!(ending(&event), (Kind::Exec, false, Outcome::Refused, 401));
    assert_eq!(event.sandbox, Some(sandbox.id));
    sandbox.state.send_replace(SandboxState::Paused);
    assert_eq!(world.send(&sandbox, "POST", "/exec", "").await.status, 503);
    assert_eq!(ending(&world.ended().await), (Kind::Exec, true, Outcome::Refused, 503));
}

#[tokio::test]
async fn what_went_wrong() {
    let world = World::start().await;
    let dead = world.sandbox_at(None);
    assert_eq!(world.send(&dead, "POST", "/exec", "").await.status, 502);
    assert_eq!(ending(&world.ended().await), (Kind::Exec, true, Outcome::AgentFailed, 502));

    // The client leaves before the head, then in the middle of the body.
    let sandbox = world.raw_sandbox(|mut stream| async move {
        let head = read_head(&mut stream).await;
        if head.starts_with("POST /exec/stream") {
            let begun = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nten bytes!";
            stream.write_all(begun.as_bytes()).await.unwrap();
        }
        let _until_the_edge_lets_go = stream.read_to_end(&mut Vec::new()).await;
    });
    let mut client = world.tcp().await;
    client.write_all(request(&sandbox, "POST", "/exec", "Content-Length: 0\r\n").as_bytes()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    drop(client);
    assert_eq!(ending(&world.ended().await), (Kind::Exec, true, Outcome::Cut, 0));
    let mut client = world.tcp().await;
    let streamed = request(&sandbox, "POST", "/exec/stream", "Content-Length: 0\r\n");
    client.write_all(streamed.as_bytes()).await.unwrap();
    read_head(&mut client).await;
    drop(client);
    let event = world.ended().await;
    assert_eq!(ending(&event), (Kind::ExecStream, true, Outcome::Cut, 200));
    assert_eq!(event.bytes_out, 10);
}

#[tokio::test]
async fn a_session_ends_when_it_ends() {
    let world = World::start().await;
    let sandbox = world.raw_sandbox(|mut stream| async move {
        read_head(&mut stream).await;
        let accepted = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Accept: abc\r\n\r\n";
        stream.write_all(accepted.as_bytes()).await.unwrap();
        let mut piece = [0; 4];
        while stream.read_exact(&mut piece).await.is_ok() {
            stream.write_all(b"an answer").await.unwrap();
        }
    });
    let open = async || {
        let mut stream = world.tcp().await;
        let offer = format!(
            "GET /terminal HTTP/1.1\r\nHost: boxd-{}.{HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: a2V5\r\nX-Access-Token: {}\r\n\r\n",
            sandbox.id, sandbox.token
        );
        stream.write_all(offer.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 101") && head.contains("x-request-id: "), "{head}");
        stream.write_all(b"ping").await.unwrap();
        within("an answer", stream.read_exact(&mut [0; 9])).await.unwrap();
        stream
    };
    drop(open().await);
    let event = world.ended().await;
    assert_eq!(ending(&event), (Kind::Session, true, Outcome::Answered, 101));
    assert_eq!((event.bytes_in, event.bytes_out), (4, 9));
    let _held = open().await;
    sandbox.state.send_replace(SandboxState::Pausing);
    assert_eq!(ending(&world.ended().await), (Kind::Session, true, Outcome::Cut, 101));
}
