//! The client against a real HTTP server in this process: what it sends, repeats, heals, refuses and cuts.

#![expect(clippy::unwrap_used, reason = "the lint is for products; helpers of tests are tests")]

mod platform;
mod session;

mod control;
mod desktop;
mod exec;
mod files;
mod healing;
mod preview;
mod start_up;
mod tls;
