//! Key names as models write them, in the vocabularies of both families of computer-use models, to X keysyms
//! (`spec/mcp.md` §C.15). Names are looked up in any case; what is not in the table passes on as it is.

use client::KeyEvent;
use wire::desktop::{MAX_ACTIONS, MAX_KEY_BYTES, MAX_MODIFIER_BYTES, MAX_MODIFIERS};

/// Names in lower case, and what is sent.
const NAMES: &[(&str, &str)] = &[
    ("enter", "Return"),
    ("return", "Return"),
    ("kp_enter", "Return"),
    ("esc", "Escape"),
    ("escape", "Escape"),
    ("tab", "Tab"),
    ("space", "space"),
    ("spacebar", "space"),
    ("backspace", "BackSpace"),
    ("delete", "Delete"),
    ("del", "Delete"),
    ("insert", "Insert"),
    ("ins", "Insert"),
    ("up", "Up"),
    ("down", "Down"),
    ("left", "Left"),
    ("right", "Right"),
    ("arrowup", "Up"),
    ("arrowdown", "Down"),
    ("arrowleft", "Left"),
    ("arrowright", "Right"),
    ("home", "Home"),
    ("end", "End"),
    ("page_up", "Page_Up"),
    ("pageup", "Page_Up"),
    ("pgup", "Page_Up"),
    ("prior", "Page_Up"),
    ("page_down", "Page_Down"),
    ("pagedown", "Page_Down"),
    ("pgdn", "Page_Down"),
    ("next", "Page_Down"),
    ("caps_lock", "Caps_Lock"),
    ("capslock", "Caps_Lock"),
    ("num_lock", "Num_Lock"),
    ("numlock", "Num_Lock"),
    ("scroll_lock", "Scroll_Lock"),
    ("scrolllock", "Scroll_Lock"),
    ("print", "Print"),
    ("printscreen", "Print"),
    ("print_screen", "Print"),
    ("pause", "Pause"),
    ("menu", "Menu"),
    ("contextmenu", "Menu"),
    ("iso_left_tab", "ISO_Left_Tab"),
    // Punctuation by its keysym, and by itself below.
    ("minus", "minus"),
    ("hyphen", "minus"),
    ("underscore", "underscore"),
    ("plus", "plus"),
    ("equal", "equal"),
    ("comma", "comma"),
    ("period", "period"),
    ("dot", "period"),
    ("slash", "slash"),
    ("backslash", "backslash"),
    ("semicolon", "semicolon"),
    ("colon", "colon"),
    ("apostrophe", "apostrophe"),
    ("quotedbl", "quotedbl"),
    ("grave", "grave"),
    ("bracketleft", "bracketleft"),
    ("bracketright", "bracketright"),
    ("braceleft", "braceleft"),
    ("braceright", "braceright"),
    ("parenleft", "parenleft"),
    ("parenright", "parenright"),
    ("less", "less"),
    ("greater", "greater"),
    ("question", "question"),
    ("exclam", "exclam"),
    ("at", "at"),
    ("numbersign", "numbersign"),
    ("dollar", "dollar"),
    ("percent", "percent"),
    ("asciicircum", "asciicircum"),
    ("ampersand", "ampersand"),
    ("asterisk", "asterisk"),
    ("bar", "bar"),
    ("asciitilde", "asciitilde"),
];

/// Modifiers, which are keys as well.
const MODIFIERS: &[(&str, &str)] = &[
    ("ctrl", "ctrl"),
    ("control", "ctrl"),
    ("control_l", "ctrl"),
    ("ctrl_l", "ctrl"),
    ("control_r", "Control_R"),
    ("alt", "alt"),
    ("alt_l", "alt"),
    ("option", "alt"),
    ("alt_r", "Alt_R"),
    ("altgr", "ISO_Level3_Shift"),
    ("iso_level3_shift", "ISO_Level3_Shift"),
    ("shift", "shift"),
    ("shift_l", "shift"),
    ("shift_r", "Shift_R"),
    ("super", "super"),
    ("super_l", "super"),
    ("super_r", "Super_R"),
    ("cmd", "super"),
    ("command", "super"),
    ("meta", "super"),
    ("win", "super"),
    ("windows", "super"),
];

/// ASCII punctuation and its keysyms.
const PUNCTUATION: &[(char, &str)] = &[
    (' ', "space"),
    ('\t', "Tab"),
    ('\n', "Return"),
    ('-', "minus"),
    ('_', "underscore"),
    ('+', "plus"),
    ('=', "equal"),
    (',', "comma"),
    ('.', "period"),
    ('/', "slash"),
    ('\\', "backslash"),
    (';', "semicolon"),
    (':', "colon"),
    ('\'', "apostrophe"),
    ('"', "quotedbl"),
    ('`', "grave"),
    ('[', "bracketleft"),
    (']', "bracketright"),
    ('{', "braceleft"),
    ('}', "braceright"),
    ('(', "parenleft"),
    (')', "parenright"),
    ('<', "less"),
    ('>', "greater"),
    ('?', "question"),
    ('!', "exclam"),
    ('@', "at"),
    ('#', "numbersign"),
    ('$', "dollar"),
    ('%', "percent"),
    ('^', "asciicircum"),
    ('&', "ampersand"),
    ('*', "asterisk"),
    ('|', "bar"),
    ('~', "asciitilde"),
];

/// Reads chords: keys joined by `+`, the last one with the others held; several chords are parted by blanks.
///
/// # Errors
/// What is wrong, as a clause.
pub(super) fn parse(text: &str) -> Result<Vec<KeyEvent>, String> {
    // A blank by itself is a key, not the gap between two.
    if let [only] = text.chars().collect::<Vec<_>>()[..]
        && only.is_whitespace()
    {
        return Ok(vec![event(&[key(&only.to_string(), false)?])?]);
    }
    let mut events = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (parts, after) = chord(rest)?;
        let in_chord = parts.len() > 1;
        let keys = parts.into_iter().map(|part| key(part, in_chord)).collect::<Result<Vec<_>, _>>()?;
        events.push(event(&keys)?);
        rest = after.trim_start();
    }
    match events.len() {
        0 => Err("must name a key".to_owned()),
        1..=MAX_ACTIONS => Ok(events),
        many => Err(format!("has {many} chords; at most {MAX_ACTIONS} are sent at once")),
    }
}

/// The parts of the first chord, and what follows it.
fn chord(text: &str) -> Result<(Vec<&str>, &str), String> {
    let empty = || "has an empty part; keys are joined by `+`, and the plus key is `plus`".to_owned();
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        // Where a key is due, `+` is the plus key.
        let length = match rest.strip_prefix('+') {
            Some(_) => 1,
            None => rest.find(|c: char| c == '+' || c.is_whitespace()).unwrap_or(rest.len()),
        };
        let (part, after) = rest.split_at(length);
        if part.is_empty() {
            return Err(empty());
        }
        parts.push(part);
        match after.trim_start().strip_prefix('+') {
            Some(next) => rest = next.trim_start(),
            None if after.is_empty() || after.starts_with(char::is_whitespace) => return Ok((parts, after)),
            None => return Err(empty()),
        }
    }
}

/// One key's name as it is sent.
fn key(part: &str, in_chord: bool) -> Result<String, String> {
    let mut chars = part.chars();
    if let (Some(only), None) = (chars.next(), chars.next()) {
        return Ok(match PUNCTUATION.iter().find(|(c, _)| *c == only) {
            Some((_, name)) => (*name).to_owned(),
            // With modifiers a letter is the key, not the character: they say themselves whether shift is held.
            None if only.is_ascii() && in_chord => only.to_ascii_lowercase().to_string(),
            None if only.is_ascii() => only.to_string(),
            None => format!("U{:04X}", u32::from(only)),
        });
    }
    let lower = part.to_ascii_lowercase();
    if let Some(name) = lookup(MODIFIERS, &lower).or_else(|| lookup(NAMES, &lower)) {
        return Ok(name.to_owned());
    }
    if let Some(number) = lower.strip_prefix('f').and_then(|number| number.parse::<u8>().ok())
        && (1..=35).contains(&number)
    {
        return Ok(format!("F{number}"));
    }
    match lower.split_once('-') {
        Some((first, _)) if lookup(MODIFIERS, first).is_some() => {
            Err(format!("joins keys with `-`; write `{}`", shown(&part.replace('-', "+"))))
        }
        _ => Ok(part.to_owned()),
    }
}

fn lookup(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == name).map(|(_, sent)| *sent)
}

fn event(keys: &[String]) -> Result<KeyEvent, String> {
    let Some((key, modifiers)) = keys.split_last() else { return Err("must name a key".to_owned()) };
    if key.len() > MAX_KEY_BYTES {
        return Err(format!("has a name of more than {MAX_KEY_BYTES} bytes; to enter text use `type`"));
    }
    if modifiers.len() > MAX_MODIFIERS {
        return Err(format!("holds more than {MAX_MODIFIERS} modifiers"));
    }
    if modifiers.iter().any(|modifier| modifier.len() > MAX_MODIFIER_BYTES) {
        return Err(format!("has a modifier of more than {MAX_MODIFIER_BYTES} bytes"));
    }
    Ok(KeyEvent { key: key.clone(), modifiers: modifiers.to_vec(), text: String::new() })
}

/// A short form for messages.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chords as `modifier modifier key`.
    fn sent(text: &str) -> Vec<String> {
        let chords = parse(text).unwrap_or_else(|problem| panic!("{text:?} {problem}"));
        chords
            .into_iter()
            .map(|event| event.modifiers.into_iter().chain([event.key]).collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn both_vocabularies() {
        for (names, expected) in [
            ("Return KP_Enter ENTER RETURN enter", "Return"),
            ("Escape ESC ESCAPE", "Escape"),
            ("Tab TAB", "Tab"),
            ("space SPACE", "space"),
            ("BackSpace BACKSPACE", "BackSpace"),
            ("Delete DELETE DEL", "Delete"),
            ("Insert INSERT", "Insert"),
            ("Up UP ARROWUP ArrowUp", "Up"),
            ("Down DOWN ARROWDOWN", "Down"),
            ("Left LEFT ARROWLEFT", "Left"),
            ("Right RIGHT ARROWRIGHT", "Right"),
            ("Home HOME", "Home"),
            ("End END", "End"),
            ("Page_Up Prior PAGEUP", "Page_Up"),
            ("Page_Down Next PAGEDOWN", "Page_Down"),
            ("ctrl Control_L CTRL CONTROL", "ctrl"),
            ("alt Alt_L ALT OPTION", "alt"),
            ("shift Shift_L SHIFT", "shift"),
            ("super Super_L cmd CMD COMMAND META WIN SUPER", "super"),
            ("Caps_Lock CAPSLOCK", "Caps_Lock"),
            ("minus -", "minus"),
            ("slash /", "slash"),
            (r"backslash \", "backslash"),
            ("comma ,", "comma"),
            ("period .", "period"),
            ("plus +", "plus"),
        ] {
            let names: Vec<&str> = names.split(' ').collect();
            for name in &names {
                assert_eq!(sent(name), [expected], "{name}");
            }
        }
        for verbatim in ["KP_0", "KP_Add", "XF86AudioPlay", "dead_acute", "Hyper_L", "a", "A", "7", "eacute"]
        {
            assert_eq!(sent(verbatim), [verbatim]);
        }
        for number in 1..=12 {
            assert_eq!(sent(&format!("F{number}")), [format!("F{number}")]);
            assert_eq!(sent(&format!("f{number}")), [format!("F{number}")]);
        }
        assert_eq!(
            (sent("f"), sent("F36"), sent("ü"), sent("日")),
            (vec!["f".into()], vec!["F36".into()], vec!["U00FC".into()], vec!["U65E5".into()])
        );
        assert_eq!(
            (sent(" "), sent("\n"), sent("\t")),
            (vec!["space".into()], vec!["Return".into()], vec!["Tab".into()])
        );
    }

    #[test]
    fn chords() {
        for (text, expected) in [
            ("ctrl+c", &["ctrl c"][..]),
            ("CTRL+C", &["ctrl c"]),
            ("ctrl+shift+T", &["ctrl shift t"]),
            (" Control_L + Alt_L + Delete ", &["ctrl alt Delete"]),
            ("ctrl++", &["ctrl plus"]),
            ("ctrl + +", &["ctrl plus"]),
            ("ctrl+plus", &["ctrl plus"]),
            ("ctrl+-", &["ctrl minus"]),
            ("ctrl+a Delete", &["ctrl a", "Delete"]),
            ("Down Down  Return", &["Down", "Down", "Return"]),
            ("ctrl+shift", &["ctrl shift"]),
            ("shift", &["shift"]),
            ("cmd+space", &["super space"]),
            ("Alt_R+e", &["Alt_R e"]),
            ("shift_r+TAB", &["Shift_R Tab"]),
        ] {
            assert_eq!(sent(text), expected, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_said() {
        for (text, part) in [
            ("", "must name a key"),
            ("ctrl+", "empty part"),
            ("ctrl+ +a", "empty part"),
            ("++", "empty part"),
            ("a++b", "empty part"),
            ("ctrl-s", "write `ctrl+s`"),
            ("Control-Shift-t", "write `Control+Shift+t`"),
        ] {
            assert!(parse(text).unwrap_err().contains(part), "{text}: {:?}", parse(text));
        }
        assert!(parse(&"x".repeat(257)).unwrap_err().contains("use `type`"));
        assert!(parse(&"a ".repeat(65)).unwrap_err().contains("65 chords"));
        assert!(parse("a+b+c+d+e+f+g+h+i+j").unwrap_err().contains("8 modifiers"));
        assert!(parse(&format!("{}+a", "x".repeat(33))).unwrap_err().contains("32 bytes"));
    }
}
