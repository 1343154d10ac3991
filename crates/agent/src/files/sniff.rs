//! Guesses a file's type from its first bytes, for browsers and viewers.

use crate::exec::whole_characters;

/// As much as is looked at.
pub(super) const SNIFFED_BYTES: usize = 512;

const SIGNATURES: &[(&[u8], &str)] = &[
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"OggS\0", "application/ogg"),
    (b"\0asm", "application/wasm"),
];

pub(super) fn content_type(head: &[u8]) -> &'static str {
    if let Some((_, name)) = SIGNATURES.iter().find(|(signature, _)| head.starts_with(signature)) {
        return name;
    }
    if head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP") {
        return "image/webp";
    }
    let whole = &head[..whole_characters(head)];
    let binary = |byte: &u8| matches!(byte, 0..=8 | 11 | 14..=26 | 28..=31 | 127);
    if std::str::from_utf8(whole).is_err() || whole.iter().any(binary) {
        return "application/octet-stream";
    }
    let text = whole.trim_ascii_start();
    let begins = |tag: &[u8]| text.get(..tag.len()).is_some_and(|head| head.eq_ignore_ascii_case(tag));
    if begins(b"<!doctype html") || begins(b"<html") {
        "text/html; charset=utf-8"
    } else {
        "text/plain; charset=utf-8"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types() {
        assert_eq!(content_type(b""), "text/plain; charset=utf-8");
        assert_eq!(content_type("grün".as_bytes()), "text/plain; charset=utf-8");
        assert_eq!(content_type(b"gr\xc3"), "text/plain; charset=utf-8");
        assert_eq!(content_type(b"\n <!DOCTYPE HTML>"), "text/html; charset=utf-8");
        assert_eq!(content_type(b"\x89PNG\r\n\x1a\n\0"), "image/png");
        assert_eq!(content_type(b"a\0b"), "application/octet-stream");
        assert_eq!(content_type(b"\xff\xfe"), "application/octet-stream");
        assert_eq!(content_type(b"RIFF\0\0\0\0WEBPVP8 "), "image/webp");
    }
}
