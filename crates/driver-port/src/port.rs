//! Streams to the agent of a guest, all over one byte stream (`wire::agent::vm`).
//!
//! The other end is the guest's kernel, at worst: it may answer nothing, anything, or without end. Its answer to a call is
//! looked for in a bounded number of bytes and for a bounded time; frames, windows and heads are bounded by HTTP/2's own
//! rules, which make a guest that breaks them lose its connection, and nobody else theirs.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use driver::{BoxStream, DriverError};
use http_body_util::Empty;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, Join, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use wire::agent::vm::{
    CLOCK_PATH, CONNECTION_WINDOW, IDENTITY_PATH, Identity, MAX_HEAD_BYTES, MAX_STREAMS, NONCE_BYTES, PREFIX,
    STILL_PATH, STREAM_WINDOW, answer_mark,
};

use crate::limited;
use crate::mark::Mark;
use crate::pipes::Pipes;

/// What a former server left unread, at most: the windows of all its streams, and what lies in queues and buffers.
const MAX_STALE: usize = CONNECTION_WINDOW as usize + 4 * 1024 * 1024;
/// A guest that runs answers at once; its processor may be emulated and busy. Whoever does not answer loses the connection, and
/// is called again.
const ANSWER_LIMIT: Duration = Duration::from_secs(6);
/// The same for what a pause does not depend on; its callers wait for the memory to be written, too.
const STILL_LIMIT: Duration = Duration::from_secs(3);
/// Streams to the agent; the clock has one of its own.
const AGENT_STREAMS: usize = MAX_STREAMS as usize - 1;
/// Whoever finds all of them in use may wait for one to end, less long than clients wait.
const BUSY_LIMIT: Duration = Duration::from_secs(4);
/// How often a guest is called until it answers.
const ATTEMPTS: usize = 2;

/// The way to one machine's agent.
pub struct Port {
    way: Way,
    mark: std::sync::Mutex<Mark>,
    streams: Arc<Semaphore>,
    /// Of all connections. A pipe has one reader: the former must have ended before the next begins.
    tasks: TaskTracker,
    /// Held while a call is made, so that there is one at a time.
    live: Mutex<Option<Live>>,
}

/// Where the bytes go.
#[derive(Debug)]
enum Way {
    Socket(PathBuf),
    Pipes(Pipes),
}

type Reading = BufReader<Box<dyn AsyncRead + Send + Unpin>>;
type Writing = Box<dyn AsyncWrite + Send + Unpin>;

#[derive(Debug)]
struct Live {
    sender: SendRequest<Empty<Bytes>>,
    /// What has arrived on it, which also tells it from other connections.
    heard: Arc<AtomicU64>,
    /// Ends the connection's tasks, and with them its streams.
    _tasks: DropGuard,
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("way", &self.way).finish_non_exhaustive()
    }
}

impl Port {
    /// Over a socket, of which each connection is the guest's port.
    #[must_use]
    pub fn new(socket: PathBuf, mark: Mark) -> Self {
        Self::by(Way::Socket(socket), mark)
    }

    /// Over pipes; a guest may have one such port at a time.
    #[must_use]
    pub fn over(pipes: Pipes, mark: Mark) -> Self {
        Self::by(Way::Pipes(pipes), mark)
    }

    fn by(way: Way, mark: Mark) -> Self {
        let (streams, tasks) = (Arc::new(Semaphore::new(AGENT_STREAMS)), TaskTracker::new());
        // Waiting for it waits for what runs at the time.
        tasks.close();
        Self { way, mark: std::sync::Mutex::new(mark), streams, tasks, live: Mutex::new(None) }
    }

    fn mark(&self) -> Mark {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls like this from now on.
    pub fn change_mark(&self, mark: Mark) {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = mark;
    }

    /// Waits until the guest answers calls; a guest that boots takes its time.
    pub async fn ready(&self, limit: Duration) -> Result<(), DriverError> {
        limited("starting the guest", limit, self.connection()).await.map(drop)
    }

    /// Opens a stream to the agent.
    pub async fn open(&self) -> Result<BoxStream, DriverError> {
        let turn = self.turn().await?;
        let opening = |asked: Arc<OnceLock<Asked>>| async move {
            let response = self.send(Method::CONNECT, "agent:1", &asked).await?;
            if response.status() != StatusCode::OK {
                return Err(broken(format!("the guest answered {}", response.status().as_u16())));
            }
            let stream = hyper::upgrade::on(response).await.map_err(broken)?;
            Ok(TokioIo::new(stream))
        };
        let stream = self.insist("opening a stream to the agent", opening).await?;
        Ok(Box::new(Counted { stream, heard: None, _turn: Some(turn) }))
    }

    /// A place among the streams. One that the guest would let wait says nothing about the connection.
    pub(crate) async fn turn(&self) -> Result<OwnedSemaphorePermit, DriverError> {
        let turn = async { Arc::clone(&self.streams).acquire_owned().await.map_err(broken) };
        limited("waiting for a stream to the agent", BUSY_LIMIT, turn).await
    }

    /// Sets the guest's clock to ours, and lets the workload go on if it stands still.
    pub async fn set_clock(&self) -> Result<(), DriverError> {
        let now = || format!("{CLOCK_PATH}?{}", jiff::Timestamp::now().as_nanosecond());
        self.insist("setting the guest's clock", |asked| self.put(now(), asked)).await
    }

    /// Has the guest be another machine.
    pub async fn identify(&self, identity: &Identity) -> Result<(), DriverError> {
        let path = format!("{IDENTITY_PATH}?{}", identity.query());
        self.insist("telling the guest who it is", |asked| self.put(path.clone(), asked)).await
    }

    /// Stops the workload inside the guest.
    pub async fn be_still(&self) -> Result<(), DriverError> {
        let asked = Arc::default();
        limited("stopping the workload", STILL_LIMIT, self.put(STILL_PATH.to_owned(), asked)).await
    }

    async fn put(&self, path: String, asked: Arc<OnceLock<Asked>>) -> Result<(), DriverError> {
        match self.send(Method::PUT, &format!("http://agent{path}"), &asked).await?.status() {
            StatusCode::NO_CONTENT => Ok(()),
            other => Err(broken(format!("the guest answered {}", other.as_u16()))),
        }
    }

    /// Asks again when there is no answer, over a new connection if nothing at all has come on the former one meanwhile: it
    /// may lead to a call that the guest has ended.
    async fn insist<T, F: Future<Output = Result<T, DriverError>>>(
        &self,
        what: &'static str,
        ask: impl Fn(Arc<OnceLock<Asked>>) -> F,
    ) -> Result<T, DriverError> {
        let mut asked = Arc::new(OnceLock::new());
        let mut outcome = limited(what, ANSWER_LIMIT, ask(Arc::clone(&asked))).await;
        for _ in 1..ATTEMPTS {
            if !matches!(outcome, Err(DriverError::Timeout { .. })) {
                break;
            }
            // Whoever only waited for a connection has none to complain of.
            if let Some(asked) = asked.get() {
                self.give_up(asked).await;
            }
            asked = Arc::default();
            outcome = limited(what, ANSWER_LIMIT, ask(Arc::clone(&asked))).await;
        }
        outcome
    }

    /// Forgets the connection; the next stream makes another.
    pub async fn hang_up(&self) {
        *self.live.lock().await = None;
    }

    /// Forgets the connection that was asked, if it has been silent since.
    async fn give_up(&self, asked: &Asked) {
        let mut live = self.live.lock().await;
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(&live.heard, &asked.heard)) && asked.is_silent() {
            *live = None;
        }
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        target: &str,
        asked: &OnceLock<Asked>,
    ) -> Result<hyper::Response<hyper::body::Incoming>, DriverError> {
        let (mut sender, heard) = self.connection().await?;
        let at = heard.load(Ordering::Relaxed);
        let _once = asked.set(Asked { heard, at });
        sender.ready().await.map_err(broken)?;
        let request = Request::builder().method(method).uri(target).body(Empty::new()).map_err(broken)?;
        sender.send_request(request).await.map_err(broken)
    }

    async fn connection(&self) -> Result<(SendRequest<Empty<Bytes>>, Arc<AtomicU64>), DriverError> {
        let mut live = self.live.lock().await;
        if let Some(live) = live.as_ref().filter(|live| !live.sender.is_closed()) {
            return Ok((live.sender.clone(), Arc::clone(&live.heard)));
        }
        *live = None;
        self.tasks.wait().await;
        let heard = Arc::new(AtomicU64::new(0));
        let stream = Counted { stream: self.call().await?, heard: Some(Arc::clone(&heard)), _turn: None };
        let cancel = CancellationToken::new();
        // From here on, also if nobody waits for the rest of this.
        let ended = cancel.clone().drop_guard();
        let tasks = Tasks(cancel, self.tasks.clone());
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
        *live = Some(Live { sender: sender.clone(), heard: Arc::clone(&heard), _tasks: ended });
        Ok((sender, heard))
    }

    async fn connect(&self) -> Result<(Reading, Writing), DriverError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotConnected => {
                DriverError::Gone
            }
            _ => DriverError::io("connect to the guest's port")(error),
        };
        match &self.way {
            Way::Socket(path) => {
                let (read, write) = UnixStream::connect(path).await.map_err(failed)?.into_split();
                Ok((BufReader::new(Box::new(read)), Box::new(write)))
            }
            Way::Pipes(pipes) => {
                let (read, write) = pipes.open().map_err(failed)?;
                Ok((BufReader::new(Box::new(read)), Box::new(write)))
            }
        }
    }

    /// Connects and calls until the guest has answered.
    async fn call(&self) -> Result<Join<Reading, Writing>, DriverError> {
        let (mut reading, mut writing) = self.connect().await?;
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(broken)?;
        let mark = self.mark();
        let call = [&PREFIX[..], &mark, &nonce].concat();
        let expected = [&answer_mark(mark)[..], &nonce[..]].concat();
        // Both at once: a guest that has not got rid of what it said to a former server may not listen yet.
        let calling = async { writing.write_all(&call).await.map_err(DriverError::io("call the guest")) };
        tokio::try_join!(calling, find(&mut reading, &expected))?;
        Ok(tokio::io::join(reading, writing))
    }
}

/// Reads up to the end of the answer. Byte by byte behind a window: what follows belongs to HTTP/2.
async fn find(reading: &mut Reading, expected: &[u8]) -> Result<(), DriverError> {
    let mut window = vec![0; expected.len()];
    reading.read_exact(&mut window).await.map_err(DriverError::io("call the guest"))?;
    for _ in 0..MAX_STALE {
        if window == expected {
            return Ok(());
        }
        let next = reading.read_u8().await.map_err(DriverError::io("call the guest"))?;
        window.remove(0);
        window.push(next);
    }
    Err(broken("the guest does not answer calls"))
}

/// Which connection was asked, and what had arrived on it then.
#[derive(Debug)]
pub(crate) struct Asked {
    heard: Arc<AtomicU64>,
    at: u64,
}

impl Asked {
    fn is_silent(&self) -> bool {
        self.heard.load(Ordering::Relaxed) == self.at
    }
}

/// A stream with what is counted of it.
struct Counted<S> {
    stream: S,
    /// What has arrived on the port, for a connection.
    heard: Option<Arc<AtomicU64>>,
    /// Its place among the streams to the agent, for one of them.
    _turn: Option<OwnedSemaphorePermit>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if let Some(heard) = &self.heard {
            heard.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

pub(crate) fn broken(error: impl std::fmt::Display) -> DriverError {
    DriverError::Engine { what: "talking to the guest", detail: error.to_string() }
}

/// Runs a connection's tasks until it is given up.
#[derive(Debug, Clone)]
struct Tasks(CancellationToken, TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, work: F) {
        let given_up = self.0.clone();
        self.1.spawn(async move {
            given_up.run_until_cancelled(work).await;
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use tokio::net::UnixListener;
    use wire::agent::vm::{CALL_BYTES, MARK_BYTES};

    use super::*;

    pub(crate) const MARK: Mark = [7; MARK_BYTES];

    /// An HTTP/2 frame: length, kind, flags, stream, content.
    pub(crate) fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags][..], &stream.to_be_bytes()[..], content].concat()
    }

    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const DATA: u8 = 0;
    pub(crate) const END_OF_HEADERS: u8 = 4;
    /// `:status: 200` of the static table.
    pub(crate) const OK: [u8; 1] = [0x88];

    /// Reads until the first request.
    pub(crate) async fn hear_request(stream: &mut UnixStream) -> std::io::Result<()> {
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
                let mut call = [0; CALL_BYTES];
                stream.read_exact(&mut call).await.unwrap();
                let (begin, nonce) = call.split_at(CALL_BYTES - NONCE_BYTES);
                assert_eq!(begin, [&PREFIX[..], &MARK].concat());
                if answers {
                    let answer = [b"left of before", &answer_mark(MARK)[..], nonce].concat();
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

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_costs_the_others_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // Answers the first request, speaks on its stream for ever, and ignores all others.
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut call = [0; CALL_BYTES];
            stream.read_exact(&mut call).await.unwrap();
            let nonce = &call[CALL_BYTES - NONCE_BYTES..];
            stream.write_all(&[&answer_mark(MARK)[..], nonce].concat()).await.unwrap();
            hear_request(&mut stream).await.unwrap();
            let begin = [frame(SETTINGS, 0, 0, &[]), frame(HEADERS, END_OF_HEADERS, 1, &OK)].concat();
            stream.write_all(&begin).await.unwrap();
            while stream.write_all(&frame(DATA, 0, 1, b"x")).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let port = Port::new(path, MARK);
        let mut first = port.open().await.unwrap();
        let why = refused(&port).await;
        assert!(why.contains("did not finish"), "{why}");
        let mut heard = [0; 1_000];
        let mut all = 0;
        // More than had arrived when the other gave up: the stream is alive.
        while all < 20 {
            let read = first.read(&mut heard).await.unwrap();
            assert!(read > 0, "cut after {all}");
            all += read;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_stream_too_many_waits_and_cuts_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let port = Port::new(path, MARK);
        let all = u32::try_from(AGENT_STREAMS).unwrap();
        let _others = Arc::clone(&port.streams).acquire_many_owned(all).await.unwrap();
        let why = refused(&port).await;
        assert!(why.contains("waiting for a stream"), "{why}");
    }

    #[tokio::test]
    async fn nobody_there_is_gone() {
        let port = Port::new("/nonexistent/agent.sock".into(), MARK);
        assert!(matches!(port.open().await, Err(DriverError::Gone)));
    }
}
