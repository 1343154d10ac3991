//! Standard input on its way: kept until the command has been given it, so that a new connection can go on where the old
//! one ended, and sent no faster than the command reads. Pure.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use wire::data_plane::{STDIN_WINDOW_BYTES, STDIN_WINDOW_PIECES};

/// Input kept at most: what is on its way, and as much again to go on with.
const CAPACITY: usize = 256 * 1024;
/// Largest piece sent at once, as the official clients cut it.
const PIECE: usize = 32 * 1024;

/// Offsets count bytes of standard input since the start of the session.
#[derive(Debug)]
pub(crate) struct Backlog {
    kept: BytesMut,
    /// Offset of the first kept byte: everything before it has arrived.
    arrived: u64,
    /// Offset of the next byte to send.
    sent: u64,
    /// What the command has been given; unknown at the beginning of a connection to a session in use.
    given: Option<u64>,
    /// Ends of the pieces that the command has not been given.
    pieces: VecDeque<u64>,
    /// The other side says what the command has been given. If not, what is sent has to count as arrived.
    told: bool,
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
    /// Of a new session; `told` when the server says what the command has been given.
    pub(crate) fn new(told: bool) -> Self {
        Self {
            kept: BytesMut::new(),
            arrived: 0,
            sent: 0,
            given: Some(0),
            pieces: VecDeque::new(),
            told,
            closed: false,
            close_sent: false,
        }
    }

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

    /// Takes what is to be sent next, if anything may be.
    pub(crate) fn next(&mut self) -> Option<Next> {
        let unsent = &self.kept[usize::try_from(self.sent - self.arrived).unwrap_or(usize::MAX)..];
        if unsent.is_empty() {
            let close = self.closed && !self.close_sent;
            self.close_sent |= close;
            return close.then_some(Next::Close);
        }
        let piece = Bytes::copy_from_slice(&unsent[..unsent.len().min(PIECE).min(self.window())]);
        if piece.is_empty() {
            return None;
        }
        self.sent += piece.len() as u64;
        if self.told {
            self.pieces.push_back(self.sent);
        } else {
            self.arrived(self.sent);
        }
        Some(Next::Piece(piece))
    }

    /// Bytes that may be sent now.
    fn window(&self) -> usize {
        let used = match self.given {
            _ if !self.told => 0,
            Some(given) if self.pieces.len() < STDIN_WINDOW_PIECES => self.sent.saturating_sub(given),
            _ => STDIN_WINDOW_BYTES,
        };
        usize::try_from(STDIN_WINDOW_BYTES.saturating_sub(used)).unwrap_or(usize::MAX)
    }

    /// The command has been given everything before `offset`.
    pub(crate) fn given(&mut self, offset: u64) {
        // Offsets that cannot be are ignored: the other side is not ours.
        if offset <= self.sent {
            self.given = Some(offset);
            self.arrived(offset);
            while self.pieces.front().is_some_and(|end| *end <= offset) {
                self.pieces.pop_front();
            }
        }
    }

    fn arrived(&mut self, offset: u64) {
        if offset > self.arrived && offset <= self.sent {
            self.kept.advance(usize::try_from(offset - self.arrived).unwrap_or(usize::MAX));
            self.arrived = offset;
        }
    }

    /// A new connection, whose other side has taken everything before `offset`, or takes nothing any more. Sends again
    /// what lies beyond. False when others have written meanwhile, so that nobody knows how much of ours was taken; then
    /// it goes on with what has not been sent.
    pub(crate) fn resume(&mut self, offset: Option<u64>) -> bool {
        // Closing what is closed does nothing, so it can be said again.
        self.close_sent = false;
        let Some(offset) = offset else {
            self.kept.clear();
            self.arrived = self.sent;
            return true;
        };
        let ours = (self.arrived..=self.sent).contains(&offset);
        self.arrived(if ours { offset } else { self.sent });
        self.start_at(offset);
        ours
    }

    /// The first connection to a session that others have written to before.
    pub(crate) fn start_at(&mut self, offset: u64) {
        self.arrived = offset;
        self.sent = offset;
        self.given = None;
        self.pieces.clear();
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
        let mut backlog = Backlog::new(true);
        backlog.push(b"abcdef");
        backlog.close();
        assert_eq!(
            (backlog.next(), backlog.next(), backlog.next()),
            (piece("abcdef"), Some(Next::Close), None)
        );
        backlog.given(2);
        assert!(backlog.resume(Some(4)));
        assert_eq!(backlog.next(), None, "the command may have a lot to read still");
        backlog.given(2);
        assert_eq!((backlog.next(), backlog.next(), backlog.next()), (piece("ef"), Some(Next::Close), None));
        assert!(backlog.resume(Some(6)), "all of it arrived");
        assert_eq!(backlog.next(), Some(Next::Close));
    }

    #[test]
    fn a_command_that_reads_no_more_gets_nothing() {
        let mut backlog = Backlog::new(true);
        backlog.push(b"abc");
        assert_eq!(backlog.next(), piece("abc"));
        backlog.push(b"d");
        assert!(backlog.resume(None));
        assert_eq!(backlog.next(), None);
    }

    #[test]
    fn what_may_have_been_taken_is_not_sent_twice() {
        let mut backlog = Backlog::new(true);
        backlog.push(b"abc");
        assert_eq!(backlog.next(), piece("abc"));
        backlog.push(b"d");
        assert!(!backlog.resume(Some(7)), "others have written too");
        backlog.given(7);
        assert_eq!((backlog.next(), backlog.next()), (piece("d"), None));
    }

    #[test]
    fn impossible_offsets_are_ignored() {
        let mut backlog = Backlog::new(true);
        backlog.start_at(10);
        backlog.push(b"abc");
        backlog.given(8);
        assert_eq!(backlog.next(), piece("abc"));
        for offset in [0, 9, 14, u64::MAX] {
            backlog.given(offset);
        }
        assert!(backlog.resume(Some(10)));
        backlog.given(10);
        assert_eq!(backlog.next(), piece("abc"));
    }

    #[test]
    fn no_more_is_on_the_way_than_the_server_takes_unread() {
        let mut backlog = Backlog::new(true);
        while backlog.has_room() {
            backlog.push(&[7; 50_000]);
        }
        let mut drain = |given| {
            backlog.given(given);
            let pieces = std::iter::from_fn(|| backlog.next());
            pieces.map(|next| if let Next::Piece(piece) = next { piece.len() as u64 } else { 0 }).sum::<u64>()
        };
        assert_eq!(drain(0), STDIN_WINDOW_BYTES);
        assert_eq!(drain(1000), 1000);
        assert!(backlog.has_room() || backlog.kept.len() < CAPACITY + 50_000);

        let mut keys = Backlog::new(true);
        for _ in 0..100 {
            keys.push(b"k");
            keys.next();
        }
        assert_eq!(keys.sent, STDIN_WINDOW_PIECES as u64);
        keys.given(10);
        assert!(matches!(keys.next(), Some(Next::Piece(rest)) if rest.len() == 68));
    }

    #[test]
    fn a_server_that_says_nothing_is_sent_everything_once() {
        let mut backlog = Backlog::new(false);
        for _ in 0..100 {
            backlog.push(&[7; 50_000]);
            while backlog.next().is_some() {}
        }
        assert_eq!((backlog.sent, backlog.kept.len()), (5_000_000, 0));
    }
}
