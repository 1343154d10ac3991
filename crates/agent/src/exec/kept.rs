//! The output `/exec` keeps for its answer. The beginning is kept and the rest only drained: a command that writes
//! without end costs the agent no more than the cap, and all commands together no more than [`TOTAL_BYTES`].

use std::rc::Rc;

use wire::data_plane::EXEC_RETENTION_BYTES;

use super::run::Channel;
use super::text::whole_characters;
use crate::agent::Agent;

/// For all answers being collected at one time; the agent lives in the memory the platform spends on a sandbox.
const TOTAL_BYTES: usize = 4 * EXEC_RETENTION_BYTES;

#[derive(Debug)]
pub(crate) struct Kept {
    agent: Rc<Agent>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    truncated: bool,
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
        let room = (EXEC_RETENTION_BYTES - self.counted).min(TOTAL_BYTES.saturating_sub(retained.get()));
        let taken = &bytes[..bytes.len().min(room)];
        self.truncated = taken.len() < bytes.len();
        self.counted += taken.len();
        retained.set(retained.get() + taken.len());
        match channel {
            Channel::Stdout => self.stdout.extend_from_slice(taken),
            Channel::Stderr => self.stderr.extend_from_slice(taken),
        }
    }

    /// Standard output, standard error, whether something is missing.
    pub(crate) fn finish(mut self) -> (String, String, bool) {
        if self.truncated {
            for kept in [&mut self.stdout, &mut self.stderr] {
                kept.truncate(whole_characters(kept));
            }
            let notice = format!(
                "\n[output truncated: only the first {} bytes of stdout and stderr were kept; redirect to a file to \
                 see all of it]\n",
                self.counted
            );
            self.stderr.extend_from_slice(notice.as_bytes());
        }
        let (stdout, stderr) = (std::mem::take(&mut self.stdout), std::mem::take(&mut self.stderr));
        (text(stdout), text(stderr), self.truncated)
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
