//! The output of a session: its end in full, so that a client whose connection broke can go on where it was, and the
//! place up to which the present client has got it, so that nothing is overwritten under it. Plain data.

use std::collections::VecDeque;
use std::time::Duration;

use wire::data_plane::{CHANNEL_STDERR, CHANNEL_STDOUT, STREAM_CHUNK_BYTES, SessionEnd};

use crate::exec::Channel;

/// What one segment costs beside its bytes: a command that writes single bytes in turns to both streams must not make
/// the agent large.
const SEGMENT_COST: usize = size_of::<Segment>();
/// How long output waits for a client that left without having got all of it, in running time.
const HOLD: Duration = Duration::from_secs(30);

/// Bytes of one stream, up to an offset.
#[derive(Debug, Clone, Copy)]
struct Segment {
    end: u64,
    channel: Channel,
}

/// Where an attached client begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) generation: u64,
    pub(super) offset: u64,
    pub(super) lost: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Transcript {
    bytes: VecDeque<u8>,
    segments: VecDeque<Segment>,
    next: u64,
    end: Option<SessionEnd>,
    /// What the client has got; output from here on is not overwritten.
    reader: Option<u64>,
    attached: bool,
    /// Grows with each client, so that one notices when another has taken over.
    generation: u64,
    hold: Duration,
}

impl Transcript {
    pub(super) fn first(&self) -> u64 {
        self.next - self.bytes.len() as u64
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn attached(&self) -> bool {
        self.attached
    }

    pub(super) fn size(&self) -> usize {
        self.bytes.len() + self.segments.len() * SEGMENT_COST
    }

    /// Whether a piece of output can be taken in without overwriting what the client has not got. Half of what is kept is
    /// for what was written to a connection and may be lost with it.
    pub(super) fn has_room(&self, cap: usize) -> bool {
        let Some(reader) = self.reader else { return true };
        let unread_segments = self.segments.len() - self.segments.partition_point(|s| s.end <= reader);
        let unread = usize::try_from(self.next.saturating_sub(reader)).unwrap_or(usize::MAX);
        unread.saturating_add((unread_segments + 1) * SEGMENT_COST + STREAM_CHUNK_BYTES) <= cap / 2
    }

    pub(super) fn push(&mut self, channel: Channel, bytes: &[u8], cap: usize) {
        if bytes.is_empty() {
            return;
        }
        self.next += bytes.len() as u64;
        self.bytes.extend(bytes);
        match self.segments.back_mut() {
            Some(last) if last.channel == channel => last.end = self.next,
            _ => self.segments.push_back(Segment { end: self.next, channel }),
        }
        self.trim(cap);
    }

    /// Lets the oldest output go.
    pub(super) fn trim(&mut self, cap: usize) {
        while self.size() > cap {
            let Some(oldest) = self.segments.front() else { return };
            let length = usize::try_from(oldest.end - self.first()).unwrap_or(usize::MAX);
            let gone = length.min(self.size() - cap);
            self.bytes.drain(..gone);
            if gone == length {
                self.segments.pop_front();
            }
        }
        // A short burst must not hold its memory for the hours of a session.
        if self.bytes.capacity() > 2 * cap.max(self.bytes.len()) {
            self.bytes.shrink_to_fit();
        }
    }

    /// The output from an offset on: one piece of one stream, with its channel number in front.
    pub(super) fn piece(&self, from: u64) -> Option<(u8, Vec<u8>)> {
        let from = from.max(self.first());
        let segment = self.segments.get(self.segments.partition_point(|s| s.end <= from))?;
        let at = usize::try_from(from - self.first()).ok()?;
        let length = usize::try_from(segment.end - from).ok()?.min(STREAM_CHUNK_BYTES);
        let number = match segment.channel {
            Channel::Stdout => CHANNEL_STDOUT,
            Channel::Stderr => CHANNEL_STDERR,
        };
        let mut piece = Vec::with_capacity(1 + length);
        let (front, back) = self.bytes.as_slices();
        if let Some(in_front) = front.get(at..) {
            piece.extend_from_slice(&in_front[..length.min(in_front.len())]);
        }
        if piece.len() < length {
            let at = at.saturating_sub(front.len());
            piece.extend_from_slice(&back[at..at + length - piece.len()]);
        }
        Some((number, piece))
    }

    /// No more output comes.
    pub(super) fn finish(&mut self, end: SessionEnd) {
        self.end = Some(end);
    }

    pub(super) fn end(&self) -> Option<&SessionEnd> {
        self.end.as_ref()
    }

    /// A client comes, and takes over from another one.
    pub(super) fn attach(&mut self, wanted: u64) -> Start {
        let offset = wanted.clamp(self.first(), self.next);
        self.generation += 1;
        self.attached = true;
        self.reader = Some(offset);
        Start { generation: self.generation, offset, lost: offset.saturating_sub(wanted) }
    }

    pub(super) fn is_current(&self, generation: u64) -> bool {
        self.attached && self.generation == generation
    }

    /// The client has got everything before this offset.
    pub(super) fn got(&mut self, generation: u64, offset: u64) {
        if self.is_current(generation) {
            // Neither back nor beyond what there is, whatever a client claims.
            self.reader = self.reader.map(|reader| offset.clamp(reader, self.next));
        }
    }

    /// The client went.
    pub(super) fn detach(&mut self, generation: u64) {
        if self.is_current(generation) {
            self.attached = false;
            self.hold = HOLD;
        }
    }

    /// Time passed. After the hold, output no longer waits for a client that left; true when that happens now.
    pub(super) fn tick(&mut self, passed: Duration) -> bool {
        if self.attached || self.reader.is_none() {
            return false;
        }
        self.hold = self.hold.saturating_sub(passed);
        if self.hold.is_zero() {
            self.reader = None;
        }
        self.reader.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: usize = 200_000;

    fn all(transcript: &Transcript, mut from: u64) -> Vec<(u8, String)> {
        let mut pieces = Vec::new();
        while let Some((channel, piece)) = transcript.piece(from) {
            from += piece.len() as u64;
            pieces.push((channel, String::from_utf8(piece).unwrap()));
        }
        pieces
    }

    #[test]
    fn pieces_keep_their_stream_and_order() {
        let mut transcript = Transcript::default();
        transcript.push(Channel::Stdout, b"ab", CAP);
        transcript.push(Channel::Stdout, b"c", CAP);
        transcript.push(Channel::Stderr, b"d", CAP);
        transcript.push(Channel::Stdout, b"e", CAP);
        let expected = [(1, "abc".to_owned()), (2, "d".to_owned()), (1, "e".to_owned())];
        assert_eq!(all(&transcript, 0), expected);
        assert_eq!(all(&transcript, 2), [(1, "c".to_owned()), (2, "d".to_owned()), (1, "e".to_owned())]);
        assert_eq!(all(&transcript, 5), []);
    }

    #[test]
    fn the_oldest_goes_and_the_loss_is_told() {
        let mut transcript = Transcript::default();
        let mut whole = Vec::new();
        for n in 0..5000u32 {
            let line = format!("line {n}\n");
            whole.extend_from_slice(line.as_bytes());
            transcript.push(Channel::Stdout, line.as_bytes(), 1000);
            assert!(transcript.size() <= 1000);
        }
        let start = transcript.attach(10);
        assert_eq!(start.offset, transcript.first());
        assert_eq!(start.lost, start.offset - 10);
        let kept: String = all(&transcript, start.offset).into_iter().map(|(_, text)| text).collect();
        assert_eq!(kept.as_bytes(), &whole[usize::try_from(start.offset).unwrap()..]);
        assert_eq!(transcript.attach(u64::MAX).offset, transcript.next());
    }

    #[test]
    fn single_bytes_in_turns_stay_within_the_cap() {
        let mut transcript = Transcript::default();
        for _ in 0..50_000 {
            transcript.push(Channel::Stdout, b"o", CAP);
            transcript.push(Channel::Stderr, b"e", CAP);
        }
        assert!(transcript.size() <= CAP && transcript.bytes.len() > 1000);
    }

    #[test]
    fn output_waits_for_its_reader_and_a_while_for_one_that_left() {
        let mut transcript = Transcript::default();
        let chunk = vec![b'x'; STREAM_CHUNK_BYTES];
        let Start { generation, .. } = transcript.attach(0);
        let mut pushed = 0u64;
        while transcript.has_room(CAP) {
            transcript.push(Channel::Stdout, &chunk, CAP);
            pushed += chunk.len() as u64;
        }
        assert_eq!((transcript.first(), transcript.next()), (0, pushed), "nothing is gone");
        transcript.got(generation, 40_000);
        assert!(transcript.has_room(CAP));
        transcript.got(generation, 3);
        assert!(transcript.has_room(CAP), "a client cannot take back what it got");
        transcript.push(Channel::Stdout, &chunk, CAP);
        transcript.detach(generation);
        assert!(!transcript.has_room(CAP));
        assert!(!transcript.tick(Duration::from_secs(29)));
        assert!(transcript.tick(Duration::from_secs(1)));
        assert!(transcript.has_room(CAP));
    }

    #[test]
    fn a_newer_client_takes_over() {
        let mut transcript = Transcript::default();
        let first = transcript.attach(0).generation;
        let second = transcript.attach(0).generation;
        assert!(!transcript.is_current(first) && transcript.is_current(second));
        transcript.detach(first);
        assert!(transcript.attached(), "the older one's end is not the newer one's");
    }
}
