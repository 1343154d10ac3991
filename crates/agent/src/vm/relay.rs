//! HTTP/2 on the port: each `CONNECT` becomes a connection to the agent, and bytes pass unread both ways. The rest is for this
//! process itself.

use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::process::Pid;
use rustix::time::{ClockId, Timespec};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use wire::agent::vm::{
    CLOCK_PATH, CONNECTION_WINDOW, IDENTITY_PATH, Identity, MAX_HEAD_BYTES, MAX_STREAMS, PACK_PATH,
    STILL_PATH, STREAM_WINDOW,
};

use super::identity;
use super::pack::{self, Archive};
use super::port::NextMark;
use super::workload::Workload;

/// Of each direction of each stream.
const BUFFER_BYTES: usize = 16 * 1024;
/// The agent takes a connection at once unless it is at its limit.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Where the agent takes connections.
#[derive(Debug)]
pub(crate) enum Door {
    /// A socket: it is another process.
    Socket(&'static str),
    /// It is this one.
    Inside(mpsc::Sender<DuplexStream>),
}

trait ByteStream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> ByteStream for T {}

impl Door {
    async fn connect(&self) -> io::Result<Box<dyn ByteStream>> {
        Ok(match self {
            Self::Socket(path) => Box::new(UnixStream::connect(path).await?),
            Self::Inside(door) => {
                let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
                door.send(theirs).await.map_err(io::Error::other)?;
                Box::new(ours)
            }
        })
    }
}

/// What is behind the port.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) door: Door,
    /// Unless another is in charge of it.
    pub(crate) machine: Option<Machine>,
}

/// What the machine itself is asked about.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The agent's process.
    pub(super) agent: Pid,
    /// It, and all it has started.
    pub(super) workload: Arc<Workload>,
    /// Whom to listen to later.
    pub(super) next_mark: NextMark,
}

impl Machine {
    async fn be(&self, query: &str) -> io::Result<()> {
        let identity = Identity::parse(query).ok_or(io::ErrorKind::InvalidInput)?;
        identity::assume(&identity, self.agent, &self.next_mark).await
    }

    fn wake(&self, now: &str) -> io::Result<()> {
        set_clock(now)?;
        self.workload.go_on()
    }
}

/// Serves one call after the other; a new one ends the former, which has ended at the port already.
pub(crate) async fn run(mut calls: mpsc::Receiver<StdStream>, guest: Rc<Guest>) {
    let mut next = calls.recv().await;
    while let Some(call) = next.take() {
        tokio::select! {
            served = serve(call, &guest) => {
                if let Err(error) = served {
                    crate::log(format_args!("the port: {error}"));
                }
                next = calls.recv().await;
            }
            newer = calls.recv() => next = newer,
        }
    }
}

async fn serve(call: StdStream, guest: &Rc<Guest>) -> io::Result<()> {
    call.set_nonblocking(true)?;
    let call = UnixStream::from_std(call)?;
    let streams = LocalTasks::default();
    let _ended_with_the_call = Ended(streams.clone());
    http2::Builder::new(streams.clone())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES)
        .max_send_buf_size(STREAM_WINDOW as usize)
        .serve_connection(
            TokioIo::new(call),
            service_fn(|request| {
                let (streams, guest) = (streams.clone(), Rc::clone(guest));
                async move { Ok::<_, Infallible>(answer(request, &guest, &streams).await) }
            }),
        )
        .await
        .map_err(io::Error::other)
}

async fn answer(request: Request<Incoming>, guest: &Guest, streams: &LocalTasks) -> Response<Archive> {
    let status = if request.method() == Method::CONNECT {
        match tokio::time::timeout(CONNECT_LIMIT, guest.door.connect()).await {
            Ok(Ok(stream)) => {
                streams.spawn(relay(request, stream));
                StatusCode::OK
            }
            _ => StatusCode::BAD_GATEWAY,
        }
    } else {
        match ask(&request, guest.machine.as_ref()).await {
            Ok(archive) => return Response::new(archive),
            Err(status) => status,
        }
    };
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

/// Something about the machine itself: an archive, or a status without a body.
async fn ask(request: &Request<Incoming>, machine: Option<&Machine>) -> Result<Archive, StatusCode> {
    let machine = machine.ok_or(StatusCode::NOT_FOUND)?;
    let query = request.uri().query().unwrap_or_default();
    match (request.method(), request.uri().path()) {
        (&Method::PUT, path @ (STILL_PATH | IDENTITY_PATH | CLOCK_PATH)) => {
            let done = match path {
                STILL_PATH => machine.workload.stop().await,
                IDENTITY_PATH => machine.be(query).await,
                _ => machine.wake(query),
            };
            Err(done.map_or_else(
                |error| {
                    crate::log(format_args!("{path}: {error}"));
                    match path {
                        STILL_PATH => StatusCode::SERVICE_UNAVAILABLE,
                        _ => StatusCode::BAD_REQUEST,
                    }
                },
                |()| StatusCode::NO_CONTENT,
            ))
        }
        (&Method::POST, PACK_PATH) => pack::begin(query, &machine.workload).await,
        _ => Err(StatusCode::NOT_FOUND),
    }
}

async fn relay(request: Request<Incoming>, mut agent: Box<dyn ByteStream>) {
    let Ok(stream) = hyper::upgrade::on(request).await else { return };
    // Either side may end at any time; both get what the other has sent before.
    let _ = tokio::io::copy_bidirectional_with_sizes(
        &mut TokioIo::new(stream),
        &mut agent,
        BUFFER_BYTES,
        BUFFER_BYTES,
    )
    .await;
}

fn set_clock(nanoseconds: &str) -> io::Result<()> {
    const SECOND: i64 = 1_000_000_000;
    let now: i64 = nanoseconds.parse().map_err(io::Error::other)?;
    let now = Timespec { tv_sec: now / SECOND, tv_nsec: now % SECOND };
    Ok(rustix::time::clock_settime(ClockId::Realtime, now)?)
}

/// The tasks of one call. Some of them keep the list they are in, so it does not go by itself.
#[derive(Clone, Default)]
struct LocalTasks(std::rc::Rc<std::cell::RefCell<tokio::task::JoinSet<()>>>);

impl LocalTasks {
    fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        let mut tasks = self.0.borrow_mut();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(work);
    }
}

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for LocalTasks {
    fn execute(&self, work: F) {
        self.spawn(work);
    }
}

/// Ends the tasks of a call with it.
struct Ended(LocalTasks);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.0.borrow_mut().abort_all();
    }
}
