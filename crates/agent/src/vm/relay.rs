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

/// What the machine itself is asked about.
#[derive(Debug)]
pub(super) struct Guest {
    /// Where the agent listens.
    pub(super) socket: &'static str,
    /// The agent's process.
    pub(super) agent: Pid,
    /// It, and all it has started.
    pub(super) workload: Arc<Workload>,
    /// Whom to listen to later.
    pub(super) next_mark: NextMark,
}

impl Guest {
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
pub(super) async fn run(mut calls: mpsc::Receiver<StdStream>, guest: Rc<Guest>) {
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
    let status = match (request.method(), request.uri().path()) {
        (&Method::CONNECT, _) => {
            match tokio::time::timeout(CONNECT_LIMIT, UnixStream::connect(guest.socket)).await {
                Ok(Ok(stream)) => {
                    streams.spawn(relay(request, stream));
                    StatusCode::OK
                }
                _ => StatusCode::BAD_GATEWAY,
            }
        }
        (&Method::PUT, path @ (STILL_PATH | IDENTITY_PATH | CLOCK_PATH)) => {
            let query = request.uri().query().unwrap_or_default();
            let done = match path {
                STILL_PATH => guest.workload.stop().await,
                IDENTITY_PATH => guest.be(query).await,
                _ => guest.wake(query),
            };
            done.map_or_else(
                |error| {
                    crate::log(format_args!("{path}: {error}"));
                    StatusCode::BAD_REQUEST
                },
                |()| StatusCode::NO_CONTENT,
            )
        }
        (&Method::POST, PACK_PATH) => {
            let query = request.uri().query().unwrap_or_default();
            match pack::begin(query, &guest.workload).await {
                Ok(archive) => return Response::new(archive),
                Err(status) => status,
            }
        }
        _ => StatusCode::NOT_FOUND,
    };
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

async fn relay(request: Request<Incoming>, mut agent: UnixStream) {
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
