//! `~.` at the start of a line leaves a session without ending it, as users of `ssh` know it. `~~` is one `~`.

/// Finds the escape in what is typed.
#[derive(Debug)]
pub(crate) struct Escape {
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    LineStart,
    Tilde,
    Within,
}

impl Escape {
    pub(crate) fn new() -> Self {
        Self { state: State::LineStart }
    }

    /// What of the typed bytes is for the sandbox, and whether the user wants to leave.
    pub(crate) fn take(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut pass = Vec::with_capacity(typed.len() + 1);
        for &byte in typed {
            match (self.state, byte) {
                (State::LineStart, b'~') => {
                    self.state = State::Tilde;
                    continue;
                }
                (State::Tilde, b'.') => return (pass, true),
                (State::Tilde, b'~') => {}
                (State::Tilde, _) => pass.push(b'~'),
                (State::LineStart | State::Within, _) => {}
            }
            pass.push(byte);
            // What ends a line at a terminal in raw mode, or throws it away: Enter, Ctrl-J, Ctrl-C, Ctrl-D, Ctrl-U.
            let ends_line = matches!(byte, b'\r' | b'\n' | 0x03 | 0x04 | 0x15);
            self.state = if ends_line { State::LineStart } else { State::Within };
        }
        (pass, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes passed on, however the input was cut; `None` after them when the user left.
    fn typed(text: &str) -> (String, bool) {
        let (whole, left) = Escape::new().take(text.as_bytes());
        let mut escape = Escape::new();
        let mut pieces = Vec::new();
        let mut left_piecewise = false;
        for byte in text.bytes() {
            let (pass, leave) = escape.take(&[byte]);
            pieces.extend(pass);
            if leave {
                left_piecewise = true;
                break;
            }
        }
        assert_eq!((&pieces, left_piecewise), (&whole, left), "{text:?}");
        (String::from_utf8(whole).unwrap(), left)
    }

    #[test]
    fn only_at_the_start_of_a_line() {
        assert_eq!(typed("~."), (String::new(), true));
        assert_eq!(typed("ls\r~.x"), ("ls\r".to_owned(), true));
        assert_eq!(typed("ls ~.\r"), ("ls ~.\r".to_owned(), false));
        assert_eq!(typed("cd ~\x03~."), ("cd ~\x03".to_owned(), true));
        assert_eq!(typed("~~.\r"), ("~.\r".to_owned(), false));
        assert_eq!(typed("~/bin\r"), ("~/bin\r".to_owned(), false));
        assert_eq!(typed("~\r~."), ("~\r".to_owned(), true));
    }
}
