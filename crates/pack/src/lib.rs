//! Packs what was written on an overlay, or all that it shows, as an archive in the spelling of images: whiteouts for what is
//! gone, an opaque mark where nothing from below is to be seen. The host packs what containers have written, and the agent in
//! a virtual machine what was written on its disk, so that the same tree gives the same archive.
//!
//! What is packed is hostile, and so is an archive that a guest has packed: whoever unpacks it believes nothing.

mod attribute;
pub mod capability;
mod error;
mod packer;
mod pending;
mod stop;

pub use attribute::{OPAQUE, is_own_attribute, marks_nothing};
pub use error::PackError;
pub use packer::{Owners, Source, pack};
pub use pending::Pending;
pub use stop::{Stoppable, stopped};
