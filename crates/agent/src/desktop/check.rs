//! What a caller sent, checked as a whole before anything happens.

use wire::desktop::{
    Action, KeyEvent, MAX_ACTIONS, MAX_COORDINATE, MAX_KEY_BYTES, MAX_MODIFIER_BYTES, MAX_MODIFIERS,
    MAX_SCROLL, MAX_SETTLE_MS, MAX_TEXT_BYTES, PointerAction, PointerButton, PointerEvent, ResizeRequest,
    SCREEN_HEIGHT, SCREEN_WIDTH, ScrollEvent, StepRequest, WIDTH_STEP,
};

use super::fault::Fault;
use super::names;

/// An action that can be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    Pointer {
        x: u16,
        y: u16,
        button: u8,
        action: PointerAction,
    },
    Key {
        keysym: u32,
        modifiers: Vec<u32>,
    },
    /// The keysym of each character.
    Text(Vec<u32>),
    Scroll {
        dx: i16,
        dy: i16,
    },
}

/// Checks a batch.
pub(super) fn batch(actions: &[Action]) -> Result<Vec<Plan>, Fault> {
    if actions.len() > MAX_ACTIONS {
        return Err(Fault::invalid(format!("{} actions; a batch may have {MAX_ACTIONS}", actions.len())));
    }
    let at = |number: usize| {
        move |fault: Fault| Fault::invalid(format!("action {number} of {}: {}", actions.len(), fault.message))
    };
    actions.iter().enumerate().map(|(number, action)| one(action).map_err(at(number))).collect()
}

fn one(action: &Action) -> Result<Plan, Fault> {
    match action {
        Action { pointer: Some(event), key: None, scroll: None } => pointer(event),
        Action { pointer: None, key: Some(event), scroll: None } => key(event),
        Action { pointer: None, key: None, scroll: Some(event) } => scroll(*event),
        _ => Err(Fault::invalid("an action has exactly one of pointer, key and scroll")),
    }
}

pub(super) fn pointer(event: &PointerEvent) -> Result<Plan, Fault> {
    let coordinate = |name: &str, value: i64| {
        u16::try_from(value)
            .map_err(|_| Fault::invalid(format!("{name} is {value}; coordinates are 0 to {MAX_COORDINATE}")))
    };
    let (x, y) = (coordinate("x", event.x)?, coordinate("y", event.y)?);
    let action =
        event.action.ok_or_else(|| Fault::invalid("action is missing, e.g. POINTER_ACTION_CLICK"))?;
    let button = match event.button {
        PointerButton::Left => 1,
        PointerButton::Middle => 2,
        PointerButton::Right => 3,
    };
    Ok(Plan::Pointer { x, y, button, action })
}

pub(super) fn key(event: &KeyEvent) -> Result<Plan, Fault> {
    let KeyEvent { key, modifiers, text } = event;
    match (key.is_empty(), text.is_empty()) {
        (true, true) => return Err(Fault::invalid("key or text is missing")),
        (false, false) => return Err(Fault::invalid("key and text exclude each other")),
        (true, false) if !modifiers.is_empty() => return Err(Fault::invalid("text takes no modifiers")),
        (true, false) => return typed(text),
        (false, true) => {}
    }
    if key.len() > MAX_KEY_BYTES {
        return Err(Fault::invalid(format!("key may have {MAX_KEY_BYTES} bytes")));
    }
    if modifiers.len() > MAX_MODIFIERS {
        return Err(Fault::invalid(format!("a key may have {MAX_MODIFIERS} modifiers")));
    }
    if modifiers.iter().any(|name| name.len() > MAX_MODIFIER_BYTES) {
        return Err(Fault::invalid(format!("a modifier may have {MAX_MODIFIER_BYTES} bytes")));
    }
    // A modifier alone is a key as well, under the same names.
    let keysym = names::modifier(key);
    let keysym = keysym.ok_or_else(|| {
        Fault::invalid(format!(
            "unknown key {key:?}; use X keysym names such as Return, BackSpace, Page_Down, F5, a"
        ))
    })?;
    let modifier = |name: &String| {
        let known = "ctrl, alt, shift, super and X keysym names are known";
        names::modifier(name).ok_or_else(|| Fault::invalid(format!("unknown modifier {name:?}; {known}")))
    };
    Ok(Plan::Key { keysym, modifiers: modifiers.iter().map(modifier).collect::<Result<_, _>>()? })
}

fn typed(text: &str) -> Result<Plan, Fault> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(Fault::invalid(format!("text has {} bytes; it may have {MAX_TEXT_BYTES}", text.len())));
    }
    let mut keysyms = Vec::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        let char = match char {
            // One end of a line, however it is written.
            '\r' => {
                chars.next_if_eq(&'\n');
                '\n'
            }
            char => char,
        };
        keysyms.push(names::character(char).ok_or_else(|| {
            Fault::invalid(format!(
                "text has the control character U+{:04X}, which cannot be typed; press a key instead",
                u32::from(char)
            ))
        })?);
    }
    Ok(Plan::Text(keysyms))
}

pub(super) fn scroll(event: ScrollEvent) -> Result<Plan, Fault> {
    let clicks = |name: &str, value: i64| {
        i16::try_from(value).ok().filter(|clicks| i64::from(clicks.unsigned_abs()) <= MAX_SCROLL).ok_or_else(
            || Fault::invalid(format!("{name} is {value}; it may be -{MAX_SCROLL} to {MAX_SCROLL}")),
        )
    };
    Ok(Plan::Scroll { dx: clicks("dx", event.dx)?, dy: clicks("dy", event.dy)? })
}

pub(super) fn resize(request: ResizeRequest) -> Result<(u16, u16), Fault> {
    let ResizeRequest { width, height } = request;
    let sizes = u16::try_from(width).ok().zip(u16::try_from(height).ok());
    let allowed = SCREEN_WIDTH.contains(&width) && width % WIDTH_STEP == 0 && SCREEN_HEIGHT.contains(&height);
    sizes.filter(|_| allowed).ok_or_else(|| {
        Fault::invalid(format!(
            "{width}x{height} is no size for a screen: the width is a multiple of {WIDTH_STEP} from {} to {}, the height \
             {} to {}",
            SCREEN_WIDTH.start(),
            SCREEN_WIDTH.end(),
            SCREEN_HEIGHT.start(),
            SCREEN_HEIGHT.end()
        ))
    })
}

pub(super) fn step(request: &StepRequest) -> Result<Vec<Plan>, Fault> {
    if request.actions.is_empty() {
        return Err(Fault::invalid("a step needs an action; use Screenshot for a picture alone"));
    }
    for (name, value) in [("settleMs", request.settle_ms), ("quietMs", request.quiet_ms)] {
        if !(0..=MAX_SETTLE_MS).contains(&value) {
            return Err(Fault::invalid(format!("{name} is {value}; it may be 0 to {MAX_SETTLE_MS}")));
        }
    }
    batch(&request.actions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(json: &str) -> Action {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn batches_are_refused_as_a_whole() {
        let good = event(r#"{"pointer":{"x":3,"action":"POINTER_ACTION_CLICK"}}"#);
        for (bad, why) in [
            (r#"{}"#, "exactly one"),
            (r#"{"scroll":{},"key":{"key":"a"}}"#, "exactly one"),
            (r#"{"pointer":{"x":65536,"action":"POINTER_ACTION_MOVE"}}"#, "x is 65536"),
            (r#"{"pointer":{"y":-1,"action":"POINTER_ACTION_MOVE"}}"#, "y is -1"),
            (r#"{"pointer":{}}"#, "action is missing"),
            (r#"{"key":{}}"#, "key or text"),
            (r#"{"key":{"key":"a","text":"b"}}"#, "exclude"),
            (r#"{"key":{"text":"b","modifiers":["ctrl"]}}"#, "no modifiers"),
            (r#"{"key":{"key":"Enter!"}}"#, "unknown key"),
            (r#"{"key":{"key":"a","modifiers":["hyper"]}}"#, "unknown modifier"),
            (r#"{"key":{"text":"a\u001bb"}}"#, "U+001B"),
            (r#"{"scroll":{"dy":501}}"#, "dy is 501"),
            (r#"{"scroll":{"dx":-9999999}}"#, "dx is -9999999"),
        ] {
            let fault = batch(&[good.clone(), event(bad)]).unwrap_err();
            assert!(fault.message.starts_with("action 1 of 2: "), "{}", fault.message);
            assert!(fault.message.contains(why), "{}", fault.message);
        }
        assert_eq!(batch(&vec![good.clone(); 64]).unwrap().len(), 64);
        assert!(batch(&vec![good; 65]).is_err());
        assert!(step(&StepRequest::default()).is_err());
        let long = KeyEvent { text: "a".repeat(MAX_TEXT_BYTES + 1), ..KeyEvent::default() };
        assert!(key(&long).is_err());
        assert!(key(&KeyEvent { key: "a".repeat(257), ..KeyEvent::default() }).is_err());
        let many = vec!["ctrl".to_owned(); 9];
        assert!(key(&KeyEvent { key: "a".to_owned(), modifiers: many, ..KeyEvent::default() }).is_err());
    }

    #[test]
    fn ends_of_lines_are_one_key() {
        let text = KeyEvent { text: "a\r\n\n\rb\t".to_owned(), ..KeyEvent::default() };
        assert_eq!(key(&text).unwrap(), Plan::Text(vec![0x61, 0xff0d, 0xff0d, 0xff0d, 0x62, 0xff09]));
    }

    #[test]
    fn sizes() {
        let size = |width, height| resize(ResizeRequest { width, height }).ok();
        assert_eq!(size(1280, 800), Some((1280, 800)));
        assert_eq!(size(8192, 8192), Some((8192, 8192)));
        for (width, height) in
            [(1281, 800), (312, 800), (320, 199), (8200, 800), (i64::MAX, 300), (-8, 300), (0, 0)]
        {
            assert_eq!(size(width, height), None, "{width}x{height}");
        }
    }
}
