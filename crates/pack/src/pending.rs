//! Directories that are still to be looked at. What a guest or an archive has made may have any number of them, side by
//! side under long names: what is remembered of them is bounded.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::error::PackError;

/// Half a million ordinary names.
const MAX_BYTES: usize = 64 << 20;

/// A stack of paths, each with what belongs to it.
#[derive(Debug)]
pub struct Pending<T = ()> {
    paths: Vec<(PathBuf, T)>,
    bytes: usize,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self { paths: Vec::new(), bytes: 0 }
    }
}

impl<T> Pending<T> {
    /// Adds one.
    ///
    /// # Errors
    /// `TooLarge` when too many are waiting.
    pub fn push(&mut self, path: PathBuf, with: T) -> Result<(), PackError> {
        self.bytes += held::<T>(path.as_os_str());
        if self.bytes > MAX_BYTES {
            return Err(PackError::TooLarge {
                limit: MAX_BYTES as u64,
                unit: "bytes of names of directories",
            });
        }
        self.paths.push((path, with));
        Ok(())
    }

    /// Takes the one that came last.
    pub fn pop(&mut self) -> Option<(PathBuf, T)> {
        let (path, with) = self.paths.pop()?;
        self.bytes -= held::<T>(path.as_os_str());
        Some((path, with))
    }
}

impl Pending {
    /// Begins with one directory.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self { bytes: held::<()>(root.as_os_str()), paths: vec![(root.to_owned(), ())] }
    }
}

fn held<T>(path: &OsStr) -> usize {
    path.len() + size_of::<(PathBuf, T)>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_what_was_looked_at_does_not_count() {
        let path = |n: usize| PathBuf::from(format!("{n:04000}"));
        let mut pending = Pending::default();
        for n in 0..20_000 {
            pending.push(path(n), ()).unwrap();
            assert_eq!(pending.pop(), Some((path(n), ())));
        }
        let fit = (0..100_000).take_while(|n| pending.push(path(*n), ()).is_ok()).count();
        assert!((16_000..17_000).contains(&fit), "{fit}");
    }
}
