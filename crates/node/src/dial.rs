//! Streams to ports inside a machine. A socket belongs for good to the network namespace of the thread that made it, so
//! a thread of its own makes sockets inside the guest's namespace and ends; connecting them is ordinary work of the
//! runtime. The guest sees a connection from its own loopback, which no rule of its network concerns.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bytes::Bytes;
use domain::{PreviewPort, SandboxId};
use driver::{BoxStream, Machine};
use futures_util::FutureExt;
use http_body_util::Empty;
use hyper::header::{CONNECTION, HOST, UPGRADE};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::net::{TcpSocket, TcpStream};
use wire::agent::DIAL_PATH;

use crate::error::NodeError;
use crate::place::Place;
use crate::sys;

/// Loopback refuses or accepts at once; only a server whose queue is full lets a connection wait.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// The agent itself waits up to 5 s, and may be emulated.
const AGENT_LIMIT: Duration = Duration::from_secs(10);

/// Unconnected sockets inside a guest's namespace.
#[derive(Debug)]
pub(crate) struct Sockets {
    loopback: OwnedFd,
    /// `None` where the kernel has no IPv6.
    loopback6: Option<OwnedFd>,
    link: OwnedFd,
}

/// Makes the sockets; blocks for the life of a thread.
pub(crate) fn sockets(place: &Place, id: SandboxId) -> Result<Sockets, NodeError> {
    let netns = match File::open(place.netns(id)) {
        Ok(netns) => netns,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(NodeError::NotRunning),
        Err(error) => return Err(NodeError::io("open the guest's network")(error)),
    };
    let make = || {
        let tcp = |family| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        };
        Ok(Sockets {
            loopback: tcp(AddressFamily::INET)?,
            loopback6: tcp(AddressFamily::INET6).ok(),
            link: tcp(AddressFamily::INET)?,
        })
    };
    sys::in_netns(netns.as_fd(), make).map_err(NodeError::io("enter the guest's network"))
}

/// The first connection that is accepted. A server bound to `0.0.0.0`, `127.0.0.1` or `::` is reached by the first
/// address, one bound to `::1` by the second, one bound to the link's address by the third.
pub(crate) async fn first(
    sockets: Sockets,
    guest: Ipv4Addr,
    port: PreviewPort,
) -> Result<BoxStream, NodeError> {
    let Sockets { loopback, loopback6, link } = sockets;
    let attempts = [
        Some((loopback, IpAddr::V4(Ipv4Addr::LOCALHOST))),
        loopback6.map(|socket| (socket, IpAddr::V6(Ipv6Addr::LOCALHOST))),
        Some((link, IpAddr::V4(guest))),
    ];
    let connecting = async {
        for (socket, address) in attempts.into_iter().flatten() {
            match connect(socket, SocketAddr::new(address, port.get())).await {
                Ok(stream) => return Ok(stream),
                // Not there, or not for this family: the next one may be.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionRefused
                            | io::ErrorKind::AddrNotAvailable
                            | io::ErrorKind::NetworkUnreachable
                    ) => {}
                Err(error) => return Err(NodeError::io("connect to a port of the guest")(error)),
            }
        }
        Err(NodeError::NotListening { port })
    };
    match tokio::time::timeout(CONNECT_LIMIT, connecting).await {
        Ok(stream) => Ok(Box::new(stream?)),
        Err(_) => {
            let limit_ms = u64::try_from(CONNECT_LIMIT.as_millis()).unwrap_or(u64::MAX);
            Err(NodeError::PortSilent { port, limit_ms })
        }
    }
}

/// A stream to a port of a guest with a kernel of its own, whose loopback only its agent reaches.
pub(crate) async fn through_agent(machine: &dyn Machine, port: PreviewPort) -> Result<BoxStream, NodeError> {
    let asking = async {
        let failed = |error: hyper::Error| NodeError::Agent(error.into());
        let stream = machine.agent().await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let mut connection = std::pin::pin!(connection.with_upgrades().fuse());
        let request = Request::builder()
            .uri(format!("{DIAL_PATH}?port={}", port.get()))
            .header(HOST, "agent")
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, "tcp")
            .body(Empty::<Bytes>::new())
            .map_err(|error| NodeError::Agent(error.into()))?;
        let answer = sender.send_request(request);
        let mut answer = std::pin::pin!(answer);
        let answer = tokio::select! {
            answer = &mut answer => answer,
            // The end of the connection settles the answer, one way or the other.
            _ = &mut connection => answer.await,
        };
        let answer = answer.map_err(failed)?;
        match answer.status() {
            StatusCode::SWITCHING_PROTOCOLS => {}
            StatusCode::BAD_GATEWAY => return Err(NodeError::NotListening { port }),
            other => return Err(NodeError::AgentRefused { status: other.as_u16() }),
        }
        // The connection is done with it, and has to say so.
        let upgrade = hyper::upgrade::on(answer);
        let mut upgrade = std::pin::pin!(upgrade);
        let upgraded = tokio::select! {
            upgraded = &mut upgrade => upgraded,
            _ = &mut connection => upgrade.await,
        };
        Ok(Box::new(TokioIo::new(upgraded.map_err(failed)?)) as BoxStream)
    };
    match tokio::time::timeout(AGENT_LIMIT, asking).await {
        Ok(stream) => stream,
        Err(_) => {
            let limit_ms = u64::try_from(AGENT_LIMIT.as_millis()).unwrap_or(u64::MAX);
            Err(NodeError::PortSilent { port, limit_ms })
        }
    }
}

async fn connect(socket: OwnedFd, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
    socket.set_nodelay(true)?;
    socket.connect(address).await
}
