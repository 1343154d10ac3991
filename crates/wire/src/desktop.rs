//! The desktop of a sandbox (`spec/data-plane.md` §7): Connect-style JSON calls, served by the guest agent.
//!
//! Names are lowerCamelCase. A field that has its zero value may be absent both ways, and unknown fields are ignored.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// All calls are below this path, as `POST`.
pub const DESKTOP_PATH_PREFIX: &str = "/superserve.boxd.v1.DesktopService/";
/// Largest body of a call, bytes.
pub const MAX_DESKTOP_REQUEST_BYTES: usize = 32 * 1024 * 1024;
/// Largest picture, bytes before base64.
pub const MAX_SCREENSHOT_BYTES: usize = 32 * 1024 * 1024;
/// Most actions of a batch.
pub const MAX_ACTIONS: usize = 64;
/// Longest key name, bytes.
pub const MAX_KEY_BYTES: usize = 256;
/// Most modifiers of a key.
pub const MAX_MODIFIERS: usize = 8;
/// Longest modifier, bytes.
pub const MAX_MODIFIER_BYTES: usize = 32;
/// Longest text of one event, bytes.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;
/// Largest coordinate.
pub const MAX_COORDINATE: i64 = 65_535;
/// Most wheel clicks of one event, in either direction.
pub const MAX_SCROLL: i64 = 500;
/// Longest wait of a step, milliseconds.
pub const MAX_SETTLE_MS: i64 = 2_000;
/// The wait of a step with `waitForChange` that names none, milliseconds.
pub const DEFAULT_CHANGE_WAIT_MS: i64 = 1_000;
/// Widths a screen may have; multiples of [`WIDTH_STEP`].
pub const SCREEN_WIDTH: std::ops::RangeInclusive<i64> = 320..=8_192;
/// See [`SCREEN_WIDTH`].
pub const WIDTH_STEP: i64 = 8;
/// Heights a screen may have.
pub const SCREEN_HEIGHT: std::ops::RangeInclusive<i64> = 200..=8_192;
/// Captures of one sandbox at a time.
pub const MAX_CAPTURES: usize = 4;
/// Most frames per second of a stream, and how many it has when none are asked for.
pub const MAX_STREAM_FPS: i64 = 15;
/// See [`MAX_STREAM_FPS`].
pub const DEFAULT_STREAM_FPS: i64 = 4;

/// A call by its name in the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DesktopMethod {
    /// [`ScreenshotRequest`] to [`ScreenshotResponse`].
    Screenshot,
    /// [`PointerEvent`] to [`Empty`].
    SendPointer,
    /// [`KeyEvent`] to [`Empty`].
    SendKey,
    /// [`ScrollEvent`] to [`Empty`].
    Scroll,
    /// [`SendActionsRequest`] to [`SendActionsResponse`].
    SendActions,
    /// [`StepRequest`] to [`StepResponse`].
    Step,
    /// [`ResizeRequest`] to [`Empty`].
    Resize,
    /// [`StreamRequest`] to [`StreamFrame`]s, as enveloped messages.
    Stream,
}

impl DesktopMethod {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Screenshot,
        Self::SendPointer,
        Self::SendKey,
        Self::Scroll,
        Self::SendActions,
        Self::Step,
        Self::Resize,
        Self::Stream,
    ];

    /// As in the path.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Screenshot => "Screenshot",
            Self::SendPointer => "SendPointer",
            Self::SendKey => "SendKey",
            Self::Scroll => "Scroll",
            Self::SendActions => "SendActions",
            Self::Step => "Step",
            Self::Resize => "Resize",
            Self::Stream => "Stream",
        }
    }

    /// The call of a path; `None` for other paths.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        let name = path.strip_prefix(DESKTOP_PATH_PREFIX)?;
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// The path of the call.
    #[must_use]
    pub fn path(self) -> String {
        format!("{DESKTOP_PATH_PREFIX}{}", self.name())
    }
}

/// How a picture is encoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FrameFormat {
    /// PNG; also what an absent or unspecified format means.
    #[default]
    #[serde(rename = "FRAME_FORMAT_PNG", alias = "FRAME_FORMAT_UNSPECIFIED")]
    Png,
    /// JPEG.
    #[serde(rename = "FRAME_FORMAT_JPEG")]
    Jpeg,
}

/// A button of the pointer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PointerButton {
    /// The left one, also when none is named.
    #[default]
    #[serde(rename = "POINTER_BUTTON_LEFT", alias = "POINTER_BUTTON_UNSPECIFIED")]
    Left,
    /// The right one.
    #[serde(rename = "POINTER_BUTTON_RIGHT")]
    Right,
    /// The middle one.
    #[serde(rename = "POINTER_BUTTON_MIDDLE")]
    Middle,
}

/// What the pointer does after it moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PointerAction {
    /// Nothing more.
    #[serde(rename = "POINTER_ACTION_MOVE")]
    Move,
    /// Presses the button, which stays down.
    #[serde(rename = "POINTER_ACTION_DOWN")]
    Down,
    /// Releases it.
    #[serde(rename = "POINTER_ACTION_UP")]
    Up,
    /// Presses and releases.
    #[serde(rename = "POINTER_ACTION_CLICK")]
    Click,
    /// Twice, within the time that toolkits take for one double click.
    #[serde(rename = "POINTER_ACTION_DOUBLE_CLICK")]
    DoubleClick,
}

/// The pointer moves to a place, in pixels of the screenshot from its top left corner, and does something there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PointerEvent {
    /// 0 to [`MAX_COORDINATE`]; beyond the screen means its edge.
    #[serde(skip_serializing_if = "is_zero")]
    pub x: i64,
    /// See `x`.
    #[serde(skip_serializing_if = "is_zero")]
    pub y: i64,
    /// Which button.
    #[serde(skip_serializing_if = "is_default")]
    pub button: PointerButton,
    /// Must be given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<PointerAction>,
}

/// A key with modifiers, or text; exactly one of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KeyEvent {
    /// An X keysym's name, such as `Return` or `a`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Keysym names, or `ctrl`, `alt`, `shift`, `super`; pressed in this order around the key.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "modifiers")]
    pub modifiers: Vec<String>,
    /// Unicode text to type.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// Wheel clicks where the pointer is, to ±[`MAX_SCROLL`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScrollEvent {
    /// To the right.
    #[serde(skip_serializing_if = "is_zero")]
    pub dx: i64,
    /// Down.
    #[serde(skip_serializing_if = "is_zero")]
    pub dy: i64,
}

/// One action of a batch; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Action {
    /// The pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<PointerEvent>,
    /// The keyboard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyEvent>,
    /// The wheel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scroll: Option<ScrollEvent>,
}

/// Body of `Screenshot`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScreenshotRequest {
    /// Wanted encoding.
    #[serde(skip_serializing_if = "is_default")]
    pub format: FrameFormat,
}

/// A picture of the whole screen with the pointer on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScreenshotResponse {
    /// The picture in standard base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// Pixels.
    #[serde(skip_serializing_if = "is_zero")]
    pub width: i64,
    /// Pixels.
    #[serde(skip_serializing_if = "is_zero")]
    pub height: i64,
    /// What it is; absent for PNG.
    #[serde(skip_serializing_if = "is_default")]
    pub format: FrameFormat,
}

/// Answer of calls that return nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// Body of `SendActions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SendActionsRequest {
    /// To [`MAX_ACTIONS`], run in order up to the first that fails.
    #[serde(deserialize_with = "actions")]
    pub actions: Vec<Action>,
}

/// Answer of `SendActions`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SendActionsResponse {
    /// How many ran.
    #[serde(skip_serializing_if = "is_zero")]
    pub executed: i64,
}

/// Body of `Step`: actions, a wait, and a picture.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StepRequest {
    /// 1 to [`MAX_ACTIONS`].
    #[serde(deserialize_with = "actions")]
    pub actions: Vec<Action>,
    /// Wait before the picture, to [`MAX_SETTLE_MS`].
    #[serde(skip_serializing_if = "is_zero")]
    pub settle_ms: i64,
    /// Wanted encoding.
    #[serde(skip_serializing_if = "is_default")]
    pub format: FrameFormat,
    /// `settle_ms` is the longest wait for a screen that differs from the one before the actions; 0 then means
    /// [`DEFAULT_CHANGE_WAIT_MS`].
    #[serde(skip_serializing_if = "is_default")]
    pub wait_for_change: bool,
    /// Waits until nothing changed for so long, within `settle_ms`.
    #[serde(skip_serializing_if = "is_zero")]
    pub quiet_ms: i64,
}

/// Answer of `Step`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StepResponse {
    /// How many actions ran, which is the index of the one that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub executed: i64,
    /// Why an action failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action_error: Option<String>,
    /// The picture afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub screenshot: Option<ScreenshotResponse>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture_error: Option<String>,
    /// With `wait_for_change` or `quiet_ms`: whether the screen became another.
    #[serde(skip_serializing_if = "is_default")]
    pub changed: bool,
    /// Waiting for other input to end.
    #[serde(skip_serializing_if = "is_zero")]
    pub queue_ms: i64,
    /// Running the actions.
    #[serde(skip_serializing_if = "is_zero")]
    pub actions_ms: i64,
    /// Waiting afterwards.
    #[serde(skip_serializing_if = "is_zero")]
    pub settle_ms: i64,
    /// Taking and encoding the picture.
    #[serde(skip_serializing_if = "is_zero")]
    pub capture_ms: i64,
}

/// Body of `Resize`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResizeRequest {
    /// In [`SCREEN_WIDTH`], a multiple of [`WIDTH_STEP`].
    pub width: i64,
    /// In [`SCREEN_HEIGHT`].
    pub height: i64,
}

/// Body of `Stream`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamRequest {
    /// Frames per second, to [`MAX_STREAM_FPS`]; 0 means [`DEFAULT_STREAM_FPS`].
    #[serde(skip_serializing_if = "is_zero")]
    pub fps: i64,
    /// Wanted encoding.
    #[serde(skip_serializing_if = "is_default")]
    pub format: FrameFormat,
}

/// One message of `Stream`; exactly one field is set. A frame is a start, pieces of data and an end, and comes only when the
/// screen changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamFrame {
    /// A picture begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<FrameStart>,
    /// A piece of it, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// It is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<Empty>,
    /// The screen has not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<Empty>,
}

/// What the following picture is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FrameStart {
    /// Pixels.
    pub width: i64,
    /// Pixels.
    pub height: i64,
    /// What it is; absent for PNG.
    #[serde(skip_serializing_if = "is_default")]
    pub format: FrameFormat,
    /// Bytes of all pieces before base64.
    pub size: i64,
}

/// Body of a failed call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesktopError {
    /// `invalid_argument`, `failed_precondition`, `resource_exhausted`, `unimplemented` or `internal`.
    pub code: String,
    /// What is wrong.
    #[serde(default)]
    pub message: String,
}

fn actions<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Action>, D::Error> {
    from.deserialize_seq(AtMost { most: MAX_ACTIONS, of: "a batch may have 64 actions", item: PhantomData })
}

fn modifiers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    from.deserialize_seq(AtMost { most: MAX_MODIFIERS, of: "a key may have 8 modifiers", item: PhantomData })
}

/// Reads a list that ends where it gets too long: its elements take many times the room of their text.
struct AtMost<T> {
    most: usize,
    of: &'static str,
    item: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for AtMost<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut read = Vec::new();
        while let Some(next) = list.next_element()? {
            if read.len() == self.most {
                return Err(A::Error::custom(self.of));
            }
            read.push(next);
        }
        Ok(read)
    }
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for method in DesktopMethod::ALL {
            assert_eq!(DesktopMethod::of_path(&method.path()), Some(method));
            assert!(crate::data_plane::exposed(&method.path()));
        }
        for path in
            ["/superserve.boxd.v1.DesktopService/", "/superserve.boxd.v1.DesktopService/step", "/Step"]
        {
            assert_eq!(DesktopMethod::of_path(path), None);
            assert!(!crate::data_plane::exposed(path));
        }
    }

    #[test]
    fn zero_values_are_left_out_and_unknown_fields_ignored() {
        fn text(value: &impl Serialize) -> String {
            serde_json::to_string(value).unwrap()
        }
        assert_eq!(
            text(&PointerEvent { action: Some(PointerAction::Move), ..Default::default() }),
            r#"{"action":"POINTER_ACTION_MOVE"}"#
        );
        assert_eq!(text(&StepResponse::default()), "{}");
        assert_eq!(
            text(&ScreenshotRequest { format: FrameFormat::Jpeg }),
            r#"{"format":"FRAME_FORMAT_JPEG"}"#
        );
        let step: StepRequest = serde_json::from_str(
            r#"{"actions":[{"key":{"key":"c","modifiers":["ctrl"],"new":1}},{"pointer":{"x":5,"action":"POINTER_ACTION_CLICK"}}],
                "settleMs":20,"waitForChange":true,"quietMs":7,"later":{}}"#,
        )
        .unwrap();
        assert_eq!((step.settle_ms, step.quiet_ms, step.wait_for_change), (20, 7, true));
        let expected = PointerEvent { x: 5, action: Some(PointerAction::Click), ..PointerEvent::default() };
        assert_eq!(step.actions[1].pointer.as_ref(), Some(&expected));
        assert_eq!(step.actions[0].key.as_ref().unwrap().modifiers, ["ctrl"]);
    }

    #[test]
    fn lists_end_at_their_limits() {
        let actions = |count: usize| format!(r#"{{"actions":[{}"#, vec!["{}"; count].join(","));
        let whole = actions(MAX_ACTIONS) + "]}";
        assert_eq!(serde_json::from_str::<SendActionsRequest>(&whole).unwrap().actions.len(), MAX_ACTIONS);
        assert_eq!(serde_json::from_str::<StepRequest>(&whole).unwrap().actions.len(), MAX_ACTIONS);
        // Refused before the rest is read, which is not even there.
        let long = actions(MAX_ACTIONS + 1);
        let wanted = format!("a batch may have {MAX_ACTIONS} actions");
        for error in [
            serde_json::from_str::<SendActionsRequest>(&long).unwrap_err(),
            serde_json::from_str::<StepRequest>(&long).unwrap_err(),
        ] {
            assert!(error.to_string().starts_with(&wanted), "{error}");
        }
        let many = format!(r#"{{"key":"a","modifiers":[{}"#, [r#""ctrl""#; MAX_MODIFIERS + 1].join(","));
        let error = serde_json::from_str::<KeyEvent>(&many).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("a key may have {MAX_MODIFIERS} modifiers")),
            "{error}"
        );
        for wrong in [r#"{"actions":null}"#, r#"{"actions":{}}"#, r#"{"actions":[1]}"#] {
            assert!(serde_json::from_str::<SendActionsRequest>(wrong).is_err(), "{wrong}");
        }
        assert!(serde_json::from_str::<SendActionsRequest>("{}").unwrap().actions.is_empty());
    }
}
