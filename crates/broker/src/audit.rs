//! A row for each secret of a request, written when the head of the answer is there, or when there will be none.

use std::sync::Arc;

use domain::{
    Attempt, MAX_LOGGED_HOST, MAX_LOGGED_METHOD, MAX_LOGGED_PATH, NetworkEvent, NetworkSink, RequestAttempt,
    SandboxId, SecretId,
};
use http::request::Parts;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::reason::Reason;

/// Nobody waits for the answer any more; what nginx writes then.
const GONE: u16 = 499;
const GONE_REASON: &str = "client_gone";

/// What is known of a request. Dropped, it becomes rows.
pub(crate) struct Row {
    sink: Arc<dyn NetworkSink>,
    sandbox: SandboxId,
    secrets: Vec<SecretId>,
    method: String,
    host: String,
    path: String,
    begun: Instant,
    status: u16,
    upstream: Option<u16>,
    error: Option<&'static str>,
}

impl Row {
    pub(crate) fn new(sink: &Arc<dyn NetworkSink>, sandbox: SandboxId, host: &str, parts: &Parts) -> Self {
        Self {
            sink: Arc::clone(sink),
            sandbox,
            secrets: Vec::new(),
            method: cut(parts.method.as_str(), MAX_LOGGED_METHOD),
            host: cut(host, MAX_LOGGED_HOST),
            path: cut(parts.uri.path(), MAX_LOGGED_PATH),
            begun: Instant::now(),
            status: GONE,
            upstream: None,
            error: Some(GONE_REASON),
        }
    }

    pub(crate) fn concerns(&mut self, secrets: Vec<SecretId>) {
        self.secrets = secrets;
    }

    pub(crate) fn answered(&mut self, status: u16) {
        (self.status, self.upstream, self.error) = (status, Some(status), None);
    }

    /// `about` is the secret that is the reason, if one is.
    pub(crate) fn refused(&mut self, reason: Reason, about: Option<SecretId>) {
        (self.status, self.error) = (reason.status().as_u16(), Some(reason.as_str()));
        if let Some(secret) = about {
            self.secrets = vec![secret];
        }
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        for secret in &self.secrets {
            let what = Attempt::Request(RequestAttempt {
                secret: Some(*secret),
                method: self.method.clone(),
                host: self.host.clone(),
                path: self.path.clone(),
                status: self.status,
                upstream_status: self.upstream,
                latency: self.begun.elapsed(),
                error: self.error.map(str::to_owned),
            });
            self.sink.record(NetworkEvent { sandbox: self.sandbox, at: Timestamp::now(), what });
        }
    }
}

fn cut(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most.min(text.len()))].to_owned()
}
