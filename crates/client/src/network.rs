//! The network log of a sandbox (`spec/rest-api.md` §9).

use http::Method;
use wire::rest::NetworkPage;

use crate::control::{Call, Client};
use crate::error::ClientError;
use crate::sandbox::path;

/// What `GET /sandboxes/{id}/network` is to show; unset fields do not filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkFilter {
    /// Rows, 1 to 200.
    pub limit: Option<u32>,
    /// `next_cursor` of a page, or an RFC 3339 time.
    pub before: Option<String>,
    /// RFC 3339; not older.
    pub since: Option<String>,
    /// `allowed`, `blocked` or `failed`.
    pub verdict: Option<String>,
    /// Kinds of rows, separated by commas, or `all`; an addition of this platform.
    pub kinds: Option<String>,
}

impl Client {
    /// One page of a sandbox's network log, newest first; never resumes it.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 when there is no such sandbox.
    pub async fn network_log(&self, id: &str, filter: &NetworkFilter) -> Result<NetworkPage, ClientError> {
        let mut call = Call::new("the network log", Method::GET, path(id, "/network")?);
        let texts = [
            ("before", &filter.before),
            ("since", &filter.since),
            ("verdict", &filter.verdict),
            ("kinds", &filter.kinds),
        ];
        for (name, value) in texts {
            call.query.extend(value.as_ref().map(|value| (name.to_owned(), value.clone())));
        }
        call.query.extend(filter.limit.map(|limit| ("limit".to_owned(), limit.to_string())));
        self.call(&call).await?.json()
    }
}
