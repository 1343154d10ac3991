//! What one machine does for sandboxes: disks over shared layers, links into the router namespace, machines through a
//! driver. Knows nothing of teams, keys, states or deadlines; whoever calls says which sandbox. Operations on one sandbox run
//! one after the other, each to its end; those on different sandboxes side by side: nothing slow happens under a lock.
//!
//! A machine needs its disk and its link, in any order, before it starts, and loses them after it has ended.

mod adopt;
mod agent;
mod base;
mod dial;
mod disk;
mod engines;
mod error;
mod host;
mod link;
mod machines;
mod node;
mod pack;
mod paused;
mod place;
mod problem;
mod save;
mod shared;
mod states;
mod sys;
mod turns;

pub use disk::guests_mount_disks;
pub use engines::Engines;
pub use host::{CapturedLayer, Extent, Found, Host, Kept, SandboxSpec, Saved};
pub use node::{Node, NodeConfig};
