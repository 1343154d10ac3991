//! Gives up a body of which nothing comes any more.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// A timer that runs while nothing comes. It costs nothing before the first pause.
#[derive(Debug)]
pub(crate) struct Stall {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    running: bool,
}

impl Stall {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, timer: None, running: false }
    }

    /// Something has come.
    pub(crate) fn over(&mut self) {
        self.running = false;
    }

    /// Nothing is there: ready, with why, when that has lasted too long.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
        if !self.running {
            timer.as_mut().reset(Instant::now() + self.limit);
            self.running = true;
        }
        timer.as_mut().poll(cx).map(|()| io::Error::new(io::ErrorKind::TimedOut, "the upload stalled"))
    }
}
