//! The broker between real TLS clients and real TLS services, in one process.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod kit;
mod latency;
mod reflection;
mod refusals;
mod requests;
mod transport;
mod upgrades;
