//! The only way out of sandboxes. A connection that a guest opens arrives here, whatever address it was for; the gateway
//! finds out whose it is and what it claims to want, asks that sandbox's rules, and dials by itself:
//!
//! ```text
//! guest ─▶ router namespace ─▶ gateway ── whose address? ── name (SNI, Host)? ── rules ── look-up ── forbidden network?
//!                                 │                                                                         │
//!                                 ╰──────────── bytes, both ways ◀── socket of the host, or of the uplink ◀─╯
//! ```
//!
//! A name is only believed by looking it up and dialling what is found. Nothing is ever dialled that was not checked, and
//! nothing is let through for an address that is not attached. What happened goes to a sink that never makes anybody wait.

mod budget;
mod config;
mod connect;
mod connection;
mod dial;
mod dns;
mod error;
mod gateway;
mod http;
mod intercept;
mod metered;
mod name;
mod outlet;
mod packets;
mod pipe;
mod proxy;
mod ranges;
mod refusal;
mod relay;
mod route;
mod sandboxes;
mod sniff;
mod sys;

pub use config::{GatewayConfig, Proxy};
pub use error::EgressError;
pub use gateway::{DNS_PORTS, Gateway, Stats, TCP_PORT};
pub use intercept::{Dial, DialError, Intercepted, Interceptor, Stream};
pub use packets::PACKET_LOG;
