//! How a command ends and how it prints: results on stdout, one clear sentence per failure on stderr, exit code 1.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

/// A failure of a command, ready to be shown.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// A failure that speaks for itself.
    pub(crate) fn new(message: impl Display) -> Self {
        Self { message: message.to_string(), hint: None, code: 1 }
    }

    /// Adds the next step.
    pub(crate) fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// What happened.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Prints it and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let mut err = std::io::stderr().lock();
        let mut text = format!("error: {}\n", self.message);
        if let Some(hint) = &self.hint {
            text.push_str("hint: ");
            text.push_str(hint);
            text.push('\n');
        }
        let _nobody_left_to_tell = err.write_all(text.as_bytes());
        ExitCode::from(self.code)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            // Some errors repeat their cause in their own text.
            let text = next.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = next.source();
        }
        Self::new(message)
    }
}

/// How a command ends.
pub(crate) type Outcome = Result<ExitCode, Failure>;

/// Prints to stdout; a reader that went away is not an error.
pub(crate) fn print(text: impl Display) {
    let _reader_may_be_gone = try_print(text);
}

/// Prints to stdout; `false` when nobody reads any more.
pub(crate) fn try_print(text: impl Display) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).is_ok()
}
