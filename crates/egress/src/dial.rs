//! The way out: rules, look-up, forbidden networks and connect as one decision. What is dialled is exactly what was checked.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::time::Duration;

use domain::{EgressRules, MatchRule, Ruling};
use rustix::net::{AddressFamily, SocketType, sockopt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connect::{self, Pending};
use crate::dns::NoAddress;
use crate::gateway::Shared;
use crate::name::Name;
use crate::proxy;
use crate::relay;
use crate::sandboxes::Sandbox;

/// One address has this long. What is up answers within a second; a lost packet costs the kernel one, then three.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;
/// A service that has gone silently is noticed after some three minutes. Guests need no such thing: when they go, they are
/// detached, and while they are paused they must not be taken for gone.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEPALIVE_PROBES: u32 = 4;

/// A connection that has been opened, and which rule permitted it.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) service: TcpStream,
    pub(crate) rule: MatchRule,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotDialled {
    /// A rule refused it.
    Blocked(MatchRule),
    /// It was permitted and did not work.
    Failed(MatchRule, &'static str),
}

/// What the rules say about a destination, the platform's own included.
pub(crate) fn judge(shared: &Shared, rules: &EgressRules, host: Option<&Name>, to: Ipv4Addr) -> Ruling {
    match shared.blocked.why(to) {
        Some(rule) => Ruling { permitted: false, rule },
        None => rules.rule_on(host.map(Name::as_str), to),
    }
}

/// Opens a connection for a sandbox: to the name it claims, if that name is permitted, else to the address it wants.
pub(crate) async fn dial(
    shared: &Shared,
    sandbox: &Sandbox,
    host: Option<&Name>,
    to: SocketAddrV4,
) -> Result<Dialled, NotDialled> {
    let ruling = judge(shared, &sandbox.rules(), host, *to.ip());
    if !ruling.permitted {
        return Err(NotDialled::Blocked(ruling.rule));
    }
    // A name opens only what the gateway finds under it.
    let named = host.filter(|_| ruling.rule == MatchRule::Domain);
    let Some(name) = named else {
        return attempt(shared, sandbox, None, ruling.rule, to).await;
    };
    let found = shared.lookup.addresses(name).await.map_err(|why| {
        let why = match why {
            NoAddress::NoSuchName => "no_such_name",
            NoAddress::NoAnswer => "no_answer",
        };
        NotDialled::Failed(ruling.rule, why)
    })?;
    let mut last = NotDialled::Failed(ruling.rule, "no_such_name");
    for address in found.iter().take(MAX_ADDRESSES) {
        let to = SocketAddrV4::new(*address, to.port());
        match attempt(shared, sandbox, named, ruling.rule, to).await {
            Ok(dialled) => return Ok(dialled),
            // That another address did not answer tells more than that this one is closed.
            Err(NotDialled::Blocked(_)) if matches!(last, NotDialled::Failed(_, why) if why != "no_such_name") =>
                {}
            Err(why) => last = why,
        }
    }
    Err(last)
}

async fn attempt(
    shared: &Shared,
    sandbox: &Sandbox,
    named: Option<&Name>,
    rule: MatchRule,
    to: SocketAddrV4,
) -> Result<Dialled, NotDialled> {
    let failed = |error: io::Error| NotDialled::Failed(rule, reason(&error));
    match shared.outlet.is_local(*to.ip()) {
        Ok(false) => {}
        Ok(true) => return Err(NotDialled::Blocked(MatchRule::InternalIp)),
        Err(error) => {
            tracing::warn!(%error, "cannot ask the kernel whose address this is");
            return Err(NotDialled::Failed(rule, "unreachable"));
        }
    }
    let first_hop = shared.config.proxy.as_ref().map_or(SocketAddr::V4(to), |proxy| proxy.address);
    let family = if first_hop.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = shared.outlet.socket(family, SocketType::STREAM).await.map_err(failed)?;
    // The rules may have changed since; from here to the first packet they cannot.
    let permitted = |rules: &EgressRules| {
        if let Some(rule) = shared.blocked.why(*to.ip()) {
            return Err(NotDialled::Blocked(rule));
        }
        let ruling = rules.rule_on(named.map(Name::as_str), *to.ip());
        let by_name = ruling.rule == MatchRule::Domain;
        if ruling.permitted && (named.is_none() || by_name) {
            Ok(())
        } else {
            Err(NotDialled::Blocked(ruling.rule))
        }
    };
    let begun = sandbox.decide(|rules| -> Result<Pending, NotDialled> {
        permitted(rules)?;
        connect::begin(socket, first_hop).map_err(failed)
    })?;
    let connecting = async {
        let mut service = connect::finish(begun).await?;
        relay::reset_when_dropped(&service);
        if let Some(proxy) = &shared.config.proxy {
            proxy::open(&mut service, proxy, to).await?;
        }
        Ok(service)
    };
    let service = timeout(ATTEMPT, connecting).await.map_err(|_| NotDialled::Failed(rule, "timeout"))?;
    let service = service.map_err(failed)?;
    // Nothing is said over a connection that has been forbidden while it was opened.
    sandbox.decide(permitted)?;
    settle(&service).map_err(failed)?;
    Ok(Dialled { service, rule })
}

fn settle(service: &TcpStream) -> io::Result<()> {
    service.set_nodelay(true)?;
    let socket = service.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    Ok(())
}

fn reason(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "refused",
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => "reset",
        io::ErrorKind::TimedOut => "timeout",
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => {
            "unreachable"
        }
        _ => "failed",
    }
}
