//! Cutting long command output in the middle: the beginning says what ran, the end says how it went. Counted in bytes,
//! never longer than the cap, never inside a character (`spec/mcp.md` §C.5). Output may be endless, so only what can be
//! shown is kept of it.

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
    pub(crate) bytes: u64,
}

/// Beginning and end of a text that comes in pieces; never more than three caps of it.
#[derive(Debug)]
pub(crate) struct Kept {
    cap: usize,
    /// The first cap.
    head: String,
    /// What followed, or, when that is more than two caps, at least the last one.
    tail: String,
    bytes: u64,
}

impl Kept {
    /// `cap` is expected to leave room for the marker (about 50 bytes).
    pub(crate) fn new(cap: usize) -> Self {
        Self { cap, head: String::new(), tail: String::new(), bytes: 0 }
    }

    pub(crate) fn push(&mut self, text: &str) {
        self.bytes += text.len() as u64;
        let mut rest = text;
        if self.tail.is_empty() {
            let (head, after) = rest.split_at(rest.floor_char_boundary(self.cap - self.head.len()));
            self.head.push_str(head);
            rest = after;
        }
        // What would be dropped at once is not copied first.
        let start = rest.ceil_char_boundary(rest.len().saturating_sub(2 * self.cap));
        if start > 0 {
            self.tail.clear();
        }
        self.tail.push_str(&rest[start..]);
        if self.tail.len() > 2 * self.cap {
            let start = self.tail.ceil_char_boundary(self.tail.len() - self.cap);
            self.tail.drain(..start);
        }
    }

    /// What is shown.
    pub(crate) fn cut(self) -> Cut {
        let Self { cap, head, tail, bytes } = self;
        let kept = head.len() + tail.len();
        if kept as u64 == bytes {
            let text = head + &tail;
            if text.len() <= cap {
                return Cut { text, cut: false, bytes };
            }
            return Cut { text: ends(&text, &text, bytes, cap), cut: true, bytes };
        }
        Cut { text: ends(&head, &tail, bytes, cap), cut: true, bytes }
    }
}

/// Beginning and end of a text of `bytes` bytes, of which `head` and `tail` are at least what fits of both.
fn ends(head: &str, tail: &str, bytes: u64, cap: usize) -> String {
    // The marker is longest when it names the whole length, so this reserves enough for any count.
    let room = cap.saturating_sub(marker(bytes).len());
    let head = &head[..head.floor_char_boundary(room * 6 / 10)];
    let tail = &tail[tail.ceil_char_boundary(tail.len() - (room - room * 6 / 10))..];
    format!("{head}{}{tail}", marker(bytes - (head.len() + tail.len()) as u64))
}

fn marker(dropped: u64) -> String {
    format!("\n[... {dropped} bytes truncated ...]\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, cap: usize) -> Cut {
        let mut kept = Kept::new(cap);
        kept.push(text);
        kept.cut()
    }

    #[test]
    fn short_text_is_left_alone() {
        assert_eq!(cut("hello", 1000), Cut { text: "hello".into(), cut: false, bytes: 5 });
        assert!(!cut(&"x".repeat(1000), 1000).cut);
        assert_eq!(cut("", 1000), Cut { text: String::new(), cut: false, bytes: 0 });
    }

    #[test]
    fn long_text_keeps_both_ends() {
        for length in [1001, 1010, 5000, 1_000_000] {
            let cut = cut(&format!("BEGIN{}END", "x".repeat(length - 8)), 1000);
            assert!(cut.cut);
            assert_eq!(cut.bytes, length as u64);
            assert!(cut.text.starts_with("BEGIN") && cut.text.ends_with("END"));
            assert!(cut.text.len() <= 1000);
            let dropped = cut.text.split("[... ").nth(1).unwrap().split(' ').next().unwrap();
            let dropped: usize = dropped.parse().unwrap();
            let kept = cut.text.len() - marker(dropped as u64).len();
            assert_eq!(kept + dropped, length);
            let head = cut.text.find("\n[...").unwrap();
            assert!((head * 10).abs_diff(kept * 6) <= 10, "60 % of what is kept is the head");
        }
    }

    #[test]
    fn characters_stay_whole_at_any_cap() {
        for glyph in ["😀", "é", "漢"] {
            let text = glyph.repeat(1000);
            for cap in [200, 203, 205, 207, 333, 1001] {
                let cut = cut(&text, cap);
                assert!(cut.text.len() <= cap, "{cap}");
                assert!(cut.text.contains("bytes truncated"));
                assert!(!cut.text.contains('\u{fffd}'));
            }
        }
    }

    #[test]
    fn pieces_make_no_difference_and_little_is_kept() {
        let text: String = (0..20_000).map(|n| format!("{n}ä ")).collect();
        let whole = cut(&text, 1001);
        for size in [1, 7, 500, 1001, 4000, 40_000] {
            let mut kept = Kept::new(1001);
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.ceil_char_boundary(size.min(rest.len())));
                kept.push(piece);
                assert!(kept.head.len() <= 1001 && kept.tail.len() <= 2002, "{size}");
                assert!(kept.tail.capacity() < 10_000, "{size}: {}", kept.tail.capacity());
                rest = after;
            }
            assert_eq!(kept.cut(), whole, "{size}");
        }
    }
}
