//! Accepts connections and serves HTTP/1.1 on each.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::agent::Agent;
use crate::boot::Entrance;
use crate::vm::{port, relay};
use crate::{route, sys};

/// The edge opens at most 200 per sandbox; the rest is for the platform itself.
const MAX_CONNECTIONS: usize = 400;
/// A request head from the edge is small; its headers come from clients.
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 128;
/// Also how long a kept-alive connection may idle: longer than any pool of ours keeps one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(300);
/// After `accept` failed, e.g. for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// After a connection ended: long enough that a burst is over, short enough that an idle sandbox is small.
const TIDY_AFTER: Duration = Duration::from_secs(1);

/// What a connection becomes after an upgrade.
pub(crate) type Tunnel = Pin<Box<dyn Future<Output = ()>>>;
/// Where a request leaves the tunnel for its connection.
pub(crate) type TunnelSlot = Rc<RefCell<Option<Tunnel>>>;

/// Serves until the process is told to end.
pub(crate) async fn run(agent: Rc<Agent>, entrance: Entrance) -> io::Result<()> {
    let mut streams = Streams::open(&agent, entrance)?;
    let mut terminate = signal(SignalKind::terminate())?;
    // As the first process of a sandbox, whose workload could send this: the engine ends it by killing it.
    let may_end = !rustix::process::getpid().is_init();
    let mut connections = JoinSet::new();
    let mut tidy_at = None;
    let reaping = agent.reaper.run();
    tokio::pin!(reaping);
    loop {
        tokio::select! {
            ended = &mut reaping => match ended? {},
            _ = terminate.recv(), if may_end => return Ok(()),
            Some(_) = connections.join_next() => tidy_at = tidy_at.or(Some(Instant::now() + TIDY_AFTER)),
            () = sleep_until(tidy_at.unwrap_or_else(Instant::now)), if tidy_at.is_some() => {
                tidy_at = None;
                sys::give_back_memory();
            }
            accepted = streams.next(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok(Stream::Socket(stream)) => {
                    connections.spawn_local(serve(Rc::clone(&agent), stream));
                }
                Ok(Stream::Inside(stream)) => {
                    connections.spawn_local(serve(Rc::clone(&agent), stream));
                }
                // The port has ended, and nobody can speak to this process any more.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(error),
                Err(error) => {
                    crate::log(format_args!("accept: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Where connections come from.
enum Streams {
    Socket(tokio::net::UnixListener),
    Port(mpsc::Receiver<DuplexStream>),
}

impl Streams {
    fn open(agent: &Agent, entrance: Entrance) -> io::Result<Self> {
        Ok(match entrance {
            Entrance::Socket(listener) => Self::Socket(tokio::net::UnixListener::from_std(listener)?),
            Entrance::Port { input, output } => {
                let (door, streams) = mpsc::channel(1);
                let calls = port::serve(input, output, port::NextMark::default())?;
                let guest = relay::Guest { door: relay::Door::Inside(door), machine: None };
                agent.spawn(relay::run(calls, Rc::new(guest)));
                Self::Port(streams)
            }
        })
    }

    async fn next(&mut self) -> io::Result<Stream> {
        match self {
            Self::Socket(listener) => Ok(Stream::Socket(listener.accept().await?.0)),
            Self::Port(streams) => {
                streams.recv().await.map(Stream::Inside).ok_or_else(|| io::ErrorKind::BrokenPipe.into())
            }
        }
    }
}

enum Stream {
    Socket(UnixStream),
    /// Within this process: on gVisor the end of a socket may be told of together with the last bytes, and then not again.
    Inside(DuplexStream),
}

async fn serve(agent: Rc<Agent>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let slot = TunnelSlot::default();
    let service = service_fn(|request| {
        let (agent, slot) = (Rc::clone(&agent), Rc::clone(&slot));
        async move { Ok::<_, Infallible>(route::answer(&agent, request, &slot).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    // A failed connection is the client's business, also in the log.
    if served.is_ok() {
        let tunnel = slot.borrow_mut().take();
        if let Some(tunnel) = tunnel {
            tunnel.await;
        }
    }
}
