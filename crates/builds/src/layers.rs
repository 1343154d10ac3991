//! Removes layers that nothing refers to any more. Only in a directory that belongs to this server alone: whether another
//! one uses a layer of a shared directory cannot be known here.
//!
//! It goes on while builds run: what one of them needs is noted beside the layers ([`LayerStore::keep`]). A sandbox refers to
//! its layers from the moment its row is written, and that is only written while its template refers to them.
//!
//! [`LayerStore::keep`]: templates::LayerStore::keep

use std::sync::Arc;
use std::time::Duration;

use domain::Problem;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::service::Context;

/// What a step made, or an image brought, is of use for a build that is tried again after a mistake.
const CACHED_FOR: SignedDuration = SignedDuration::from_hours(24);
/// Beyond what follows a deletion or a build: what is no longer worth keeping.
const EVERY: Duration = Duration::from_secs(60 * 60);

/// Looks whenever it is told to, until the server stops.
pub(crate) async fn collect(context: Arc<Context>, wanted: Arc<Notify>, stop: CancellationToken) {
    loop {
        match remove_unused(&context).await {
            Ok(0) => {}
            Ok(count) => {
                tracing::info!(count, "removed layers that nothing refers to");
                if let Err(problem) = context.host.tidy().await {
                    tracing::warn!(cause = problem.chain(), "cannot remove what depended on them");
                }
            }
            Err(problem) => tracing::error!(cause = problem.chain(), "cannot remove layers"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = wanted.notified() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn remove_unused(context: &Context) -> Result<usize, Problem> {
    context.store.cache_trim(context.config.cache_bytes).await?;
    if unused(context).await?.is_empty() {
        return Ok(0);
    }
    let layers = context.layers.clone();
    let removing = blocking(move || layers.removing()).await?;
    let Some(removing) = removing else {
        tracing::warn!("layers are not removed now: others note their use all the time");
        return Ok(0);
    };
    // Asked again: what was noted before is written down by now, and from here on nobody notes anything.
    let gone = unused(context).await?;
    // Their files go while others go on.
    let remains = blocking(move || removing.take_out(&gone)).await?;
    let count = remains.count;
    blocking(move || {
        drop(remains);
        Ok(())
    })
    .await?;
    Ok(count)
}

async fn unused(context: &Context) -> Result<Vec<String>, Problem> {
    let now = Timestamp::now();
    let since = now.checked_sub(CACHED_FOR).unwrap_or(now);
    let mut layers = context.layers.list()?;
    let used = context.store.layers_in_use(since).await?;
    layers.retain(|layer| !used.contains(layer));
    Ok(layers)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, templates::TemplateError> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(|error| Problem::internal("removing layers ended early", error))??)
}
