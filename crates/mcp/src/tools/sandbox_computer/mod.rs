//! `sandbox_computer` (`spec/mcp.md` §C.15): looks at a desktop and operates it, one action per call. Input is sent once and
//! never again: whatever fails afterwards, the model is told that it may have got through, and to look.

mod input;
mod keys;
mod picture;
mod screens;
mod shrink;

use std::time::Duration;

use client::{ApiError, Client, ClientError, FrameFormat, Plane, ResizeRequest, StepRequest, StepResponse};
use serde_json::{Map, Value, json};

use super::{Call, Hints, Tool};
use crate::args::Args;
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, said};
use input::Input;
use picture::Picture;
#[cfg(test)]
pub(crate) use picture::tests::png;
pub(crate) use screens::Screens;

/// Neither read-only nor idempotent: a click is a click each time.
pub(super) const TOOL: Tool = Tool {
    name: "sandbox_computer",
    title: "Control a desktop sandbox (computer use)",
    description: "Look at and operate the screen of a sandbox made from a desktop template such as superserve/desktop, one action \
        per call. Coordinates are pixels of the returned image, origin top left; keep the screen at or below 1366x768. Input \
        returns a new screenshot unless screenshot_after is false. A paused sandbox is resumed. After a failure take a \
        screenshot before repeating anything.",
    // The platform's answer, the same as text, and the picture in the message.
    hints: Hints::WRITE.holding(2 * MAX_ANSWER_BYTES + 4 * picture::MAX_BASE64),
    params: &[
        Param::sandbox_id(),
        Param::required("action", Kind::Action { of: ACTIONS, also: OTHER_NAMES }, "What to do."),
        Param::optional(
            "coordinate",
            Kind::Point,
            "[x, y] for clicks, moves and the end of a drag; optional for scroll.",
        ),
        Param::optional("start_coordinate", Kind::Point, "[x, y] where left_click_drag begins."),
        Param::optional(
            "text",
            Kind::Text { min: 0 },
            "type: literal text. key: a key or chord such as Return or ctrl+shift+t; several are parted by blanks.",
        ),
        Param::optional(
            "scroll_direction",
            Kind::Choice { of: &["up", "down", "left", "right"], default: None },
            "For scroll.",
        ),
        Param::optional(
            "scroll_amount",
            Kind::Integer { min: 1, max: None, default: Some(input::DEFAULT_SCROLL) },
            "Wheel clicks.",
        ),
        Param::optional(
            "duration_ms",
            Kind::Integer { min: 1, max: None, default: Some(DEFAULT_WAIT_MS) },
            "For wait; at most 10000.",
        ),
        Param::optional(
            "width",
            Kind::Integer { min: 1, max: None, default: None },
            "For resize: 320 to 8192, a multiple of 8.",
        ),
        Param::optional(
            "height",
            Kind::Integer { min: 1, max: None, default: None },
            "For resize: 200 to 8192.",
        ),
        Param::optional(
            "screenshot_after",
            Kind::Flag { default: true },
            "Whether input returns a screenshot.",
        ),
        Param::optional(
            "view_only",
            Kind::Flag { default: false },
            "For stream_url: a viewer that sends no input.",
        ),
    ],
    check,
    run: |call| Box::pin(run(call)),
};

const ACTIONS: &[&str] = &[
    "screenshot",
    "left_click",
    "right_click",
    "middle_click",
    "double_click",
    "triple_click",
    "left_click_drag",
    "left_mouse_down",
    "left_mouse_up",
    "mouse_move",
    "key",
    "type",
    "scroll",
    "wait",
    "resize",
    "stream_url",
];
/// What another family of models calls them.
const OTHER_NAMES: &[(&str, &str)] =
    &[("click", "left_click"), ("drag", "left_click_drag"), ("move", "mouse_move"), ("keypress", "key")];

/// Longest answer with a picture that is taken: a lossless one of a noisy screen at 1280x800, and half as much again. What is
/// larger is asked for again as JPEG.
const MAX_ANSWER_BYTES: usize = 6 * 1024 * 1024;
/// Longest wait for the screen to show what the input did.
const SETTLE_MS: i64 = 500;
/// A screen that stands still for so long is done with it.
const QUIET_MS: i64 = 150;
/// What agents without `Step` are given instead.
const SETTLE_BLIND: Duration = Duration::from_millis(300);
/// What is said of input whose answer was too large to read: an action may have failed.
const UNTOLD: &str = "sent, all of it or only a part";
const DEFAULT_WAIT_MS: i64 = 1_000;
const MAX_WAIT_MS: i64 = 10_000;
/// The screen of a new desktop, until a picture says otherwise.
const NEW_SCREEN: screens::Size = (1280, 800);

fn check(args: &Args, problems: &mut Vec<String>) {
    match args.peek_text("action") {
        None | Some("screenshot" | "wait" | "stream_url") => {}
        Some("resize") => {
            if wanted_size(args).is_none() {
                problems.push("resize requires width and height".to_owned());
            }
        }
        Some(action) => problems.extend(Input::of(action, args).err()),
    }
}

/// As two numbers, or, as some models say it, as a coordinate.
fn wanted_size(args: &Args) -> Option<ResizeRequest> {
    let (width, height) = match (args.peek_integer("width"), args.peek_integer("height")) {
        (Some(width), Some(height)) => (width, height),
        _ => args.point("coordinate").map(|[width, height]| (width, height))?,
    };
    Some(ResizeRequest { width, height })
}

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let id = call.args.required_text("sandbox_id");
    let action = call.args.required_text("action");
    let desktop = Desktop { client: &call.client, screens: &call.screens, id: &id };
    match action.as_str() {
        "screenshot" => {
            let picture = desktop.look().await.map_err(|blind| blind.explain(&id))?;
            Ok(shown("screenshot", picture))
        }
        "wait" => {
            let ms = call.args.integer("duration_ms").unwrap_or(DEFAULT_WAIT_MS).min(MAX_WAIT_MS);
            tokio::time::sleep(Duration::from_millis(ms.unsigned_abs())).await;
            Ok(Outcome::new(format!("waited {ms}ms"), json!({"waited_ms": ms})))
        }
        "resize" => {
            let Some(size) = wanted_size(&call.args) else { return Err(Failure::unexpected()) };
            desktop.resize(size).await
        }
        "stream_url" => {
            let view_only = call.args.flag("view_only").unwrap_or(false);
            let about = About { target: Target::Sandbox(&id), repeat: Repeat::Safe };
            let url = call.client.viewer_url(&id, view_only).await.map_err(|error| explain(&error, about))?;
            Ok(Outcome::new(url.clone(), json!({"url": url})))
        }
        _ => {
            let Ok(input) = Input::of(&action, &call.args) else { return Err(Failure::unexpected()) };
            desktop.act(&action, input, call.args.flag("screenshot_after").unwrap_or(true)).await
        }
    }
}

/// The screen of one sandbox.
struct Desktop<'a> {
    client: &'a Client,
    screens: &'a Screens,
    id: &'a str,
}

/// Why there is no picture.
enum Blind {
    /// The call failed.
    Call(ClientError),
    /// What came is of no use, as a clause.
    Picture(String),
}

impl Blind {
    /// As the failure of a call that did nothing but look.
    fn explain(self, id: &str) -> Failure {
        match self {
            Self::Call(error) => looking_failed(&error, id),
            Self::Picture(what) => Failure {
                text: format!(
                    "There is no usable screenshot: {what}. Try again, or look into the sandbox with sandbox_exec."
                ),
                class: "picture".to_owned(),
            },
        }
    }

    /// As the reason within a longer text.
    fn reason(&self) -> String {
        match self {
            Self::Call(error) => reason(error),
            Self::Picture(what) => what.clone(),
        }
    }
}

impl Desktop<'_> {
    /// A picture of the screen that clients take: lossless, or as JPEG if that would be too large, or smaller still.
    async fn look(&self) -> Result<Picture, Blind> {
        match self.client.screenshot(self.id, FrameFormat::Png, MAX_ANSWER_BYTES).await {
            Ok(answer) => match self.usable(answer)? {
                Some(picture) => Ok(picture),
                None => self.look_smaller().await,
            },
            Err(ClientError::TooLarge { .. }) => self.look_smaller().await,
            Err(error) => Err(Blind::Call(error)),
        }
    }

    async fn look_smaller(&self) -> Result<Picture, Blind> {
        let answer = self.client.screenshot(self.id, FrameFormat::Jpeg, MAX_ANSWER_BYTES).await;
        let answer = match answer {
            Err(ClientError::TooLarge { .. }) => return Err(Blind::Picture(too_large())),
            answer => answer.map_err(Blind::Call)?,
        };
        let picture = self.seen(answer)?;
        if picture.fits() {
            return Ok(picture);
        }
        shrink::fit(picture).await.ok_or_else(|| Blind::Picture(too_large()))
    }

    /// The picture of an answer; `None` when it is too large.
    fn usable(&self, answer: client::ScreenshotResponse) -> Result<Option<Picture>, Blind> {
        self.seen(answer).map(|picture| picture.fits().then_some(picture))
    }

    /// The picture of an answer, whatever its size.
    fn seen(&self, answer: client::ScreenshotResponse) -> Result<Picture, Blind> {
        let picture = Picture::new(answer).map_err(Blind::Picture)?;
        self.screens.set_size(self.id, picture.screen);
        Ok(picture)
    }

    async fn resize(&self, size: ResizeRequest) -> Result<Outcome, Failure> {
        let ResizeRequest { width, height } = size;
        self.client
            .resize_screen(self.id, size)
            .await
            .map_err(|error| input_failed("resize", &error, self.id))?;
        self.screens.set_size(self.id, (width, height));
        let remark = match width.max(height) > picture::QUIETLY_SHRUNK {
            true => format!(
                ". Clients may shrink screenshots of more than {} pixels without telling, so that coordinates no longer fit; at \
                 most 1366x768 is safe",
                picture::QUIETLY_SHRUNK
            ),
            false => String::new(),
        };
        Ok(Outcome::new(
            format!("resized to {width}x{height}{remark}"),
            json!({"width": width, "height": height}),
        ))
    }

    async fn act(&self, action: &str, input: Input, look: bool) -> Result<Outcome, Failure> {
        self.refuse_outside(action, &input).await?;
        let failed = |error: ClientError| input_failed(action, &error, self.id);
        let (count, far) = (input.actions.len(), input.farthest());
        if count == 0 {
            // Empty text: nothing to send.
            return match look {
                true => self.followed((action, "done"), far, self.look().await),
                false => Ok(done(action)),
            };
        }
        if !look {
            self.client.send_actions(self.id, input.actions).await.map_err(failed)?;
            return Ok(done(action));
        }
        if !self.screens.lacks_step(self.id) {
            let request = StepRequest {
                actions: input.actions.clone(),
                settle_ms: SETTLE_MS,
                wait_for_change: true,
                quiet_ms: QUIET_MS,
                ..StepRequest::default()
            };
            match self.client.step(self.id, &request, MAX_ANSWER_BYTES).await {
                Ok(step) => return self.stepped(action, step, count, far).await,
                // The input was sent, but what was said of it came with a picture that is too large.
                Err(ClientError::TooLarge { .. }) => {
                    return self.followed((action, UNTOLD), far, self.look_smaller().await);
                }
                Err(error) if absent(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        self.client.send_actions(self.id, input.actions).await.map_err(failed)?;
        self.screens.set_lacks_step(self.id);
        tokio::time::sleep(SETTLE_BLIND).await;
        self.followed((action, "done"), far, self.look().await)
    }

    /// Refuses places that the screen does not have. Only a place that is not on the screen as last seen costs a look: the
    /// screen may have grown.
    async fn refuse_outside(&self, action: &str, input: &Input) -> Result<(), Failure> {
        let known = self.screens.size(self.id).unwrap_or(NEW_SCREEN);
        if input.outside(known).is_none() {
            return Ok(());
        }
        let picture = self.look_smaller().await;
        let now = match picture {
            Ok(picture) => picture.screen,
            Err(Blind::Picture(_)) => self.screens.size(self.id).unwrap_or(known),
            Err(blind) => return Err(blind.explain(self.id)),
        };
        let Some((x, y)) = input.outside(now) else { return Ok(()) };
        let (width, height) = now;
        Err(Failure::refused(format!(
            "{action}: [{x}, {y}] is outside the screen, which is {width}x{height} now: x goes from 0 to {}, y from 0 to {}. \
             Nothing was sent.",
            width - 1,
            height - 1
        )))
    }

    /// What a step did.
    async fn stepped(
        &self,
        action: &str,
        step: StepResponse,
        count: usize,
        far: Option<(i64, i64)>,
    ) -> Result<Outcome, Failure> {
        let look = match step.screenshot {
            Some(answer) => match self.usable(answer) {
                Ok(Some(picture)) => Ok(picture),
                Ok(None) => self.look_smaller().await,
                Err(blind) => Err(blind),
            },
            None => {
                let why = step.capture_error.unwrap_or_default();
                Err(Blind::Picture(client::quote(if why.is_empty() {
                    "the sandbox sent no picture"
                } else {
                    &why
                })))
            }
        };
        let Some(error) = step.action_error.filter(|error| !error.is_empty()) else {
            return self.followed((action, "done"), far, look);
        };
        let text = format!(
            "{action} stopped after {} of {count} actions, so the input may be partly delivered: {}.",
            step.executed.clamp(0, i64::try_from(count).unwrap_or(i64::MAX)),
            client::quote(&error).trim_end_matches('.')
        );
        Err(match look {
            Ok(picture) => {
                let text =
                    format!("{text} Look at the attached screenshot before deciding whether to repeat it.");
                return Ok(Outcome { fault: Some("desktop_action"), ..pictured(text, picture) });
            }
            Err(_) => Failure {
                text: format!("{text} Take a screenshot before deciding whether to repeat it."),
                class: "desktop_action".to_owned(),
            },
        })
    }

    /// What was done with the input, and the look afterwards. That the look failed makes it no failure: it must not be repeated.
    fn followed(
        &self,
        (action, did): (&str, &str),
        far: Option<(i64, i64)>,
        look: Result<Picture, Blind>,
    ) -> Result<Outcome, Failure> {
        match look {
            Ok(picture) => {
                // The screen shrank since it was last seen.
                let edge = match far.filter(|far| beyond(*far, picture.screen)) {
                    Some((x, y)) => {
                        format!(". [{x}, {y}] is not on this screen, so the pointer went to its edge")
                    }
                    None => String::new(),
                };
                let mut outcome = shown(&format!("{action} {did}"), picture);
                outcome.text.push_str(&edge);
                Ok(outcome)
            }
            Err(blind) => {
                let why = blind.reason();
                let text = format!(
                    "{action} {did}, but the follow-up screenshot failed: {why}. Take a screenshot to see what it did; do not \
                     repeat the input."
                );
                Ok(Outcome::new(text, json!({"action": action, "screenshot_error": why})))
            }
        }
    }
}

fn beyond((x, y): (i64, i64), (width, height): screens::Size) -> bool {
    x >= width || y >= height
}

fn too_large() -> String {
    format!(
        "a picture of this screen is larger than the {} kB that clients take; resize the screen to at most 1366x768",
        picture::MAX_BASE64 / 1000
    )
}

fn done(action: &str) -> Outcome {
    Outcome::new(format!("{action} done"), json!({"action": action}))
}

/// What was done, the size of the screen, and the screen.
fn shown(what: &str, picture: Picture) -> Outcome {
    let (width, height) = picture.screen;
    pictured(format!("{what} ({width}x{height}){}", picture.remark()), picture)
}

fn pictured(text: String, picture: Picture) -> Outcome {
    let (structured, meta): (Value, Map<String, Value>) = (picture.structured(), picture.meta());
    Outcome { more: vec![picture.block()], meta, ..Outcome::new(text, structured) }
}

/// The agent does not have the call that was made, so nothing was done. A sandbox that is unknown is another matter.
fn absent(error: &ClientError) -> bool {
    let lacking = |api: &&ApiError| {
        api.plane == Plane::Data
            && (api.status == 501
                || api.code == "unimplemented"
                || api.status == 404 && api.code != "sandbox_route_stale")
    };
    error.api().filter(lacking).is_some()
}

/// There is no screen: not a desktop, or one whose X server is down.
fn no_screen(error: &ClientError) -> bool {
    absent(error)
        || error.api().is_some_and(|api| api.plane == Plane::Data && api.code == "failed_precondition")
}

fn not_a_desktop(error: &ClientError) -> Failure {
    let why = match error.api().map(said).filter(|said| !said.is_empty()) {
        Some(said) => format!(": {}", said.trim_end_matches('.')),
        None => String::new(),
    };
    Failure {
        text: format!(
            "This sandbox has no screen{why}. Desktop control needs a sandbox of a desktop template: make one with sandbox_create \
             and from_template `superserve/desktop`. If this is one, its X server is down for the moment: wait, then take a \
             screenshot."
        ),
        class: "no_desktop".to_owned(),
    }
}

fn looking_failed(error: &ClientError, id: &str) -> Failure {
    if no_screen(error) {
        return not_a_desktop(error);
    }
    explain(error, About { target: Target::Sandbox(id), repeat: Repeat::Safe })
}

/// Failed input. Where it is certain that nothing was sent, the ordinary texts say what to do.
fn input_failed(action: &str, error: &ClientError, id: &str) -> Failure {
    const LOOK: Repeat = Repeat::LookFirst("take a screenshot");
    let about = About { target: Target::Sandbox(id), repeat: LOOK };
    let sent = match error {
        ClientError::Api(api) => api.plane == Plane::Data && api.code != "sandbox_route_stale",
        ClientError::Timeout { .. } | ClientError::Interrupted { .. } | ClientError::Protocol { .. } => true,
        ClientError::TooLarge { .. } => true,
        ClientError::Connect { .. } | ClientError::Invalid { .. } | ClientError::Local(_) => false,
    };
    if no_screen(error) {
        let mut failure = not_a_desktop(error);
        if !absent(error) {
            // Agents of before say the same when the screen goes away in the middle.
            failure.text.push_str(&format!(
                " The {action} may have been delivered in part then: look before deciding whether to repeat it."
            ));
        }
        return failure;
    }
    let plain = explain(error, about);
    if !sent {
        return plain;
    }
    Failure {
        text: format!(
            "{action} failed and may have been delivered in part or in full: {}. Take a screenshot before deciding whether to \
             repeat it.",
            reason(error)
        ),
        class: plain.class,
    }
}

/// Why, as a clause.
fn reason(error: &ClientError) -> String {
    let reason = match error {
        ClientError::Api(api) if !api.message.is_empty() => said(api),
        error => client::quote(&error.to_string()),
    };
    reason.trim_end_matches('.').to_owned()
}
