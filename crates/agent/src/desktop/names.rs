//! From names and characters to X keysyms.

use xkeysym::Keysym;

pub(super) const SHIFT: u32 = Keysym::Shift_L.raw();
pub(super) const CAPS_LOCK: u32 = Keysym::Caps_Lock.raw();
/// Keysyms for characters without one of their own: this and the character's number.
const UNICODE: u32 = 0x0100_0000;

/// The keysym of a key's name: as X has it (`Return`, `a`, `XF86AudioMute`), `U20AC`, a number in hexadecimal digits, or the
/// character itself.
pub(super) fn key(name: &str) -> Option<u32> {
    let mut chars = name.chars();
    if let (Some(single), None) = (chars.next(), chars.next()) {
        return character(single);
    }
    named(name).or_else(|| {
        let hex = |digits: &str| u32::from_str_radix(digits, 16).ok();
        let plain = |digits: &&str| digits.len() <= 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(number) = name.strip_prefix("0x").filter(plain) {
            return hex(number).filter(|keysym| (1..0x2000_0000).contains(keysym));
        }
        let number = name.strip_prefix('U').filter(|digits| digits.len() >= 4).filter(plain)?;
        character(char::from_u32(hex(number)?)?)
    })
}

/// The keysym of a modifier.
pub(super) fn modifier(name: &str) -> Option<u32> {
    match name {
        "ctrl" => Some(Keysym::Control_L.raw()),
        "alt" => Some(Keysym::Alt_L.raw()),
        "shift" => Some(SHIFT),
        "super" => Some(Keysym::Super_L.raw()),
        name => key(name),
    }
}

/// The keysym that types a character; `None` for control characters that no key stands for.
pub(super) fn character(char: char) -> Option<u32> {
    match u32::from(char) {
        0x0a => Some(Keysym::Return.raw()),
        0x09 => Some(Keysym::Tab.raw()),
        latin @ (0x20..=0x7e | 0xa0..=0xff) => Some(latin),
        0x00..=0x1f | 0x7f..=0x9f => None,
        other => Some(UNICODE + other),
    }
}

/// Looks through all names; the library knows them by number only, and this happens once for each key pressed.
fn named(name: &str) -> Option<u32> {
    // Keys of a keyboard first, then characters, what vendors have added, and Braille.
    const RANGES: [std::ops::RangeInclusive<u32>; 5] = [
        0xfd00..=0xffff,
        0x20..=0x20ff,
        0x1008_fe00..=0x1008_ffff,
        0x1008_1000..=0x1008_1fff,
        0x0100_0000..=0x0100_28ff,
    ];
    // The library has one name for each number; of these, people know the other one.
    let name = match name {
        "Page_Up" => "Prior",
        "Page_Down" => "Next",
        "KP_Page_Up" => "KP_Prior",
        "KP_Page_Down" => "KP_Next",
        "quoteright" => "apostrophe",
        "quoteleft" => "grave",
        name => name,
    };
    // Vendors' names begin with their own mark: `XF86AudioMute` is `XF86XK_AudioMute` there.
    let (mark, rest) =
        if let Some(rest) = name.strip_prefix("XF86") { ("XF86XK_", rest) } else { ("XK_", name) };
    let is =
        |keysym: &u32| Keysym::new(*keysym).name().and_then(|known| known.strip_prefix(mark)) == Some(rest);
    RANGES.into_iter().flatten().find(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_by_name() {
        for (name, keysym) in [
            ("Return", 0xff0d),
            ("a", 0x61),
            ("A", 0x41),
            ("plus", 0x2b),
            ("+", 0x2b),
            ("F12", 0xffc9),
            ("Page_Down", 0xff56),
            ("KP_Enter", 0xff8d),
            ("XF86AudioMute", 0x1008_ff12),
            ("eacute", 0xe9),
            ("é", 0xe9),
            ("U20AC", 0x0100_20ac),
            ("EuroSign", 0x20ac),
            ("漢", 0x0100_6f22),
            ("0xff0d", 0xff0d),
            ("\n", 0xff0d),
        ] {
            assert_eq!(key(name), Some(keysym), "{name}");
        }
        for name in
            ["", "return", "NoKey", "\u{1}", "0x", "0x0", "0x123456789", "U+20AC", "UD800", "0xfffffffff"]
        {
            assert_eq!(key(name), None, "{name:?}");
        }
        assert_eq!((modifier("ctrl"), modifier("Control_R")), (Some(0xffe3), Some(0xffe4)));
        assert_eq!(modifier("hyper"), None);
    }

    #[test]
    fn characters() {
        assert_eq!(character('😀'), Some(0x0101_f600));
        assert_eq!(character('\u{301}'), Some(0x0100_0301));
        assert_eq!((character('\u{1b}'), character('\u{85}'), character('\0')), (None, None, None));
    }
}
