//! QEMU's control protocol, as much of it as machines need. The process at the other end runs a hostile guest: what it says
//! is bounded in length and time.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use driver::DriverError;
use driver_port::limited;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;

/// Answers are immediate, also of a busy machine: its control is a thread of its own.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The longest answer we ask for is the console's last 16 KiB, escaped.
const MAX_LINE: u64 = 256 * 1024;
/// Events that come between a command and its answer.
const MAX_EVENTS: usize = 1_000;

/// A connection; the process has room for one at a time.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
    /// How a migration ended, if that was said before an answer.
    migrated: Option<bool>,
}

impl Qmp {
    /// Connects; returns when the process answers.
    pub(crate) async fn connect(socket: &Path) -> Result<Self, DriverError> {
        let connecting = async {
            let stream = UnixStream::connect(socket).await.map_err(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => DriverError::Gone,
                _ => DriverError::io("connect to QEMU")(error),
            })?;
            let mut qmp = Self { stream: BufReader::new(stream), migrated: None };
            let greeting = qmp.line().await?;
            if greeting.get("QMP").is_none() {
                return Err(unexpected("the greeting"));
            }
            Ok(qmp)
        };
        let mut qmp = limited("connecting to QEMU", ANSWER_LIMIT, connecting).await?;
        qmp.ask("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    /// Gives a command and waits for its answer.
    pub(crate) async fn ask(
        &mut self,
        command: &'static str,
        arguments: Value,
    ) -> Result<Value, DriverError> {
        self.ask_with(command, arguments, None).await
    }

    /// The same, with a descriptor.
    pub(crate) async fn ask_with(
        &mut self,
        command: &'static str,
        arguments: Value,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Value, DriverError> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        let asking = async {
            match descriptor {
                None => self.stream.get_mut().write_all(line.as_bytes()).await,
                Some(fd) => self.send_with(line.as_bytes(), fd).await,
            }
            .map_err(lost)?;
            if command.starts_with("migrate") {
                // How a former one ended is no news.
                self.migrated = None;
            }
            for _ in 0..MAX_EVENTS {
                let mut answer = self.line().await?;
                self.migrated = self.migrated.or(ended(&answer));
                if let Some(value) = answer.get_mut("return") {
                    return Ok(value.take());
                }
                if let Some(error) = answer.get("error") {
                    let detail = error.get("desc").and_then(Value::as_str).unwrap_or_default();
                    let detail = detail.chars().take(500).collect();
                    return Err(DriverError::Engine { what: command, detail });
                }
            }
            Err(unexpected("events"))
        };
        limited(command, ANSWER_LIMIT, asking).await
    }

    async fn send_with(&mut self, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
        let stream = self.stream.get_mut();
        let sent = stream
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let fds = [fd];
                control.push(SendAncillaryMessage::ScmRights(&fds));
                let parts = [io::IoSlice::new(bytes)];
                Ok(rustix::net::sendmsg(&*stream, &parts, &mut control, SendFlags::empty())?)
            })
            .await?;
        self.stream.get_mut().write_all(&bytes[sent..]).await
    }

    /// Waits until a migration has ended, one way or the other.
    pub(crate) async fn migrated(&mut self, limit: Duration) -> Result<(), DriverError> {
        let waiting = async {
            let done = loop {
                if let Some(done) = self.migrated.take() {
                    break done;
                }
                self.migrated = ended(&self.line().await?);
            };
            if done {
                return Ok(());
            }
            let detail = "QEMU gave up".to_owned();
            Err(DriverError::Engine { what: "moving the machine's state", detail })
        };
        limited("moving the machine's state", limit, waiting).await
    }

    async fn line(&mut self) -> Result<Value, DriverError> {
        let mut line = Vec::new();
        let read = (&mut self.stream).take(MAX_LINE).read_until(b'\n', &mut line).await.map_err(lost)?;
        if read == 0 {
            return Err(DriverError::Gone);
        }
        serde_json::from_slice(&line).map_err(|_| unexpected("a line"))
    }
}

/// Whether a line says that a migration has ended, and well.
fn ended(line: &Value) -> Option<bool> {
    if line.get("event").and_then(Value::as_str) != Some("MIGRATION") {
        return None;
    }
    match line.pointer("/data/status").and_then(Value::as_str) {
        Some("completed") => Some(true),
        Some("failed" | "cancelled") => Some(false),
        _ => None,
    }
}

fn lost(error: io::Error) -> DriverError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => DriverError::Gone,
        _ => DriverError::io("talk to QEMU")(error),
    }
}

fn unexpected(what: &str) -> DriverError {
    DriverError::Engine { what: "talking to QEMU", detail: format!("{what} is not what it should be") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A QEMU that says what it is told to say, line by line, each after a line of ours.
    fn scripted(dir: &Path, answers: &'static [&'static [u8]]) -> std::path::PathBuf {
        let path = dir.join("control.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            stream.get_mut().write_all(b"{\"QMP\": {}}\r\n").await.unwrap();
            for answer in [&b"{\"return\": {}}\r\n"[..]].iter().chain(answers) {
                let mut asked = String::new();
                stream.read_line(&mut asked).await.unwrap();
                let _ = stream.get_mut().write_all(answer).await;
            }
        });
        path
    }

    #[tokio::test]
    async fn events_pass_and_refusals_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let socket = scripted(
            dir.path(),
            &[
                b"{\"event\": \"STOP\"}\r\n{\"return\": {\"running\": true}}\r\n",
                b"{\"error\": {\"class\": \"GenericError\", \"desc\": \"no such thing\"}}\r\n",
            ],
        );
        let mut qmp = Qmp::connect(&socket).await.unwrap();
        assert_eq!(qmp.ask("query-status", json!({})).await.unwrap()["running"], true);
        let refused = qmp.ask("cont", json!({})).await.unwrap_err().to_string();
        assert!(refused.contains("no such thing"), "{refused}");
        assert!(matches!(qmp.ask("cont", json!({})).await, Err(DriverError::Gone)));
    }

    #[tokio::test]
    async fn a_migration_may_end_before_the_answer_or_badly() {
        let dir = tempfile::tempdir().unwrap();
        let socket = scripted(
            dir.path(),
            &[
                b"{\"event\": \"MIGRATION\", \"data\": {\"status\": \"completed\"}}\r\n{\"return\": {}}\r\n",
                b"{\"return\": {}}\r\n{\"event\": \"MIGRATION\", \"data\": {\"status\": \"active\"}}\r\n\
                  {\"event\": \"MIGRATION\", \"data\": {\"status\": \"failed\"}}\r\n",
            ],
        );
        let mut qmp = Qmp::connect(&socket).await.unwrap();
        qmp.ask("migrate", json!({})).await.unwrap();
        qmp.migrated(ANSWER_LIMIT).await.unwrap();
        qmp.ask("migrate", json!({})).await.unwrap();
        assert!(qmp.migrated(ANSWER_LIMIT).await.is_err());
    }

    #[tokio::test]
    async fn what_never_ends_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        static FLOOD: [u8; 300 * 1024] = [b'x'; 300 * 1024];
        static ANSWERS: [&[u8]; 1] = [&FLOOD];
        let socket = scripted(dir.path(), &ANSWERS);
        let mut qmp = Qmp::connect(&socket).await.unwrap();
        let refused = qmp.ask("query-status", json!({})).await.unwrap_err().to_string();
        assert!(refused.contains("talking to QEMU"), "{refused}");
    }
}
