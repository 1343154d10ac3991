//! Streams to the agent of a virtual machine, all over the one byte stream of its virtual serial port (`wire::agent::vm`).
//!
//! The other end is the guest's kernel, at worst: it may answer nothing, anything, or without end. Its answer to a call is
//! looked for in a bounded number of bytes and for a bounded time; frames, windows and heads are bounded by HTTP/2's own
//! rules, which make a guest that breaks them lose its connection, and nobody else theirs.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use driver::{BoxStream, DriverError};
use http_body_util::Empty;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};
use wire::agent::vm::{
    CLOCK_PATH, CONNECTION_WINDOW, MARK_BYTES, MAX_HEAD_BYTES, MAX_STREAMS, NONCE_BYTES, STREAM_WINDOW,
    answer_mark,
};

use crate::qmp::limited;

/// What a former server left unread: the port's queue and the sockets' buffers are smaller.
const MAX_STALE: usize = 4 * 1024 * 1024;
/// A guest that runs answers at once; its processor may be emulated and busy.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// The way to one machine's agent.
#[derive(Debug)]
pub(crate) struct Port {
    socket: PathBuf,
    mark: [u8; MARK_BYTES],
    /// Held while a call is made, so that there is one at a time.
    live: Mutex<Option<Live>>,
}

#[derive(Debug)]
struct Live {
    sender: SendRequest<Empty<Bytes>>,
    /// Ends the connection's tasks, and with them its streams.
    _tasks: DropGuard,
}

impl Port {
    pub(crate) fn new(socket: PathBuf, mark: [u8; MARK_BYTES]) -> Self {
        Self { socket, mark, live: Mutex::new(None) }
    }

    /// Waits until the guest answers calls; a guest that boots takes its time.
    pub(crate) async fn ready(&self, limit: Duration) -> Result<(), DriverError> {
        limited("starting the guest", limit, self.sender()).await.map(drop)
    }

    /// Opens a stream to the agent.
    pub(crate) async fn open(&self) -> Result<BoxStream, DriverError> {
        let opening = async {
            let response = self.send(Method::CONNECT, "agent:1").await?;
            if response.status() != StatusCode::OK {
                return Err(broken(format!("the guest answered {}", response.status().as_u16())));
            }
            let stream = hyper::upgrade::on(response).await.map_err(broken)?;
            Ok(Box::new(TokioIo::new(stream)) as BoxStream)
        };
        limited("opening a stream to the agent", ANSWER_LIMIT, opening).await
    }

    /// Sets the guest's clock to ours.
    pub(crate) async fn set_clock(&self) -> Result<(), DriverError> {
        let setting = async {
            let now = jiff::Timestamp::now().as_nanosecond();
            let path = format!("http://agent{CLOCK_PATH}?{now}");
            match self.send(Method::PUT, &path).await?.status() {
                StatusCode::NO_CONTENT => Ok(()),
                other => Err(broken(format!("the guest answered {}", other.as_u16()))),
            }
        };
        limited("setting the guest's clock", ANSWER_LIMIT, setting).await
    }

    /// Forgets the connection; the next stream makes another.
    pub(crate) async fn hang_up(&self) {
        *self.live.lock().await = None;
    }

    async fn send(
        &self,
        method: Method,
        target: &str,
    ) -> Result<hyper::Response<hyper::body::Incoming>, DriverError> {
        let mut sender = self.sender().await?;
        sender.ready().await.map_err(broken)?;
        let request = Request::builder().method(method).uri(target).body(Empty::new()).map_err(broken)?;
        sender.send_request(request).await.map_err(broken)
    }

    async fn sender(&self) -> Result<SendRequest<Empty<Bytes>>, DriverError> {
        let mut live = self.live.lock().await;
        if let Some(live) = live.as_ref().filter(|live| !live.sender.is_closed()) {
            return Ok(live.sender.clone());
        }
        *live = None;
        let stream = self.call().await?;
        let cancel = CancellationToken::new();
        let tasks = Tasks(cancel.clone());
        let (sender, connection) = Builder::new(tasks.clone())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_max_send_streams(MAX_STREAMS as usize)
            .max_header_list_size(MAX_HEAD_BYTES)
            .max_send_buf_size(STREAM_WINDOW as usize)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        hyper::rt::Executor::execute(&tasks, async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a guest's port");
            }
        });
        *live = Some(Live { sender: sender.clone(), _tasks: cancel.drop_guard() });
        Ok(sender)
    }

    /// Connects and calls until the guest has answered.
    async fn call(&self) -> Result<BufReader<UnixStream>, DriverError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => DriverError::Gone,
            _ => DriverError::io("connect to the guest's port")(error),
        })?;
        let mut stream = BufReader::new(stream);
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(broken)?;
        let lost = DriverError::io("call the guest");
        stream.write_all(&[&self.mark[..], &nonce[..]].concat()).await.map_err(lost)?;
        let expected = [&answer_mark(self.mark)[..], &nonce[..]].concat();
        // Byte by byte behind a window: what follows the answer belongs to HTTP/2.
        let mut window = vec![0; expected.len()];
        stream.read_exact(&mut window).await.map_err(DriverError::io("call the guest"))?;
        for _ in 0..MAX_STALE {
            if window == expected {
                return Ok(stream);
            }
            let next = stream.read_u8().await.map_err(DriverError::io("call the guest"))?;
            window.remove(0);
            window.push(next);
        }
        Err(broken("the guest does not answer calls"))
    }
}

fn broken(error: impl std::fmt::Display) -> DriverError {
    DriverError::Engine { what: "talking to the guest", detail: error.to_string() }
}

/// Runs a connection's tasks until it is given up.
#[derive(Debug, Clone)]
struct Tasks(CancellationToken);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, work: F) {
        let given_up = self.0.clone();
        tokio::spawn(async move {
            given_up.run_until_cancelled(work).await;
        });
    }
}
