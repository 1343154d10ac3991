//! The process around the server: panics and log to stderr, signals, end of input, exit. Standard output carries JSON-RPC
//! and nothing else.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use client::{Client, ClientError};
use rmcp::service::{QuitReason, serve_directly_with_ct};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{McpConfig, STDERR_PREFIX};
use crate::process::{self, say};
use crate::server::{Server, Shared};
use crate::tools;
use crate::transport::LineTransport;

/// How long calls in flight may still finish after the end of input, so that `printf … | superserve mcp` works; then they
/// are cancelled. Together with [`BACKGROUND_GRACE`] and the close of the transport it stays within the 2 s of
/// `spec/mcp.md` §A.5.
const FINISH_GRACE: Duration = Duration::from_millis(800);
/// How long a create whose call was cancelled may still learn the id it has to log.
const BACKGROUND_GRACE: Duration = Duration::from_millis(500);

/// The server ended for a reason other than the client or a signal.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A setting cannot be used.
    #[error("{STDERR_PREFIX} cannot start: {0}")]
    Client(#[from] ClientError),
    /// The process cannot listen to signals.
    #[error("{STDERR_PREFIX} cannot start: {0}")]
    Signals(std::io::Error),
    /// A defect.
    #[error("{STDERR_PREFIX} the server task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Serves MCP on standard input and output until the client or a signal ends it, on a runtime of its own; what
/// `superserve mcp` is. Does not wait for a read of standard input that never returns.
#[must_use]
pub fn run_stdio(config: &McpConfig) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let served = runtime.block_on(serve_stdio(config));
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// As [`run_stdio`], on the caller's runtime, which should be single-threaded. Sets the panic hook and, if there is none
/// yet, the log.
///
/// # Errors
/// See [`ServeError`]. The end of input, a broken output and a signal are no errors.
pub async fn serve_stdio(config: &McpConfig) -> Result<(), ServeError> {
    process::set_panic_hook();
    process::set_log(config.log);
    for warning in &config.warnings {
        say(warning);
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    let shutdown = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let (input, output) = rmcp::transport::stdio_pipes();
    serve(config, tools::ALL, input, output, shutdown).await
}

/// The server over any pair of streams.
pub(crate) async fn serve(
    config: &McpConfig,
    tools: &'static [&'static tools::Tool],
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let shared = Shared { structured_images: config.structured_images, ..Shared::default() };
    let background = shared.background.clone();
    let server = Server::new(Client::new(config.client())?, tools, shared);
    let ended = CancellationToken::new();
    let stop = CancellationToken::new();
    let transport = LineTransport::new(input, output, ended.clone());
    // Without the library's handshake loop: it would end the session over a notification that comes early, and a
    // stateless server needs no handshake. `initialize` is answered like any other request.
    let running = serve_directly_with_ct(server, transport, None, stop.clone());
    say(&format!("{} ready on stdio", env!("CARGO_PKG_VERSION")));

    let finished = async {
        tokio::select! {
            () = shutdown => {}
            () = ended.cancelled() => tokio::time::sleep(FINISH_GRACE).await,
        }
    };
    let mut quit = std::pin::pin!(running.waiting());
    let reason = tokio::select! {
        reason = &mut quit => reason?,
        () = finished => {
            stop.cancel();
            quit.await?
        }
    };
    background.close();
    if tokio::time::timeout(BACKGROUND_GRACE, background.wait()).await.is_err() {
        tracing::warn!("a cancelled sandbox_create is still under way; look for it in sandbox_list");
    }
    match reason {
        QuitReason::JoinError(error) => Err(error.into()),
        _ => Ok(()),
    }
}
