//! The edge as clients meet it: real sockets, real TLS, scripted and real guest agents.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod checks;
mod hostile;
mod limits;
mod observe;
mod preview;
mod proxy;
mod relay;
mod support;
mod tls;
