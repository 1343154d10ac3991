//! Firecracker's interface, as much of it as machines need. The process at the other end runs a hostile guest: what it says
//! is bounded in length and time, and an answer that is not the expected one is a failure.

use std::time::Duration;

use bytes::Bytes;
use driver::DriverError;
use driver_port::limited;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

/// Answers are immediate but for those that move a machine's memory, which have limits of their own.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The longest answer is a sentence about what is wrong.
const MAX_ANSWER: usize = 64 * 1024;
/// Line and headers of an answer; hyper takes no less than 8 KiB.
const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 32;
/// What is told of a refusal.
const MAX_DETAIL: usize = 500;

/// A connection.
#[derive(Debug)]
pub(crate) struct Rest {
    sender: SendRequest<Full<Bytes>>,
    /// Moves the bytes, and ends with this.
    _connection: JoinSet<()>,
}

impl Rest {
    pub(crate) async fn over(stream: UnixStream) -> Result<Self, DriverError> {
        let (sender, connection) = Builder::new()
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(unexpected)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "Firecracker's interface");
            }
        });
        Ok(Self { sender, _connection: tasks })
    }

    /// Asks for a change, which is answered with nothing.
    pub(crate) async fn put(
        &mut self,
        path: &'static str,
        body: &Value,
        limit: Duration,
    ) -> Result<(), DriverError> {
        self.ask(Method::PUT, path, Some(body), limit).await.map(drop)
    }

    /// Lets the machine run, or not.
    pub(crate) async fn set_running(&mut self, running: bool) -> Result<(), DriverError> {
        let state = if running { "Resumed" } else { "Paused" };
        self.ask(Method::PATCH, "/vm", Some(&json!({ "state": state })), ANSWER_LIMIT).await.map(drop)
    }

    /// `Not started`, `Running` or `Paused`.
    pub(crate) async fn state(&mut self) -> Result<String, DriverError> {
        self.state_within(ANSWER_LIMIT).await
    }

    /// The same from a process that may have something else to end first.
    pub(crate) async fn state_within(&mut self, limit: Duration) -> Result<String, DriverError> {
        let answer = self.ask(Method::GET, "/", None, limit).await?;
        let state = answer.get("state").and_then(Value::as_str).ok_or_else(|| unexpected("no state"))?;
        Ok(state.to_owned())
    }

    async fn ask(
        &mut self,
        method: Method,
        path: &'static str,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<Value, DriverError> {
        let expected = if body.is_some() { StatusCode::NO_CONTENT } else { StatusCode::OK };
        let bytes = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "firecracker")
            .header("accept", "application/json")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(bytes)))
            .map_err(unexpected)?;
        let asking = async {
            self.sender.ready().await.map_err(lost)?;
            let response = self.sender.send_request(request).await.map_err(lost)?;
            let status = response.status();
            let answer = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            let answer = answer.map_err(unexpected)?.to_bytes();
            if status != expected {
                return Err(DriverError::Engine { what: path, detail: refusal(status, &answer) });
            }
            if answer.is_empty() {
                return Ok(Value::Null);
            }
            serde_json::from_slice(&answer).map_err(unexpected)
        };
        limited(path, limit, asking).await
    }
}

/// What Firecracker says about a request that it refused, fit to be shown.
fn refusal(status: StatusCode, answer: &[u8]) -> String {
    let said = serde_json::from_slice::<Value>(answer).ok();
    let said = said.as_ref().and_then(|said| said.get("fault_message")).and_then(Value::as_str);
    let said: String = said.unwrap_or("no reason").chars().take(MAX_DETAIL).collect();
    let said: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{}: {said}", status.as_u16())
}

fn lost(error: hyper::Error) -> DriverError {
    // A process that has ended resets what it had open, in the middle of an answer or before.
    if error.is_closed() || error.is_incomplete_message() || error.is_canceled() {
        return DriverError::Gone;
    }
    unexpected(error)
}

fn unexpected(error: impl std::fmt::Display) -> DriverError {
    DriverError::Engine { what: "talking to Firecracker", detail: error.to_string() }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A Firecracker that says something, whatever it is asked, `times` over.
    async fn scripted(says: &[u8], times: usize) -> Rest {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let says = says.to_vec();
        tokio::spawn(async move {
            let mut heard = vec![0; 4_096];
            let _ = theirs.read(&mut heard).await;
            for _ in 0..times {
                if theirs.write_all(&says).await.is_err() {
                    return;
                }
            }
            // Stays there until nobody listens.
            let _ = theirs.read_to_end(&mut heard).await;
        });
        Rest::over(ours).await.unwrap()
    }

    async fn refused(says: &[u8], times: usize) -> String {
        let mut rest = scripted(says, times).await;
        rest.put("/vsock", &json!({}), Duration::from_secs(30)).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn only_the_expected_answer_is_success() {
        let mut rest = scripted(b"HTTP/1.1 204 No Content\r\n\r\n", 1).await;
        rest.put("/vsock", &json!({}), ANSWER_LIMIT).await.unwrap();
        let said = b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n{\"state\":\"Running\"}";
        assert_eq!(scripted(said, 1).await.state().await.unwrap(), "Running");
        let why = refused(
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 33\r\n\r\n{\"fault_message\":\"no such\\u0007disk\"}",
            1,
        )
        .await;
        assert!(why.contains("/vsock") && why.contains("400"), "{why}");
        // Success of another kind is none.
        for says in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"[..],
            b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 301 Moved\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 500 Oh\r\nContent-Length: 3\r\n\r\n\xff\xfe\xfd",
        ] {
            refused(says, 1).await;
        }
        let mut rest = scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"state\":[7]}", 1).await;
        assert!(rest.state().await.is_err());
    }

    #[tokio::test]
    async fn what_never_ends_is_cut_off() {
        let flood = [b'x'; 128 * 1024];
        let long = [&b"HTTP/1.1 204 No Content\r\nA: "[..], &flood].concat();
        for (says, times) in [
            // No answer at all, a head without end, many headers, a body without end, a body that says it is long.
            (&flood[..], 4),
            (&long[..], 4),
            (&[&b"HTTP/1.1 204 No Content\r\n"[..], &b"a: b\r\n".repeat(1_000)].concat()[..], 1),
            (
                &[
                    &b"HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n"[..],
                    &b"1000\r\n"[..],
                    &flood[..4_096],
                ]
                .concat()[..],
                1,
            ),
            (
                &[&b"HTTP/1.1 400 No\r\nContent-Length: 99999999999\r\n\r\n"[..], &flood, &flood].concat()[..],
                100,
            ),
        ] {
            let mut rest = scripted(says, times).await;
            let asked = rest.put("/vsock", &json!({}), Duration::from_millis(500)).await;
            assert!(asked.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_has_an_end() {
        let mut rest = scripted(b"", 0).await;
        let why = rest.state().await.unwrap_err();
        assert!(matches!(why, DriverError::Timeout { .. }), "{why}");
    }

    #[tokio::test]
    async fn one_that_is_gone_is_gone() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let mut rest = Rest::over(ours).await.unwrap();
        let why = rest.state().await.unwrap_err();
        assert!(matches!(why, DriverError::Gone), "{why}");
    }
}
