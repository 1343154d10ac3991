//! The control plane over HTTP (`spec/rest-api.md` §1–4, §6, §10.1–10.2, §12). Handlers are thin: they read a request
//! strictly, call `lifecycle` or `store`, and write the answer. Who serves the router also limits heads, connections and
//! their times.
//!
//! Nothing here logs a key, a token, a body or a query.

mod auth;
mod body;
mod ids;
mod observe;
mod query;
mod reply;
mod request_log;
mod routes;
mod state;
#[cfg(test)]
mod tests;

pub use observe::{Answered, MetricsAccess, Observer};
pub use routes::router;
pub use state::ApiState;
