//! The typed client of both public APIs, control plane and data plane, and the only way in for the MCP server, the CLI
//! and the tests: whoever uses it can do what any client of the platform can, and nothing else.
//!
//! It finds the data plane by itself ([`Client::new`]), heals stale tokens and paused sandboxes, repeats only what is
//! safe to repeat, and never reads more than the caller permits. Secrets never reach an error, a log or a `Debug`.

mod activity;
mod build;
mod config;
mod control;
mod data_plane;
mod desktop;
mod discovery;
mod error;
mod exec;
mod files;
mod lines;
mod network;
mod preview;
mod quote;
mod retry;
mod sandbox;
mod sandbox_id;
mod secret;
mod session;
mod snapshot;
mod template;
mod tokens;
mod transport;
mod websocket;

pub use activity::ActivityFilter;
pub use build::BuildLog;
pub use config::{ClientConfig, PRODUCTION_URL, resolve_base_url};
pub use control::Client;
pub use desktop::{MAX_PICTURE_ANSWER_BYTES, VIEWER_PORT};
pub use error::{ApiError, ClientError, Plane};
pub use exec::{ExecEvent, ExecStream};
pub use files::{Download, UploadBody};
pub use network::NetworkFilter;
pub use quote::{MAX_QUOTE_CHARS, quote};
pub use sandbox::{Deletion, ListFilter, Page, Pause};
pub use secret::AuditFilter;
pub use session::{Session, SessionEvent, SessionEvents, SessionInput};
pub use wire::data_plane::{ExecRequest, ExecResponse, SessionInfo, SessionKind, TtySize, Uploaded};
pub use wire::desktop::{
    Action, FrameFormat, KeyEvent, PointerAction, PointerButton, PointerEvent, ResizeRequest,
    ScreenshotResponse, ScrollEvent, SendActionsResponse, StepRequest, StepResponse,
};
pub use wire::rest::{
    Activity, BuildLogEvent, BuildSpec, BuildStep, CreateSandbox, CreateSecret, CreateSnapshot,
    CreateTemplate, CreatedTemplate, DirectoryEntry, DirectoryListing, EnvStep, LogSource, NetworkEvent,
    NetworkLists, NetworkPage, PatchSandbox, Preview, PreviewPort, PreviewPorts, PreviewRequest,
    PreviewToken, PreviewTraffic, Provider, Sandbox, SandboxListItem, Secret, SecretAuditEvent, SecretAuth,
    SecretBinding, SecretSandbox, Snapshot, SnapshotResources, Template, TemplateBuild, UserStep,
};
pub use wire::well_known::Descriptor;
