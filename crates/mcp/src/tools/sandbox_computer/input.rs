//! From an action and its arguments to what the sandbox is sent.

use client::{Action, KeyEvent, PointerAction, PointerButton, PointerEvent, ScrollEvent};
use wire::desktop::MAX_TEXT_BYTES;

use super::keys;
use super::screens::Size;
use crate::args::Args;

/// Wheel clicks when nobody says how many.
pub(super) const DEFAULT_SCROLL: i64 = 3;
/// More than anybody wants; larger wishes count as this.
const MAX_SCROLL: i64 = 100;

/// What is sent in one batch, under the input lock of the sandbox.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) actions: Vec<Action>,
}

impl Input {
    /// # Errors
    /// What is missing or wrong, naming the action.
    pub(super) fn of(action: &str, args: &Args) -> Result<Self, String> {
        use PointerAction::{Click, DoubleClick, Down, Move, Up};
        let left = PointerButton::Left;
        let at = || args.point("coordinate").ok_or_else(|| coordinate_needed(action));
        let one = |button, what| Ok::<_, String>(vec![pointer(at()?, button, what)]);
        let actions = match action {
            "left_click" => one(left, Click)?,
            "right_click" => one(PointerButton::Right, Click)?,
            "middle_click" => one(PointerButton::Middle, Click)?,
            "double_click" => one(left, DoubleClick)?,
            "triple_click" => vec![pointer(at()?, left, Click); 3],
            "left_click_drag" => {
                let start = args.point("start_coordinate").ok_or_else(|| {
                    format!(
                        "{action} requires start_coordinate [x, y], where it begins, and coordinate [x, y]"
                    )
                })?;
                vec![pointer(start, left, Down), pointer(at()?, left, Move), pointer(at()?, left, Up)]
            }
            "left_mouse_down" => one(left, Down)?,
            "left_mouse_up" => one(left, Up)?,
            "mouse_move" => one(left, Move)?,
            "key" => {
                let text = args.peek_text("text").filter(|text| !text.is_empty());
                let text = text.ok_or_else(|| format!("{action} requires text, the key or chord"))?;
                let keys = keys::parse(text).map_err(|problem| format!("`text` of {action} {problem}"))?;
                keys.into_iter().map(key).collect()
            }
            "type" => {
                let text = args.peek_text("text").ok_or_else(|| format!("{action} requires text"))?;
                if text.len() > MAX_TEXT_BYTES {
                    return Err(format!(
                        "`text` of {action} has {} bytes; at most {MAX_TEXT_BYTES} are typed at once",
                        text.len()
                    ));
                }
                let event = KeyEvent { text: text.to_owned(), ..KeyEvent::default() };
                if text.is_empty() { Vec::new() } else { vec![key(event)] }
            }
            "scroll" => {
                let amount = args.peek_integer("scroll_amount").unwrap_or(DEFAULT_SCROLL).min(MAX_SCROLL);
                let (dx, dy) = match args.peek_text("scroll_direction") {
                    Some("up") => (0, -amount),
                    Some("down") => (0, amount),
                    Some("left") => (-amount, 0),
                    Some("right") => (amount, 0),
                    _ => return Err(format!("{action} requires scroll_direction up, down, left or right")),
                };
                let wheel = Action { scroll: Some(ScrollEvent { dx, dy }), ..Action::default() };
                args.point("coordinate")
                    .map(|at| pointer(at, left, Move))
                    .into_iter()
                    .chain([wheel])
                    .collect()
            }
            other => return Err(format!("{other} is no input")),
        };
        Ok(Self { actions })
    }

    /// The first place that a screen of this size does not have.
    pub(super) fn outside(&self, size: Size) -> Option<(i64, i64)> {
        self.places().find(|place| super::beyond(*place, size))
    }

    /// The place that needs the largest screen.
    pub(super) fn farthest(&self) -> Option<(i64, i64)> {
        self.places().max_by_key(|(x, y)| x.max(y).to_owned())
    }

    fn places(&self) -> impl Iterator<Item = (i64, i64)> {
        self.actions.iter().filter_map(|action| action.pointer.as_ref()).map(|event| (event.x, event.y))
    }
}

fn coordinate_needed(action: &str) -> String {
    format!("{action} requires coordinate [x, y]; to act where the pointer is, repeat its last position")
}

fn pointer([x, y]: [i64; 2], button: PointerButton, action: PointerAction) -> Action {
    Action { pointer: Some(PointerEvent { x, y, button, action: Some(action) }), ..Action::default() }
}

fn key(event: KeyEvent) -> Action {
    Action { key: Some(event), ..Action::default() }
}
