//! The control plane (`spec/rest-api.md`). Request types refuse unknown fields (§1.4); answers leave unset fields out
//! (§1.5).

mod activity;
mod error;
mod network;
mod preview;
mod sandbox;
mod secret;
mod snapshot;
mod template;

pub use activity::Activity;
pub use error::{ErrorBody, ErrorDetail};
pub use network::{NetworkEvent, NetworkPage};
pub use preview::{
    MintPreviewToken, Preview, PreviewPort, PreviewPorts, PreviewRequest, PreviewToken, PreviewTraffic,
    PublishPort,
};
pub use sandbox::{
    CreateSandbox, DirectoryEntry, DirectoryListing, NetworkLists, PatchSandbox, PauseAccepted, Resumed,
    Sandbox, SandboxListItem, SecretBinding,
};
pub use secret::{
    AttachSecret, CreateSecret, Provider, RotateSecret, Secret, SecretAuditEvent, SecretAuth, SecretSandbox,
};
pub use snapshot::{CreateSnapshot, RenameSnapshot, SNAPSHOT_KIND, Snapshot, SnapshotResources};
pub use template::{
    BuildLogEvent, BuildSpec, BuildStep, CreateTemplate, CreatedTemplate, EnvStep, LogSource, Template,
    TemplateBuild, UserStep,
};
