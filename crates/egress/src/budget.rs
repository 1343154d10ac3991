//! What a sandbox may use up: bytes per second, and rows of the log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Rows of the log per second that one sandbox may cause; more are counted only. Busy installers need some hundred at once.
const ROWS_PER_SECOND: f64 = 100.0;
const ROWS_AT_ONCE: f64 = 2_000.0;
/// What may go at once, as time at the permitted rate: longer makes bursts, shorter makes many small writes.
const BURST: f64 = 0.25;
/// Least burst: a buffer.
const MIN_BURST: f64 = 256.0 * 1024.0;

#[derive(Debug)]
struct Bucket {
    rate: f64,
    size: f64,
    level: Mutex<(f64, Instant)>,
}

impl Bucket {
    fn new(rate: f64, size: f64) -> Self {
        Self { rate, size, level: Mutex::new((size, Instant::now())) }
    }

    /// What there is, after `change` has seen it and said what is taken.
    fn with(&self, change: impl FnOnce(f64) -> f64) -> f64 {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let there = (level.0 + now.duration_since(level.1).as_secs_f64() * self.rate).min(self.size);
        let left = there - change(there);
        *level = (left, now);
        left
    }
}

/// Bytes per second.
#[derive(Debug)]
pub(crate) struct Bandwidth(Option<Bucket>);

impl Bandwidth {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        Self(bytes_per_second.map(|rate| {
            let rate = rate as f64;
            Bucket::new(rate, (rate * BURST).max(MIN_BURST))
        }))
    }

    /// Accounts for bytes that have been read; until when they, or those after them, have to wait.
    pub(crate) fn debt(&self, bytes: usize) -> Option<Duration> {
        let bucket = self.0.as_ref()?;
        let left = bucket.with(|_| bytes as f64);
        (left < 0.0).then(|| Duration::from_secs_f64(-left / bucket.rate))
    }

    /// Accounts for bytes that have been read, and waits until they may go on.
    pub(crate) async fn spend(&self, bytes: usize) {
        if let Some(wait) = self.debt(bytes) {
            tokio::time::sleep(wait).await;
        }
    }
}

/// Rows of the log.
#[derive(Debug)]
pub(crate) struct Budget(Bucket);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Bucket::new(ROWS_PER_SECOND, ROWS_AT_ONCE))
    }

    /// Takes one, if there is one.
    pub(crate) fn take(&self) -> bool {
        let mut taken = false;
        self.0.with(|there| {
            taken = there >= 1.0;
            if taken { 1.0 } else { 0.0 }
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bandwidth_is_what_it_says() {
        let bandwidth = Bandwidth::new(Some(1 << 20));
        let begun = Instant::now();
        for _ in 0..160 {
            bandwidth.spend(64 * 1024).await;
        }
        let took = begun.elapsed().as_secs_f64();
        assert!((9.5..10.1).contains(&took), "{took}");
        Bandwidth::new(None).spend(usize::MAX).await;
    }

    #[tokio::test(start_paused = true)]
    async fn rows_run_out_and_come_back() {
        let budget = Budget::new();
        assert_eq!((0..5_000).filter(|_| budget.take()).count(), 2_000);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..5_000).filter(|_| budget.take()).count(), 100);
    }
}
