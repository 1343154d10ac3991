//! Cancelling by notification. Clients with a handshake keep the stream of a call they give up and POST
//! `notifications/cancelled` instead, so without this the command would run on until its client ends.
//!
//! Without sessions a notification says no more than a request id, and ids are small numbers. A call is therefore cancelled
//! only when it is the only one under way with this id, key and kind of client, and only where this process is sure to be the
//! one that runs it: a server that may be one of several would sometimes end a stranger's call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use http::HeaderMap;
use http::header::USER_AGENT;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::keys::Hash;

/// Calls under way that a notification may end; as many as there are places.
#[derive(Debug, Default)]
pub(super) struct Cancellations {
    calls: Mutex<HashMap<Hash, Vec<Weak<CancellationToken>>>>,
}

/// A call's entry; dropped, it is removed.
#[derive(Debug)]
pub(super) struct Entry {
    all: Arc<Cancellations>,
    name: Hash,
    token: Arc<CancellationToken>,
}

fn name(key: Hash, headers: &HeaderMap, id: &Value) -> Hash {
    let agent = headers.get(USER_AGENT).map_or(&[][..], |agent| agent.as_bytes());
    // The parts have fixed lengths, so two different triples never make the same text.
    let parts = [key, Sha256::digest(agent).into(), Sha256::digest(id.to_string()).into()];
    Sha256::digest(parts.concat()).into()
}

impl Cancellations {
    pub(super) fn enter(self: &Arc<Self>, key: Hash, headers: &HeaderMap, id: &Value) -> Entry {
        let (name, token) = (name(key, headers, id), Arc::new(CancellationToken::new()));
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.entry(name).or_default().push(Arc::downgrade(&token));
        Entry { all: Arc::clone(self), name, token }
    }

    /// Takes a notification's parameters.
    pub(super) fn cancel(&self, key: Hash, headers: &HeaderMap, params: Option<&Value>) {
        let Some(id) = params.and_then(|params| params.get("requestId")) else { return };
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some([call]) = calls.get(&name(key, headers, id)).map(Vec::as_slice)
            && let Some(token) = call.upgrade()
        {
            token.cancel();
        }
    }
}

impl Entry {
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn cancelled(&self) {
        self.token.cancelled().await;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut calls = self.all.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = calls.get_mut(&self.name) {
            same.retain(|call| !std::ptr::eq(call.as_ptr(), Arc::as_ptr(&self.token)));
            if same.is_empty() {
                calls.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_certain_is_cancelled() {
        let all = Arc::new(Cancellations::default());
        let (a, b) = ([1; 32], [2; 32]);
        let plain = HeaderMap::new();
        let other = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static("other"))]);
        let call = all.enter(a, &plain, &json!(1));
        let text = all.enter(a, &plain, &json!("1"));
        for (key, headers, params) in [
            (b, &plain, Some(json!({"requestId": 1}))),
            (a, &other, Some(json!({"requestId": 1}))),
            (a, &plain, Some(json!({"requestId": 2}))),
            (a, &plain, Some(json!({}))),
            (a, &plain, None),
        ] {
            all.cancel(key, headers, params.as_ref());
        }
        let twin = all.enter(a, &plain, &json!(1));
        all.cancel(a, &plain, Some(&json!({"requestId": 1})));
        assert!(![&call, &text, &twin].iter().any(|entry| entry.token.is_cancelled()));
        drop(twin);
        all.cancel(a, &plain, Some(&json!({"requestId": 1})));
        assert!(call.token.is_cancelled() && !text.token.is_cancelled());
        drop((call, text));
        assert!(all.calls.lock().unwrap().is_empty());
    }
}
