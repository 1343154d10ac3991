//! Pictures of the screen, with the pointer on them. The server writes them into memory it shares with this program, or
//! sends them piece by piece where it cannot.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags};
use wire::desktop::{SCREEN_HEIGHT, SCREEN_WIDTH};
use x11rb::connection::{Connection as _, RequestConnection as _};
use x11rb::errors::ReplyError;
use x11rb::protocol::shm::{self, ConnectionExt as _};
use x11rb::protocol::xfixes::{self, ConnectionExt as _, GetCursorImageReply};
use x11rb::protocol::xproto::{ConnectionExt as _, ImageFormat, ImageOrder};
use x11rb::x11_utils::TryParse as _;

use super::fault::{Fault, XError};
use super::link::{Display, Link};

/// Bytes of a pixel as servers of depth 24 and 32 keep it: blue, green, red, nothing.
const PIXEL: usize = 4;
/// Largest piece without shared memory.
const BAND_BYTES: usize = 1024 * 1024;
/// The screen may change its size between the question for it and the picture.
const TRIES: usize = 4;
/// Largest pointer that is drawn, pixels each way; usual ones have 16 to 128.
const MAX_POINTER: usize = 512;

/// A picture: rows of blue, green, red and an unused byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Picture {
    pub(super) width: u16,
    pub(super) height: u16,
    pub(super) pixels: Vec<u8>,
}

/// A connection that takes pictures.
#[derive(Debug)]
pub(super) struct Camera {
    link: Link,
    shared: Option<Shared>,
    /// The server cannot share memory.
    unshared: bool,
    cursor: bool,
}

/// Memory the server draws into. It is read like a file, and cannot be made smaller by the other side.
#[derive(Debug)]
struct Shared {
    segment: u32,
    memory: File,
    bytes: usize,
}

impl Camera {
    pub(super) fn open(display: Display) -> Result<Self, XError> {
        let link = Link::open(display)?;
        let setup = link.x.setup();
        let depth = link.screen.root_depth;
        let format = setup.pixmap_formats.iter().find(|format| format.depth == depth);
        let plain = format.is_some_and(|format| format.bits_per_pixel == 32)
            && setup.image_byte_order == ImageOrder::LSB_FIRST
            && link
                .screen
                .allowed_depths
                .iter()
                .flat_map(|depth| &depth.visuals)
                .find(|visual| visual.visual_id == link.screen.root_visual)
                .is_some_and(|visual| {
                    (visual.red_mask, visual.green_mask, visual.blue_mask) == (0xff_0000, 0xff00, 0xff)
                });
        if !plain {
            return Err(XError::Refused("the display must have 24 bits per pixel".to_owned()));
        }
        let has =
            |extension: &'static str| link.x.extension_information(extension).map(|known| known.is_some());
        let cursor = has(xfixes::X11_EXTENSION_NAME)?;
        if cursor {
            link.x.xfixes_query_version(5, 0)?.reply()?;
        }
        let unshared = !has(shm::X11_EXTENSION_NAME)? || {
            let version = link.x.shm_query_version()?.reply()?;
            (version.major_version, version.minor_version) < (1, 2)
        };
        Ok(Self { link, shared: None, unshared, cursor })
    }

    /// Whether the server still answers.
    pub(super) fn is_well(&self) -> bool {
        self.link.begin();
        self.link.sync().is_ok()
    }

    /// Takes a picture.
    pub(super) fn take(&mut self, with_pointer: bool) -> Result<Picture, XError> {
        let mut last = XError::Refused("the screen keeps changing its size".to_owned());
        for _ in 0..TRIES {
            match self.try_take(with_pointer) {
                Err(error @ XError::Refused(_)) => last = error,
                done => return done,
            }
        }
        Err(last)
    }

    fn try_take(&mut self, with_pointer: bool) -> Result<Picture, XError> {
        self.link.begin();
        let size = self.link.x.get_geometry(self.link.root)?.reply()?;
        let (width, height) = (size.width, size.height);
        let largest = |range: &std::ops::RangeInclusive<i64>, length: u16| i64::from(length) <= *range.end();
        if width == 0 || height == 0 || !largest(&SCREEN_WIDTH, width) || !largest(&SCREEN_HEIGHT, height) {
            return Err(XError::Lost(format!("its screen has {width}x{height} pixels")));
        }
        let bytes = usize::from(width) * usize::from(height) * PIXEL;
        let mut picture = Picture { width, height, pixels: vec![0; bytes] };
        if self.unshared || !self.shared(&mut picture)? {
            self.in_bands(&mut picture)?;
        }
        if with_pointer && self.cursor {
            match self.link.x.xfixes_get_cursor_image()?.raw_reply() {
                Ok(raw) => {
                    if let Some(pointer) = pointer(&raw)? {
                        picture.draw(&pointer);
                    }
                }
                // The shape belongs to a program that has just ended: the server gives it to nobody, until another one sets the next.
                Err(ReplyError::X11Error(_)) => {}
                Err(lost) => return Err(lost.into()),
            }
        }
        Ok(picture)
    }

    /// `false` when memory cannot be shared after all.
    fn shared(&mut self, picture: &mut Picture) -> Result<bool, XError> {
        let bytes = picture.pixels.len();
        if self.shared.as_ref().is_none_or(|shared| shared.bytes < bytes || shared.bytes / 4 > bytes) {
            if let Some(old) = self.shared.take() {
                self.link.x.shm_detach(old.segment)?;
            }
            match Shared::new(&self.link, bytes) {
                Ok(shared) => self.shared = Some(shared),
                Err(XError::Refused(_)) => {
                    self.unshared = true;
                    return Ok(false);
                }
                Err(lost) => return Err(lost),
            }
        }
        let Some(shared) = &self.shared else { return Ok(false) };
        let format = u8::from(ImageFormat::Z_PIXMAP);
        let (root, x) = (self.link.root, &self.link.x);
        x.shm_get_image(root, 0, 0, picture.width, picture.height, u32::MAX, format, shared.segment, 0)?
            .reply()?;
        shared.memory.read_exact_at(&mut picture.pixels, 0)?;
        Ok(true)
    }

    fn in_bands(&self, picture: &mut Picture) -> Result<(), XError> {
        let row = usize::from(picture.width) * PIXEL;
        let rows = (BAND_BYTES / row).max(1);
        let mut top = 0;
        for band in picture.pixels.chunks_mut(rows * row) {
            let height = u16::try_from(band.len() / row).unwrap_or(u16::MAX);
            let y = i16::try_from(top).unwrap_or(i16::MAX);
            let (root, x) = (self.link.root, &self.link.x);
            let format = ImageFormat::Z_PIXMAP;
            self.link.allow(band.len());
            let image = x.get_image(format, root, 0, y, picture.width, height, u32::MAX)?.reply()?;
            let data = image.data.get(..band.len());
            band.copy_from_slice(data.ok_or_else(|| XError::Lost("a picture is incomplete".to_owned()))?);
            top += usize::from(height);
        }
        Ok(())
    }
}

/// Reads a pointer; `None` for one that is too large to be one. What it says of its size is believed only when it is there,
/// as room for so much would be made first.
fn pointer(raw: &[u8]) -> Result<Option<GetCursorImageReply>, XError> {
    const HEAD: usize = 32;
    let edge =
        |at: usize| raw.get(at..at + 2).map(|bytes| usize::from(u16::from_ne_bytes([bytes[0], bytes[1]])));
    let incomplete = || XError::Lost("its pointer is incomplete".to_owned());
    let (width, height) = edge(12).zip(edge(14)).ok_or_else(incomplete)?;
    if width * height > raw.len().saturating_sub(HEAD) / PIXEL {
        return Err(incomplete());
    }
    if width > MAX_POINTER || height > MAX_POINTER {
        return Ok(None);
    }
    let parsed = GetCursorImageReply::try_parse(raw);
    parsed.map(|(pointer, _)| Some(pointer)).map_err(|error| XError::Lost(error.to_string()))
}

impl Shared {
    fn new(link: &Link, bytes: usize) -> Result<Self, XError> {
        let make = || -> std::io::Result<(File, OwnedFd)> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let memory = File::from(rustix::fs::memfd_create("screen", flags)?);
            memory.set_len(bytes as u64)?;
            rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            let theirs = rustix::io::fcntl_dupfd_cloexec(&memory, 3)?;
            Ok((memory, theirs))
        };
        let (memory, theirs) = make().map_err(|error| XError::Refused(error.to_string()))?;
        let segment = link.x.generate_id()?;
        link.x.shm_attach_fd(segment, theirs, false)?.check()?;
        Ok(Self { segment, memory, bytes })
    }
}

impl Picture {
    /// Draws the pointer, whose pixels are multiplied by their alpha already.
    fn draw(&mut self, cursor: &GetCursorImageReply) {
        let (left, top) =
            (i32::from(cursor.x) - i32::from(cursor.xhot), i32::from(cursor.y) - i32::from(cursor.yhot));
        if cursor.width == 0 {
            return;
        }
        let rows = cursor.cursor_image.chunks_exact(usize::from(cursor.width)).take(cursor.height.into());
        for (y, row) in (top..).zip(rows).filter(|(y, _)| (0..i32::from(self.height)).contains(y)) {
            let visible = (left..).zip(row).filter(|(x, _)| (0..i32::from(self.width)).contains(x));
            for (x, pixel) in visible {
                // Both are within the picture.
                let at =
                    (y.unsigned_abs() as usize * usize::from(self.width) + x.unsigned_abs() as usize) * PIXEL;
                let [blue, green, red, alpha] = pixel.to_le_bytes();
                for (under, over) in self.pixels[at..at + 3].iter_mut().zip([blue, green, red]) {
                    let shining = u16::from(*under) * (255 - u16::from(alpha)) / 255;
                    *under = u8::try_from(u16::from(over) + shining).unwrap_or(u8::MAX);
                }
            }
        }
    }

    /// Whether it shows the same as another; the unused byte may hold anything.
    pub(super) fn shows(&self, other: &Self) -> bool {
        if (self.width, self.height) != (other.width, other.height) {
            return false;
        }
        self.pixels == other.pixels
            || self
                .pixels
                .chunks_exact(PIXEL)
                .zip(other.pixels.chunks_exact(PIXEL))
                .all(|(one, two)| one[..3] == two[..3])
    }
}

/// What to tell when no picture can be had.
pub(super) fn failed(error: &XError) -> Fault {
    Fault::x("the screen cannot be captured", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(x: i16, y: i16, pixels: Vec<u32>, width: u16) -> GetCursorImageReply {
        let height = u16::try_from(pixels.len() / usize::from(width)).unwrap();
        GetCursorImageReply {
            sequence: 0,
            length: 0,
            x,
            y,
            width,
            height,
            xhot: 1,
            yhot: 1,
            cursor_serial: 0,
            cursor_image: pixels,
        }
    }

    #[test]
    fn the_pointer_is_cut_at_the_edges() {
        let blank = Picture { width: 3, height: 2, pixels: vec![100; 24] };
        let white = vec![0xffff_ffff; 16];
        for (x, y) in [(0, 0), (2, 1), (-500, 7), (i16::MAX, i16::MIN)] {
            let mut picture = blank.clone();
            picture.draw(&cursor(x, y, white.clone(), 4));
            let painted = picture.pixels.chunks_exact(4).filter(|pixel| pixel[..3] == [255; 3]).count();
            let expected = match (x, y) {
                (0, 0) => 6,
                (2, 1) => 4,
                _ => 0,
            };
            assert_eq!(painted, expected, "{x},{y}");
        }
        let mut picture = blank.clone();
        picture.draw(&cursor(1, 1, vec![0x8000_0080], 1));
        assert_eq!(picture.pixels[..4], [128 + 49, 49, 49, 100]);
        // More was announced than there is.
        picture.draw(&GetCursorImageReply { height: 9, ..cursor(0, 0, vec![0], 1) });
        picture.draw(&cursor(0, 0, vec![0; 3], 3));
    }

    #[test]
    fn a_pointer_is_as_large_as_what_came() {
        use x11rb::x11_utils::Serialize as _;
        let honest = cursor(0, 0, vec![7; 12], 4);
        let mut raw = GetCursorImageReply { length: 12, ..honest }.serialize();
        assert_eq!(pointer(&raw).unwrap().unwrap().cursor_image, [7; 12]);
        raw[14] = 4;
        assert!(matches!(pointer(&raw), Err(XError::Lost(_))));
        raw[12..16].fill(0xff);
        assert!(matches!(pointer(&raw), Err(XError::Lost(_))));
        assert!(matches!(pointer(&raw[..13]), Err(XError::Lost(_))));
        let wide = cursor(0, 0, vec![0; MAX_POINTER + 1], u16::try_from(MAX_POINTER).unwrap() + 1);
        assert!(pointer(&wide.serialize()).unwrap().is_none());
    }

    #[test]
    fn the_unused_byte_means_nothing() {
        let one = Picture { width: 1, height: 1, pixels: vec![1, 2, 3, 4] };
        assert!(one.shows(&Picture { pixels: vec![1, 2, 3, 9], ..one.clone() }));
        assert!(!one.shows(&Picture { pixels: vec![1, 2, 4, 4], ..one.clone() }));
    }
}
