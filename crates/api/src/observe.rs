//! Who counts what the control plane does, and shows it.

use std::fmt::Debug;
use std::time::Duration;

use domain::{PreviewPort, SandboxId};
use http::Method;
use wire::rest::{PreviewRequest, PreviewTraffic};

/// A request that was answered.
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    /// As the client sent it; it may be none of the usual ones.
    pub method: &'a Method,
    /// The route's pattern, never the path; `-` when there is none.
    pub route: &'a str,
    /// HTTP status.
    pub status: u16,
    /// Until the head of the answer was ready.
    pub took: Duration,
}

/// Implemented where everything is wired together. Called on the request's way: it must not wait.
pub trait Observer: Send + Sync + Debug {
    /// A request was answered.
    fn answered(&self, answered: Answered<'_>);
    /// The page of `GET /metrics`, in the text format of Prometheus.
    fn page(&self) -> String;
    /// What has happened at a published port.
    fn preview_traffic(&self, id: SandboxId, port: PreviewPort) -> PreviewTraffic;
    /// The latest requests of a published port, newest first.
    fn preview_requests(&self, id: SandboxId, port: PreviewPort) -> Vec<PreviewRequest>;
}

/// Who may read `GET /metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsAccess {
    /// Nobody.
    Off,
    /// Whoever is on this machine, and whoever has a key.
    Local,
    /// Whoever has a key.
    Key,
}
