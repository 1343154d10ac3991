//! The local terminal of an interactive session. Whoever takes it gives it back: leaving raw mode is in `Drop`, so a
//! failure, a signal that the caller turns into a return, and a panic all end with a terminal that works.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};

use client::TtySize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::error::CliError;

/// Undoes what a full-screen program may have left on when it cannot do so itself any more: leave the alternate
/// screen, show the cursor, plain text, no mouse reports, no bracketed paste, normal cursor and number keys.
const UNDO: &[u8] =
    b"\x1b[?1049l\x1b[?25h\x1b[0m\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>";

/// What is assumed of a terminal that does not say, as on a serial line.
const USUAL: TtySize = TtySize { cols: 80, rows: 24 };

/// The size of the terminal at standard input.
pub(crate) fn size() -> TtySize {
    match tcgetwinsize(io::stdin()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => TtySize { cols: size.ws_col, rows: size.ws_row },
        _ => USUAL,
    }
}

pub(crate) fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// A terminal in raw mode: every key is a byte for the sandbox, and nothing is echoed or translated here.
#[derive(Debug)]
pub(crate) struct Raw {
    terminal: OwnedFd,
    before: Termios,
}

impl Raw {
    /// Takes the terminal at standard input.
    pub(crate) fn enter() -> Result<Self, CliError> {
        let taken = io::stdin().as_fd().try_clone_to_owned().and_then(Self::of);
        taken.map_err(|error| CliError::new(format!("cannot use this terminal: {error}")))
    }

    fn of(terminal: OwnedFd) -> io::Result<Self> {
        let raw = Self { before: tcgetattr(&terminal)?, terminal };
        raw.apply()?;
        Ok(raw)
    }

    /// Enters raw mode again: a shell that put us into the background and back has set its own modes meanwhile.
    pub(crate) fn again(&self) {
        // A terminal that has gone away is noticed where it is read.
        let _ = self.apply();
    }

    fn apply(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        // At once: draining would wait for a screen that may be stopped, flushing would lose what was typed ahead.
        Ok(tcsetattr(&self.terminal, OptionalActions::Now, &raw)?)
    }

    /// Ends what the other side may have switched on. For a session that did not end by itself.
    pub(crate) fn undo_modes(&self) {
        let mut out = io::stdout();
        if out.is_terminal() {
            let _ = out.write_all(UNDO).and_then(|()| out.flush());
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that has gone away.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::LocalModes;

    use super::*;

    #[test]
    fn also_a_panic_gives_the_terminal_back() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let terminal = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let echoes =
            || tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON);
        assert!(echoes());
        let panicked = std::panic::catch_unwind(|| {
            let _raw = Raw::of(terminal.try_clone().unwrap().into()).unwrap();
            assert!(!echoes());
            panic!("as expected");
        });
        assert!(panicked.is_err());
        assert!(echoes());
    }
}
