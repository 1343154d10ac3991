//! What is told about each request once it is over: after the last byte of the answer, at the end of a session, or when
//! the client left. It says what kind of request it was and how it went, never what was in it.

use std::fmt::Debug;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use domain::SandboxId;
use http::{Method, StatusCode};
use http_body::{Frame, SizeHint};
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use uuid::Uuid;
use wire::desktop::DesktopMethod;

use crate::answer::Body;
use crate::preview::{Port, Visit, shown_method, shown_path};

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `/exec`.
    Exec,
    /// `/exec/stream`.
    ExecStream,
    /// `GET` and `HEAD` of `/files`.
    FileRead,
    /// Other methods of `/files`.
    FileWrite,
    /// A WebSocket: a command with input, or a terminal.
    Session,
    /// Sessions without a WebSocket.
    SessionControl,
    /// A picture of the desktop, or a stream of them.
    DesktopView,
    /// Input to the desktop, also with a picture afterwards.
    DesktopInput,
    /// A request for a published port.
    Preview,
    /// Nothing the edge lets through.
    Other,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The guest's answer, whatever it said, was passed on to its end.
    Answered,
    /// The edge answered by itself; the guest saw nothing.
    Refused,
    /// The guest's agent could not be reached or did not answer.
    AgentFailed,
    /// The client left, or the sandbox stopped, before the end.
    Cut,
}

/// One request, after its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What the log and the `X-Request-Id` header call it.
    pub request: Uuid,
    /// The sandbox it was for, when there is one.
    pub sandbox: Option<SandboxId>,
    /// What it was for.
    pub kind: Kind,
    /// Whether its token was good.
    pub admitted: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// HTTP status; 0 when the client left before there was one.
    pub status: u16,
    /// Bytes of bodies and sessions from the client.
    pub bytes_in: u64,
    /// Bytes of bodies and sessions to the client.
    pub bytes_out: u64,
    /// From the head of the request to the end.
    pub took: Duration,
}

/// Implemented where everything is wired together. Called where data flows: it must not wait.
pub trait Observer: Send + Sync + Debug {
    /// A request is over.
    fn data_plane(&self, event: Event);
}

/// How far a request came.
const REFUSED: u8 = 0;
const SENT: u8 = 1;
const ANSWERED: u8 = 2;

/// Follows one request; tells the observer when the last part of it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) request: Uuid,
    observer: Arc<dyn Observer>,
    kind: Kind,
    since: Instant,
    sandbox: OnceLock<SandboxId>,
    admitted: AtomicBool,
    stage: AtomicU8,
    status: AtomicU16,
    whole: AtomicBool,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    preview: OnceLock<Preview>,
}

/// What is remembered of a request for a port.
#[derive(Debug)]
struct Preview {
    /// Unset when the port is not published.
    port: Option<Arc<Port>>,
    opened: AtomicBool,
    method: String,
    path: String,
    client: IpAddr,
}

impl Kind {
    /// What a request for this path is.
    pub(crate) fn of(method: &Method, path: &str, websocket: bool) -> Self {
        match path {
            "/exec" => Self::Exec,
            "/exec/stream" => Self::ExecStream,
            "/files" if *method == Method::GET || *method == Method::HEAD => Self::FileRead,
            "/files" => Self::FileWrite,
            "/exec/connect" | "/terminal" => Self::Session,
            path if !path.starts_with("/exec/sessions") => match DesktopMethod::of_path(path) {
                Some(DesktopMethod::Screenshot | DesktopMethod::Stream) => Self::DesktopView,
                Some(_) => Self::DesktopInput,
                None => Self::Other,
            },
            _ if websocket => Self::Session,
            _ => Self::SessionControl,
        }
    }

    /// Its name in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::ExecStream => "exec_stream",
            Self::FileRead => "file_read",
            Self::FileWrite => "file_write",
            Self::Session => "session",
            Self::SessionControl => "session_control",
            Self::DesktopView => "desktop_view",
            Self::DesktopInput => "desktop_input",
            Self::Preview => "preview",
            Self::Other => "other",
        }
    }
}

impl Outcome {
    /// Its name in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::AgentFailed => "agent_failed",
            Self::Cut => "cut",
        }
    }
}

impl Watch {
    pub(crate) fn new(observer: &Arc<dyn Observer>, kind: Kind) -> Arc<Self> {
        Arc::new(Self {
            request: Uuid::new_v4(),
            observer: Arc::clone(observer),
            kind,
            since: Instant::now(),
            sandbox: OnceLock::new(),
            admitted: AtomicBool::new(false),
            stage: AtomicU8::new(REFUSED),
            status: AtomicU16::new(0),
            whole: AtomicBool::new(false),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            preview: OnceLock::new(),
        })
    }

    /// It is for a port, whatever its path looks like.
    pub(crate) fn previews<B>(&self, request: &http::Request<B>, client: IpAddr, port: Option<Arc<Port>>) {
        let _known_already = self.preview.set(Preview {
            port,
            opened: AtomicBool::new(false),
            method: shown_method(request.method()),
            path: shown_path(request.uri().path()),
            client,
        });
    }

    pub(crate) fn is_preview(&self) -> bool {
        self.preview.get().is_some()
    }

    /// The port whose traffic this is, once the visitor was let in.
    fn port(&self) -> Option<&Port> {
        let preview = self.preview.get().filter(|preview| preview.opened.load(Ordering::Relaxed))?;
        preview.port.as_deref()
    }

    /// The visitor was let in.
    pub(crate) fn opened(&self) {
        if let Some(preview) = self.preview.get()
            && let Some(port) = &preview.port
        {
            preview.opened.store(true, Ordering::Relaxed);
            port.opened();
        }
    }

    pub(crate) fn is_for(&self, id: SandboxId) {
        let _known_already = self.sandbox.set(id);
    }

    pub(crate) fn admitted(&self) {
        self.admitted.store(true, Ordering::Relaxed);
    }

    /// From here on the guest may see it.
    pub(crate) fn sent(&self) {
        self.stage.store(SENT, Ordering::Relaxed);
    }

    /// The guest answered.
    pub(crate) fn answered(&self) {
        self.stage.store(ANSWERED, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(port) = self.port() {
            port.received(bytes);
        }
    }

    fn gave(&self, bytes: usize) {
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(port) = self.port() {
            port.gave(bytes);
        }
    }

    /// The last byte was handed over, or the session ended.
    pub(crate) fn whole(&self) {
        self.whole.store(true, Ordering::Relaxed);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let status = *self.status.get_mut();
        let whole = *self.whole.get_mut();
        let outcome = match *self.stage.get_mut() {
            _ if status == 0 => Outcome::Cut,
            ANSWERED if whole => Outcome::Answered,
            ANSWERED => Outcome::Cut,
            SENT if status == StatusCode::BAD_GATEWAY.as_u16() => Outcome::AgentFailed,
            _ => Outcome::Refused,
        };
        let preview = self.preview.take();
        let event = Event {
            request: self.request,
            sandbox: self.sandbox.get().copied(),
            kind: if preview.is_some() { Kind::Preview } else { self.kind },
            admitted: *self.admitted.get_mut(),
            outcome,
            status,
            bytes_in: *self.bytes_in.get_mut(),
            bytes_out: *self.bytes_out.get_mut(),
            took: self.since.elapsed(),
        };
        let ms = event.took.as_secs_f64() * 1000.0;
        let sandbox = event.sandbox.map(tracing::field::display);
        let (id, kind, outcome) = (event.request, event.kind.as_str(), outcome.as_str());
        let (bytes_in, bytes_out) = (event.bytes_in, event.bytes_out);
        if event.admitted {
            tracing::info!(%id, sandbox, kind, status, outcome, bytes_in, bytes_out, ms, "data plane");
        } else {
            // Strangers cannot fill the log.
            tracing::debug!(%id, sandbox, kind, status, outcome, bytes_in, bytes_out, ms, "data plane");
        }
        if let Some(mut preview) = preview
            && let Some(port) = preview.port.take()
        {
            preview.ended(&port, &event);
        }
        self.observer.data_plane(event);
    }
}

impl Preview {
    fn ended(self, port: &Port, event: &Event) {
        if !self.opened.into_inner() {
            // A link that became a cookie is neither.
            if event.status >= 400 {
                port.refused();
            }
            return;
        }
        port.closed(Visit {
            request: event.request,
            at: Timestamp::now(),
            method: self.method,
            path: self.path,
            status: event.status,
            outcome: event.outcome,
            bytes_in: event.bytes_in,
            bytes_out: event.bytes_out,
            took: event.took,
            client: self.client,
        });
    }
}

/// The body of an answer, counted.
pub(crate) struct Watched {
    body: Body,
    watch: Option<Arc<Watch>>,
}

impl Watched {
    /// A body that nobody counts.
    pub(crate) fn unwatched(body: Body) -> Self {
        Self { body, watch: None }
    }

    pub(crate) fn new(status: StatusCode, body: Body, watch: Arc<Watch>) -> Self {
        watch.status.store(status.as_u16(), Ordering::Relaxed);
        // A session goes on after its head.
        if http_body::Body::is_end_stream(&body) && status != StatusCode::SWITCHING_PROTOCOLS {
            watch.whole();
        }
        Self { body, watch: Some(watch) }
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if let Some(watch) = &this.watch {
            match &frame {
                Some(Ok(frame)) => watch.gave(frame.data_ref().map_or(0, Bytes::len)),
                Some(Err(_)) => return Poll::Ready(frame),
                None => {}
            }
            if frame.is_none() || this.body.is_end_stream() {
                watch.whole();
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// One side of a session; when it ends by itself, the session was whole.
#[derive(Debug)]
pub(crate) struct Metered<T> {
    io: T,
    watch: Option<Arc<Watch>>,
    counted: bool,
}

impl<T> Metered<T> {
    /// The client's side, whose bytes count.
    pub(crate) fn counted(io: T, watch: Option<Arc<Watch>>) -> Self {
        Self { io, watch, counted: true }
    }

    /// The agent's side, where the same bytes pass again.
    pub(crate) fn uncounted(io: T, watch: Option<Arc<Watch>>) -> Self {
        Self { io, watch, counted: false }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let result = ready!(Pin::new(&mut this.io).poll_read(cx, buf));
        if let Some(watch) = &this.watch {
            match buf.filled().len() - before {
                0 => watch.whole(),
                bytes if this.counted => watch.received(bytes),
                _ => {}
            }
        }
        Poll::Ready(result)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        let result = ready!(Pin::new(&mut this.io).poll_write(cx, buf));
        if let (Some(watch), Ok(bytes), true) = (&this.watch, &result, this.counted) {
            watch.gave(*bytes);
        }
        Poll::Ready(result)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
