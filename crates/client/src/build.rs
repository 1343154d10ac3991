//! The build calls of the control plane (`spec/rest-api.md` §10).

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::Method;
use wire::rest::{BuildLogEvent, TemplateBuild};

use crate::control::{Call, Client};
use crate::error::ClientError;
use crate::lines::Lines;
use crate::template::path;
use crate::transport::Exchange;

/// A platform of ours says something every ten seconds; others may be silent during a long step.
const SILENCE: Duration = Duration::from_secs(15 * 60);
/// One event: a piece of output, escaped.
const MAX_LINE_BYTES: usize = 1024 * 1024;

impl Client {
    /// Builds a template again, or finds the same build under way.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn rebuild_template(&self, name_or_id: &str) -> Result<TemplateBuild, ClientError> {
        let path = format!("{}/builds", path(name_or_id)?);
        self.call(&Call::new("the build", Method::POST, path)).await?.json()
    }

    /// The newest builds of a template, newest first.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_builds(&self, name_or_id: &str, limit: u32) -> Result<Vec<TemplateBuild>, ClientError> {
        let path = format!("{}/builds", path(name_or_id)?);
        let mut call = Call::new("the list of builds", Method::GET, path);
        call.query.push(("limit".to_owned(), limit.to_string()));
        self.call(&call).await?.json()
    }

    /// One build.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_build(&self, name_or_id: &str, build: &str) -> Result<TemplateBuild, ClientError> {
        self.call(&Call::new("the build", Method::GET, build_path(name_or_id, build)?)).await?.json()
    }

    /// Stops a build; one that has ended stays as it is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn cancel_build(&self, name_or_id: &str, build: &str) -> Result<(), ClientError> {
        let path = build_path(name_or_id, build)?;
        self.call(&Call::new("cancelling the build", Method::DELETE, path)).await.map(drop)
    }

    /// What a build says, from its beginning to its end.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn build_log(&self, name_or_id: &str, build: &str) -> Result<BuildLog, ClientError> {
        let path = format!("{}/logs", build_path(name_or_id, build)?);
        let call = Call::new("the log of the build", Method::GET, path);
        let response = self.open(&call).await?;
        let exchange = Exchange { timeout: SILENCE, ..call.exchange() };
        Ok(BuildLog { body: response.bytes_stream().boxed(), lines: Lines::default(), exchange, over: false })
    }
}

fn build_path(name_or_id: &str, build: &str) -> Result<String, ClientError> {
    if build.is_empty() || !build.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-') {
        return Err(ClientError::Invalid { field: "build", accepted: "a build id is expected".into() });
    }
    Ok(format!("{}/builds/{build}", path(name_or_id)?))
}

/// The log of a build, while it grows.
pub struct BuildLog {
    body: Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>,
    lines: Lines,
    exchange: Exchange,
    over: bool,
}

impl std::fmt::Debug for BuildLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuildLog").field("over", &self.over).finish_non_exhaustive()
    }
}

impl BuildLog {
    /// The next event; `None` after the last one.
    ///
    /// # Errors
    /// See [`ClientError`].
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Result<Option<BuildLogEvent>, ClientError> {
        loop {
            if self.over {
                return Ok(None);
            }
            if let Some(line) = self.lines.next() {
                let Some(data) = line.strip_prefix(b"data:") else { continue };
                let event: BuildLogEvent = serde_json::from_slice(data.trim_ascii())
                    .map_err(|_| self.exchange.protocol("an event is not the expected JSON"))?;
                self.over = event.finished;
                return Ok(Some(event));
            }
            if self.lines.buffer.len() > MAX_LINE_BYTES {
                return Err(self.exchange.protocol("an event is too long"));
            }
            let chunk = tokio::time::timeout(self.exchange.timeout, self.body.next()).await;
            match chunk.map_err(|_| self.exchange.timed_out())? {
                Some(Ok(chunk)) => self.lines.buffer.extend_from_slice(&chunk),
                Some(Err(_)) | None => return Err(self.exchange.interrupted()),
            }
        }
    }
}
