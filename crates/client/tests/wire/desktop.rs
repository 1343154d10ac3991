//! The desktop: what is sent, that input is sent once, and how large answers may be.

use client::{
    Action, ClientError, FrameFormat, KeyEvent, PointerAction, PointerButton, PointerEvent, ResizeRequest,
    ScrollEvent, StepRequest,
};

use crate::platform::{ID, Platform, error, sandbox};

const SERVICE: &str = "POST /superserve.boxd.v1.DesktopService/";

fn click() -> PointerEvent {
    PointerEvent { x: 5, y: 0, button: PointerButton::Right, action: Some(PointerAction::Click) }
}

#[tokio::test]
async fn every_call_has_its_path_and_body() {
    let platform = Platform::start().await;
    platform.activates();
    let picture = r#"{"image":"AAAA","width":1280,"height":800,"format":"FRAME_FORMAT_JPEG"}"#;
    platform.on(&format!("{SERVICE}Screenshot"), 200, picture);
    platform.on(&format!("{SERVICE}SendActions"), 200, r#"{"executed":1}"#);
    platform.on(
        &format!("{SERVICE}Step"),
        200,
        &format!(r#"{{"executed":1,"changed":true,"screenshot":{picture},"new":1}}"#),
    );
    for method in ["SendPointer", "SendKey", "Scroll", "Resize"] {
        platform.on(&format!("{SERVICE}{method}"), 200, "{}");
    }
    let client = platform.client();
    let last = || String::from_utf8(platform.seen().pop().unwrap().body.to_vec()).unwrap();

    let shot = client.screenshot(ID, FrameFormat::Png, usize::MAX).await.unwrap();
    assert_eq!(
        (shot.image.as_str(), shot.width, shot.format, last().as_str()),
        ("AAAA", 1280, FrameFormat::Jpeg, "{}")
    );
    client.screenshot_if_running(ID, FrameFormat::Jpeg).await.unwrap();
    assert_eq!(last(), r#"{"format":"FRAME_FORMAT_JPEG"}"#);
    client.send_pointer(ID, &click()).await.unwrap();
    assert_eq!(last(), r#"{"x":5,"button":"POINTER_BUTTON_RIGHT","action":"POINTER_ACTION_CLICK"}"#);
    let key = KeyEvent { key: "c".into(), modifiers: vec!["ctrl".into()], ..KeyEvent::default() };
    client.send_key(ID, &key).await.unwrap();
    assert_eq!(last(), r#"{"key":"c","modifiers":["ctrl"]}"#);
    client.scroll(ID, ScrollEvent { dx: 0, dy: -3 }).await.unwrap();
    assert_eq!(last(), r#"{"dy":-3}"#);
    client.resize_screen(ID, ResizeRequest { width: 1024, height: 768 }).await.unwrap();
    assert_eq!(last(), r#"{"width":1024,"height":768}"#);
    let action = Action { pointer: Some(click()), ..Action::default() };
    assert_eq!(client.send_actions(ID, vec![action.clone()]).await.unwrap().executed, 1);
    let request = StepRequest { actions: vec![action], settle_ms: 9, ..StepRequest::default() };
    let step = client.step(ID, &request, usize::MAX).await.unwrap();
    assert!(step.changed && step.screenshot.unwrap().height == 800);
    assert!(last().ends_with(r#""settleMs":9}"#), "{}", last());
    let sent = platform.seen().pop().unwrap();
    assert_eq!((sent.header("x-access-token"), sent.header("x-api-key")), ("t1", ""));
}

#[tokio::test]
async fn input_that_may_have_arrived_is_not_repeated() {
    for (status, body, calls) in [
        (401, "invalid access token".to_owned(), 2),
        (503, error("sandbox_unavailable", "paused"), 2),
        (404, error("sandbox_route_stale", "unknown"), 2),
        (404, String::new(), 1),
        (500, r#"{"code":"internal","message":"half of it"}"#.to_owned(), 1),
        (502, String::new(), 1),
        (200, "no json".to_owned(), 1),
    ] {
        let platform = Platform::start().await;
        platform.activates();
        let line = format!("{SERVICE}Step");
        platform.on(&line, status, &body);
        let refused = platform.client().step(ID, &StepRequest::default(), usize::MAX).await.unwrap_err();
        assert_eq!(platform.lines().iter().filter(|seen| **seen == line).count(), calls, "{status} {body}");
        assert_eq!(
            refused.may_have_taken_effect(),
            status >= 500 && status != 503 || status == 200,
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn answers_are_bounded_and_watching_wakes_nobody() {
    let platform = Platform::start().await;
    platform.activates();
    let picture = format!(r#"{{"image":"{}"}}"#, "A".repeat(1000));
    for method in ["Screenshot", "Step"] {
        platform.on(&format!("{SERVICE}{method}"), 200, &picture);
    }
    let client = platform.client();
    let looked = client.screenshot(ID, FrameFormat::Png, 999).await.unwrap_err();
    let acted = client.step(ID, &StepRequest::default(), 999).await.unwrap_err();
    for error in [looked, acted] {
        assert!(matches!(error, ClientError::TooLarge { limit: 999, .. }), "{error:?}");
    }
    assert!(client.screenshot(ID, FrameFormat::Png, 2000).await.is_ok());

    let platform = Platform::start().await;
    platform.on(&format!("POST /sandboxes/{ID}/activate"), 200, &sandbox("active", "t1"));
    platform.on(&format!("{SERVICE}Screenshot"), 503, &error("sandbox_unavailable", "paused"));
    let asleep = platform.client().screenshot_if_running(ID, FrameFormat::Png).await.unwrap_err();
    assert_eq!(asleep.api().unwrap().code, "sandbox_unavailable");
    let activations = platform.lines().iter().filter(|line| line.ends_with("/activate")).count();
    assert_eq!(activations, 1, "for the first token, and not because it is paused");
}
