//! The gateway itself: its doors in the router namespace, and what all connections share.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use domain::{Attempt, Cidr, EgressRules, NetworkEvent, NetworkSink, NetworkVerdict, SandboxId};
use jiff::Timestamp;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::GatewayConfig;
use crate::connection;
use crate::dns::{self, Lookup, Upstreams};
use crate::error::EgressError;
use crate::outlet::Outlet;
use crate::packets::{self, PacketLog};
use crate::ranges::Blocked;
use crate::relay;
use crate::sandboxes::{Present, Sandbox, Sandboxes};
use crate::sys;

/// Where redirected TCP connections arrive in the router namespace.
pub const TCP_PORT: u16 = 15_001;
/// Where questions to the two resolvers arrive there, 1.1.1.1 first, then 8.8.8.8.
pub const DNS_PORTS: [u16; 2] = [15_053, 15_054];
/// Connections the kernel keeps until they are accepted; one guest cannot fill it faster than it is emptied.
const BACKLOG: i32 = 4_096;
/// Questions of all sandboxes that wait for an answer, each with a socket.
pub(crate) const QUESTIONS: usize = 1_024;
/// Whoever has more connections than this makes room first when little is left, so that a few sandboxes cannot shut out all
/// others.
const FEW: usize = 64;
/// Without a free descriptor nothing can be accepted; some become free as connections end.
const AFTER_ERROR: Duration = Duration::from_millis(50);
/// A server that has been killed is gone within this time.
const FREE: Duration = Duration::from_secs(5);
/// A stop cuts what is open, which takes no time.
const STOP: Duration = Duration::from_secs(2);
/// Descriptors that everything else in the server needs.
const OTHER_DESCRIPTORS: u64 = 1_024;

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) config: GatewayConfig,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) blocked: Blocked,
    pub(crate) outlet: Arc<Outlet>,
    pub(crate) upstreams: Arc<Upstreams>,
    pub(crate) lookup: Lookup,
    pub(crate) questions: Semaphore,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    connections: Arc<Semaphore>,
    room: usize,
    sink: Arc<dyn NetworkSink>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    allowed: AtomicU64,
    blocked: AtomicU64,
    failed: AtomicU64,
    questions: AtomicU64,
    packets: AtomicU64,
    strangers: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    unlogged: AtomicU64,
}

/// How the gateway does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sandboxes that are attached.
    pub sandboxes: usize,
    /// Connections that are open now.
    pub open: usize,
    /// Connections that ended, and had been connected.
    pub allowed: u64,
    /// Connections and questions that a rule refused.
    pub blocked: u64,
    /// Connections and questions that were permitted and did not work.
    pub failed: u64,
    /// Questions to resolvers, whatever became of them.
    pub questions: u64,
    /// Packets of other protocols that were refused.
    pub packets: u64,
    /// Connections from addresses of no sandbox.
    pub strangers: u64,
    /// Bytes from sandboxes.
    pub sent: u64,
    /// Bytes to sandboxes.
    pub received: u64,
    /// Events that were counted only, because one sandbox caused too many.
    pub unlogged: u64,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway")
            .field("config", &self.config)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// The only way out of sandboxes.
#[derive(Debug)]
pub struct Gateway(Arc<Shared>);

struct Doors {
    tcp: TcpListener,
    dns: [Arc<UdpSocket>; 2],
}

impl Gateway {
    /// Opens the doors in the router namespace. `links` is the network the sandboxes' links are in. Nobody is let through
    /// who has not been attached.
    ///
    /// # Errors
    /// The doors or the way out cannot be opened.
    pub async fn start(
        config: GatewayConfig,
        router: BorrowedFd<'_>,
        links: Cidr,
        sink: Arc<dyn NetworkSink>,
    ) -> Result<Self, EgressError> {
        let outlet = Arc::new(Outlet::open(config.uplink.as_deref())?);
        let doors = Doors::open_when_free(router).await.map_err(EgressError::Listen)?;
        let upstreams = Arc::new(Upstreams::new(Arc::clone(&outlet), config.resolvers.clone()));
        let room = room(config.connections);
        let shared = Arc::new(Shared {
            sandboxes: Sandboxes::default(),
            blocked: Blocked::new(links, config.blocked.clone(), config.permitted.clone()),
            lookup: Lookup::new(Arc::clone(&upstreams)),
            outlet,
            upstreams,
            questions: Semaphore::new(QUESTIONS),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            connections: Arc::new(Semaphore::new(room)),
            room,
            sink,
            counts: Counts::default(),
            config,
        });
        for (socket, resolver) in doors.dns.into_iter().zip(dns::RESOLVERS) {
            let task = Arc::clone(&shared);
            shared.tasks.spawn(async move {
                let stop = task.stop.clone();
                tokio::select! {
                    () = dns::serve_packets(task, socket, resolver) => {}
                    () = stop.cancelled() => {}
                }
            });
        }
        match PacketLog::open(router) {
            Ok(log) => {
                let task = Arc::clone(&shared);
                shared.tasks.spawn(async move {
                    let stop = task.stop.clone();
                    tokio::select! {
                        () = packets::watch(task, log) => {}
                        () = stop.cancelled() => {}
                    }
                });
            }
            // They are refused all the same.
            Err(error) => tracing::warn!(%error, "refused packets cannot be written to the network log"),
        }
        shared.tasks.spawn(accept(Arc::clone(&shared), doors.tcp));
        Ok(Self(shared))
    }

    /// Lets a sandbox out by its rules, or gives one that is attached already these rules.
    pub fn attach(&self, id: SandboxId, guest: Ipv4Addr, rules: &EgressRules) {
        self.0.sandboxes.attach(id, guest, rules.clone(), &self.0.config);
    }

    /// Replaces the rules of a sandbox. When this returns, nothing new is begun by the former ones. `false` when it is not
    /// attached.
    #[must_use]
    pub fn update(&self, id: SandboxId, rules: &EgressRules) -> bool {
        self.0.sandboxes.update(id, rules.clone())
    }

    /// Ends all connections of a sandbox and lets it out no more.
    pub fn detach(&self, id: SandboxId) {
        self.0.sandboxes.detach(id);
    }

    /// For how long a sandbox has had no TCP connection; not at all when it is not attached.
    #[must_use]
    pub fn quiet(&self, id: SandboxId) -> Duration {
        self.0.sandboxes.quiet(id)
    }

    /// A sandbox that ran before this gateway did may have had connections until now.
    pub fn assume_present(&self, id: SandboxId) {
        self.0.sandboxes.assume_present(id);
    }

    /// Numbers for whoever watches.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Cuts all connections and closes the doors.
    pub async fn stop(&self) {
        self.0.stop.cancel();
        self.0.tasks.close();
        if tokio::time::timeout(STOP, self.0.tasks.wait()).await.is_err() {
            tracing::warn!("some connections of sandboxes did not end");
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.0.stop.cancel();
    }
}

impl Doors {
    /// An earlier server may still be ending.
    async fn open_when_free(router: BorrowedFd<'_>) -> io::Result<Self> {
        let until = Instant::now() + FREE;
        loop {
            match Self::open(router) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                    tokio::time::sleep(AFTER_ERROR).await;
                }
                other => return other,
            }
        }
    }

    fn open(router: BorrowedFd<'_>) -> io::Result<Self> {
        let (tcp, dns) = sys::inside(router, || {
            let tcp = bind(SocketType::STREAM, TCP_PORT)?;
            rustix::net::listen(&tcp, BACKLOG)?;
            Ok((tcp, [bind(SocketType::DGRAM, DNS_PORTS[0])?, bind(SocketType::DGRAM, DNS_PORTS[1])?]))
        })?;
        let [first, second] = dns;
        Ok(Self {
            tcp: TcpListener::from_std(tcp.into())?,
            dns: [
                Arc::new(UdpSocket::from_std(first.into())?),
                Arc::new(UdpSocket::from_std(second.into())?),
            ],
        })
    }
}

fn bind(kind: SocketType, port: u16) -> io::Result<std::os::fd::OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
    if kind == SocketType::STREAM {
        // Connections of an earlier server may still be ending.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    Ok(socket)
}

/// Connections for which there are descriptors: each needs two.
fn room(wanted: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = limit.map_or(wanted, |limit| {
        usize::try_from(limit.saturating_sub(OTHER_DESCRIPTORS) / 2).unwrap_or(wanted)
    });
    if most < wanted {
        tracing::info!(
            wanted,
            most,
            "fewer connections out of sandboxes than configured: raise the limit of open files"
        );
    }
    wanted.min(most).max(1)
}

async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.stop.cancelled() => return,
        };
        match accepted {
            Ok((guest, SocketAddr::V4(from))) => {
                failing = false;
                shared.arrived(guest, *from.ip());
            }
            Ok(_) => {}
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "cannot accept connections of sandboxes");
                }
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}

impl Shared {
    fn arrived(self: &Arc<Self>, guest: TcpStream, from: Ipv4Addr) {
        relay::reset_when_dropped(&guest);
        let (Some(sandbox), Ok(to)) = (self.sandboxes.at(from), sockopt::ip_original_dst(&guest)) else {
            self.counts.strangers.fetch_add(1, Ordering::Relaxed);
            return relay::refuse(guest);
        };
        let present = Present::of(&sandbox);
        let open = self.config.sandbox_connections.saturating_sub(sandbox.connections.available_permits());
        if open >= FEW && self.connections.available_permits() < self.room / 4 {
            return connection::no_room(self, &sandbox, guest, to);
        }
        let own = Arc::clone(&sandbox.connections).try_acquire_owned();
        let Ok(own) = own else { return connection::no_room(self, &sandbox, guest, to) };
        let Ok(shared) = Arc::clone(&self.connections).try_acquire_owned() else {
            return connection::no_room(self, &sandbox, guest, to);
        };
        let task = Arc::clone(self);
        self.tasks.spawn(async move {
            let _held = (own, shared, present);
            let _slow_is_slow = guest.set_nodelay(true);
            tokio::select! {
                () = connection::serve(&task, &sandbox, guest, to) => {}
                () = sandbox.gone.cancelled() => {}
                () = task.stop.cancelled() => {}
            }
        });
    }

    /// Counts something that is over, and passes it on as long as the sandbox has not caused too much.
    pub(crate) fn report(&self, sandbox: &Sandbox, what: Attempt) {
        let add = |count: &AtomicU64, number: u64| {
            count.fetch_add(number, Ordering::Relaxed);
        };
        let verdict = match &what {
            Attempt::Connection(connection) => {
                add(&self.counts.sent, connection.sent);
                add(&self.counts.received, connection.received);
                if connection.verdict == NetworkVerdict::Allowed {
                    add(&self.counts.allowed, 1);
                }
                Some(connection.verdict)
            }
            Attempt::Dns(question) => {
                add(&self.counts.questions, 1);
                Some(question.verdict)
            }
            Attempt::Packet(packet) => {
                add(&self.counts.packets, packet.count);
                None
            }
            Attempt::Request(_) => None,
        };
        match verdict {
            Some(NetworkVerdict::Blocked) => add(&self.counts.blocked, 1),
            Some(NetworkVerdict::Failed) => add(&self.counts.failed, 1),
            Some(NetworkVerdict::Allowed) | None => {}
        }
        if sandbox.log.take() {
            self.sink.record(NetworkEvent { sandbox: sandbox.id, at: Timestamp::now(), what });
        } else {
            add(&self.counts.unlogged, 1);
        }
    }

    fn stats(&self) -> Stats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        Stats {
            sandboxes: self.sandboxes.count(),
            open: self.room - self.connections.available_permits().min(self.room),
            allowed: read(&counts.allowed),
            blocked: read(&counts.blocked),
            failed: read(&counts.failed),
            questions: read(&counts.questions),
            packets: read(&counts.packets),
            strangers: read(&counts.strangers),
            sent: read(&counts.sent),
            received: read(&counts.received),
            unlogged: read(&counts.unlogged),
        }
    }
}
