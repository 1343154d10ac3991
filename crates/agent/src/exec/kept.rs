//! The output `/exec` keeps for its answer. The beginning is kept and the rest only drained: a command that writes
//! without end costs the agent no more than the cap, and all commands together no more than [`TOTAL_BYTES`] of answers.

use std::rc::Rc;

use bytes::Bytes;
use futures_util::stream;
use http::{StatusCode, header};
use http_body_util::StreamBody;
use hyper::body::Frame;
use wire::data_plane::{EXEC_RETENTION_BYTES, ExecResponse};

use super::run::Channel;
use super::text::whole_characters;
use crate::agent::Agent;
use crate::reply::{Response, json};

/// Of the output as JSON, where control characters take up to six bytes: the official TypeScript client refuses
/// answers over 10 MiB (`spec/data-plane.md` §3). The rest is for the notice and the braces.
const MAX_JSON_BYTES: usize = 10 * 1024 * 1024 - 16 * 1024;
/// For all answers that are collected or sent at one time; the agent lives in the memory the platform spends on a
/// sandbox.
const TOTAL_BYTES: usize = 4 * MAX_JSON_BYTES;
/// The answer is sent in pieces, so that its share of the total is given back only when it has been taken.
const PIECE_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Kept {
    agent: Rc<Agent>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    truncated: bool,
    /// Bytes of this answer as JSON, as counted in `Agent::retained`.
    counted: usize,
}

impl Kept {
    pub(crate) fn new(agent: &Rc<Agent>) -> Self {
        Self { agent: Rc::clone(agent), stdout: Vec::new(), stderr: Vec::new(), truncated: false, counted: 0 }
    }

    pub(crate) fn push(&mut self, channel: Channel, bytes: &[u8]) {
        if self.truncated {
            return;
        }
        let retained = &self.agent.retained;
        let most = bytes.len().min(EXEC_RETENTION_BYTES - self.stdout.len() - self.stderr.len());
        let room = (MAX_JSON_BYTES - self.counted).min(TOTAL_BYTES.saturating_sub(retained.get()));
        let (taken, cost) = affordable(&bytes[..most], room);
        let taken = &bytes[..taken];
        self.truncated = taken.len() < bytes.len();
        self.counted += cost;
        retained.set(retained.get() + cost);
        match channel {
            Channel::Stdout => self.stdout.extend_from_slice(taken),
            Channel::Stderr => self.stderr.extend_from_slice(taken),
        }
    }

    /// The answer of the command.
    pub(crate) fn answer(mut self, exit_code: i32) -> Response {
        if self.truncated {
            let notice = format!(
                "\n[output truncated: only the first {} bytes of stdout and stderr were kept; redirect to a file to \
                 see all of it]\n",
                self.stdout.len() + self.stderr.len()
            );
            for kept in [&mut self.stdout, &mut self.stderr] {
                kept.truncate(whole_characters(kept));
            }
            self.stderr.extend_from_slice(notice.as_bytes());
        }
        let answer = ExecResponse {
            stdout: text(std::mem::take(&mut self.stdout)),
            stderr: text(std::mem::take(&mut self.stderr)),
            exit_code,
            truncated: self.truncated,
        };
        let mut response = json(StatusCode::OK, &());
        // Our own struct of strings and numbers: this cannot fail.
        let whole = Bytes::from(serde_json::to_vec(&answer).unwrap_or_default());
        response.headers_mut().insert(header::CONTENT_LENGTH, whole.len().into());
        let pieces = stream::unfold((self, whole), |(kept, mut rest)| async move {
            let piece = rest.split_to(rest.len().min(PIECE_BYTES));
            (!piece.is_empty()).then(|| (Ok(Frame::data(piece)), (kept, rest)))
        });
        *response.body_mut() = Box::pin(StreamBody::new(pieces));
        response
    }
}

/// How many of the bytes fit into `room` as JSON, and what they take there.
fn affordable(bytes: &[u8], room: usize) -> (usize, usize) {
    let (mut taken, mut cost) = (0, 0);
    for chunk in bytes.utf8_chunks() {
        let broken = Some((chunk.invalid().len(), char::REPLACEMENT_CHARACTER.len_utf8()));
        let valid = chunk.valid().bytes().map(|byte| (1, escaped_length(byte)));
        for (length, takes) in valid.chain(broken.filter(|(length, _)| *length > 0)) {
            if cost + takes > room {
                return (taken, cost);
            }
            taken += length;
            cost += takes;
        }
    }
    (taken, cost)
}

fn escaped_length(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 2,
        0..=31 => 6,
        _ => 1,
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.agent.retained.set(self.agent.retained.get() - self.counted);
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_the_length_in_json() {
        for bytes in [
            &b"plain"[..],
            "gr\u{fc}n\"\\/".as_bytes(),
            b"\0\x01\x08\x0c\x1f\x7f\r\n\t",
            b"\xff\xfe\xc3(\xe0\x80",
        ] {
            let json = serde_json::to_string(&text(bytes.to_vec())).unwrap();
            assert_eq!(affordable(bytes, usize::MAX), (bytes.len(), json.len() - 2), "{bytes:?}");
        }
        assert_eq!(affordable(b"a\0b", 6), (1, 1));
        assert_eq!(affordable(b"a\0b", 7), (2, 7));
    }
}
