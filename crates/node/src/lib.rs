//! What one machine does: layers and disks, links, machines.
mod host;
pub use host::{Found, Host, SandboxSpec};
