//! The byte stream of an archive: unpacked if it is gzip or zstd, hashed, and cut off at a limit.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest, Sha256};

use crate::zstd::Frames;

/// Reads an archive once, from its beginning to its end.
pub(crate) struct Source<'a> {
    inner: Box<dyn Read + 'a>,
    hash: Sha256,
    read: u64,
    limit: u64,
    /// Whether the disk has room for more; asked every [`ROOM_EVERY`] bytes.
    room: &'a dyn Fn() -> bool,
    asked_at: u64,
    stopped: Option<Stopped>,
}

/// Why reading ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The archive is larger than the limit.
    Limit,
    /// The disk has no room for more.
    DiskFull,
}

/// Little enough that many small files, each of which takes a block and an inode, stay within the disk's reserve. Whoever
/// makes more of less asks by way of [`Source::room`].
const ROOM_EVERY: u64 = 16 << 20;

impl<'a> Source<'a> {
    /// Looks at the first bytes to see what the stream is.
    pub(crate) fn new(reader: impl Read + 'a, limit: u64, room: &'a dyn Fn() -> bool) -> io::Result<Self> {
        let mut buffered = BufReader::with_capacity(256 * 1024, reader);
        let start = buffered.fill_buf()?;
        let inner: Box<dyn Read + 'a> = match start {
            [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(256 * 1024, MultiGzDecoder::new(buffered))),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(Frames::new(buffered)),
            [0xfd, b'7', b'z', b'X', ..] => return Err(unsupported("xz")),
            [b'B', b'Z', b'h', ..] => return Err(unsupported("bzip2")),
            _ => Box::new(buffered),
        };
        Ok(Self { inner, hash: Sha256::new(), read: 0, limit, room, asked_at: 0, stopped: None })
    }

    /// Bytes of the uncompressed archive so far.
    pub(crate) fn position(&self) -> u64 {
        self.read
    }

    /// Asks whether the disk has room for more.
    pub(crate) fn room(&self) -> &'a dyn Fn() -> bool {
        self.room
    }

    /// Why reading stopped, if not for the archive's own sake.
    pub(crate) fn stopped(&self) -> Option<Stopped> {
        self.stopped
    }

    /// Reads what follows the last entry, so that the digest covers the whole stream.
    pub(crate) fn digest(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

fn unsupported(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("it is compressed with {what}; use plain tar, gzip or zstd"),
    )
}

impl Read for Source<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buf)?;
        self.read += count as u64;
        if self.read > self.limit {
            self.stopped = Some(Stopped::Limit);
            return Err(io::Error::other("the archive is larger than accepted"));
        }
        if self.read - self.asked_at >= ROOM_EVERY {
            self.asked_at = self.read;
            if !(self.room)() {
                self.stopped = Some(Stopped::DiskFull);
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        self.hash.update(&buf[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn gzip_hides_nothing_from_digest_and_limit() {
        let plain = vec![7_u8; 100_000];
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&plain).unwrap();
        let packed = packed.finish().unwrap();
        assert!(packed.len() < 1000);

        let of_plain = Source::new(&plain[..], 100_000, &|| true).unwrap().digest().unwrap();
        let of_packed = Source::new(&packed[..], 100_000, &|| true).unwrap().digest().unwrap();
        assert_eq!(of_plain, of_packed);
        assert_eq!(of_plain.len(), 64);
        assert!(Source::new(&packed[..], 99_999, &|| true).unwrap().digest().is_err());
        assert!(Source::new(&packed[..packed.len() - 9], 100_000, &|| true).unwrap().digest().is_err());
    }

    #[test]
    fn other_compressions_are_named() {
        let error =
            Source::new(&[0xfd, b'7', b'z', b'X', b'Z', 0][..], 10, &|| true).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("xz;"), "{error}");
    }
}
