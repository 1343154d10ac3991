//! What a template gives every sandbox made from it.

use std::collections::BTreeMap;

/// Compute of a sandbox, fixed by its template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Processors, 1 to 10.
    pub vcpu: u32,
    /// Memory, MiB, 256 to 20480.
    pub memory_mib: u32,
    /// Writable disk, MiB, 1024 to 65536.
    pub disk_mib: u32,
}

/// Defaults for every process that starts in the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeDefaults {
    /// Variables below the sandbox's own and above the guest base.
    pub env: BTreeMap<String, String>,
    /// Working directory when a command names none.
    pub workdir: Option<String>,
    /// User that commands run as; root when unset.
    pub user: Option<String>,
    /// Runs in every sandbox from its start.
    pub start_cmd: Option<String>,
    /// Succeeds once `start_cmd` serves.
    pub ready_cmd: Option<String>,
}
