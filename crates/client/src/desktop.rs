//! The desktop of a sandbox (`spec/data-plane.md` §7): looking, input, size, and the viewer's address. A paused sandbox is
//! resumed. Input is never sent twice: what may have been delivered is the caller's to look at.

use http::Method;
use reqwest::Url;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use wire::desktop::{
    Action, DesktopMethod, Empty, FrameFormat, KeyEvent, PointerEvent, ResizeRequest, ScreenshotRequest,
    ScreenshotResponse, ScrollEvent, SendActionsRequest, SendActionsResponse, StepRequest, StepResponse,
};

use crate::control::Client;
use crate::data_plane::{DataBody, DataCall};
use crate::error::{ClientError, Plane};
use crate::transport::{Exchange, read_all};

/// Longest time for a picture: a screen of the largest size, behind others that are being taken.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time for input: it waits for other input of the sandbox, and 64 KiB of text are typed key by key.
const INPUT_TIMEOUT: Duration = Duration::from_secs(120);
/// Largest answer with a picture, as in the official clients: 32 MiB in base64 and what is around it.
pub const MAX_PICTURE_ANSWER_BYTES: usize = 48 * 1024 * 1024;
/// Largest answer without one.
const MAX_PLAIN_ANSWER_BYTES: usize = 64 * 1024;
/// Where desktop templates serve their viewer.
pub const VIEWER_PORT: u16 = 6080;
/// Seconds within which the link of a private viewer is to be opened; the cookie it gives lasts as long, and a session
/// that is open then stays.
const VIEWER_LINK_SECONDS: i64 = 60;

impl Client {
    /// A picture of the screen. `limit` bounds the answer, bytes, and is at most [`MAX_PICTURE_ANSWER_BYTES`].
    ///
    /// # Errors
    /// See [`ClientError`]; code `failed_precondition` where there is no screen, and [`ClientError::TooLarge`].
    pub async fn screenshot(
        &self,
        id: &str,
        format: FrameFormat,
        limit: usize,
    ) -> Result<ScreenshotResponse, ClientError> {
        let look = Look { method: DesktopMethod::Screenshot, exchange: looking(), limit, wakes: true };
        self.desktop(id, look, &ScreenshotRequest { format }).await
    }

    /// The same, but a sandbox that is paused stays paused: for whoever only watches.
    ///
    /// # Errors
    /// As [`Client::screenshot`]; code `sandbox_unavailable` when it does not run.
    pub async fn screenshot_if_running(
        &self,
        id: &str,
        format: FrameFormat,
    ) -> Result<ScreenshotResponse, ClientError> {
        let limit = MAX_PICTURE_ANSWER_BYTES;
        let look = Look { method: DesktopMethod::Screenshot, exchange: looking(), limit, wakes: false };
        self.desktop(id, look, &ScreenshotRequest { format }).await
    }

    /// Runs actions, waits, and takes a picture. That an action failed, or the picture, is in the answer.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 or 501 from agents that do not have this call: then nothing was done. After
    /// [`ClientError::TooLarge`] the actions may have run, all or some.
    pub async fn step(
        &self,
        id: &str,
        request: &StepRequest,
        limit: usize,
    ) -> Result<StepResponse, ClientError> {
        self.desktop(id, Look { limit, ..input(DesktopMethod::Step) }, request).await
    }

    /// Runs actions up to the first that fails.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn send_actions(
        &self,
        id: &str,
        actions: Vec<Action>,
    ) -> Result<SendActionsResponse, ClientError> {
        self.desktop(id, input(DesktopMethod::SendActions), &SendActionsRequest { actions }).await
    }

    /// Moves the pointer, and does something where it is then.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn send_pointer(&self, id: &str, event: &PointerEvent) -> Result<(), ClientError> {
        self.desktop(id, input(DesktopMethod::SendPointer), event).await.map(|Empty {}| ())
    }

    /// Presses a key with modifiers, or types text.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn send_key(&self, id: &str, event: &KeyEvent) -> Result<(), ClientError> {
        self.desktop(id, input(DesktopMethod::SendKey), event).await.map(|Empty {}| ())
    }

    /// Turns the wheel where the pointer is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn scroll(&self, id: &str, event: ScrollEvent) -> Result<(), ClientError> {
        self.desktop(id, input(DesktopMethod::Scroll), &event).await.map(|Empty {}| ())
    }

    /// Gives the screen another size.
    ///
    /// # Errors
    /// See [`ClientError`]; code `invalid_argument` for sizes that no screen has.
    pub async fn resize_screen(&self, id: &str, size: ResizeRequest) -> Result<(), ClientError> {
        self.desktop(id, input(DesktopMethod::Resize), &size).await.map(|Empty {}| ())
    }

    /// The address of the viewer for people; for a private port a signed link that is to be opened within a minute. The
    /// sandbox is resumed, and the port published. `view_only` makes the viewer send no input; whoever has the link can
    /// ask for the other one.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn viewer_url(&self, id: &str, view_only: bool) -> Result<String, ClientError> {
        self.activate_sandbox(id).await?;
        let published = self.publish_port(id, VIEWER_PORT, None).await?;
        let token = match published.access.as_str() {
            "public" => None,
            // An access nobody knows is not guessed to be open.
            _ => Some(self.preview_token(id, VIEWER_PORT, Some(VIEWER_LINK_SECONDS)).await?),
        };
        let base = self.preview_url(id, VIEWER_PORT, None).await?;
        let mut url = Url::parse(&base).map_err(|_| ClientError::Local("cannot build the URL".to_owned()))?;
        url.set_path("/vnc.html");
        {
            let mut query = url.query_pairs_mut();
            query.append_pair("autoconnect", "1").append_pair("resize", "scale");
            if view_only {
                query.append_pair("view_only", "1");
            }
            if let Some(token) = &token {
                query.append_pair(&token.query_param, &token.token);
            }
        }
        Ok(url.into())
    }

    async fn desktop<T: DeserializeOwned>(
        &self,
        id: &str,
        look: Look,
        request: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(request)
            .map_err(|error| ClientError::Local(format!("cannot write the request: {error}")))?;
        let exchange = look.exchange;
        let call = DataCall {
            exchange,
            method: Method::POST,
            path: look.method.path().into(),
            query: Vec::new(),
            body: DataBody::Json(body.into()),
        };
        let response = match look.wakes {
            true => self.data_call(id, call).await?,
            false => self.data_call_asleep(id, call).await?,
        };
        // A picture that is too large is said to be so even after input: the caller knows that it was sent.
        let reading = Exchange { mutating: false, ..exchange };
        let body =
            read_all(reading, response, look.limit.min(MAX_PICTURE_ANSWER_BYTES)).await.map_err(|error| {
                match error {
                    ClientError::Timeout { .. } => exchange.timed_out(),
                    ClientError::Interrupted { .. } => exchange.interrupted(),
                    error => error,
                }
            })?;
        // serde's text may quote the answer, which is the guest's.
        serde_json::from_slice(&body).map_err(|_| exchange.protocol("not the expected JSON"))
    }
}

/// One call.
struct Look {
    method: DesktopMethod,
    exchange: Exchange,
    limit: usize,
    wakes: bool,
}

fn looking() -> Exchange {
    Exchange { what: "the screenshot", plane: Plane::Data, mutating: false, timeout: LOOK_TIMEOUT }
}

fn input(method: DesktopMethod) -> Look {
    let exchange =
        Exchange { what: "the desktop input", plane: Plane::Data, mutating: true, timeout: INPUT_TIMEOUT };
    Look { method, exchange, limit: MAX_PLAIN_ANSWER_BYTES, wakes: true }
}
