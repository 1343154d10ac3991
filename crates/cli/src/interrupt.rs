//! Ctrl-C as a failure like any other, so that what a command holds is given back on the way out.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{CliError, INTERRUPTED};
use crate::out::Stop;

/// Remembers interrupts from now on.
pub(crate) fn interrupts() -> Result<Signal, CliError> {
    signal(SignalKind::interrupt())
        .map_err(|error| CliError::new(format!("cannot watch for Ctrl-C: {error}")))
}

/// Does the work unless Ctrl-C comes first, which drops it.
pub(crate) async fn unless_interrupted<T>(work: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
    let mut interrupts = interrupts()?;
    tokio::select! {
        done = work => done,
        _ = interrupts.recv() => Err(CliError::new("interrupted").exit_code(INTERRUPTED).into()),
    }
}
