//! The host's end of the one byte stream that leads into a guest with a kernel of its own (`wire::agent::vm`): calls that
//! begin with a mark, and any number of streams to the agent over HTTP/2. Engines say where the bytes go (a socket of the machine
//! monitor, a pair of named pipes); everything else is the same for all of them.

mod mark;
mod pack;
mod pipes;
mod port;

use std::time::Duration;

use driver::DriverError;

pub use mark::{Mark, Secret};
pub use pipes::{Pipes, Side};
pub use port::Port;

/// Puts a limit on a step.
///
/// # Errors
/// That of the step, or [`DriverError::Timeout`].
pub async fn limited<T>(
    what: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, DriverError>>,
) -> Result<T, DriverError> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => {
            let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            Err(DriverError::Timeout { what, limit_ms })
        }
    }
}
