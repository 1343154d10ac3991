//! Newline-delimited JSON-RPC over a pair of byte streams. `rmcp` has such a transport too, but drops malformed input
//! without an answer; the protocol wants `-32700` with `id: null`, and we want batches and overlong lines answered.
//!
//! All writing happens in one task, so a message is never torn when the service loop abandons a future half-way. The
//! task lives until `close`, or until the stream breaks, which cancels `broken` and thereby ends the server quietly.

use std::io;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longest message: an 8 MiB write in base64 is about 10.7 MiB (`spec/mcp.md` §B.2).
const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// Messages waiting for a slow reader. A result can be 14 MiB (a zip in base64), so few are allowed to pile up.
const WRITE_QUEUE: usize = 8;
/// How long `close` waits for the reader of our output: a client that has gone away must not keep us alive.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// See the module.
pub(crate) struct LineTransport<R> {
    reader: BufReader<R>,
    /// The line read so far; `receive` may be abandoned and continued.
    line: Vec<u8>,
    /// The rest of an overlong line is being skipped.
    skipping: bool,
    /// An answer of the transport itself that is not queued yet.
    reply: Option<Vec<u8>>,
    queue: Option<mpsc::Sender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
    ended: CancellationToken,
}

/// What the next piece of input is.
enum Line {
    Whole,
    TooLong,
    End,
}

impl<R: AsyncRead + Unpin + Send> LineTransport<R> {
    /// `ended` is cancelled when either stream has ended.
    pub(crate) fn new<W>(reader: R, writer: W, ended: CancellationToken) -> Self
    where
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (queue, messages) = mpsc::channel(WRITE_QUEUE);
        let writer = tokio::spawn(write_all(writer, messages, ended.clone()));
        Self {
            reader: BufReader::new(reader),
            line: Vec::new(),
            skipping: false,
            reply: None,
            queue: Some(queue),
            writer: Some(writer),
            ended,
        }
    }

    /// Reads up to the end of a line into `self.line`.
    ///
    /// # Cancel safety
    /// What has been consumed is in `self.line`; the next call goes on from there.
    async fn read_line(&mut self) -> Line {
        loop {
            let available = match self.reader.fill_buf().await {
                Ok([]) => return Line::End,
                Ok(available) => available,
                Err(error) => {
                    tracing::debug!(%error, "reading input failed");
                    return Line::End;
                }
            };
            let end = available.iter().position(|b| *b == b'\n');
            let taken = end.map_or(available.len(), |at| at + 1);
            let too_long = !self.skipping && self.line.len() + taken > MAX_LINE_BYTES;
            if !self.skipping && !too_long {
                self.line.extend_from_slice(&available[..taken]);
            }
            self.reader.consume(taken);
            if too_long {
                self.line = Vec::new();
                self.skipping = end.is_none();
                return Line::TooLong;
            }
            match (end, self.skipping) {
                (Some(_), true) => self.skipping = false,
                (Some(_), false) => return Line::Whole,
                (None, _) => {}
            }
        }
    }

    /// Queues the transport's own answer.
    ///
    /// # Cancel safety
    /// The answer stays in `self.reply` until it is queued.
    async fn flush_reply(&mut self) -> Option<()> {
        if self.reply.is_some() {
            let permit = self.queue.as_ref()?.reserve().await.ok()?;
            if let Some(reply) = self.reply.take() {
                permit.send(reply);
            }
        }
        Some(())
    }
}

/// The messages in `line`, or the answer to what is none. `Ok(None)`: nothing to do.
fn parse(line: &[u8]) -> Result<Option<ClientJsonRpcMessage>, Value> {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    // Only an object can be a message. (The derived parser would also take an array for a struct.)
    if line[0] == b'{'
        && let Ok(message) = serde_json::from_slice(line)
    {
        return Ok(Some(message));
    }
    let Ok(value) = serde_json::from_slice::<Value>(line) else {
        return Err(error(Value::Null, -32700, "Parse error: the line is not valid JSON."));
    };
    let Value::Object(object) = &value else {
        let what = if value.is_array() {
            "Batches are not supported; send one JSON-RPC message per line."
        } else {
            "A JSON-RPC message is an object."
        };
        return Err(error(Value::Null, -32600, what));
    };
    match object.get("id") {
        // A notification we do not understand is no reason to answer; an answer to nothing we asked is none either.
        None if object.contains_key("method") => Ok(None),
        Some(_) if object.contains_key("result") || object.contains_key("error") => Ok(None),
        Some(id @ (Value::String(_) | Value::Number(_))) => {
            Err(error(id.clone(), -32600, "Invalid request: not a JSON-RPC 2.0 request."))
        }
        _ => Err(error(Value::Null, -32600, "Invalid request: not a JSON-RPC 2.0 message.")),
    }
}

fn error(id: Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

fn to_line(message: &impl serde::Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("messages have string keys and no failing parts");
    line.push(b'\n');
    line
}

async fn write_all(
    mut out: impl AsyncWrite + Unpin,
    mut messages: mpsc::Receiver<Vec<u8>>,
    ended: CancellationToken,
) {
    while let Some(message) = messages.recv().await {
        let written = async {
            out.write_all(&message).await?;
            out.flush().await
        };
        if let Err(error) = written.await {
            tracing::debug!(%error, "writing output failed");
            ended.cancel();
            return;
        }
    }
}

impl<R: AsyncRead + Unpin + Send> Transport<RoleServer> for LineTransport<R> {
    type Error = io::Error;

    fn send(&mut self, item: ServerJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let queue = self.queue.clone();
        async move {
            let queue = queue.ok_or(io::ErrorKind::NotConnected)?;
            queue.send(to_line(&item)).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            self.flush_reply().await?;
            let parsed = match self.read_line().await {
                Line::Whole => parse(&self.line),
                Line::TooLong => Err(error(
                    Value::Null,
                    -32600,
                    "The message is longer than 16 MiB; send large files with the SDK or the CLI.",
                )),
                Line::End => {
                    self.ended.cancel();
                    return None;
                }
            };
            // A large message must not occupy its memory for the rest of the session.
            self.line = Vec::new();
            match parsed {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(answer) => self.reply = Some(to_line(&answer)),
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.queue = None;
        if let Some(mut writer) = self.writer.take()
            && tokio::time::timeout(CLOSE_TIMEOUT, &mut writer).await.is_err()
        {
            writer.abort();
        }
        Ok(())
    }
}

impl<R> Drop for LineTransport<R> {
    fn drop(&mut self) {
        if let Some(writer) = &self.writer {
            writer.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> (i64, Value) {
        let answer = parse(line.as_bytes()).unwrap_err();
        (answer["error"]["code"].as_i64().unwrap(), answer["id"].clone())
    }

    #[test]
    fn what_is_no_message_is_answered() {
        for bad in ["{", "nonsense", "{\"a\":}", "\u{1}"] {
            assert_eq!(answer(bad), (-32700, Value::Null), "{bad}");
        }
        assert_eq!(parse(b"\xff\xfe").unwrap_err()["error"]["code"], -32700);
        for bad in ["[]", "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", "1", "\"x\"", "null", "{}"]
        {
            assert_eq!(answer(bad), (-32600, Value::Null), "{bad}");
        }
        assert_eq!(answer(r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#), (-32600, json!(7)));
        assert_eq!(answer(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#), (-32600, Value::Null));
        assert_eq!(answer(r#"{"jsonrpc":"2.0","id":"a"}"#), (-32600, json!("a")));
    }

    #[test]
    fn messages_and_noise() {
        for quiet in ["", "  \r", r#"{"method":"x"}"#, r#"{"id":9,"result":{}}"#] {
            assert!(matches!(parse(quiet.as_bytes()), Ok(None)), "{quiet}");
        }
        for good in [
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
            "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"tools/list\"}\r",
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        ] {
            assert!(matches!(parse(good.as_bytes()), Ok(Some(_))), "{good}");
        }
    }

    #[tokio::test]
    async fn an_overlong_line_is_skipped_and_the_next_one_served() {
        let mut input = vec![b' '; MAX_LINE_BYTES + 10];
        input.extend_from_slice(b"\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n");
        let (out, mut seen) = tokio::io::duplex(4096);
        let ended = CancellationToken::new();
        let mut transport = LineTransport::new(io::Cursor::new(input), out, ended.clone());
        assert!(matches!(transport.receive().await, Some(ClientJsonRpcMessage::Request(_))));
        assert!(transport.receive().await.is_none());
        assert!(ended.is_cancelled());
        transport.close().await.unwrap();
        let mut text = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut seen, &mut text).await.unwrap();
        assert!(text.contains("16 MiB") && text.lines().count() == 1, "{text}");
    }

    #[tokio::test]
    async fn a_broken_output_ends_the_session() {
        let (out, seen) = tokio::io::duplex(16);
        drop(seen);
        let ended = CancellationToken::new();
        let (input, _keep) = tokio::io::duplex(16);
        let mut transport = LineTransport::new(input, out, ended.clone());
        transport
            .send(serde_json::from_value(json!({"jsonrpc":"2.0","id":1,"result":{}})).unwrap())
            .await
            .unwrap();
        tokio::time::timeout(Duration::from_secs(5), ended.cancelled()).await.unwrap();
    }
}
