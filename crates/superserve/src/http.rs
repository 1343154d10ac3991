//! Serves the control plane and MCP: bounded request heads, bounded connections, peers that read, and a shutdown that drains
//! before it cuts.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A request head must be complete, and a kept connection used again, within this. Longer than clients keep idle
/// connections, so that none sends into one that is just being closed.
const HEAD_LIMIT: Duration = Duration::from_secs(75);
/// A peer that takes nothing of what was sent for this long is gone, or wants to hold our memory.
const UNREAD_LIMIT: Duration = Duration::from_secs(30);
/// Connections at once; each may hold a request body of up to 1 MiB.
const MAX_CONNECTIONS: usize = 1_024;
/// Request heads: the largest legitimate one is a list filter of a few KiB.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Pause after a failed accept, which means that descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop` is cancelled; then requests under way have `grace` to answer.
pub(crate) async fn serve(listener: TcpListener, app: Router, stop: CancellationToken, grace: Duration) {
    // HTTP/1 only: telling it from HTTP/2 waits for a first byte without a limit, and there a peer that takes nothing keeps
    // answers, and the places they hold, for ever.
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(MAX_HEAD_BYTES);
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        while connections.try_join_next().is_some() {}
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let _small_answers_should_leave_at_once = stream.set_nodelay(true);
        let _an_old_kernel_waits_longer =
            set_tcp_user_timeout(&stream, u32::try_from(UNREAD_LIMIT.as_millis()).unwrap_or(u32::MAX));
        let service = TowerToHyperService::new(app.clone().layer(Extension(ConnectInfo(peer))));
        let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            // A client that breaks off is its own affair.
            let _client_left = connection.await;
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
        tracing::warn!("cut the requests that were still running after {grace:?}");
    }
    // Awaited, so that what the requests held is gone when this returns.
    connections.shutdown().await;
}
