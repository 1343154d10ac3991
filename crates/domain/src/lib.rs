//! What a sandbox is, in plain data: identifiers, states, shapes, limits, network rules and the one error shape that
//! callers see. This crate is pure: no async, no HTTP, no SQL, no serialisation. `wire` says how these values are
//! published, `store` how they are kept.

mod address;
mod build;
mod credential;
mod engine;
mod id;
mod limits;
mod metadata;
mod network;
mod network_log;
mod preview;
mod problem;
mod sandbox;
mod secret;
mod shape;
mod snapshot;
mod time;

pub use address::{INTERNAL_NETWORKS, NO_NETWORKS, is_internal, networks};
pub use build::{BuildSpec, BuildStep, FROM_TEMPLATE, template_name};
pub use credential::{
    Auth, AuthRule, AuthScheme, AuthType, BoundSecret, Credentials, NoValue, SecretOptions, SecretPolicy,
    StandIn, VALUE_PLACE,
};
pub use engine::{Engine, NoSuchEngine, Offer};
pub use id::{BadId, BuildId, SandboxId, SecretId, SnapshotId, TeamId, TemplateId};
pub use limits::*;
pub use metadata::{EnvVars, Metadata};
pub use network::{BadRule, Cidr, DomainPattern, EgressRules, Ruling};
pub use network_log::{
    Attempt, ConnectionAttempt, DnsAttempt, MAX_LOGGED_HOST, MAX_LOGGED_METHOD, MAX_LOGGED_PATH, MatchRule,
    NetworkEvent, NetworkKind, NetworkSink, NetworkVerdict, PacketAttempt, RequestAttempt,
};
pub use preview::{PreviewPort, Published};
pub use problem::{Action, BoxError, Code, NextStep, Problem};
pub use sandbox::{BuildStatus, PreviewAccess, SandboxState, TemplateStatus, Timeouts, UnknownName};
pub use secret::Secret;
pub use shape::{RuntimeDefaults, Shape};
pub use snapshot::{Captured, SnapshotStatus, idempotency_key, snapshot_name};
pub use time::{format_timestamp, parse_timestamp};
