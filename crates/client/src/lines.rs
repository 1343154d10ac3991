//! Cutting a byte stream into lines, for event streams of both planes.

use bytes::{Bytes, BytesMut};

/// Lines of a byte stream; how it was cut into chunks does not show.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    pub(crate) buffer: BytesMut,
    searched: usize,
}

impl Lines {
    /// The next whole line, without its end.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let Some(offset) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') else {
            self.searched = self.buffer.len();
            return None;
        };
        let mut line = self.buffer.split_to(self.searched + offset + 1).freeze();
        self.searched = 0;
        line.truncate(line.len() - 1);
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        Some(line)
    }
}
