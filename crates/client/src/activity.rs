//! The activity log of the account (`spec/rest-api.md` §12).

use http::Method;
use wire::rest::Activity;

use crate::control::{Call, Client};
use crate::error::ClientError;
use crate::sandbox::Page;

/// What `GET /activity` is to show; unset fields do not filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActivityFilter {
    /// `sandbox`, `exec`, `token` and so on.
    pub category: Option<String>,
    /// `success` or `error`.
    pub status: Option<String>,
    /// Part of a name, an action or an error, in any case.
    pub q: Option<String>,
    /// Only this sandbox; an addition of this platform.
    pub sandbox_id: Option<String>,
    /// RFC 3339; not before.
    pub start: Option<String>,
    /// RFC 3339; not after.
    pub end: Option<String>,
    /// Oldest first.
    pub ascending: bool,
    /// Rows, 1 to 200.
    pub limit: Option<u32>,
    /// Rows to skip.
    pub offset: u64,
}

impl Client {
    /// One page of the activity log.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_activity(&self, filter: &ActivityFilter) -> Result<Page<Activity>, ClientError> {
        let mut call = Call::new("the activity log", Method::GET, "/activity");
        let texts = [
            ("category", &filter.category),
            ("status", &filter.status),
            ("q", &filter.q),
            ("sandbox_id", &filter.sandbox_id),
            ("start", &filter.start),
            ("end", &filter.end),
        ];
        for (name, value) in texts {
            call.query.extend(value.as_ref().map(|value| (name.to_owned(), value.clone())));
        }
        call.query.push(("order".to_owned(), if filter.ascending { "asc" } else { "desc" }.to_owned()));
        call.query.extend(filter.limit.map(|limit| ("limit".to_owned(), limit.to_string())));
        if filter.offset > 0 {
            call.query.push(("offset".to_owned(), filter.offset.to_string()));
        }
        self.page(&call).await
    }
}
