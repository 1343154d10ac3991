//! What one call learned of a desktop and the next may use: hints, which a server that forgets them does without.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Desktops that are remembered; those used least lately are forgotten.
const MAX_REMEMBERED: usize = 1024;

/// Width and height in pixels.
pub(crate) type Size = (i64, i64);

/// Bounded, for the whole process.
#[derive(Debug, Default)]
pub(crate) struct Screens(Mutex<VecDeque<(String, Known)>>);

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    size: Option<Size>,
    lacks_step: bool,
}

impl Screens {
    /// The size of the screen when it was last seen.
    pub(super) fn size(&self, id: &str) -> Option<Size> {
        self.change(id, |_| {}).size
    }

    /// Whether the agent of this sandbox is too old for `Step`.
    pub(super) fn lacks_step(&self, id: &str) -> bool {
        self.change(id, |_| {}).lacks_step
    }

    pub(super) fn set_size(&self, id: &str, size: Size) {
        self.change(id, |known| known.size = Some(size));
    }

    pub(super) fn set_lacks_step(&self, id: &str) {
        self.change(id, |known| known.lacks_step = true);
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Known)) -> Known {
        let mut screens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = screens.iter().position(|(known, _)| known == id);
        let mut known =
            place.and_then(|place| screens.remove(place)).map(|(_, known)| known).unwrap_or_default();
        change(&mut known);
        screens.push_back((id.to_owned(), known));
        if screens.len() > MAX_REMEMBERED {
            screens.pop_front();
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_kept_and_the_rest_is_bounded() {
        let screens = Screens::default();
        screens.set_size("a", (1280, 800));
        screens.set_lacks_step("b");
        for n in 0..MAX_REMEMBERED {
            screens.set_size(&n.to_string(), (1, 1));
            assert_eq!(screens.size("a"), Some((1280, 800)));
        }
        assert!(!screens.lacks_step("b"), "forgotten");
        assert_eq!(screens.0.lock().unwrap().len(), MAX_REMEMBERED);
    }
}
