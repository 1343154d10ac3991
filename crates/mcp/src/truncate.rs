//! Cutting long command output in the middle: the beginning says what ran, the end says how it went. Counted in bytes,
//! never longer than the cap, never inside a character (`spec/mcp.md` §C.5).

/// Most bytes of one output stream in a result.
pub(crate) const OUTPUT_CAP: usize = 32 * 1024;

/// A text that fits, and what it was before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    /// At most the cap.
    pub(crate) text: String,
    /// Whether something was dropped.
    pub(crate) cut: bool,
    /// Bytes before cutting.
    pub(crate) bytes: usize,
}

/// Cuts `text` to at most `cap` bytes, marker included. `cap` is expected to leave room for the marker (about 50 bytes).
pub(crate) fn middle(text: String, cap: usize) -> Cut {
    let bytes = text.len();
    if bytes <= cap {
        return Cut { text, cut: false, bytes };
    }
    // The marker is longest when it names the whole length, so this reserves enough for any count.
    let room = cap.saturating_sub(marker(bytes).len());
    let head = text.floor_char_boundary(room * 6 / 10);
    let tail = text.ceil_char_boundary(bytes - (room - room * 6 / 10));
    let text = format!("{}{}{}", &text[..head], marker(tail - head), &text[tail..]);
    Cut { text, cut: true, bytes }
}

fn marker(dropped: usize) -> String {
    format!("\n[... {dropped} bytes truncated ...]\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_text_is_left_alone() {
        assert_eq!(middle("hello".into(), 1000), Cut { text: "hello".into(), cut: false, bytes: 5 });
        let exact = "x".repeat(1000);
        assert!(!middle(exact, 1000).cut);
    }

    #[test]
    fn long_text_keeps_both_ends() {
        let text = format!("BEGIN{}END", "x".repeat(5000 - 8));
        let cut = middle(text, 1000);
        assert!(cut.cut);
        assert_eq!(cut.bytes, 5000);
        assert!(cut.text.starts_with("BEGIN") && cut.text.ends_with("END"));
        assert!(cut.text.len() <= 1000);
        let dropped: usize =
            cut.text.split("[... ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        let kept = cut.text.len() - marker(dropped).len();
        assert_eq!(kept + dropped, 5000);
        let head = cut.text.find("\n[...").unwrap();
        assert!((head * 10).abs_diff(kept * 6) <= 10, "60 % of what is kept is the head");
    }

    #[test]
    fn characters_stay_whole_at_any_cap() {
        for glyph in ["😀", "é", "漢"] {
            let text = glyph.repeat(1000);
            for cap in [200, 203, 205, 207, 333, 1001] {
                let cut = middle(text.clone(), cap);
                assert!(cut.text.len() <= cap, "{cap}");
                assert!(cut.text.contains("bytes truncated"));
                assert!(!cut.text.contains('\u{fffd}'));
            }
        }
    }
}
