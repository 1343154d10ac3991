//! What a sandbox did on the network, as plain data (`spec/semantics.md` §8): the gateway makes an event of each thing
//! that is over, the recorder keeps it as a row.
//!
//! A name, method or path in it was chosen by a guest: it is bounded here and must be made printable where it is shown.

use std::fmt;
use std::net::{IpAddr, SocketAddrV4};
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;

use crate::id::{SandboxId, SecretId};
use crate::sandbox::{UnknownName, names};

/// Longest host name that is kept: the longest there is.
pub const MAX_LOGGED_HOST: usize = 253;
/// Longest path that is kept; the rest is cut off.
pub const MAX_LOGGED_PATH: usize = 1_024;
/// Longest method that is kept.
pub const MAX_LOGGED_METHOD: usize = 32;

names!(
    /// What became of an attempt.
    NetworkVerdict {
        /// It was connected, looked up or passed on.
        Allowed = "allowed",
        /// A rule, the sandbox's or the platform's, refused it.
        Blocked = "blocked",
        /// It was permitted and did not work.
        Failed = "failed",
    }
);

names!(
    /// Which kind of rule decided.
    MatchRule {
        /// A domain in the allow list.
        Domain = "domain",
        /// An address or network in one of the lists.
        Cidr = "cidr",
        /// Nothing matched, and what nothing matches is permitted.
        Default = "default",
        /// The address is one no rule can open: private, local, or this platform's.
        InternalIp = "internal-ip",
        /// Nothing matched, and strict mode permits nothing else.
        ImplicitDeny = "implicit-deny",
        /// The operator has closed this network to all sandboxes.
        Blocklist = "blocklist",
        /// A protocol no sandbox has: UDP other than DNS, ICMP, IPv6. Only on `packet` rows.
        Protocol = "protocol",
        /// The sandbox has as many connections as it may.
        Limit = "limit",
    }
);

names!(
    /// What kind of row an event is. `connection` and `request` are published always, the others when asked for.
    NetworkKind {
        /// A TCP connection.
        Connection = "connection",
        /// An HTTP request that carried a credential's stand-in.
        Request = "request",
        /// A name that was looked up.
        Dns = "dns",
        /// Packets that were refused because of their protocol.
        Packet = "packet",
    }
);

impl NetworkKind {
    /// What everybody sees who reads the log.
    pub const PUBLISHED: [Self; 2] = [Self::Connection, Self::Request];
    /// What is shown when it is asked for.
    pub const EXTRA: [Self; 2] = [Self::Dns, Self::Packet];
}

/// Something that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkEvent {
    /// Who did it.
    pub sandbox: SandboxId,
    /// When it was over.
    pub at: Timestamp,
    /// What it was.
    pub what: Attempt,
}

/// What a sandbox tried to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// It opened a TCP connection.
    Connection(ConnectionAttempt),
    /// It sent a request with a stand-in.
    Request(RequestAttempt),
    /// It asked for a name.
    Dns(DnsAttempt),
    /// It sent packets of a protocol it does not have.
    Packet(PacketAttempt),
}

/// A TCP connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionAttempt {
    /// The name it claimed (SNI or `Host`), if it did.
    pub host: Option<String>,
    /// Where the sandbox wanted to; for a name the gateway looked up itself, still the sandbox's own address.
    pub to: SocketAddrV4,
    /// What became of it.
    pub verdict: NetworkVerdict,
    /// Which rule decided.
    pub rule: MatchRule,
    /// Bytes from the sandbox.
    pub sent: u64,
    /// Bytes to the sandbox.
    pub received: u64,
    /// How long it was open.
    pub took: Duration,
    /// Why it failed, as a short code such as `refused`, `timeout`, `unreachable`, `no_such_name`.
    pub error: Option<String>,
}

/// A request in which a stand-in was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestAttempt {
    /// Whose stand-in it was, when that is known.
    pub secret: Option<SecretId>,
    /// HTTP method.
    pub method: String,
    /// Where it was sent to.
    pub host: String,
    /// Without its query.
    pub path: String,
    /// The status the sandbox got.
    pub status: u16,
    /// The status the service gave.
    pub upstream_status: Option<u16>,
    /// Until the head of the answer.
    pub latency: Duration,
    /// The reason of a refusal (`spec/semantics.md` §6.4).
    pub error: Option<String>,
}

/// A name that was looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsAttempt {
    /// The name, without a final dot.
    pub name: String,
    /// The type asked for, such as `A`.
    pub record: String,
    /// The resolver it was sent to.
    pub to: SocketAddrV4,
    /// What became of it.
    pub verdict: NetworkVerdict,
    /// Which rule decided.
    pub rule: MatchRule,
    /// Why it failed or what the answer was instead, such as `NXDOMAIN`.
    pub error: Option<String>,
}

/// Refused packets, of one kind and to one place, as many as came together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketAttempt {
    /// `udp`, `icmp`, `ipv6` or the number of the protocol.
    pub protocol: String,
    /// Where to, if it is known.
    pub to: Option<IpAddr>,
    /// The port, if there is one.
    pub port: Option<u16>,
    /// How many.
    pub count: u64,
    /// Which rule refused them.
    pub rule: MatchRule,
}

impl Attempt {
    /// The kind of row it becomes.
    #[must_use]
    pub fn kind(&self) -> NetworkKind {
        match self {
            Self::Connection(_) => NetworkKind::Connection,
            Self::Request(_) => NetworkKind::Request,
            Self::Dns(_) => NetworkKind::Dns,
            Self::Packet(_) => NetworkKind::Packet,
        }
    }
}

/// Takes events. Implemented over the database; what makes events must not know how they are kept.
pub trait NetworkSink: fmt::Debug + Send + Sync {
    /// Takes an event. Never waits: when there is no room it is dropped and counted.
    fn record(&self, event: NetworkEvent);
}
