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
/// A guest that runs answers at once; its processor may be emulated and busy. Whoever does not answer loses the connection, and
/// is called again.
const ANSWER_LIMIT: Duration = Duration::from_secs(6);
/// How often a guest is called until it answers.
const ATTEMPTS: usize = 2;

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
        let opening = || async {
            let response = self.send(Method::CONNECT, "agent:1").await?;
            if response.status() != StatusCode::OK {
                return Err(broken(format!("the guest answered {}", response.status().as_u16())));
            }
            let stream = hyper::upgrade::on(response).await.map_err(broken)?;
            Ok(Box::new(TokioIo::new(stream)) as BoxStream)
        };
        self.insist("opening a stream to the agent", opening).await
    }

    /// Sets the guest's clock to ours.
    pub(crate) async fn set_clock(&self) -> Result<(), DriverError> {
        let setting = || async {
            let now = jiff::Timestamp::now().as_nanosecond();
            let path = format!("http://agent{CLOCK_PATH}?{now}");
            match self.send(Method::PUT, &path).await?.status() {
                StatusCode::NO_CONTENT => Ok(()),
                other => Err(broken(format!("the guest answered {}", other.as_u16()))),
            }
        };
        self.insist("setting the guest's clock", setting).await
    }

    /// Asks again over a new connection when there is no answer: the former one may lead to a call that the guest has ended.
    async fn insist<T, F: Future<Output = Result<T, DriverError>>>(
        &self,
        what: &'static str,
        ask: impl Fn() -> F,
    ) -> Result<T, DriverError> {
        let mut outcome = limited(what, ANSWER_LIMIT, ask()).await;
        for _ in 1..ATTEMPTS {
            if !matches!(outcome, Err(DriverError::Timeout { .. })) {
                break;
            }
            self.hang_up().await;
            outcome = limited(what, ANSWER_LIMIT, ask()).await;
        }
        outcome
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::net::UnixListener;

    use super::*;

    const MARK: [u8; MARK_BYTES] = [7; MARK_BYTES];

    /// An HTTP/2 frame: length, kind, flags, stream, content.
    fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags][..], &stream.to_be_bytes()[..], content].concat()
    }

    const SETTINGS: u8 = 4;
    const HEADERS: u8 = 1;
    const DATA: u8 = 0;
    const END_OF_HEADERS: u8 = 4;
    /// `:status: 200` of the static table.
    const OK: [u8; 1] = [0x88];

    /// Reads until the first request.
    async fn hear_request(stream: &mut UnixStream) -> std::io::Result<()> {
        stream.read_exact(&mut [0; b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len()]).await?;
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await?;
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            stream.read_exact(&mut vec![0; length]).await?;
            if head[3] == HEADERS {
                return Ok(());
            }
        }
    }

    /// A guest that answers each call, and says these things once it is asked for a stream.
    fn guest(dir: &Path, answers: bool, says: Vec<Vec<u8>>) -> Port {
        let path = dir.join("agent.sock");
        let _former = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut call = [0; MARK_BYTES + NONCE_BYTES];
                stream.read_exact(&mut call).await.unwrap();
                assert_eq!(call[..MARK_BYTES], MARK);
                if answers {
                    let answer = [b"left of before", &answer_mark(MARK)[..], &call[MARK_BYTES..]].concat();
                    stream.write_all(&answer).await.unwrap();
                    let _it_may_leave = hear_request(&mut stream).await;
                }
                for words in &says {
                    // Until we have had enough of it.
                    if stream.write_all(words).await.is_err() {
                        break;
                    }
                }
                let mut heard = [0; 4_096];
                while stream.read(&mut heard).await.is_ok_and(|read| read > 0) {}
            }
        });
        Port::new(path, MARK)
    }

    async fn refused(port: &Port) -> String {
        match port.open().await {
            Ok(_) => panic!("a stream was opened"),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_guest_is_waited_for_and_no_longer() {
        let dir = tempfile::tempdir().unwrap();
        // Never answers a call; answers it, but no request.
        for (answers, says) in [(false, vec![]), (true, vec![frame(SETTINGS, 0, 0, &[])])] {
            let port = guest(dir.path(), answers, says);
            let why = refused(&port).await;
            assert!(why.contains("did not finish"), "{why}");
        }
    }

    #[tokio::test]
    async fn a_flood_that_is_no_answer_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let port = guest(dir.path(), false, vec![vec![0; 64 * 1024]; 1_024]);
        let why = refused(&port).await;
        assert!(why.contains("does not answer calls"), "{why}");
    }

    #[tokio::test]
    async fn what_is_no_http2_costs_the_connection_and_the_next_is_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let lying = [0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1].to_vec();
        for words in [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), lying, frame(DATA, 0, 9, b"for nobody")] {
            let port = guest(dir.path(), true, vec![frame(SETTINGS, 0, 0, &[]), words]);
            for _ in 0..2 {
                let why = refused(&port).await;
                assert!(why.contains("talking to the guest") || why.contains("call the guest"), "{why}");
            }
        }
    }

    #[tokio::test]
    async fn more_than_the_window_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut says = vec![frame(SETTINGS, 0, 0, &[]), frame(HEADERS, END_OF_HEADERS, 1, &OK)];
        says.extend(std::iter::repeat_with(|| frame(DATA, 0, 1, &[b'x'; 16 * 1024])).take(2_000));
        let port = guest(dir.path(), true, says);
        let mut stream = port.open().await.unwrap();
        // It has time to say all of it before anybody reads.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut got = Vec::new();
        let ended = stream.read_to_end(&mut got).await;
        assert!(ended.is_err(), "the stream is broken");
        assert!(got.len() <= STREAM_WINDOW as usize, "{} bytes were kept", got.len());
    }

    #[tokio::test]
    async fn nobody_there_is_gone() {
        let port = Port::new("/nonexistent/agent.sock".into(), MARK);
        assert!(matches!(port.open().await, Err(DriverError::Gone)));
    }
}
