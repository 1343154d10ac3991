//! What an operator decides about the way out.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use domain::{Cidr, Secret};

use crate::intercept::Interceptor;

/// Settings of a [`Gateway`](crate::Gateway).
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Outgoing sockets are opened in the network namespace of this file instead of the server's own.
    pub uplink: Option<PathBuf>,
    /// Who is asked for names; empty for the host's own resolvers (`/etc/resolv.conf`).
    pub resolvers: Vec<SocketAddr>,
    /// Everything goes out through this HTTP proxy.
    pub proxy: Option<Proxy>,
    /// Networks that no sandbox reaches.
    pub blocked: Vec<Cidr>,
    /// Private networks that sandboxes may reach if their own rules permit it.
    pub permitted: Vec<Cidr>,
    /// Most connections of one sandbox at once.
    pub sandbox_connections: usize,
    /// Most connections of all sandboxes at once.
    pub connections: usize,
    /// Most bytes per second of one sandbox, each direction; `None` for as much as there is.
    pub sandbox_bandwidth: Option<u64>,
    /// How long a connection to port 80 or 443 whose address is permitted may stay silent before it is connected without a
    /// name. Whoever waits for the other side to speak first feels this.
    pub sniff: Duration,
    /// Takes over the connections whose TLS it wants to open.
    pub interceptor: Option<Arc<dyn Interceptor>>,
}

/// An HTTP proxy that understands `CONNECT`.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    /// `user:password`, if it wants one.
    pub credentials: Option<Secret>,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            uplink: None,
            resolvers: Vec::new(),
            proxy: None,
            blocked: Vec::new(),
            permitted: Vec::new(),
            sandbox_connections: 512,
            connections: 8_192,
            sandbox_bandwidth: None,
            sniff: Duration::from_millis(150),
            interceptor: None,
        }
    }
}
