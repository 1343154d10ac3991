//! Every number a caller can run into, with its unit. Sources: `spec/rest-api.md` §4.5, §7, §10.3; `spec/semantics.md`.

/// Longest sandbox name, bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Largest `timeout_seconds`: seven days.
pub const MAX_TIMEOUT_SECONDS: u32 = 604_800;
/// Largest `auto_delete_seconds`: thirty days.
pub const MAX_AUTO_DELETE_SECONDS: u32 = 2_592_000;
/// Most metadata keys of one sandbox.
pub const MAX_METADATA_KEYS: usize = 64;
/// Longest metadata key, bytes.
pub const MAX_METADATA_KEY_BYTES: usize = 256;
/// Longest metadata value, bytes.
pub const MAX_METADATA_VALUE_BYTES: usize = 2_048;
/// Largest metadata object, bytes of its JSON text.
pub const MAX_METADATA_BYTES: usize = 16_384;
/// Most environment variables of one sandbox.
pub const MAX_ENV_KEYS: usize = 64;
/// Longest environment variable name, bytes.
pub const MAX_ENV_KEY_BYTES: usize = 256;
/// Longest environment variable value, bytes.
pub const MAX_ENV_VALUE_BYTES: usize = 8_192;
/// All environment variables of one sandbox together, bytes of names and values.
pub const MAX_ENV_BYTES: usize = 65_536;
/// Most entries of one egress list.
pub const MAX_EGRESS_ENTRIES: usize = 256;
/// Rows of one page of a list; larger wishes are clamped.
pub const MAX_PAGE: u32 = 200;
/// The template used when a create names none.
pub const DEFAULT_TEMPLATE: &str = "superserve/base";
/// Names below this prefix are the platform's own.
pub const RESERVED_TEMPLATE_PREFIX: &str = "superserve/";
/// The port of the guest agent in the reference service; never previewable.
pub const CONTROL_PORT: u16 = 49_983;
/// Longest template name, bytes.
pub const MAX_TEMPLATE_NAME_BYTES: usize = 128;
/// Most steps of a build: more than any image has layers.
pub const MAX_BUILD_STEPS: usize = 200;
/// Longest command of a build, bytes.
pub const MAX_COMMAND_BYTES: usize = 65_536;
/// Longest image reference, bytes.
pub const MAX_IMAGE_BYTES: usize = 512;
/// Longest path of a build, bytes: `PATH_MAX` of Linux.
pub const MAX_PATH_BYTES: usize = 4_095;
/// Longest user name of a build, bytes.
pub const MAX_USER_BYTES: usize = 31;
/// Most processors of a template (`spec/rest-api.md` §15, open point 1).
pub const MAX_VCPU: u32 = 10;
/// Memory of a template, MiB.
pub const MEMORY_MIB: std::ops::RangeInclusive<u32> = 256..=20_480;
/// Disk of a template, MiB.
pub const DISK_MIB: std::ops::RangeInclusive<u32> = 1_024..=65_536;
/// Ports below are not for users and never previewable.
pub const FIRST_PREVIEW_PORT: u16 = 1_024;
/// Longest life of a preview token that ends: seven days.
pub const MAX_PREVIEW_TOKEN_SECONDS: u32 = 604_800;
/// Most ports of one sandbox that are published at once.
pub const MAX_PREVIEW_PORTS: usize = 256;
/// Longest name of a saved snapshot, bytes.
pub const MAX_SNAPSHOT_NAME_BYTES: usize = 64;
/// Longest idempotency key of a saved snapshot, bytes (`spec/rest-api.md` §5).
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;
/// Saved snapshots of one team.
pub const MAX_SNAPSHOTS: u32 = 100;
/// Saved snapshots of one sandbox.
pub const MAX_SNAPSHOTS_OF_SANDBOX: u32 = 20;
/// Snapshots of one team that are being saved at once.
pub const MAX_SNAPSHOTS_IN_FLIGHT: u32 = 4;
/// Most layers of a sandbox. The kernel stacks 500, but its mount options have room for a page of names, about 200; and
/// each layer is one more place to look for every file.
pub const MAX_LAYERS: usize = 100;
