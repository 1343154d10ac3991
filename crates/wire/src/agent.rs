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

/// `PUT`: makes a guest whose kernel is a process (gVisor) ready to be written out, and says whether it can be: 204, or 409 with
/// what stands in the way.
pub const SETTLE_PATH: &str = "/_agent/settle";

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
    /// Set where the agent's standard input and output are the port ([`super::vm`]) and no socket is inherited: the kernel is
    /// a process of the host's that takes none (gVisor). What that kernel lacks is not asked of it.
    pub const PORT: &str = "SUPERSERVE_PORT";
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
/// in both directions. `CONNECT` opens a stream to the agent; [`STILL_PATH`], [`IDENTITY_PATH`] and [`CLOCK_PATH`] concern the
/// machine itself, and [`PACK_PATH`] packs what was written.
///
/// What is written to disk of a machine is written while its workload stands still *inside* the guest: whoever continues
/// from it, be it another machine, has the guest's kernel and first process to itself, and sets right what must be, before any
/// process of the workload runs again.
///
/// What clients send passes through the same stream, so nobody but the server and the guest's first process may know the
/// mark: the first call after a boot tells it. The prefix is public. Only by it does the guest hold bytes back until more
/// arrive, so that nobody finds the mark byte by byte by what is late.
pub mod vm {
    pub use super::pack::{PACK_PATH, PackEnd, PackRequest};
    use std::net::Ipv4Addr;

    /// Name of the virtual serial port.
    pub const PORT: &str = "superserve";
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
    /// `PUT`: stops the workload and the agent, inside the guest; 204. Machines that are older do not know it.
    pub const STILL_PATH: &str = "/still";
    /// `PUT …?<identity>`: the guest is another machine from now on, as [`Identity::query`] says; 204. Its next caller has
    /// the new mark. May be repeated.
    pub const IDENTITY_PATH: &str = "/identity";
    /// `PUT …?<nanoseconds since 1970>`: sets the clock, and lets go on what stands still; 204.
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
    }

    /// Length of [`Identity::seed`].
    pub const SEED_BYTES: usize = 64;

    /// What makes a machine another one than that whose memory it continues.
    #[derive(Clone, PartialEq, Eq)]
    pub struct Identity {
        /// Its address.
        pub address: Ipv4Addr,
        /// The router's address on the same link.
        pub gateway: Ipv4Addr,
        /// Its host name.
        pub hostname: String,
        /// Its mark.
        pub mark: [u8; MARK_BYTES],
        /// For the kernel's random numbers, which would else be those of all who continue the same memory.
        pub seed: [u8; SEED_BYTES],
    }

    impl std::fmt::Debug for Identity {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Identity").field("hostname", &self.hostname).finish_non_exhaustive()
        }
    }

    impl Identity {
        /// As the query of a request.
        #[must_use]
        pub fn query(&self) -> String {
            let (mark, seed) = (hex(&self.mark), hex(&self.seed));
            format!("{}&{}&{}&{mark}&{seed}", self.address, self.gateway, self.hostname)
        }

        /// Out of the query of a request; `None` when it is none.
        #[must_use]
        pub fn parse(query: &str) -> Option<Self> {
            let words: Vec<&str> = query.split('&').collect();
            let [address, gateway, hostname, mark, seed] = words.as_slice() else { return None };
            let named = !hostname.is_empty()
                && hostname.len() <= 64
                && hostname.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            named.then_some(Self {
                address: address.parse().ok()?,
                gateway: gateway.parse().ok()?,
                hostname: (*hostname).to_owned(),
                mark: unhex(mark)?,
                seed: unhex(seed)?,
            })
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
        if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; N];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(bytes)
    }

    /// The hardware address of the guest's link.
    #[must_use]
    pub fn hardware_address(guest: Ipv4Addr) -> [u8; 6] {
        let [_, _, c, d] = guest.octets();
        [0x02, 0x53, 0x53, 0x00, c, d]
    }

    /// What the answer to a call begins with.
    #[must_use]
    pub fn answer_mark(mark: [u8; MARK_BYTES]) -> [u8; MARK_BYTES] {
        mark.map(|byte| !byte)
    }
}

#[cfg(test)]
mod tests {
    use super::vm::{Identity, MARK_BYTES, SEED_BYTES};

    #[test]
    fn an_identity_comes_through_whole_or_not_at_all() {
        let identity = Identity {
            address: [100, 96, 0, 7].into(),
            gateway: [100, 96, 0, 6].into(),
            hostname: "sandbox-0b8e6b1e".to_owned(),
            mark: [0xa7; MARK_BYTES],
            seed: [9; SEED_BYTES],
        };
        let query = identity.query();
        assert_eq!(Identity::parse(&query), Some(identity.clone()));
        for cut in 0..query.len() {
            assert_eq!(Identity::parse(&query[..cut]), None, "{cut}");
        }
        for wrong in ["sandbox-0b8e6b1e/", "", "sandbox 1", &"x".repeat(65)] {
            assert_eq!(Identity::parse(&query.replace("sandbox-0b8e6b1e", wrong)), None, "{wrong}");
        }
        assert_eq!(Identity::parse(&query.replace("a7a7", "a7g7")), None);
        assert_eq!(Identity::parse(&format!("{query}&more")), None);
        let shown = format!("{identity:?}");
        assert!(!shown.contains("167") && !shown.contains("a7"), "{shown}");
    }
}
