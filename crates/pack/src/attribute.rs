//! What overlayfs says by attributes and devices, and what of a file's attributes is its own.

use rustix::fs::{FileType, Stat};

/// The kernel's `XATTR_NAME_MAX`.
const MAX_ATTRIBUTE_NAME: usize = 255;

/// The attribute of a directory that hides what lower layers have in it.
pub const OPAQUE: &str = "trusted.overlay.opaque";

/// Whether an attribute belongs to the guest alone. Overlayfs reads some of its users' attributes, too.
#[must_use]
pub fn is_own_attribute(name: &str) -> bool {
    name.strip_prefix("user.").is_some_and(|rest| !rest.is_empty() && !rest.starts_with("overlay."))
        && name.len() <= MAX_ATTRIBUTE_NAME
        && !name.contains(['=', '\n', '\0'])
}

/// Overlayfs's whiteout. Archives cannot make one by themselves: their devices are left out.
#[must_use]
pub fn marks_nothing(of: &Stat) -> bool {
    FileType::from_raw_mode(of.st_mode) == FileType::CharacterDevice && of.st_rdev == 0
}
