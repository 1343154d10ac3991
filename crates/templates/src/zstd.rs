//! Reads a zstd stream of any number of frames. The decoder is memory-safe Rust and refuses windows of more than
//! 100 MiB by itself.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Decoded at once. Small, so that a bomb is noticed by the reader's limit before it takes memory.
const STEP: usize = 256 * 1024;

pub(crate) struct Frames<R> {
    inner: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Frames<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Whether another frame begins; frames that only carry notes are passed over.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.inner.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.inner) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut (&mut self.inner).take(length), &mut io::sink())? != length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.in_frame = true;
            }
            let count = self.decoder.read(buf)?;
            if count > 0 {
                return Ok(count);
            }
            if self.decoder.is_finished() {
                self.in_frame = false;
                check(&self.decoder)?;
                continue;
            }
            self.decoder
                .decode_blocks(&mut self.inner, BlockDecodingStrategy::UptoBytes(STEP))
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

/// A frame may carry a checksum of what it unpacks to.
fn check(decoder: &FrameDecoder) -> io::Result<()> {
    match (decoder.get_checksum_from_data(), decoder.get_calculated_checksum()) {
        (Some(expected), Some(found)) if expected != found => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of a zstd frame is wrong"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    #[test]
    fn frames_follow_each_other_and_notes_are_passed_over() {
        let (one, two) = (vec![7_u8; 300_000], b"second".to_vec());
        let pack = |data: &[u8]| compress_to_vec(data, CompressionLevel::Fastest);
        let note = [&0x184D_2A50_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
        let all = [pack(&one), note, pack(&two)].concat();
        let mut out = Vec::new();
        Frames::new(&all[..]).read_to_end(&mut out).unwrap();
        assert_eq!(out, [one, two].concat());
        for cut in [3, 10, all.len() - 1] {
            assert!(Frames::new(&all[..cut]).read_to_end(&mut Vec::new()).is_err(), "{cut}");
        }
    }
}
