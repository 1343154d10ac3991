//! The published formats as types, without I/O: the REST API, the data plane, the descriptor of a server, and the
//! private protocol between the platform and the guest agent. Sections refer to `spec/`.
//!
//! Formats only grow: a paused sandbox keeps its old agent, so the newer side speaks the older form.

pub mod agent;
pub mod data_plane;
pub mod desktop;
mod double_option;
pub mod rest;
pub mod well_known;
