//! A credential that a service repeats does not come back: each form in which the value may stand in text is replaced by
//! the same form of its stand-in, in a window no longer than the longest form.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, header};
use percent_encoding::utf8_percent_encode;

use crate::swap::{ESCAPED, Used};

/// A shorter value would be found in half of all texts; nobody's credential is that short.
const MIN_LENGTH: usize = 8;

/// Replaces values in text that arrives in pieces.
pub(crate) struct Scrubber {
    /// What must not pass, and what does instead. The longest first, since one may begin with another.
    forms: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes with which forms begin.
    first: [bool; 256],
    /// The end of what has arrived, as long as it may be the beginning of a form.
    held: Vec<u8>,
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        // Best effort: buffers on the way have been elsewhere.
        for (form, _) in &mut self.forms {
            form.fill(0);
            std::hint::black_box(form);
        }
    }
}

impl Scrubber {
    pub(crate) fn new<'a>(used: impl IntoIterator<Item = &'a Used>) -> Self {
        let mut forms = Vec::new();
        for one in used {
            let (value, stand_in) = (one.value.expose_secret(), one.bound.stand_in.as_str());
            if let Some((sent, came)) = &one.basic {
                forms.push((sent.expose_secret().as_bytes().to_vec(), came.as_bytes().to_vec()));
            }
            if value.len() < MIN_LENGTH {
                continue;
            }
            let mut add = |form: Vec<u8>, instead: &[u8]| forms.push((form, instead.to_vec()));
            add(value.as_bytes().to_vec(), stand_in.as_bytes());
            let escaped = utf8_percent_encode(value, ESCAPED).to_string();
            add(lower_escapes(&escaped).into_bytes(), stand_in.as_bytes());
            add(escaped.into_bytes(), stand_in.as_bytes());
            // As JSON and most languages write it.
            let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
            add(quoted.replace('/', "\\/").into_bytes(), stand_in.as_bytes());
            add(quoted.into_bytes(), stand_in.as_bytes());
            for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                for before in 0..3 {
                    let form = inner_base64(&engine, value, before);
                    let mask = vec![b'*'; form.len()];
                    add(form, &mask);
                }
            }
        }
        forms.retain(|(form, _)| form.len() >= MIN_LENGTH);
        forms.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup_by(|(a, _), (b, _)| a == b);
        let mut first = [false; 256];
        forms.iter().for_each(|(form, _)| first[usize::from(form[0])] = true);
        Self { forms, first, held: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.forms.is_empty()
    }

    /// Takes the next piece; gives what may pass.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.held);
        text.extend_from_slice(piece);
        let (out, rest) = self.replace(&text, false);
        self.held = rest;
        out
    }

    /// The last piece was the last.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let text = std::mem::take(&mut self.held);
        self.replace(&text, true).0
    }

    /// All headers of an answer.
    pub(crate) fn headers(&self, headers: &mut HeaderMap) {
        for value in headers.values_mut() {
            let (new, _) = self.replace(value.as_bytes(), true);
            if new != value.as_bytes() {
                *value = HeaderValue::from_bytes(&new).unwrap_or_else(|_| HeaderValue::from_static(""));
            }
        }
    }

    /// What may pass, and what is kept because it may go on as a form.
    fn replace(&self, text: &[u8], last: bool) -> (Vec<u8>, Vec<u8>) {
        let mut out = Vec::with_capacity(text.len());
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            if !self.first[usize::from(rest[0])] {
                out.push(rest[0]);
                at += 1;
            } else if let Some((form, instead)) = self.forms.iter().find(|(form, _)| rest.starts_with(form)) {
                out.extend_from_slice(instead);
                at += form.len();
            } else if !last && self.forms.iter().any(|(form, _)| form.starts_with(rest)) {
                return (out, rest.to_vec());
            } else {
                out.push(text[at]);
                at += 1;
            }
        }
        (out, Vec::new())
    }
}

fn lower_escapes(escaped: &str) -> String {
    let mut out = String::with_capacity(escaped.len());
    let mut left = 0;
    for c in escaped.chars() {
        left = if c == '%' { 3 } else { left };
        out.push(if left > 0 { c.to_ascii_lowercase() } else { c });
        left = usize::saturating_sub(left, 1);
    }
    out
}

/// The characters of a base64 text that depend on the value alone, when `before` (mod 3) other bytes stand before it.
fn inner_base64(engine: &impl Engine, value: &str, before: usize) -> Vec<u8> {
    let padded = [&[0; 3][..before], value.as_bytes()].concat();
    let encoded = engine.encode(&padded).into_bytes();
    // A character holds six bits: the first whole one after the foreign bytes, up to the last whole one.
    let first = (before * 8).div_ceil(6);
    let end = padded.len() * 8 / 6;
    encoded.get(first..end).unwrap_or_default().to_vec()
}

/// Whether a body is text, in which a value may be found.
pub(crate) fn is_text(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return true };
    let Ok(kind) = kind.to_str() else { return true };
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind.starts_with("text/")
        || kind.ends_with("+json")
        || kind.ends_with("+xml")
        || [
            "application/json",
            "application/x-ndjson",
            "application/ndjson",
            "application/jsonl",
            "application/xml",
            "application/javascript",
            "application/x-javascript",
            "application/x-www-form-urlencoded",
            "application/yaml",
            "application/x-yaml",
            "multipart/form-data",
        ]
        .contains(&kind.as_str())
}

#[cfg(test)]
mod tests;
