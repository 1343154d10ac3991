//! Running commands (`spec/data-plane.md` §3, §4).

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::Method;
use tokio::time::{Instant, Sleep};
use wire::data_plane::{DEFAULT_EXEC_TIMEOUT_S, ExecRequest, ExecResponse, StreamEvent};

use crate::control::Client;
use crate::data_plane::{DataBody, DataCall};
use crate::error::{ApiError, ClientError, Plane};
use crate::lines::Lines;
use crate::quote::quote;
use crate::session;
use crate::transport::{Exchange, read_all};

/// Time for the answer to travel after the command's own time is up, as in the official clients.
const GRACE: Duration = Duration::from_secs(5);
/// Longest silence of a stream whose command has no time limit. Servers send a comment every 15 s.
const STREAM_SILENCE: Duration = Duration::from_secs(300);
/// Largest answer of a command: 8 MiB of retained output, each byte escaped to six.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Longest line of an event stream: a 32 KiB chunk, each byte escaped to six, with room to spare.
const MAX_LINE_BYTES: usize = 1024 * 1024;

/// Something that happened while a command ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// A piece of standard output.
    Stdout(String),
    /// A piece of standard error.
    Stderr(String),
    /// The command ended with this code; the last event.
    Exit(i32),
}

impl Client {
    /// Runs a command and returns its whole output; resumes a paused sandbox. A non-zero exit code is no error.
    ///
    /// # Errors
    /// See [`ClientError`]. Unless [`ClientError::may_have_taken_effect`] is false the command may have run.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection, which kills the command.
    pub async fn exec(&self, id: &str, request: &ExecRequest) -> Result<ExecResponse, ClientError> {
        let seconds = request.timeout_s.filter(|s| *s > 0).unwrap_or(DEFAULT_EXEC_TIMEOUT_S);
        let exchange = exchange(Duration::from_secs(seconds.unsigned_abs()) + GRACE);
        let response = self.data_call(id, call("/exec", exchange, request)?).await?;
        let body = read_all(exchange, response, MAX_ANSWER_BYTES).await?;
        // serde's text may quote output of the command, which is not ours to show.
        serde_json::from_slice(&body).map_err(|_| exchange.protocol("not the expected JSON"))
    }

    /// Runs a command and shows its output as it comes; resumes a paused sandbox.
    ///
    /// # Errors
    /// As [`Client::exec`].
    ///
    /// # Cancel safety
    /// Dropping the stream closes the connection. Whether the command ends then is the platform's choice.
    pub async fn exec_stream(&self, id: &str, request: &ExecRequest) -> Result<ExecStream, ClientError> {
        let limit = request.timeout_s.filter(|s| *s > 0);
        let silence = limit.map_or(STREAM_SILENCE, |s| Duration::from_secs(s.unsigned_abs()) + GRACE);
        let exchange = exchange(silence);
        let response = self.data_call(id, call("/exec/stream", exchange, request)?).await?;
        Ok(ExecStream {
            session_id: session::id_of(response.headers()),
            body: response.bytes_stream().boxed(),
            lines: Lines::default(),
            ready: VecDeque::new(),
            exchange,
            silence: Box::pin(tokio::time::sleep(silence)),
            over: false,
        })
    }
}

fn exchange(timeout: Duration) -> Exchange {
    Exchange { what: "the command", plane: Plane::Data, mutating: true, timeout }
}

fn call(
    path: &'static str,
    exchange: Exchange,
    request: &ExecRequest,
) -> Result<DataCall<'static>, ClientError> {
    if request.command.is_empty() {
        return Err(ClientError::Invalid { field: "command", accepted: "it must not be empty".to_owned() });
    }
    let body = serde_json::to_vec(request)
        .map_err(|error| ClientError::Local(format!("cannot write the request: {error}")))?;
    Ok(DataCall {
        exchange,
        method: Method::POST,
        path: path.into(),
        query: Vec::new(),
        body: DataBody::Json(body.into()),
    })
}

/// The output of a running command. Ends after [`ExecEvent::Exit`] or the first error.
pub struct ExecStream {
    session_id: Option<String>,
    body: Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>,
    lines: Lines,
    ready: VecDeque<ExecEvent>,
    exchange: Exchange,
    silence: Pin<Box<Sleep>>,
    over: bool,
}

impl std::fmt::Debug for ExecStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecStream").field("over", &self.over).finish_non_exhaustive()
    }
}

impl Stream for ExecStream {
    type Item = Result<ExecEvent, ClientError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(event) = this.ready.pop_front() {
                if matches!(event, ExecEvent::Exit(_)) {
                    this.over = true;
                }
                return Poll::Ready(Some(Ok(event)));
            }
            if this.over {
                return Poll::Ready(None);
            }
            match this.read_line() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => return this.fail(error),
            }
            match this.body.as_mut().poll_next(context) {
                Poll::Ready(Some(Ok(chunk))) => {
                    this.silence.as_mut().reset(Instant::now() + this.exchange.timeout);
                    this.lines.buffer.extend_from_slice(&chunk);
                }
                Poll::Ready(Some(Err(_)) | None) => return this.fail(this.exchange.interrupted()),
                Poll::Pending => {
                    std::task::ready!(this.silence.as_mut().poll(context));
                    return this.fail(this.exchange.timed_out());
                }
            }
        }
    }
}

impl ExecStream {
    /// The command's name for [`Client::kill_session`], on platforms that give it one.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    fn fail(&mut self, error: ClientError) -> Poll<Option<Result<ExecEvent, ClientError>>> {
        self.over = true;
        Poll::Ready(Some(Err(error)))
    }

    /// Takes one line from the buffer; false when there is no whole line.
    fn read_line(&mut self) -> Result<bool, ClientError> {
        let Some(line) = self.lines.next() else {
            if self.lines.buffer.len() > MAX_LINE_BYTES {
                return Err(self.exchange.protocol("an event is too long"));
            }
            return Ok(false);
        };
        let Some(data) = line.strip_prefix(b"data:") else { return Ok(true) };
        let data = data.trim_ascii();
        if data.is_empty() || data == b"[DONE]" {
            return Ok(true);
        }
        let event: StreamEvent = serde_json::from_slice(data)
            .map_err(|_| self.exchange.protocol("an event is not the expected JSON"))?;
        if let Some(error) = event.error {
            return Err(could_not_run(event.code.unwrap_or_default(), &error));
        }
        self.ready.extend(event.stdout.map(ExecEvent::Stdout));
        self.ready.extend(event.stderr.map(ExecEvent::Stderr));
        if event.finished {
            self.ready.push_back(ExecEvent::Exit(event.exit_code.unwrap_or(0)));
        }
        Ok(true)
    }
}

/// The final event of a command that was never started.
pub(crate) fn could_not_run(code: String, message: &str) -> ClientError {
    let status = match code.as_str() {
        "bad_request" => 400,
        "gone" => 410,
        _ => 500,
    };
    ClientError::Api(ApiError {
        plane: Plane::Data,
        status,
        code: quote(&code),
        message: quote(message),
        retry_after: None,
        request_id: None,
        may_have_taken_effect: code == "gone",
    })
}
