//! One message through the library's service loop: the message goes in, and what comes out is bytes for the answer. Dropping
//! it cancels the call.

use std::io;

use axum::body::Bytes;
use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::{RunningService, serve_directly_with_ct};
use rmcp::transport::Transport;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::cancel::Entry;
use crate::server::Server;

/// Notifications waiting for a slow reader; then the call waits.
const QUEUE: usize = 8;

/// What a call says.
#[derive(Debug)]
pub(super) enum Said {
    /// Something before the result.
    Note(Bytes),
    /// The result or error, with the error's code.
    Last { body: Bytes, code: Option<i32> },
    /// Nothing any more: its client has given it up.
    Cancelled,
}

/// A call under way.
pub(super) struct Running {
    said: mpsc::Receiver<Said>,
    entry: Option<Entry>,
    // Its drop cancels the call, which drops the tool's future, which ends the command in the sandbox.
    _service: RunningService<RoleServer, Server>,
}

impl Running {
    pub(super) fn start(server: Server, message: ClientJsonRpcMessage, entry: Option<Entry>) -> Self {
        let (say, said) = mpsc::channel(QUEUE);
        let transport = Oneshot { message: Some(message), say, done: CancellationToken::new() };
        let service = serve_directly_with_ct(server, transport, None, CancellationToken::new());
        Self { said, entry, _service: service }
    }

    /// `None` when the loop ended without a result, which would be a defect.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Option<Said> {
        let cancelled = async {
            match &self.entry {
                Some(entry) => entry.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            said = self.said.recv() => said,
            () = cancelled => Some(Said::Cancelled),
        }
    }
}

struct Oneshot {
    message: Option<ClientJsonRpcMessage>,
    say: mpsc::Sender<Said>,
    done: CancellationToken,
}

impl Transport<RoleServer> for Oneshot {
    type Error = io::Error;

    fn send(&mut self, item: ServerJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (say, done) = (self.say.clone(), self.done.clone());
        async move {
            let body = Bytes::from(serde_json::to_vec(&item)?);
            let said = match &item {
                ServerJsonRpcMessage::Response(_) => Said::Last { body, code: None },
                ServerJsonRpcMessage::Error(error) => Said::Last { body, code: Some(error.error.code.0) },
                _ => Said::Note(body),
            };
            drop(item);
            let last = matches!(said, Said::Last { .. });
            let sent = say.send(said).await.map_err(|_| io::ErrorKind::BrokenPipe.into());
            if last {
                done.cancel();
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        let message = self.message.take();
        if message.is_none() {
            self.done.cancelled().await;
        }
        message
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}
