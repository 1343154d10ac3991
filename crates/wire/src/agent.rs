//! The private protocol between the platform and the guest agent, below `/_agent/`. The edge never lets it through;
//! only `node` speaks it. It is HTTP over the same byte stream as the data plane.

mod pack;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `PUT`: an [`AgentConfig`] that replaces the previous one; 204. Commands are refused with 503 before the first one.
pub const CONFIG_PATH: &str = "/_agent/config";
/// `GET`: 200 as soon as the agent serves.
pub const HEALTH_PATH: &str = "/_agent/health";
/// `GET …?port=N` with `Connection: Upgrade`, `Upgrade: tcp`: 101, then the bytes of a TCP connection to that port on
/// any local address; 502 when nothing listens.
pub const DIAL_PATH: &str = "/_agent/dial";

/// How long the first configuration waits for `ready_cmd`, seconds: well within the time clients give a create.
pub const READY_WITHIN_S: u64 = 10;

/// What every new process in the sandbox starts with. Values may be private: neither `Debug` nor the agent prints them.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentConfig {
    /// Variables of the template, above the guest base.
    #[serde(default)]
    pub template_env: BTreeMap<String, String>,
    /// Variables of the sandbox, above the template's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Default working directory.
    #[serde(default)]
    pub workdir: Option<String>,
    /// Default user name or numeric id; root when unset.
    #[serde(default)]
    pub user: Option<String>,
    /// Started with the first configuration, and again after each boot; older agents do not know it.
    #[serde(default)]
    pub start_cmd: Option<String>,
    /// The first configuration is answered when this has succeeded, or after [`READY_WITHIN_S`].
    #[serde(default)]
    pub ready_cmd: Option<String>,
    /// An authority that programs are to trust from now on; the agent enters it into the guest's stores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<Trust>,
}

/// An authority, for guests whose secrets are used on the way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// Its certificate (PEM).
    pub authority: String,
    /// `openssl x509 -subject_hash` of it.
    pub subject_hash: String,
    /// Public roots (PEM) for guests that have none of their own.
    #[serde(default)]
    pub roots: String,
}

impl std::fmt::Debug for AgentConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentConfig")
            .field("workdir", &self.workdir)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// The process the engine starts in the guest is `superserve-agent guest`, PID 1, with the environment below.
/// Descriptors are inherited; the agent closes them to its children.
pub mod boot {
    /// Number of the inherited listening Unix socket on which the agent serves.
    pub const LISTEN_FD: &str = "SUPERSERVE_LISTEN_FD";
    /// Comma-separated numbers of inherited, writable `cgroup.procs` files: each child writes `0` to all of them
    /// before it runs, which moves it under the workload limits while the agent stays outside. May be empty.
    pub const CGROUP_FDS: &str = "SUPERSERVE_CGROUP_FDS";
    /// Most processes a child may have; the workload's share of the sandbox.
    pub const NPROC: &str = "SUPERSERVE_NPROC";
}

/// What the driver of virtual machines and the outer half of the agent, the first process of the guest's kernel, agree on.
///
/// The virtual serial port is one byte stream that outlives any server. Each server begins with a *call*: [`PREFIX`], the
/// machine's mark and eight bytes of its own choice. Wherever the guest finds prefix and mark, also in the middle of
/// something, whatever was before is over; it answers with the mark's complement and the same eight bytes, and HTTP/2 follows
/// in both directions. `CONNECT` opens a stream to the agent, [`CLOCK_PATH`] sets the clock, [`PACK_PATH`] packs
/// what was written.
///
/// What clients send passes through the same stream, so nobody but the server and the guest's first process may know the
/// mark: the first call after a boot tells it. The prefix is public. Only by it does the guest hold bytes back until more
/// arrive, so that nobody finds the mark byte by byte by what is late.
pub mod vm {
    pub use super::pack::{PACK_PATH, PackEnd, PackRequest};

    /// Name of the virtual serial port.
    pub const PORT: &str = "superserve";
    /// Where the guest listens on vsock: only its root's init may take a port below 1024. Each connection is what a call is on
    /// the virtual serial port, without a mark: nobody but the host can make one.
    pub const VSOCK_PORT: u32 = 1_010;
    /// What begins a call.
    pub const PREFIX: [u8; 8] = *b"\xe7\x1asscall";
    /// Length of the mark.
    pub const MARK_BYTES: usize = 16;
    /// Length of what follows it in a call.
    pub const NONCE_BYTES: usize = 8;
    /// Length of a call.
    pub const CALL_BYTES: usize = PREFIX.len() + MARK_BYTES + NONCE_BYTES;
    /// Most streams open at once; one more than the agent accepts.
    pub const MAX_STREAMS: u32 = 401;
    /// Bytes of one stream that may be under way to a reader which does not read.
    pub const STREAM_WINDOW: u32 = 64 * 1024;
    /// The same for all streams together: no number of stalled ones holds up the others.
    pub const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
    /// Heads are a method and a path.
    pub const MAX_HEAD_BYTES: u32 = 4 * 1024;
    /// `PUT …?<nanoseconds since 1970>`: sets the clock; 204.
    pub const CLOCK_PATH: &str = "/clock";
    /// First argument of the agent as the kernel's first process.
    pub const ARGUMENT: &str = "vm";
    /// Where the initial file system has the kernel's modules, in the order of their names.
    pub const MODULES_DIR: &str = "/modules";

    /// Words of the kernel's command line, each `NAME=value`. The dot keeps the kernel from passing them on.
    pub mod word {
        /// The guest's address.
        pub const ADDRESS: &str = "superserve.address";
        /// The router's address on the same link.
        pub const GATEWAY: &str = "superserve.gateway";
        /// The host name.
        pub const HOSTNAME: &str = "superserve.hostname";
        /// As `SUPERSERVE_NPROC`.
        pub const NPROC: &str = "superserve.nproc";
        /// The vsock port to listen on, where there is no virtual serial port.
        pub const VSOCK: &str = "superserve.vsock";
    }

    /// What the answer to a call begins with.
    #[must_use]
    pub fn answer_mark(mark: [u8; MARK_BYTES]) -> [u8; MARK_BYTES] {
        mark.map(|byte| !byte)
    }
}
