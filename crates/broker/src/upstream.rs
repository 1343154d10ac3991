//! The connection to the service behind one connection of a guest: opened with it, opened again when the service has closed
//! it in between. A request that may have been sent is never sent twice.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use egress::{Dial, DialError};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use crate::body::Body;
use crate::reason::{Reason, Refused};
use crate::tasks::Tasks;
use crate::tls::{Protocol, Tls};

/// Largest head of an answer; browsers end at about as much.
pub(crate) const MAX_HEAD: usize = 256 * 1024;
pub(crate) const MAX_HEADERS: usize = 256;
/// Bytes of one answer, and of all of one connection, that may wait for a slow guest.
pub(crate) const STREAM_WINDOW: u32 = 512 * 1024;
pub(crate) const CONNECTION_WINDOW: u32 = 1024 * 1024;
pub(crate) const SEND_BUFFER: usize = 64 * 1024;
/// A service that has gone silently is noticed.
const PING_EVERY: Duration = Duration::from_secs(60);
const PING_PATIENCE: Duration = Duration::from_secs(20);

/// The way to one service.
pub(crate) struct Upstream {
    pub(crate) tls: Arc<Tls>,
    pub(crate) host: String,
    pub(crate) dial: Arc<dyn Dial>,
    pub(crate) tasks: Tasks,
    /// What is offered; after the first agreement that only, because the guest has been told.
    offer: Vec<Protocol>,
    sender: Mutex<Option<Sender>>,
    /// Why the first connection could not be opened: the first request is told.
    failed: Mutex<Option<Refused>>,
    /// One opens a connection, the others wait for it.
    turn: Semaphore,
}

enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

impl Upstream {
    /// Opens the first connection with these protocols on offer; says which one is spoken from now on.
    pub(crate) async fn open(
        tls: Arc<Tls>,
        host: String,
        dial: Arc<dyn Dial>,
        tasks: Tasks,
        offer: Vec<Protocol>,
    ) -> (Self, Protocol) {
        let mut upstream = Self {
            tls,
            host,
            dial,
            tasks,
            offer,
            sender: Mutex::default(),
            failed: Mutex::default(),
            turn: Semaphore::new(1),
        };
        let protocol = match upstream.connect().await {
            Ok((sender, protocol)) => {
                upstream.keep(sender);
                protocol
            }
            Err(refused) => {
                *upstream.failed.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(refused);
                // What every guest that offers anything offers.
                upstream.offer.last().copied().unwrap_or(Protocol::Http1)
            }
        };
        upstream.offer.retain(|one| *one == protocol);
        (upstream, protocol)
    }

    /// Sends a request; the answer's head is there when this returns.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, Refused> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(refused) = failed {
            return Err(refused);
        }
        let mut again = true;
        loop {
            let mut sender = self.ready().await?;
            let (error, unsent) = match sender.send(request).await {
                Ok(response) => {
                    self.keep(sender);
                    return Ok(response);
                }
                Err(error) => error,
            };
            match unsent {
                // The service closed the connection before the request was written.
                Some(unsent) if std::mem::take(&mut again) => request = unsent,
                // The guest's body broke off.
                _ if error.is_user() => {
                    return Err(Refused::new(Reason::BuildRequest, "its body is not whole"));
                }
                _ => {
                    let detail = format!("the service ended the connection without an answer ({error})");
                    return Err(Refused::new(Reason::UpstreamUnreachable, detail));
                }
            }
        }
    }

    fn keep(&self, sender: Sender) {
        *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    }

    /// The kept connection: for HTTP/2 shared, else taken.
    fn kept(&self) -> Option<Sender> {
        let mut kept = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.take()? {
            Sender::Http2(sender) => {
                *kept = Some(Sender::Http2(sender.clone()));
                Some(Sender::Http2(sender))
            }
            sender @ Sender::Http1(_) => Some(sender),
        }
    }

    async fn ready(&self) -> Result<Sender, Refused> {
        let _turn = self.turn.acquire().await;
        if let Some(mut sender) = self.kept()
            && sender.is_ready().await
        {
            return Ok(sender);
        }
        let (sender, _) = self.connect().await?;
        if let Sender::Http2(shared) = &sender {
            self.keep(Sender::Http2(shared.clone()));
        }
        Ok(sender)
    }

    async fn connect(&self) -> Result<(Sender, Protocol), Refused> {
        let stream = self.dial.dial().await.map_err(|why| match why {
            DialError::Blocked => {
                Refused::new(Reason::EgressBlocked, "the sandbox's network rules refuse this host")
            }
            DialError::Failed(why) => {
                Refused::new(Reason::UpstreamUnreachable, format!("the service cannot be reached ({why})"))
            }
        })?;
        let (stream, protocol) = self.tls.connect(&self.host, &self.offer, stream).await?;
        let broken = |error: hyper::Error| {
            Refused::new(Reason::UpstreamUnreachable, format!("the service does not speak HTTP ({error})"))
        };
        let io = TokioIo::new(stream);
        let sender = match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::Builder::new()
                    .preserve_header_case(true)
                    .max_headers(MAX_HEADERS)
                    .max_header_size(MAX_HEAD)
                    .handshake(io)
                    .await
                    .map_err(broken)?;
                self.tasks.spawn(async move {
                    let _the_request_is_told = connection.with_upgrades().await;
                });
                Sender::Http1(sender)
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::Builder::new(self.tasks.clone())
                    .timer(TokioTimer::new())
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .max_send_buf_size(SEND_BUFFER)
                    .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
                    .keep_alive_interval(PING_EVERY)
                    .keep_alive_timeout(PING_PATIENCE)
                    .handshake(io)
                    .await
                    .map_err(broken)?;
                self.tasks.spawn(async move {
                    let _the_request_is_told = connection.await;
                });
                Sender::Http2(sender)
            }
        };
        Ok((sender, protocol))
    }
}

type NotSent = (hyper::Error, Option<Request<Body>>);

impl Sender {
    async fn is_ready(&mut self) -> bool {
        match self {
            Self::Http1(sender) => sender.ready().await.is_ok(),
            Self::Http2(sender) => sender.ready().await.is_ok(),
        }
    }

    async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, NotSent> {
        let sent = match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            Self::Http2(sender) => sender.try_send_request(request).await,
        };
        sent.map_err(|mut error| {
            let unsent = error.take_message();
            (error.into_error(), unsent)
        })
    }
}
