//! What the platform remembers, and the only SQL there is. Rows live next to their queries, one file per resource;
//! methods are noun-first. The queries keep to what SQLite and PostgreSQL both accept.
//!
//! Nothing here decides: which state may follow which is `lifecycle`'s business. This crate must never log or print a
//! value it keeps.

mod activity;
mod binding;
mod build;
mod columns;
mod database;
mod error;
mod key;
pub mod keys;
mod network_log;
mod oauth;
mod policy;
mod preview;
mod problem;
mod sandbox;
mod sandbox_list;
mod secret;
mod secret_audit;
mod snapshot;
mod team;
mod template;
#[cfg(test)]
mod tests;

pub use activity::{ActivityFilter, ActivityRow, PRUNE_STEP};
pub use binding::{BindingRow, BoundSandbox};
pub use build::{BuildQuota, BuildRow, BuildWritten, BuiltImage, CachedStep, TemplateRemoved};
pub use columns::spec_text as canonical_spec;
pub use database::Store;
pub use error::StoreError;
pub use key::KeyRow;
pub use network_log::{NetworkBefore, NetworkFilter, NetworkRetention, NetworkRow};
pub use oauth::{OauthClientRow, OauthGrant, OauthGrantRow, OauthGrantSummary};
pub use preview::PreviewRow;
pub use sandbox::{BUILD_LINKS, SandboxRow, SandboxSummary, TokenNumbers, Written};
pub use sandbox_list::{Page, SandboxFilter, SandboxSort};
pub use secret::{Sealed, SecretRow};
pub use secret_audit::{AuditFilter, AuditRow};
pub use snapshot::{SnapshotBegun, SnapshotRemoved, SnapshotRow};
pub use team::{TeamRow, system_team};
pub use template::{TemplateFilter, TemplateOwner, TemplateRow, TemplateSort};
