//! Removes what has ended. Nothing depends on it: ended grants are refused anyway, and registrations are bounded in number.

use std::time::Duration;

use jiff::SignedDuration;
use tokio::task::JoinHandle;

use crate::Server;

/// Often enough that a day's rows never add up.
const EVERY: Duration = Duration::from_secs(600);
/// A client that registers asks its user at once; a day also covers one that waits for somebody to come back.
const UNUSED: SignedDuration = SignedDuration::from_hours(24);
/// Clients keep their id for long after their last grant ended.
const IDLE: SignedDuration = SignedDuration::from_hours(90 * 24);

/// The task that sweeps; dropped, it ends.
#[derive(Debug)]
pub struct Sweeper(JoinHandle<()>);

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Server {
    /// Begins to sweep.
    #[must_use]
    pub fn sweep(&self) -> Sweeper {
        let server = self.clone();
        Sweeper(tokio::spawn(async move {
            loop {
                server.sweep_once().await;
                tokio::time::sleep(EVERY).await;
            }
        }))
    }

    pub(crate) async fn sweep_once(&self) {
        let now = self.inner.clock.now();
        match self.inner.store.oauth_sweep(now, now - UNUSED, now - IDLE).await {
            Ok(0) => {}
            Ok(rows) => tracing::debug!(rows, "oauth: removed what had ended"),
            Err(error) => tracing::warn!(cause = &error as &dyn std::error::Error, "oauth: cannot sweep"),
        }
    }
}
