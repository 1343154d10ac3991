//! The edge.
mod directory;
pub use directory::{Admission, ByteStream, Directory};
