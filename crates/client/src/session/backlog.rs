//! Standard input that may not have arrived yet, kept so that a new connection can go on where the old one ended. Pure.

use bytes::{Buf, Bytes, BytesMut};

/// Input kept at most. The other side takes 256 KiB that its command does not read, and some is on the way; with less
/// than both a fast command would wait for us.
const CAPACITY: usize = 1024 * 1024;
/// Largest piece sent at once, as the official clients cut it.
const PIECE: usize = 32 * 1024;

/// Offsets count bytes of standard input since the start of the session.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    kept: BytesMut,
    /// Offset of the first kept byte: everything before it has arrived.
    arrived: u64,
    /// Offset of the next byte to send.
    sent: u64,
    closed: bool,
    close_sent: bool,
}

/// What to send next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A piece of input.
    Piece(Bytes),
    /// There is no more input.
    Close,
}

impl Backlog {
    pub(crate) fn has_room(&self) -> bool {
        self.kept.len() < CAPACITY
    }

    /// Takes more input. It is not refused for lack of room, so ask before.
    pub(crate) fn push(&mut self, input: &[u8]) {
        self.kept.extend_from_slice(input);
    }

    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Offset up to which input has been sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Takes what is to be sent next.
    pub(crate) fn next(&mut self) -> Option<Next> {
        let unsent = &self.kept[usize::try_from(self.sent - self.arrived).unwrap_or(usize::MAX)..];
        if !unsent.is_empty() {
            let piece = Bytes::copy_from_slice(&unsent[..unsent.len().min(PIECE)]);
            self.sent += piece.len() as u64;
            return Some(Next::Piece(piece));
        }
        if self.closed && !self.close_sent {
            self.close_sent = true;
            return Some(Next::Close);
        }
        None
    }

    /// The other side has everything before `offset`. Offsets that cannot be are ignored: the other side is not ours.
    pub(crate) fn arrived(&mut self, offset: u64) {
        if offset > self.arrived && offset <= self.sent {
            self.kept.advance(usize::try_from(offset - self.arrived).unwrap_or(usize::MAX));
            self.arrived = offset;
        }
    }

    /// A new connection: sends everything after `offset` again. False when that is not kept, or was never sent; then it
    /// goes on with what has not been sent.
    pub(crate) fn resume(&mut self, offset: Option<u64>) -> bool {
        // Closing what is closed does nothing, so it can be said again.
        self.close_sent = false;
        match offset {
            Some(offset) if (self.arrived..=self.sent).contains(&offset) => {
                self.arrived(offset);
                self.sent = offset;
                true
            }
            _ => self.arrived == self.sent,
        }
    }

    /// The first connection to a session that others have written to before.
    pub(crate) fn start_at(&mut self, offset: u64) {
        self.arrived = offset;
        self.sent = offset;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &'static str) -> Option<Next> {
        Some(Next::Piece(Bytes::from(text)))
    }

    #[test]
    fn what_has_not_arrived_is_sent_again() {
        let mut backlog = Backlog::default();
        backlog.push(b"abcdef");
        backlog.close();
        assert_eq!(
            (backlog.next(), backlog.next(), backlog.next()),
            (piece("abcdef"), Some(Next::Close), None)
        );
        backlog.arrived(2);
        assert!(backlog.resume(Some(4)));
        assert_eq!((backlog.next(), backlog.next(), backlog.next()), (piece("ef"), Some(Next::Close), None));
        backlog.arrived(6);
        assert!(backlog.resume(None), "all of it arrived");
        assert_eq!(backlog.next(), Some(Next::Close));
    }

    #[test]
    fn without_knowing_nothing_is_sent_twice() {
        let mut backlog = Backlog::default();
        backlog.push(b"abc");
        assert_eq!(backlog.next(), piece("abc"));
        backlog.push(b"d");
        assert!(!backlog.resume(None));
        assert_eq!((backlog.next(), backlog.next()), (piece("d"), None));
    }

    #[test]
    fn impossible_offsets_are_ignored() {
        let mut backlog = Backlog::default();
        backlog.start_at(10);
        backlog.push(b"abc");
        assert_eq!(backlog.next(), piece("abc"));
        for offset in [0, 9, 14, u64::MAX] {
            backlog.arrived(offset);
        }
        assert!(!backlog.resume(Some(9)) && !backlog.resume(Some(14)));
        assert!(backlog.resume(Some(10)));
        assert_eq!(backlog.next(), piece("abc"));
    }

    #[test]
    fn it_is_bounded_and_cut() {
        let mut backlog = Backlog::default();
        let mut pushed = 0;
        while backlog.has_room() {
            backlog.push(&[7; 50_000]);
            pushed += 50_000;
        }
        assert!(pushed < CAPACITY + 50_000);
        let Some(Next::Piece(first)) = backlog.next() else { panic!() };
        assert_eq!(first.len(), PIECE);
        backlog.arrived(PIECE as u64);
        assert!(backlog.has_room());
    }
}
