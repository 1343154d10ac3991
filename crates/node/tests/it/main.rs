//! The node on real parts: runc, cgroups, loop devices, network namespaces, the real agent. Runs as root. Each test has
//! its own state, run directory and cgroups, and at its end nothing of them may be left on the host.
#![expect(clippy::unwrap_used, reason = "tests")]

mod attacks;
mod base;
mod bed;
mod dial;
mod engines;
mod life;
mod limits;
mod network;
