//! The desktop, where the measured sandbox has one: looking, acting and looking, and typing.

use std::time::{Duration, Instant};

use client::{
    Action, Client, ClientError, FrameFormat, KeyEvent, MAX_PICTURE_ANSWER_BYTES, PointerAction,
    PointerEvent, StepRequest,
};

use super::report::Row;

/// Of each; more than a few dozen say nothing new.
const MOST: u32 = 100;
/// What agents answer where there is no screen.
const NO_DESKTOP: [&str; 2] = ["failed_precondition", "unimplemented"];
const TEXT: &str =
    "The quick brown fox jumps over the lazy dog, 0123456789 times; then it sleeps until tomorrow morning!\n";

pub(crate) async fn rows(client: &Client, id: &str, count: u32) -> Vec<Row> {
    let looked = client.screenshot(id, FrameFormat::Png, MAX_PICTURE_ANSWER_BYTES).await;
    let screen = match looked {
        Ok(shot) => format!("{}x{}", shot.width, shot.height),
        // Most templates have none, which is nothing to report.
        Err(error) if error.api().is_some_and(|api| NO_DESKTOP.contains(&api.code.as_str())) => {
            return Vec::new();
        }
        Err(error) => return vec![Row::absent("desktop: screenshot", "ms", super::reason(&error))],
    };
    let count = count.min(MOST);
    vec![
        Row::times(format!("desktop: screenshot, {screen}"), times(count, || look(client, id)).await)
            .budget("≤ 40"),
        Row::times("desktop: click → screenshot", times(count, || click(client, id)).await).budget("≤ 80"),
        Row::times(
            format!("desktop: typing {} characters", TEXT.len()),
            times(count, || type_text(client, id)).await,
        ),
    ]
}

async fn times<F: Future<Output = Result<(), ClientError>>>(
    count: u32,
    once: impl Fn() -> F,
) -> Result<Vec<Duration>, ClientError> {
    let mut times = Vec::new();
    for _ in 0..count {
        let started = Instant::now();
        once().await?;
        times.push(started.elapsed());
    }
    Ok(times)
}

async fn look(client: &Client, id: &str) -> Result<(), ClientError> {
    client.screenshot(id, FrameFormat::Png, MAX_PICTURE_ANSWER_BYTES).await.map(drop)
}

/// Without a wait for what the click does: that is the program's time.
async fn click(client: &Client, id: &str) -> Result<(), ClientError> {
    let event =
        PointerEvent { x: 640, y: 300, action: Some(PointerAction::Click), ..PointerEvent::default() };
    let actions = vec![Action { pointer: Some(event), ..Action::default() }];
    let step =
        client.step(id, &StepRequest { actions, ..StepRequest::default() }, MAX_PICTURE_ANSWER_BYTES).await?;
    match (step.action_error, step.screenshot) {
        (None, Some(_)) => Ok(()),
        (Some(error), _) => Err(ClientError::Local(client::quote(&error))),
        (None, None) => Err(ClientError::Local("there was no screenshot".to_owned())),
    }
}

async fn type_text(client: &Client, id: &str) -> Result<(), ClientError> {
    client.send_key(id, &KeyEvent { text: TEXT.to_owned(), ..KeyEvent::default() }).await
}
