//! What sandboxes are made from: content-addressed layers, out of archives and images, and out of Debian packages on
//! a machine that reaches no image registry.
//!
//! A layer is a directory that holds one root file system (or a part of one), named after the SHA-256 of its
//! uncompressed tar archive, with every owner id shifted by [`ID_SHIFT`]. Layers are only ever added and removed whole;
//! nobody writes into one. Archives are hostile input: nothing here follows a link that came out of one.

mod archive;
mod bootstrap;
mod capture;
mod error;
mod oci;
mod pax;
mod problem;
mod progress;
mod source;
mod store;
#[cfg(test)]
mod tests;
mod tree;
mod uses;
mod whiteout;
mod zstd;

pub use bootstrap::{Recipe, base_is_made, bootstrap, bootstrap_base, bootstrapped};
pub use capture::Capture;
pub use error::TemplateError;
pub use oci::{Access, Image, base_from_image, pull_image, push_image, recorded_base};
pub use pack::Pending;
pub use progress::{Bar, Phase};
pub use store::{Layer, LayerStore, Limits, Staged};
pub use uses::{Adding, Remains, Removing};

/// Owner id 0 of an archive is this id on the host; the user namespace of a sandbox maps it back. One value for the whole
/// host, so that layers can be shared without a copy per sandbox.
pub const ID_SHIFT: u32 = 1_000_000;
/// How many ids are mapped; an archive with a larger id is refused.
pub const ID_COUNT: u32 = 65_536;
