//! One exchange between a client and a guest agent, streamed both ways. What the guest answers is bounded and filtered;
//! when either side goes, or the sandbox stops, the other side learns it at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use domain::{SandboxId, SandboxState};
use http::header::HeaderMap;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;

use crate::agents::{Agents, Lease, Slot};
use crate::answer::{self, Body};
use crate::observe::{Metered, Watch};
use crate::serve::Tasks;
use crate::stall::Stall;
use crate::{Directory, headers};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Inactive = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The longest session or command (`spec/data-plane.md` §5.3); nothing may occupy a slot for longer.
pub(crate) const EXCHANGE_CAP: Duration = Duration::from_secs(12 * 3600);
/// An upload that sends nothing for this long is given up; honest ones pause for retransmissions only.
const UPLOAD_STALL: Duration = Duration::from_secs(120);
/// After a 101 both connections are handed over at once; longer means that one of them died.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);
/// The last bytes of a session are in the socket buffer already.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

const STOPPED: &str = "the sandbox stopped while the request was running; it may have taken effect";

/// A request that passed all checks.
pub(crate) struct Admitted {
    pub(crate) id: SandboxId,
    pub(crate) slot: Slot,
    pub(crate) websocket: bool,
    pub(crate) request: Request<Incoming>,
}

/// The body of a request on its way to the guest.
#[derive(Debug)]
pub(crate) struct RequestBody {
    inner: Option<Incoming>,
    /// Set when the last byte has left.
    done: Arc<AtomicBool>,
    stall: Stall,
    watch: Option<Arc<Watch>>,
}

/// The body of a response on its way from the guest.
pub(crate) struct AgentBody {
    inner: Incoming,
    lease: Option<Lease>,
    inactive: Inactive,
}

/// Sends an admitted request to the agent and its answer back.
pub(crate) async fn relay(
    agents: &Agents,
    directory: &Arc<dyn Directory>,
    tasks: &Tasks,
    admitted: Admitted,
) -> Response<Body> {
    let Admitted { id, slot, websocket, mut request } = admitted;
    let mut inactive: Inactive = {
        let directory = Arc::clone(directory);
        Box::pin(async move { directory.inactive(id).await })
    };
    let watch = request.extensions().get::<Arc<Watch>>().cloned();
    if let Some(watch) = &watch {
        watch.sent();
    }
    let upgrade = websocket.then(|| hyper::upgrade::on(&mut request));
    let client_headers = if websocket { request.headers().clone() } else { HeaderMap::new() };
    let sent = AtomicBool::new(false);
    let exchanged = tokio::select! {
        exchanged = exchange(agents, slot, request, websocket, &sent) => exchanged.map_err(|error| {
            tracing::warn!(sandbox = %id, error = &*error, "the agent did not answer");
            "the sandbox agent cannot be reached"
        }),
        () = &mut inactive => Err(STOPPED),
        () = tokio::time::sleep(EXCHANGE_CAP) => Err("the request took too long"),
    };
    let (lease, mut response) = match exchanged {
        Ok(answered) => answered,
        // Nothing has happened yet, so a client may do what it does about a sandbox that does not run.
        Err(failure) if !sent.load(Ordering::Acquire) => {
            return match directory.state(id).await {
                None | Some(SandboxState::Deleted) => answer::no_sandbox(),
                Some(SandboxState::Active) => answer::agent_unreachable(failure),
                Some(state) => answer::not_running(state),
            };
        }
        Err(failure) => return answer::agent_unreachable(failure),
    };
    let answered = || {
        if let Some(watch) = &watch {
            watch.answered();
        }
    };
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        answered();
        return plain(lease, response, inactive);
    }
    let head = headers::to_client_upgraded(&client_headers, response.headers());
    let (Some(client), Some(head)) = (upgrade, head) else {
        return answer::agent_unreachable("the sandbox agent answered with a protocol nobody asked for");
    };
    answered();
    let session = session(client, hyper::upgrade::on(&mut response), inactive, tasks.clone(), watch);
    tasks.tracker.spawn(async move {
        session.await;
        drop(lease);
    });
    let mut switching = answer::empty(StatusCode::SWITCHING_PROTOCOLS);
    switching.headers_mut().extend(head);
    switching
}

fn plain(lease: Lease, response: Response<Incoming>, inactive: Inactive) -> Response<Body> {
    let (parts, inner) = response.into_parts();
    let mut body = AgentBody { inner, lease: Some(lease), inactive };
    if body.inner.is_end_stream() {
        body.complete();
    }
    // A length is passed on only where it is the one that ends the body, or, for HEAD, where there is no body.
    let length_known = body.size_hint().exact().is_some();
    let mut relayed = Response::new(Body::Agent(body));
    *relayed.status_mut() = parts.status;
    *relayed.headers_mut() = headers::to_client(&parts.headers);
    if !length_known {
        relayed.headers_mut().remove(http::header::CONTENT_LENGTH);
    }
    answer::harden(&mut relayed);
    relayed
}

/// Sends the request over a kept connection or a new one. It is repeated only when the guest cannot have seen it, or
/// when seeing it twice changes nothing. `sent` tells whether the guest may have seen it.
async fn exchange(
    agents: &Agents,
    slot: Slot,
    request: Request<Incoming>,
    websocket: bool,
    sent: &AtomicBool,
) -> Result<(Lease, Response<Incoming>), BoxError> {
    let (parts, incoming) = request.into_parts();
    let uri: Uri = parts.uri.path_and_query().map_or("/", |p| p.as_str()).parse()?;
    let head = headers::to_guest(&parts.headers, websocket);
    let watch = parts.extensions.get::<Arc<Watch>>();
    let done = Arc::new(AtomicBool::new(incoming.is_end_stream()));
    let repeatable = done.load(Ordering::Acquire)
        && !websocket
        && (parts.method == Method::GET || parts.method == Method::HEAD);
    let build = |inner: Option<Incoming>| {
        let (done, watch) = (Arc::clone(&done), watch.cloned());
        let body = RequestBody { inner, done, stall: Stall::new(UPLOAD_STALL), watch };
        let mut request = Request::new(body);
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = head.clone();
        request
    };
    let mut request = build(Some(incoming));
    if let Some(mut link) = agents.kept(&slot).await {
        sent.store(true, Ordering::Release);
        match link.sender.try_send_request(request).await {
            Ok(response) => return Ok((Lease::new(link, slot, done), response)),
            Err(mut failed) => match failed.take_message() {
                Some(unsent) => {
                    sent.store(false, Ordering::Release);
                    request = unsent;
                }
                None if repeatable => request = build(None),
                None => return Err(failed.into_error().into()),
            },
        }
    }
    let mut link = agents.connect(&slot).await?;
    sent.store(true, Ordering::Release);
    let response = link.sender.send_request(request).await?;
    Ok((Lease::new(link, slot, done), response))
}

/// Carries the bytes of a WebSocket until one side ends, the sandbox stops or the server does.
pub(crate) async fn session(
    client: OnUpgrade,
    agent: OnUpgrade,
    inactive: Inactive,
    tasks: Tasks,
    watch: Option<Arc<Watch>>,
) {
    let both = async { tokio::try_join!(client, agent) };
    let Ok(Ok((client, agent))) = tokio::time::timeout(HANDOVER_TIMEOUT, both).await else { return };
    let client = Metered::counted(TokioIo::new(client), watch.clone());
    let agent = Metered::uncounted(TokioIo::new(agent), watch);
    let (mut client_read, mut client_write) = split(client);
    let (mut agent_read, mut agent_write) = split(agent);
    let refused = tokio::select! {
        carried = tokio::io::copy(&mut client_read, &mut agent_write) => carried.is_err(),
        _ = tokio::io::copy(&mut agent_read, &mut client_write) => false,
        () = inactive => false,
        () = tokio::time::sleep(EXCHANGE_CAP) => false,
        () = tasks.drain.cancelled() => false,
    };
    if refused {
        // An agent that takes no more has said why.
        let rest = tokio::io::copy(&mut agent_read, &mut client_write);
        let _ = tokio::time::timeout(FAREWELL_TIMEOUT, rest).await;
    }
    let _ = tokio::time::timeout(FAREWELL_TIMEOUT, client_write.shutdown()).await;
    let _ = tokio::time::timeout(FAREWELL_TIMEOUT, agent_write.shutdown()).await;
}

type Half<T> = (tokio::io::ReadHalf<T>, tokio::io::WriteHalf<T>);

fn split(io: Metered<TokioIo<Upgraded>>) -> Half<Metered<TokioIo<Upgraded>>> {
    tokio::io::split(io)
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(&mut *inner).poll_frame(cx) {
            this.stall.over();
            if let (Some(watch), Some(Ok(frame))) = (&this.watch, &frame) {
                watch.received(frame.data_ref().map_or(0, Bytes::len));
            }
            if frame.is_none() || inner.is_end_stream() {
                this.done.store(true, Ordering::Release);
            }
            return Poll::Ready(frame.map(|f| f.map_err(Into::into)));
        }
        this.stall.poll(cx).map(|error| Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl AgentBody {
    fn complete(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.complete();
        }
    }
}

impl http_body::Body for AgentBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.inner).poll_frame(cx) {
            // Trailers are headers the guest wrote; nothing of the data plane uses them.
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => {
                this.complete();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Ok(frame))) => {
                if this.inner.is_end_stream() {
                    this.complete();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                this.complete();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                this.lease = None;
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Pending if this.lease.is_none() => Poll::Pending,
            Poll::Pending => {
                ready!(this.inactive.as_mut().poll(cx));
                this.lease = None;
                Poll::Ready(Some(Err(STOPPED.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
