//! The two clocks of a sandbox (`spec/semantics.md` §3–4) as plain arithmetic on what is stored, so that they survive a
//! restart. One sleep per sandbox that has a deadline; none for the others.

use std::time::Duration;

use domain::SandboxState;
use jiff::{SignedDuration, Timestamp};
use store::SandboxRow;

use crate::table::Event;

/// A sleep is cut here and the clock read again: the host may have been suspended or its clock set.
const LONGEST_SLEEP: Duration = Duration::from_secs(600);

/// When something is due for a settled sandbox, and what.
pub(crate) fn deadline(row: &SandboxRow) -> Option<(Timestamp, Event)> {
    match row.summary.state {
        SandboxState::Active => {
            let end = after(row.active_since?, row.summary.timeouts.timeout_seconds?);
            Some((end, Event::SessionOver))
        }
        SandboxState::Paused => Some((row.summary.auto_delete_at?, Event::RetentionOver)),
        SandboxState::Starting
        | SandboxState::Pausing
        | SandboxState::Resuming
        | SandboxState::Failed
        | SandboxState::Deleted => None,
    }
}

/// Some seconds after a time.
pub(crate) fn after(time: Timestamp, seconds: u32) -> Timestamp {
    time.saturating_add(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(Timestamp::MAX)
}

/// Resolves when the deadline has passed, with what is due; never without one.
pub(crate) async fn due(deadline: Option<(Timestamp, Event)>) -> Event {
    let Some((end, event)) = deadline else { return std::future::pending().await };
    loop {
        let Ok(left) = Duration::try_from(end.duration_since(Timestamp::now())) else { return event };
        if left.is_zero() {
            return event;
        }
        tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
    }
}
