//! A thread cannot be cancelled; a read can fail.

use std::io::{self, Read};

/// What is read, until nobody wants it any more.
pub(crate) struct Stoppable<R, F> {
    pub(crate) inner: R,
    pub(crate) unwanted: F,
}

impl<R: Read, F: Fn() -> bool> Read for Stoppable<R, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if (self.unwanted)() { Err(stopped()) } else { self.inner.read(buffer) }
    }
}

pub(crate) fn stopped() -> io::Error {
    io::Error::other("nobody wants it any more")
}
