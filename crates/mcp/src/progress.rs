//! Progress notifications for a caller that gave a token (`spec/mcp.md` §B.7). They are sent by the call itself, so none
//! can follow its result.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::{Peer, RoleServer};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Time between two notifications: often enough to keep a client's timer alive, rare enough not to be noise.
const INTERVAL: Duration = Duration::from_secs(5);
/// The same when there is news.
const NEWS_INTERVAL: Duration = Duration::from_millis(500);

/// Where progress goes.
#[derive(Debug)]
pub(crate) struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
}

/// How much a command has written so far.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: AtomicU64,
    news: Notify,
}

impl Output {
    pub(crate) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.news.notify_one();
    }
}

impl Progress {
    /// Notifications for `token`.
    pub(crate) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        Self { peer, token }
    }

    /// Reports at the start, at news and every few seconds until `work` is done, in milliseconds of at most `total`.
    pub(crate) async fn during<T>(
        &self,
        total: Duration,
        output: &Output,
        work: impl Future<Output = T>,
    ) -> T {
        let started = Instant::now();
        let (mut next, mut earliest) = (started, started);
        let mut last = None;
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                // Finished work goes first: nothing may be reported once the result is known.
                biased;
                done = &mut work => return done,
                () = output.news.notified(), if next > earliest => next = earliest,
                () = sleep_until(next) => {
                    let elapsed = started.elapsed();
                    next = Instant::now() + INTERVAL;
                    earliest = Instant::now() + NEWS_INTERVAL;
                    if last.is_none_or(|last| elapsed.as_millis() > last) {
                        last = Some(elapsed.as_millis());
                        let report = self.report(elapsed, total, output.bytes.load(Ordering::Relaxed));
                        // The work does not wait for a client that does not read.
                        tokio::select! {
                            biased;
                            done = &mut work => return done,
                            () = report => {}
                        }
                    }
                }
            }
        }
    }

    /// A client that cannot be told does not matter; its end is noticed elsewhere.
    async fn report(&self, elapsed: Duration, total: Duration, bytes: u64) {
        let millis = |time: Duration| time.as_millis().min(u128::from(u32::MAX)) as f64;
        let params = ProgressNotificationParam::new(self.token.clone(), millis(elapsed))
            .with_total(millis(total))
            .with_message(format!("running {} s; {bytes} bytes of output", elapsed.as_secs()));
        if let Err(error) = self.peer.notify_progress(params).await {
            tracing::debug!(%error, "progress was not sent");
        }
    }
}
