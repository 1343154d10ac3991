//! A thread cannot be cancelled; a read can fail.

use std::io::{self, Read};

/// What is read, until nobody wants it any more.
#[derive(Debug)]
pub struct Stoppable<R, F> {
    /// Where it comes from.
    pub inner: R,
    /// Whether nobody does.
    pub unwanted: F,
}

impl<R: Read, F: Fn() -> bool> Read for Stoppable<R, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if (self.unwanted)() { Err(stopped()) } else { self.inner.read(buffer) }
    }
}

/// What a read fails with then.
#[must_use]
pub fn stopped() -> io::Error {
    io::Error::other("nobody wants it any more")
}
