//! A video of JPEG pictures in an AVI file, the simplest container that every player opens. Frames have a fixed rate; a
//! frame that shows nothing new is an empty chunk, which players take as the one before.
//!
//! The head says how many frames there are, so it is written again at the end. A file that was never finished has its
//! pictures all the same.

use std::io::{self, Seek, SeekFrom, Write};

/// Bytes before the first frame.
const HEAD: usize = 224;
/// The file has an index.
const HAS_INDEX: u32 = 0x10;
/// A frame that needs no other.
const KEY_FRAME: u32 = 0x10;

/// A video that is being written.
pub(crate) struct Avi<W> {
    out: W,
    width: u16,
    height: u16,
    fps: u32,
    /// Where each frame is, counted from the list of frames, and its size.
    index: Vec<(u32, u32)>,
    largest: u32,
    /// Bytes of frames so far.
    bytes: u64,
}

impl<W: Write + Seek> Avi<W> {
    pub(crate) fn new(out: W, width: u16, height: u16, fps: u32) -> io::Result<Self> {
        let mut avi = Self { out, width, height, fps, index: Vec::new(), largest: 0, bytes: 0 };
        avi.write_head()?;
        Ok(avi)
    }

    pub(crate) fn frames(&self) -> usize {
        self.index.len()
    }

    /// What the file takes with its index.
    pub(crate) fn size(&self) -> u64 {
        HEAD as u64 + self.bytes + 8 + 16 * self.index.len() as u64
    }

    /// Adds a picture, or, when it is empty, the one before once more.
    pub(crate) fn frame(&mut self, jpeg: &[u8]) -> io::Result<()> {
        let length = u32::try_from(jpeg.len()).map_err(io::Error::other)?;
        // Offsets count from the word `movi`, four bytes before the first chunk.
        let offset = u32::try_from(4 + self.bytes).map_err(io::Error::other)?;
        self.out.write_all(b"00dc")?;
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(jpeg)?;
        if !jpeg.len().is_multiple_of(2) {
            self.out.write_all(&[0])?;
        }
        self.bytes += 8 + jpeg.len().next_multiple_of(2) as u64;
        self.index.push((offset, length));
        self.largest = self.largest.max(length);
        Ok(())
    }

    /// Writes the index and the head.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(b"idx1")?;
        self.out.write_all(&word(16 * self.index.len())?.to_le_bytes())?;
        for (offset, length) in &self.index {
            self.out.write_all(b"00dc")?;
            for number in [KEY_FRAME, *offset, *length] {
                self.out.write_all(&number.to_le_bytes())?;
            }
        }
        self.out.seek(SeekFrom::Start(0))?;
        self.write_head()?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// At the start of the file.
    fn write_head(&mut self) -> io::Result<()> {
        let frames = word(self.index.len())?;
        let bytes = u32::try_from(self.bytes).map_err(io::Error::other)?;
        let (width, height) = (u32::from(self.width), u32::from(self.height));
        let mut head = Head(Vec::with_capacity(HEAD));
        head.name(b"RIFF").number(u32::try_from(self.size() - 8).map_err(io::Error::other)?).name(b"AVI ");
        head.name(b"LIST").number(192).name(b"hdrl");
        head.name(b"avih").number(56);
        let rate = self.largest.saturating_mul(self.fps);
        for number in
            [1_000_000 / self.fps, rate, 0, HAS_INDEX, frames, 0, 1, self.largest, width, height, 0, 0, 0, 0]
        {
            head.number(number);
        }
        head.name(b"LIST").number(116).name(b"strl");
        head.name(b"strh").number(56).name(b"vids").name(b"MJPG");
        // Flags, priority, first frame, then frames per second as a fraction, start and length.
        for number in [0, 0, 0, 1, self.fps, 0, frames, self.largest, u32::MAX, 0, 0] {
            head.number(number);
        }
        head.0.extend(self.width.to_le_bytes());
        head.0.extend(self.height.to_le_bytes());
        head.name(b"strf").number(40).number(40).number(width).number(height);
        // One plane of 24 bits.
        head.number(1 | 24 << 16).name(b"MJPG").number(width.saturating_mul(height).saturating_mul(3));
        for _ in 0..4 {
            head.number(0);
        }
        head.name(b"LIST").number(4 + bytes).name(b"movi");
        self.out.write_all(&head.0)
    }
}

/// Four-letter names and little-endian numbers.
struct Head(Vec<u8>);

impl Head {
    fn name(&mut self, name: &[u8; 4]) -> &mut Self {
        self.0.extend(name);
        self
    }

    fn number(&mut self, number: u32) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }
}

fn word(number: usize) -> io::Result<u32> {
    u32::try_from(number).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(file: &[u8], at: usize) -> usize {
        u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize
    }

    #[test]
    fn any_size_has_a_head() {
        let mut avi = Avi::new(io::Cursor::new(Vec::new()), u16::MAX, u16::MAX, 4).unwrap();
        avi.frame(b"one").unwrap();
        let file = avi.finish().unwrap().into_inner();
        assert!(file.windows(8).any(|at| at == [&b"MJPG"[..], &[0xff; 4]].concat()));
    }

    #[test]
    fn the_head_and_the_index_lead_to_every_frame() {
        let mut avi = Avi::new(io::Cursor::new(Vec::new()), 1280, 800, 4).unwrap();
        let frames: [&[u8]; 4] = [b"first", b"", b"second", b"odd"];
        for frame in frames {
            avi.frame(frame).unwrap();
        }
        let said = avi.size();
        let file = avi.finish().unwrap().into_inner();
        assert_eq!((file.len() as u64, number(&file, 4)), (said, file.len() - 8));
        // Lists end where the next thing begins.
        let movi = 20 + number(&file, 16);
        assert_eq!(&file[movi..movi + 4], b"LIST");
        assert_eq!(&file[movi + 8..movi + 12], b"movi");
        assert_eq!(movi + 12, HEAD);
        let strl = 32 + number(&file, 28);
        assert_eq!((&file[12..16], &file[strl..strl + 4]), (&b"LIST"[..], &b"LIST"[..]));
        assert_eq!(strl + 8 + number(&file, strl + 4), movi);
        assert_eq!(
            (number(&file, 32), number(&file, 48), number(&file, 64), number(&file, 68)),
            (250_000, 4, 1280, 800)
        );
        let index = movi + 8 + number(&file, movi + 4);
        assert_eq!((&file[index..index + 4], number(&file, index + 4)), (&b"idx1"[..], 64));
        for (n, frame) in frames.iter().enumerate() {
            let entry = index + 8 + 16 * n;
            let (at, length) = (movi + 8 + number(&file, entry + 8), number(&file, entry + 12));
            assert_eq!(&file[at..at + 4], b"00dc");
            assert_eq!(&file[at + 8..at + 8 + length], *frame);
        }
    }
}
