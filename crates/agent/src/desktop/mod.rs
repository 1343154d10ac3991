//! The desktop of the sandbox for programs that look at a screen and use a mouse and a keyboard (`spec/data-plane.md` §7).
//!
//! ```text
//! answer ─ check ─┬ batch ─ turn ─ hand (one thread, XTEST) ─┐
//!                 ├ step ── batch, then look ────────────────┤ link ═ X server, which the guest controls
//!                 └ look ── camera (one thread) ─ encode ────┘
//! ```
//!
//! Input is checked as a whole, one batch has its turn at a time, and an answer comes when the X server has processed
//! everything. What a batch presses it releases, whatever becomes of it and of its caller.

mod batch;
mod check;
mod encode;
mod fault;
mod hand;
mod keyboard;
mod link;
mod look;
mod names;
mod ping;
mod resize;
mod screen;
mod state;
mod stream;

use std::rc::Rc;

use bytes::Bytes;
use http::{StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::desktop::{
    DesktopMethod, Empty, KeyEvent, MAX_DESKTOP_REQUEST_BYTES, PointerEvent, ResizeRequest,
    ScreenshotRequest, ScrollEvent, SendActionsRequest, SendActionsResponse, StepRequest,
};

use crate::agent::Agent;
use crate::reply::{Response, json};
use crate::route::{Request, read_body};
use fault::Fault;
pub(crate) use state::Desktop;

/// Answers a call.
pub(crate) async fn answer(agent: &Rc<Agent>, method: DesktopMethod, request: Request) -> Response {
    called(agent, method, request).await.unwrap_or_else(Response::from)
}

async fn called(agent: &Rc<Agent>, method: DesktopMethod, request: Request) -> Result<Response, Fault> {
    let enveloped = stream::is_enveloped(request.headers());
    let body = body(agent, request).await?;
    match method {
        DesktopMethod::Screenshot => {
            let ScreenshotRequest { format } = read(&body)?;
            let display = state::display(agent)?;
            let place = look::place(agent)?;
            ok(&look::screenshot(agent, display, format, place).await?)
        }
        DesktopMethod::SendPointer => single(agent, check::pointer(&read::<PointerEvent>(&body)?)?).await,
        DesktopMethod::SendKey => single(agent, check::key(&read::<KeyEvent>(&body)?)?).await,
        DesktopMethod::Scroll => single(agent, check::scroll(read::<ScrollEvent>(&body)?)?).await,
        DesktopMethod::SendActions => {
            let plans = check::batch(&read::<SendActionsRequest>(&body)?.actions)?;
            let (count, display) = (plans.len(), state::display(agent)?);
            let _turn = agent.desktop.turn.lock().await;
            let done = batch::run(agent, display, plans).await;
            done.map_err(|(at, fault)| Fault {
                message: format!(
                    "action {at} of {count} failed after {at} were executed, the rest was not: {}",
                    fault.message
                ),
                ..fault
            })?;
            ok(&SendActionsResponse { executed: i64::try_from(count).unwrap_or(i64::MAX) })
        }
        DesktopMethod::Step => {
            let request: StepRequest = read(&body)?;
            let plans = check::step(&request)?;
            ok(&look::step(agent, state::display(agent)?, &request, plans).await?)
        }
        DesktopMethod::Resize => {
            let (width, height) = check::resize(read::<ResizeRequest>(&body)?)?;
            let display = state::display(agent)?;
            let _turn = agent.desktop.turn.lock().await;
            agent.desktop.input(display, move |hand| hand.resize(width, height)).await?;
            ok(&Empty {})
        }
        DesktopMethod::Stream => stream::answer(agent, state::display(agent)?, &body, enveloped),
    }
}

async fn single(agent: &Rc<Agent>, plan: check::Plan) -> Result<Response, Fault> {
    let display = state::display(agent)?;
    let _turn = agent.desktop.turn.lock().await;
    batch::run(agent, display, vec![plan]).await.map_err(|(_, fault)| fault)?;
    ok(&Empty {})
}

/// The body, of which few large ones are held at a time.
async fn body(agent: &Agent, request: Request) -> Result<Bytes, Fault> {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let _place =
        if length.is_some_and(|length| length <= state::SMALL_BODY) {
            None
        } else {
            let place = agent.desktop.large_bodies.try_acquire();
            Some(place.map_err(|_| {
                Fault::exhausted("too many large requests at a time; send this one again later")
            })?)
        };
    read_body(request, MAX_DESKTOP_REQUEST_BYTES).await.map_err(|refusal| Fault::invalid(refusal.message))
}

/// An empty body is an object without fields.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    serde_json::from_slice(body)
        .map_err(|error| Fault::invalid(format!("the body is no such request: {error}")))
}

fn ok(answer: &impl Serialize) -> Result<Response, Fault> {
    Ok(json(StatusCode::OK, answer))
}
