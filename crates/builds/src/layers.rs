//! Removes layers that nothing refers to any more. Only in a directory that belongs to this server alone: whether another
//! one uses a layer of a shared directory cannot be known here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::Problem;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::service::Context;

/// A create reads a template's layers and then writes its sandbox, for which it waits its turn at the database for up to
/// 10 s: only what nothing refers to before and after that long goes.
const GRACE: Duration = Duration::from_secs(15);
/// What a step made is of use for a build that is tried again after a mistake.
const CACHED_FOR: SignedDuration = SignedDuration::from_hours(24);
/// Beyond what follows a deletion or a build: what is no longer worth keeping.
const EVERY: Duration = Duration::from_secs(60 * 60);

/// Looks whenever it is told to, until the server stops.
pub(crate) async fn collect(context: Arc<Context>, wanted: Arc<Notify>, stop: CancellationToken) {
    loop {
        let sleep = async |limit| {
            tokio::select! {
                () = stop.cancelled() => false,
                () = tokio::time::sleep(limit) => true,
            }
        };
        let first = unused(&context).await;
        if let Ok(first) = &first
            && !first.is_empty()
        {
            if !sleep(GRACE).await {
                return;
            }
            match remove(&context, first).await {
                Ok(0) => {}
                Ok(count) => tracing::info!(count, "removed layers that nothing refers to"),
                Err(problem) => tracing::error!(cause = problem.chain(), "cannot remove layers"),
            }
        }
        if let Err(problem) = first {
            tracing::error!(cause = problem.chain(), "cannot look for layers that nothing refers to");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = wanted.notified() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn unused(context: &Context) -> Result<BTreeSet<String>, Problem> {
    let now = Timestamp::now();
    let since = now.checked_sub(CACHED_FOR).unwrap_or(now);
    // In this order: what appears in between is not in the list.
    let mut layers: BTreeSet<String> = context.layers.list()?.into_iter().collect();
    for used in context.store.layers_in_use(since).await? {
        layers.remove(&used);
    }
    Ok(layers)
}

async fn remove(context: &Context, before: &BTreeSet<String>) -> Result<usize, Problem> {
    // Whoever adds layers says so when they are done, by another look or at the latest in an hour.
    let Some(removing) = context.layers.removing()? else { return Ok(0) };
    let now = unused(context).await?;
    let gone: Vec<String> = before.intersection(&now).cloned().collect();
    let count = gone.len();
    let remains = removing.take_out(&gone)?;
    tokio::task::spawn_blocking(move || drop(remains))
        .await
        .map_err(|error| Problem::internal("removing layers ended early", error))?;
    Ok(count)
}
