//! Progress notifications for a caller that gave a token (`spec/mcp.md` §B.7). They are sent by the call itself, so none
//! can follow its result.

use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::{Peer, RoleServer};
use tokio::time::Instant;

/// Time between two notifications: often enough to keep a client's timer alive, rare enough not to be noise.
const INTERVAL: Duration = Duration::from_secs(5);

/// Where progress goes.
#[derive(Debug)]
pub(crate) struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
}

impl Progress {
    /// Notifications for `token`.
    pub(crate) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        Self { peer, token }
    }

    /// Reports at the start and every few seconds until `work` is done, in milliseconds of at most `total`.
    pub(crate) async fn during<T>(&self, total: Duration, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut work = std::pin::pin!(work);
        let mut last = None;
        loop {
            tokio::select! {
                // Finished work goes first: nothing may be reported once the result is known.
                biased;
                done = &mut work => return done,
                _ = ticks.tick() => {
                    let elapsed = started.elapsed();
                    if last.is_none_or(|last| elapsed.as_millis() > last) {
                        last = Some(elapsed.as_millis());
                        self.report(elapsed, total).await;
                    }
                }
            }
        }
    }

    /// A client that cannot be told does not matter; its end is noticed elsewhere.
    async fn report(&self, elapsed: Duration, total: Duration) {
        let millis = |time: Duration| time.as_millis().min(u128::from(u32::MAX)) as f64;
        let params = ProgressNotificationParam::new(self.token.clone(), millis(elapsed))
            .with_total(millis(total))
            .with_message(format!("running {} s", elapsed.as_secs()));
        if let Err(error) = self.peer.notify_progress(params).await {
            tracing::debug!(%error, "progress was not sent");
        }
    }
}
