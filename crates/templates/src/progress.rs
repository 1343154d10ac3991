//! How far a bootstrap or a pull is, and a bar that shows it.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The steps of the base bootstrap and of a pull, each in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Another process on this machine makes the same layer.
    Waiting,
    /// Fetching the package lists.
    Lists,
    /// Fetching packages.
    Downloading,
    /// Unpacking the first packages.
    Extracting,
    /// Installing packages.
    Installing,
    /// Adding Node.
    Node,
    /// Writing the layer; so many bytes so far.
    Writing(u64),
    /// Looking an image up.
    Manifest,
    /// Downloading an image's layers; bytes.
    Pulling {
        /// So far.
        done: u64,
        /// Of all layers that are not there yet.
        total: u64,
    },
    /// The registry broke off, or asks to wait; bytes.
    Again {
        /// So far.
        done: u64,
        /// Of all layers that are not there yet.
        total: u64,
    },
    /// Unpacking an image's layers; layers.
    Unpacking {
        /// So far.
        done: u64,
        /// Of the image.
        total: u64,
    },
    /// The layer is there.
    Done,
}

/// About the size of the archive, only for the bar. Measured with Debian 12: 625 MB.
const EXPECTED_BYTES: u64 = 625_000_000;

impl Phase {
    /// What happens, as the end of a sentence.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Waiting => "waiting for another bootstrap",
            Self::Lists => "fetching package lists",
            Self::Downloading => "downloading packages",
            Self::Extracting => "extracting packages",
            Self::Installing => "installing packages",
            Self::Node => "adding Node",
            Self::Writing(_) => "writing the layer",
            Self::Manifest => "looking up the image",
            Self::Pulling { .. } => "downloading layers",
            Self::Again { .. } => "the registry broke off or asks to wait; going on with what is there",
            Self::Unpacking { .. } => "unpacking layers",
            Self::Done => "done",
        }
    }

    /// How much is done, per mille; shares as measured on two cores.
    #[must_use]
    pub fn per_mille(self) -> u64 {
        match self {
            Self::Waiting => 0,
            Self::Lists => 10,
            Self::Downloading => 80,
            Self::Extracting => 180,
            Self::Installing => 250,
            Self::Node => 600,
            Self::Writing(bytes) => 750 + (bytes.min(EXPECTED_BYTES) * 249 / EXPECTED_BYTES),
            Self::Manifest => 5,
            Self::Pulling { done, total } | Self::Again { done, total } => {
                10 + done.min(total) * 689 / total.max(1)
            }
            Self::Unpacking { done, total } => 700 + done.min(total) * 299 / total.max(1),
            Self::Done => 1000,
        }
    }
}

/// Shows phases on stderr: a bar on a terminal, else one line per phase.
#[derive(Debug)]
pub struct Bar {
    title: String,
    bar: Option<ProgressBar>,
    last: Mutex<&'static str>,
}

impl Bar {
    /// A bar with a title.
    #[must_use]
    pub fn new(title: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(1000).with_prefix(title.to_owned());
            // The template is a constant; the plain style is as good if it were ever wrong.
            let style =
                ProgressStyle::with_template("{prefix} {spinner} [{bar:30}] {percent}% {msg} ({elapsed})");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { title: title.to_owned(), bar, last: Mutex::new("") }
    }

    /// Shows a phase.
    pub fn update(&self, phase: Phase) {
        match &self.bar {
            Some(bar) if phase == Phase::Done => bar.finish_with_message(phase.label()),
            Some(bar) => {
                bar.set_position(phase.per_mille());
                bar.set_message(phase.label());
            }
            None => {
                let Ok(mut last) = self.last.lock() else { return };
                if *last != phase.label() {
                    *last = phase.label();
                    // Nobody is helped when a progress line cannot be written.
                    let _ = writeln!(std::io::stderr(), "{}: {}", self.title, phase.label());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_only_moves_forward() {
        let phases = [
            Phase::Waiting,
            Phase::Lists,
            Phase::Downloading,
            Phase::Extracting,
            Phase::Installing,
            Phase::Node,
            Phase::Writing(0),
            Phase::Writing(u64::MAX),
            Phase::Done,
        ];
        assert!(phases.windows(2).all(|w| w[0].per_mille() < w[1].per_mille()));
        let (done, total) = (u64::MAX / 1000, u64::MAX / 1000);
        let phases = [
            Phase::Manifest,
            Phase::Pulling { done: 0, total: 0 },
            Phase::Pulling { done: 1, total: 2 },
            Phase::Pulling { done, total },
            Phase::Unpacking { done: 0, total: 3 },
            Phase::Unpacking { done: 3, total: 3 },
            Phase::Done,
        ];
        assert!(phases.windows(2).all(|w| w[0].per_mille() < w[1].per_mille()));
    }
}
