//! Pictures of the screen as clients take them. The guest made them, so what they are is read from their own first bytes and
//! not from what is said of them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::ScreenshotResponse;
use rmcp::model::ContentBlock;
use serde_json::{Map, Value, json};

use super::screens::Size;

/// Longest base64 of a picture: clients cut or refuse results of more than 1 MB, and what is around it takes a little.
pub(super) const MAX_BASE64: usize = 1_000_000;
/// Longest edge that models' APIs take, pixels.
pub(super) const MAX_EDGE: i64 = 8_000;
/// Beyond this many pixels on an edge many clients shrink pictures without a word.
pub(super) const QUIETLY_SHRUNK: i64 = 1_568;
/// Heads of JPEG files end within this many base64 characters: the agent writes no metadata.
const HEAD_BASE64: usize = 64 * 1024;

/// A picture that is one.
#[derive(Debug)]
pub(super) struct Picture {
    pub(super) base64: String,
    pub(super) kind: Kind,
    /// Of the screen.
    pub(super) screen: Size,
    /// Screen pixels for one of the picture.
    pub(super) scale: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Png,
    Jpeg,
}

impl Picture {
    /// # Errors
    /// What is wrong with it, as a clause.
    pub(super) fn new(answer: ScreenshotResponse) -> Result<Self, String> {
        let base64 = answer.image;
        if base64.is_empty() {
            return Err("the sandbox sent no picture".to_owned());
        }
        let digit = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
        let digits = base64.trim_end_matches('=');
        if !base64.len().is_multiple_of(4)
            || base64.len() - digits.len() > 2
            || !digits.as_bytes().iter().all(digit)
        {
            return Err("the sandbox sent something that is no base64".to_owned());
        }
        // Whole groups of four, without the padding.
        let head = &digits[..digits.len().min(HEAD_BASE64) / 4 * 4];
        let head =
            STANDARD.decode(head).map_err(|_| "the sandbox sent something that is no base64".to_owned())?;
        let Some((kind, screen)) = recognise(&head) else {
            return Err("the sandbox sent something that is neither PNG nor JPEG".to_owned());
        };
        Ok(Self { base64, kind, screen, scale: 1 })
    }

    /// Whether clients take it.
    pub(super) fn fits(&self) -> bool {
        let (width, height) = self.screen;
        self.base64.len() <= MAX_BASE64 && width.max(height) / self.scale <= MAX_EDGE
    }

    /// What a model must know to use its coordinates: nothing for ordinary screens.
    pub(super) fn remark(&self) -> String {
        let (width, height) = self.screen;
        if self.scale > 1 {
            return format!(
                ". The picture is {0} times smaller than the screen and coordinates are screen pixels: multiply those of the \
                 picture by {0}, or resize the screen to at most 1366x768",
                self.scale
            );
        }
        match width.max(height) > QUIETLY_SHRUNK {
            true => format!(
                ". Clients may shrink pictures of more than {QUIETLY_SHRUNK} pixels without telling, and coordinates are those \
                 of the whole screen: better resize it to at most 1366x768"
            ),
            false => String::new(),
        }
    }

    /// For the result's `_meta`.
    pub(super) fn meta(&self) -> Map<String, Value> {
        let (width, height) = self.screen;
        let mut meta = Map::new();
        meta.insert("superserve/width".to_owned(), width.into());
        meta.insert("superserve/height".to_owned(), height.into());
        meta
    }

    pub(super) fn structured(&self) -> Value {
        let (width, height) = self.screen;
        json!({"width": width, "height": height})
    }

    pub(super) fn block(self) -> ContentBlock {
        let mime = match self.kind {
            Kind::Png => "image/png",
            Kind::Jpeg => "image/jpeg",
        };
        ContentBlock::image(self.base64, mime)
    }
}

/// Kind and size of a picture that begins like this.
fn recognise(head: &[u8]) -> Option<(Kind, Size)> {
    if let Some(rest) = head.strip_prefix(b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR") {
        let edge = |at: usize| {
            let bytes = rest.get(at..at + 4)?.try_into().ok()?;
            Some(i64::from(u32::from_be_bytes(bytes)))
        };
        let size = (edge(0)?, edge(4)?);
        return (size.0 > 0 && size.1 > 0).then_some((Kind::Png, size));
    }
    let mut rest = head.strip_prefix(b"\xff\xd8")?;
    loop {
        let (marker, length, after) = match *rest {
            [0xff, marker, high, low, ref after @ ..] => {
                (marker, usize::from(u16::from_be_bytes([high, low])).checked_sub(2)?, after)
            }
            _ => return None,
        };
        // The start of a frame: all SOFn, among which are three numbers of other segments.
        if (0xc0..=0xcf).contains(&marker) && !matches!(marker, 0xc4 | 0xc8 | 0xcc) {
            let [_, a, b, c, d] = *after.get(..5)? else { return None };
            let size = (i64::from(u16::from_be_bytes([c, d])), i64::from(u16::from_be_bytes([a, b])));
            return (size.0 > 0 && size.1 > 0).then_some((Kind::Jpeg, size));
        }
        rest = after.get(length..)?;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A PNG of this size as far as its head goes, of at least so many bytes.
    pub(crate) fn png(width: u32, height: u32, bytes: usize) -> Vec<u8> {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        png.extend(width.to_be_bytes());
        png.extend(height.to_be_bytes());
        png.resize(png.len().max(bytes), 0);
        png
    }

    fn picture(bytes: &[u8]) -> Result<Picture, String> {
        Picture::new(ScreenshotResponse { image: STANDARD.encode(bytes), ..ScreenshotResponse::default() })
    }

    #[test]
    fn pictures_say_themselves_what_they_are() {
        let shot = picture(&png(1280, 800, 99)).unwrap();
        assert_eq!((shot.kind, shot.screen), (Kind::Png, (1280, 800)));
        assert!(shot.fits() && shot.remark().is_empty());
        let jpeg = b"\xff\xd8\xff\xe0\0\x04ab\xff\xc4\0\x02\xff\xc2\0\x11\x08\x03\x20\x05\x00\x03";
        let shot = picture(jpeg).unwrap();
        assert_eq!((shot.kind, shot.screen), (Kind::Jpeg, (1280, 800)));
        for wrong in [
            &b"GIF89a"[..],
            b"\xff\xd8",
            b"\xff\xd8\xff\xe0\0\0",
            b"\xff\xd8\xff\xe0\xff\xffa",
            &png(0, 800, 0),
            &png(1, 1, 0)[..20],
        ] {
            assert!(picture(wrong).unwrap_err().contains("neither PNG nor JPEG"), "{wrong:?}");
        }
        assert!(picture(b"").unwrap_err().contains("no picture"));
        for wrong in ["abc", "ab c", "a===", "=abc", "ab=c", "äää", "<script>"] {
            let answer = ScreenshotResponse { image: wrong.to_owned(), ..ScreenshotResponse::default() };
            assert!(Picture::new(answer).unwrap_err().contains("no base64"), "{wrong}");
        }
    }

    #[test]
    fn what_clients_do_not_take_is_known() {
        assert!(!picture(&png(1280, 800, MAX_BASE64 / 4 * 3 + 1)).unwrap().fits());
        assert!(picture(&png(1280, 800, MAX_BASE64 / 4 * 3)).unwrap().fits());
        assert!(!picture(&png(8_192, 200, 0)).unwrap().fits());
        assert!(picture(&png(1_600, 900, 0)).unwrap().remark().contains("1568 pixels"));
    }
}
