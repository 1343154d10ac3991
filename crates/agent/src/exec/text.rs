//! Bytes of a command as text: UTF-8, invalid parts replaced, characters split between two reads put together.

/// Turns pieces of a byte stream into pieces of text.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// The beginning of a character whose end has not come yet; at most three bytes.
    carry: Vec<u8>,
}

impl Decoder {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        let joined;
        let bytes = if self.carry.is_empty() {
            bytes
        } else {
            joined = [std::mem::take(&mut self.carry).as_slice(), bytes].concat();
            joined.as_slice()
        };
        let (whole, rest) = bytes.split_at(whole_characters(bytes));
        self.carry.extend_from_slice(rest);
        String::from_utf8_lossy(whole).into_owned()
    }

    /// What is left at the end can only be a broken character.
    pub(crate) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.carry)).into_owned()
    }
}

/// Length of `bytes` without a last character that is cut short.
pub(crate) fn whole_characters(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    for at in (tail..bytes.len()).rev() {
        let needed = match bytes[at] {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => break,
        };
        let cut_short = at + needed > bytes.len()
            && std::str::from_utf8(&bytes[at..]).is_err_and(|error| error.error_len().is_none());
        return if cut_short { at } else { bytes.len() };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[&[u8]], expected: &[&str], end: &str) {
        let mut decoder = Decoder::default();
        let texts: Vec<String> = pieces.iter().map(|piece| decoder.push(piece)).collect();
        assert_eq!(texts, expected);
        assert_eq!(decoder.finish(), end);
    }

    #[test]
    fn pieces() {
        check(&[b"a\r\n\n\0b"], &["a\r\n\n\0b"], "");
        check(&["grün".as_bytes()], &["grün"], "");
        check(&[b"gr\xc3", b"\xbcn"], &["gr", "ün"], "");
        check(&[b"\xf0", b"\x9f", b"\xa6", b"\x80!"], &["", "", "", "🦀!"], "");
        check(&[b"x\xf0\x9f"], &["x"], "\u{fffd}");
        check(&[b"\xff\xfe", b"ok"], &["\u{fffd}\u{fffd}", "ok"], "");
        check(&[b"\xc3", b"("], &["", "\u{fffd}("], "");
        check(&[b"\x80\x80\x80\x80"], &["\u{fffd}\u{fffd}\u{fffd}\u{fffd}"], "");
        check(&[b"\xe0\x80"], &["\u{fffd}\u{fffd}"], "");
    }

    #[test]
    fn every_split_of_a_text_gives_the_text() {
        let text = "a🦀é\u{fffd}한z";
        for at in 0..=text.len() {
            let (left, right) = text.as_bytes().split_at(at);
            let mut decoder = Decoder::default();
            let whole = decoder.push(left) + &decoder.push(right) + &decoder.finish();
            assert_eq!(whole, text, "split at {at}");
        }
    }
}
