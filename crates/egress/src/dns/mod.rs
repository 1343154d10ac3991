//! Names: the two resolvers that guests know, answered by whoever the host asks, and the gateway's own look-ups.

mod lookup;
mod message;
mod server;
mod upstream;

pub(crate) use lookup::{Lookup, NoAddress};
pub(crate) use server::{RESOLVERS, serve_packets, serve_stream};
pub(crate) use upstream::Upstreams;
