//! Serves the control plane: bounded request heads, bounded connections, and a shutdown that drains before it cuts.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A client that sends its request head slower than this is not one of ours.
const HEAD_LIMIT: Duration = Duration::from_secs(15);
/// Requests may still answer this long after the stop was asked for; a create takes at most 30 s.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// Connections at once; each may hold a request body of up to 1 MiB.
const MAX_CONNECTIONS: usize = 1_024;
/// Request heads: the largest legitimate one is a list filter of a few KiB.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Pause after a failed accept, which means that descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop` is cancelled, then drains.
pub(crate) async fn serve(listener: TcpListener, app: Router, stop: CancellationToken) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(MAX_HEAD_BYTES);
    builder.http2().timer(TokioTimer::new()).max_header_list_size(64 * 1024).max_concurrent_streams(128);
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
        let service = TowerToHyperService::new(app.clone().layer(Extension(ConnectInfo(peer))));
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            // A client that breaks off is its own affair.
            let _client_left = connection.await;
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_LIMIT, graceful.shutdown()).await.is_err() {
        tracing::warn!("cut the control-plane requests that were still running after {DRAIN_LIMIT:?}");
    }
    connections.abort_all();
}
