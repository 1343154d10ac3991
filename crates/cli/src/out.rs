//! The one way to standard output. Text that came from somewhere else is made printable first: a name must not be able
//! to drive the terminal.

use std::io::{self, Write};

use serde::Serialize;

use crate::error::CliError;

/// Why output ended early.
pub(crate) enum Stop {
    /// The reader closed the pipe.
    Closed,
    /// Anything else.
    Failed(CliError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Closed;
        }
        Self::Failed(CliError::new(format!("cannot write to standard output: {error}")))
    }
}

impl From<CliError> for Stop {
    fn from(error: CliError) -> Self {
        Self::Failed(error)
    }
}

/// The exit code of a command that may have been cut short by its reader.
pub(crate) fn settle(result: Result<u8, Stop>) -> Result<u8, CliError> {
    match result {
        Ok(code) => Ok(code),
        Err(Stop::Closed) => Ok(0),
        Err(Stop::Failed(error)) => Err(error),
    }
}

pub(crate) fn line(text: &str) -> Result<(), Stop> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

pub(crate) fn json(value: &impl Serialize) -> Result<(), Stop> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| CliError::new(format!("cannot write JSON: {error}")))?;
    line(&text)
}

/// Bytes as they are, at once.
pub(crate) fn raw(bytes: &[u8]) -> Result<(), Stop> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Bytes as they are to standard error, at once; a closed standard error is ignored.
pub(crate) fn raw_error(bytes: &[u8]) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

/// A remark that is no result.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// The same, but line ends and tabs stay.
pub(crate) fn printable_lines(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }).collect()
}

/// Control characters become `�`.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
