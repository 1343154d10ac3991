//! Waiting on a value, never on a sleep.

use std::time::{Duration, Instant};

/// Pause between two looks; short against every limit used.
const STEP: Duration = Duration::from_millis(20);

/// Looks until `look` gives a value.
///
/// # Panics
/// When `limit` has passed, naming `what`.
pub async fn wait_for<T, F: Future<Output = Option<T>>>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> F,
) -> T {
    let until = Instant::now() + limit;
    loop {
        if let Some(value) = look().await {
            return value;
        }
        assert!(Instant::now() < until, "{what} did not happen within {limit:?}");
        tokio::time::sleep(STEP).await;
    }
}
