//! Builds of templates: an image is pulled, steps run in real machines, what they wrote becomes layers, and the result is
//! tried before the template uses it.
//!
//! ```text
//! pending ─▶ building: pull ─▶ [machine ─▶ steps ─▶ capture ─▶ layer] … ─▶ snapshotting: machine ─▶ start, ready ─▶ ready
//!     ╰──────────┴──────────────── failed, cancelled ──────────────────────────────┴───────────╯
//! ```
//!
//! Each step that runs a command has a machine of its own over the layers before it, so what it made can be kept under a
//! key of everything it depends on, and need not be made again. A machine of a build is no sandbox: it has no row, so
//! whatever a server leaves of one is removed by the next.

mod curated;
mod failure;
mod layers;
mod log;
mod machine;
mod problem;
mod run;
mod service;
mod state;
mod work;

pub use curated::make_curated_layer;
pub use log::Follower;
pub use service::{Builds, BuildsConfig, NewTemplate};
