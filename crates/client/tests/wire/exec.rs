//! Commands: the stream's grammar, broken streams, and that nobody's command outlives the caller.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use client::{ClientError, ExecEvent, ExecRequest};
use futures_util::{StreamExt, stream};

use crate::platform::{ID, Platform, wait_for};

fn command() -> ExecRequest {
    ExecRequest { command: "x".into(), ..ExecRequest::default() }
}

/// Runs a stream that arrives in these pieces.
async fn events(pieces: &[&str]) -> Vec<Result<ExecEvent, ClientError>> {
    let platform = Platform::start().await;
    platform.activates();
    let pieces: Vec<Bytes> = pieces.iter().map(|piece| Bytes::from(piece.to_string())).collect();
    platform.handle("POST /exec/stream", move |_| {
        let pieces = stream::iter(pieces.clone()).map(Ok::<_, Infallible>);
        async move { Response::new(Body::from_stream(pieces)) }
    });
    platform.client().exec_stream(ID, &command()).await.unwrap().collect().await
}

#[tokio::test]
async fn events_are_read_however_they_are_cut() {
    let text = ": keepalive\n\ndata: {\"timestamp\":\"t\",\"stdout\":\"a\\nä\"}\n\nevent: x\r\ndata:{\"stderr\":\"b\"}\r\n\r\n\
                data: [DONE]\n\ndata: {\"exit_code\":7,\"finished\":true}\n\n";
    let expected =
        [ExecEvent::Stdout("a\nä".into()), ExecEvent::Stderr("b".into()), ExecEvent::Exit(7)].map(Some);
    let split = text.find('ä').unwrap() - 3;
    let whole: Vec<_> = events(&[text]).await.into_iter().map(Result::ok).collect();
    assert_eq!(whole, expected);
    let cut: Vec<_> =
        events(&[&text[..3], &text[3..split], &text[split..]]).await.into_iter().map(Result::ok).collect();
    assert_eq!(cut, expected);
}

#[tokio::test]
async fn a_missing_exit_code_is_zero_and_a_missing_end_is_an_error() {
    let events_ok = events(&["data: {\"finished\":true}\n\n"]).await;
    assert_eq!(*events_ok[0].as_ref().unwrap(), ExecEvent::Exit(0));

    let cut = events(&["data: {\"stdout\":\"a\"}\n\n"]).await;
    assert_eq!(cut.len(), 2);
    assert!(matches!(cut[1], Err(ClientError::Interrupted { may_have_taken_effect: true, .. })), "{cut:?}");
}

#[tokio::test]
async fn a_command_that_could_not_run_is_a_refusal() {
    let event = "data: {\"error\":\"no such directory\",\"code\":\"bad_request\",\"finished\":true}\n\n";
    let mut events = events(&[event]).await;
    let refused = events.pop().unwrap().unwrap_err();
    assert!(events.is_empty());
    assert_eq!((refused.status(), refused.to_string().as_str()), (Some(400), "no such directory"));
    assert!(!refused.may_have_taken_effect());
}

#[tokio::test]
async fn endless_lines_and_nonsense_are_refused() {
    let long = "x".repeat(600 * 1024);
    let endless = events(&["data: ", &long, &long]).await;
    assert!(matches!(endless[..], [Err(ClientError::Protocol { .. })]), "{:?}", endless.len());
    let nonsense = events(&["data: {\"stdout\":5}\n\n"]).await;
    assert!(matches!(nonsense[..], [Err(ClientError::Protocol { .. })]), "{nonsense:?}");
}

/// Sets the flag when the server drops what it was doing for the request.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn dropping_a_command_closes_its_connection() {
    let platform = Platform::start().await;
    platform.activates();
    let (running, gone) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let flags = (Arc::clone(&running), Arc::clone(&gone));
    platform.handle("POST /exec", move |_| {
        let guard = OnDrop(Arc::clone(&flags.1));
        flags.0.store(true, Ordering::SeqCst);
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    });
    let client = platform.client();
    let call = tokio::spawn(async move { client.exec(ID, &command()).await });
    wait_for("the command's start", || running.load(Ordering::SeqCst)).await;
    assert!(!gone.load(Ordering::SeqCst));
    call.abort();
    wait_for("the end of the connection", || gone.load(Ordering::SeqCst)).await;
}

#[tokio::test]
async fn dropping_a_stream_closes_its_connection() {
    let platform = Platform::start().await;
    platform.activates();
    let gone = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&gone);
    platform.handle("POST /exec/stream", move |_| {
        let guard = OnDrop(Arc::clone(&flag));
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from("data: {\"stdout\":\"a\"}\n\n"))]);
        let rest = stream::pending().map(move |event| {
            let _held = &guard;
            event
        });
        async move { Response::new(Body::from_stream(first.chain(rest))) }
    });
    let mut output = platform.client().exec_stream(ID, &command()).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), ExecEvent::Stdout("a".into()));
    assert!(!gone.load(Ordering::SeqCst));
    drop(output);
    wait_for("the end of the connection", || gone.load(Ordering::SeqCst)).await;
}

#[tokio::test]
async fn silence_has_an_end() {
    let platform = Platform::start().await;
    platform.activates();
    platform.handle("POST /exec", |_| std::future::pending());
    let client = platform.client();
    client.activate_sandbox(ID).await.unwrap();
    client.descriptor().await.unwrap();
    let call =
        tokio::spawn(async move { client.exec(ID, &ExecRequest { timeout_s: Some(1), ..command() }).await });
    let timed_out = tokio::time::timeout(Duration::from_secs(10), call).await.unwrap().unwrap().unwrap_err();
    assert_eq!(timed_out.to_string(), "the command timed out after 6 s");
    assert!(timed_out.may_have_taken_effect());
}
