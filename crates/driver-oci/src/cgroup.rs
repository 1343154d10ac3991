//! The cgroups of a machine, on version 1 (one hierarchy per controller) and version 2 (one for all).
//!
//! ```text
//! superserve-<instance>/<id>         workload's limits and a margin for the agent; freezer
//!     agent                          the agent alone: never hit by the workload's limits, never crowded out by it
//!     work                           everything the agent starts: the template's memory, process and processor limits
//! ```
//!
//! The agent moves its children into `work` through descriptors that we opened: the kernel judges the opener, so the
//! guest needs, and has, no right of its own on any cgroup.
//!
//! Device rules are the runtime's, on `agent`. On version 1 the workload stays under them; on version 2 it does not, and
//! rests on what already keeps devices away: no `mknod` in a user namespace, and a root mounted `nodev`.

use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::SandboxId;
use driver::cgroup::{self, CPU_PERIOD_USEC, ROOT, remove_tree, write};
use driver::{DriverError, MachineLimits, Power, Usage};
use rustix::process::{Pid, Signal};

use crate::fuse;

/// The agent's own memory on top of the workload's limit, MiB: it needs less than 10, its read and write buffers more.
const AGENT_MEMORY_MIB: u64 = 64;
/// The agent's threads, and the moment between a fork and the move to `work`.
const AGENT_PIDS: u64 = 64;
/// The agent's own processor time per period, microseconds: a workload that has used up its quota must not stop the
/// agent, which would have to end it, and a guest must not have the agent burn more than this for it.
const AGENT_CPU_USEC: u64 = CPU_PERIOD_USEC;
/// The kernel's default, which the agent's cgroup has too: against however many busy processes, it gets half when it
/// wants it.
const CPU_SHARES: u64 = 1_024;
/// The part of a workload's memory that may lie in network sockets besides, on version 1: at its end sockets get slow.
const SOCKETS_PART: u64 = 4;
/// Polls after which a freeze is stuck rather than slow.
const STUCK_AFTER: u32 = 20;
/// Time for an `exec` to finish.
const BREATH: Duration = Duration::from_millis(5);
/// Freezing is over within a millisecond unless a process sleeps uninterruptibly.
const FREEZE_LIMIT: Duration = Duration::from_secs(5);
/// Killed processes need a moment to leave their cgroup.
const CLEAR_LIMIT: Duration = Duration::from_secs(10);
/// What is killed and does not go at once waits for something: only then is it looked for.
const STUCK: Duration = Duration::from_millis(200);
/// The kernel offers no event for either on version 1.
const POLL: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Version {
    /// Directories of all mounted hierarchies.
    V1(Vec<PathBuf>),
    V2,
}

/// The cgroups below this server's own.
#[derive(Debug)]
pub(crate) struct Cgroups {
    version: Version,
    root: PathBuf,
    parent: String,
    /// Ids of guests on the host.
    guests: Range<u32>,
}

impl Cgroups {
    pub(crate) fn open(instance: &str, guests: Range<u32>) -> io::Result<Self> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if instance.is_empty() || !instance.bytes().all(plain) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an instance is letters, digits, hyphens",
            ));
        }
        let root = PathBuf::from(ROOT);
        let cgroups =
            Self { version: detect(&root)?, root, parent: format!("superserve-{instance}"), guests };
        if cgroups.version == Version::V2 {
            cgroups.delegate(&cgroups.root)?;
        }
        Ok(cgroups)
    }

    /// Where the runtime puts the agent, in its own notation.
    pub(crate) fn agent_path(&self, id: SandboxId) -> PathBuf {
        Path::new("/").join(&self.parent).join(id.to_string()).join("agent")
    }

    /// The machine's cgroup for one controller; on version 2 all controllers share one.
    fn machine(&self, controller: &str, id: SandboxId) -> PathBuf {
        self.base(controller).join(&self.parent).join(id.to_string())
    }

    fn base(&self, controller: &str) -> PathBuf {
        match self.version {
            Version::V1(_) => self.root.join(controller),
            Version::V2 => self.root.clone(),
        }
    }

    /// Version 2 hands controllers down only where told to.
    fn delegate(&self, dir: &Path) -> io::Result<()> {
        write(&dir.join("cgroup.subtree_control"), "+cpu +memory +pids")
    }

    /// Makes the cgroups with their limits, and returns the descriptors with which the agent moves its children.
    pub(crate) fn prepare(&self, id: SandboxId, limits: &MachineLimits) -> io::Result<Vec<OwnedFd>> {
        let files = limit_files(&self.version, limits);
        for (controller, below, ..) in &files {
            let machine = self.machine(controller, id);
            let dir = if *below { machine.join("work") } else { machine.clone() };
            fs::create_dir_all(&dir)?;
            if self.version == Version::V2 {
                // From the top down, each before its children can have limits.
                self.delegate(&self.root.join(&self.parent))?;
                self.delegate(&machine)?;
            }
        }
        for (controller, below, file, value) in &files {
            let machine = self.machine(controller, id);
            let dir = if *below { machine.join("work") } else { machine };
            match write(&dir.join(file), value) {
                // Kernels that do not count these lack the file, and then there is nothing to limit.
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_optional(file) => {}
                other => other?,
            }
        }
        let limiting: &[&str] = match self.version {
            Version::V1(_) => &["memory", "pids", "cpu"],
            Version::V2 => &["memory"],
        };
        let open = |controller: &&str| {
            let procs = self.machine(controller, id).join("work/cgroup.procs");
            OpenOptions::new().write(true).open(procs).map(OwnedFd::from)
        };
        limiting.iter().map(open).collect()
    }

    /// For machines whose kernel is a process (gVisor), all in one cgroup: what the runtime has set there for the guest to see
    /// is lifted, since the machine's own limits have room for that process besides. When memory runs out that process goes
    /// first: the guest's memory is its, and ending any other frees none.
    pub(crate) fn settle_sentry(&self, id: SandboxId, sentry: i32) -> io::Result<()> {
        let (file, none) = match self.version {
            Version::V1(_) => ("memory.limit_in_bytes", "-1"),
            Version::V2 => ("memory.max", "max"),
        };
        write(&self.machine("memory", id).join("agent").join(file), none)?;
        fs::write(format!("/proc/{sentry}/oom_score_adj"), "1000")
    }

    /// Processes where the runtime puts them.
    pub(crate) fn processes(&self, id: SandboxId) -> io::Result<Vec<i32>> {
        let pids = fs::read_to_string(self.machine("memory", id).join("agent/cgroup.procs"))?;
        Ok(pids.lines().filter_map(|line| line.parse().ok()).collect())
    }

    fn freezer(&self, id: SandboxId) -> PathBuf {
        let file = match self.version {
            Version::V1(_) => "freezer.state",
            Version::V2 => "cgroup.freeze",
        };
        self.machine("freezer", id).join(file)
    }

    pub(crate) async fn set_frozen(&self, id: SandboxId, wanted: bool) -> Result<(), DriverError> {
        let order = match (&self.version, wanted) {
            (Version::V1(_), true) => "FROZEN",
            (Version::V1(_), false) => "THAWED",
            (Version::V2, true) => "1",
            (Version::V2, false) => "0",
        };
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => DriverError::Gone,
            _ => DriverError::io("use the freezer")(error),
        };
        let settle = async {
            loop {
                for _ in 0..STUCK_AFTER {
                    // Repeated: version 1 gives up on a process that was just being forked.
                    write(&self.freezer(id), order).map_err(failed)?;
                    if self.frozen(id).map_err(failed)? == wanted {
                        return Ok(());
                    }
                    tokio::time::sleep(POLL).await;
                }
                // A program with threads that is just being replaced (exec) waits for its other threads to end, and
                // version 1 has them frozen: only a moment of running resolves that.
                self.release(id).map_err(failed)?;
                tokio::time::sleep(BREATH).await;
            }
        };
        match tokio::time::timeout(FREEZE_LIMIT, settle).await {
            Ok(result) => result,
            Err(_) => {
                // A machine is never left between the two states by us.
                let _undone = self.release(id);
                let limit_ms = u64::try_from(FREEZE_LIMIT.as_millis()).unwrap_or(u64::MAX);
                Err(DriverError::Timeout { what: "freezing the machine", limit_ms })
            }
        }
    }

    /// Lets all processes run, without waiting; nothing to do when the cgroup is gone.
    pub(crate) fn release(&self, id: SandboxId) -> io::Result<()> {
        let order = if self.version == Version::V2 { "0" } else { "THAWED" };
        match write(&self.freezer(id), order) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Whether a machine's processes run.
    pub(crate) fn power(&self, id: SandboxId) -> Result<Power, DriverError> {
        let frozen = self.frozen(id).map_err(or_gone("read the freezer"))?;
        Ok(if frozen { Power::Frozen } else { Power::Running })
    }

    fn frozen(&self, id: SandboxId) -> io::Result<bool> {
        match self.version {
            Version::V1(_) => Ok(fs::read_to_string(self.freezer(id))?.trim() == "FROZEN"),
            Version::V2 => {
                let events = fs::read_to_string(self.machine("", id).join("cgroup.events"))?;
                Ok(events.lines().any(|line| line == "frozen 1"))
            }
        }
    }

    /// What a machine uses.
    pub(crate) fn usage(&self, id: SandboxId) -> Result<Usage, DriverError> {
        self.read_usage(id).map_err(or_gone("read the machine's use"))
    }

    fn read_usage(&self, id: SandboxId) -> io::Result<Usage> {
        let number = |controller: &str, file: &str| -> io::Result<u64> {
            let text = fs::read_to_string(self.machine(controller, id).join(file))?;
            text.trim().parse().map_err(|_| io::Error::other(format!("{file} is not a number")))
        };
        match self.version {
            Version::V1(_) => Ok(Usage {
                memory_bytes: number("memory", "memory.usage_in_bytes")?,
                cpu_usec: number("cpuacct", "cpuacct.usage")? / 1_000,
                pids: number("pids", "pids.current")?,
            }),
            Version::V2 => {
                let stat = fs::read_to_string(self.machine("cpu", id).join("cpu.stat"))?;
                let cpu = stat.lines().find_map(|line| line.strip_prefix("usage_usec "));
                Ok(Usage {
                    memory_bytes: number("memory", "memory.current")?,
                    cpu_usec: cpu.and_then(|n| n.parse().ok()).unwrap_or(0),
                    pids: number("pids", "pids.current")?,
                })
            }
        }
    }

    /// This server's directory in every hierarchy.
    fn parents(&self) -> impl Iterator<Item = PathBuf> {
        let hierarchies = match &self.version {
            Version::V1(hierarchies) => hierarchies.as_slice(),
            Version::V2 => std::slice::from_ref(&self.root),
        };
        hierarchies.iter().map(|hierarchy| hierarchy.join(&self.parent))
    }

    /// The machine's directory in every hierarchy.
    fn machines(&self, id: SandboxId) -> Vec<PathBuf> {
        self.parents().map(|parent| parent.join(id.to_string())).collect()
    }

    /// Thousands of processes need processor time to end, too: what is being killed is not held back any more.
    fn lift_quota(&self, id: SandboxId) {
        let (file, none) = match self.version {
            Version::V1(_) => ("cpu.cfs_quota_us", "-1"),
            Version::V2 => ("cpu.max", "max"),
        };
        let machine = self.machine("cpu", id);
        for dir in [machine.join("work"), machine] {
            // Without it they end more slowly; some may be gone already.
            let _as_fast_as_may_be = fs::write(dir.join(file), none);
        }
    }

    /// Kills what is in the machine's cgroups, once; `stuck` also what does not hear a kill.
    async fn kill(&self, id: SandboxId, stuck: bool) -> io::Result<()> {
        let mut killed = Vec::new();
        for machine in self.machines(id) {
            kill_tree(&machine, &mut killed)?;
        }
        self.lift_quota(id);
        // Where the freezer holds back signals (cgroup v1), the kill takes effect only now.
        self.release(id)?;
        if !stuck {
            return Ok(());
        }
        killed.sort_unstable();
        killed.dedup();
        let guests = self.guests.clone();
        // It reads as much as a guest has open files.
        tokio::task::spawn_blocking(move || fuse::abort(&killed, &guests)).await.map_err(io::Error::other)?
    }

    /// Kills until `ended`; for a machine whose first process does not end by being killed alone: its threads may wait for
    /// other processes of the guest.
    pub(crate) async fn kill_until(
        &self,
        id: SandboxId,
        ended: impl Future<Output = io::Result<()>>,
    ) -> io::Result<()> {
        let mut ended = std::pin::pin!(ended);
        loop {
            if let Ok(ended) = tokio::time::timeout(STUCK, &mut ended).await {
                return ended;
            }
            self.kill(id, true).await?;
        }
    }

    /// Kills whatever is left in the machine's cgroups and removes them.
    pub(crate) async fn clear(&self, id: SandboxId) -> Result<(), DriverError> {
        let start = tokio::time::Instant::now();
        let settle = async {
            for machine in self.machines(id) {
                while !remove_tree(&machine)? {
                    self.kill(id, start.elapsed() > STUCK).await?;
                    tokio::time::sleep(POLL).await;
                }
            }
            io::Result::Ok(())
        };
        match tokio::time::timeout(CLEAR_LIMIT, settle).await {
            Ok(result) => result.map_err(DriverError::io("remove the machine's cgroups")),
            Err(_) => {
                let limit_ms = u64::try_from(CLEAR_LIMIT.as_millis()).unwrap_or(u64::MAX);
                Err(DriverError::Timeout { what: "emptying the machine's cgroups", limit_ms })
            }
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for parent in self.parents() {
            // Machines outlive the server, and the kernel keeps a cgroup that has any below it.
            let _kept = fs::remove_dir(parent);
        }
    }
}

fn is_optional(file: &str) -> bool {
    file.contains("memsw") || file.contains("swap") || file.contains("kmem.tcp")
}

/// Controller, whether it is the workload's cgroup (else the machine's), file and value, in the order of writing.
type LimitFile = (&'static str, bool, &'static str, String);

fn limit_files(version: &Version, limits: &MachineLimits) -> Vec<LimitFile> {
    let work = u64::from(limits.memory_mib) * 1024 * 1024;
    let machine = work + AGENT_MEMORY_MIB * 1024 * 1024;
    let pids = u64::from(limits.pids);
    let quota = u64::from(limits.vcpu) * CPU_PERIOD_USEC;
    let machine_quota = quota + AGENT_CPU_USEC;
    match version {
        // Memory and swap together may not be set below memory alone, hence the order.
        Version::V1(_) => vec![
            ("memory", false, "memory.limit_in_bytes", machine.to_string()),
            ("memory", false, "memory.memsw.limit_in_bytes", machine.to_string()),
            ("memory", true, "memory.limit_in_bytes", work.to_string()),
            ("memory", true, "memory.memsw.limit_in_bytes", work.to_string()),
            // Version 1 counts what lies in network sockets apart, and not at all without this limit.
            ("memory", true, "memory.kmem.tcp.limit_in_bytes", (work / SOCKETS_PART).to_string()),
            ("pids", false, "pids.max", (pids + AGENT_PIDS).to_string()),
            ("pids", true, "pids.max", pids.to_string()),
            ("cpu", false, "cpu.cfs_period_us", CPU_PERIOD_USEC.to_string()),
            ("cpu", false, "cpu.cfs_quota_us", machine_quota.to_string()),
            ("cpu", true, "cpu.cfs_period_us", CPU_PERIOD_USEC.to_string()),
            ("cpu", true, "cpu.cfs_quota_us", quota.to_string()),
            ("cpu", true, "cpu.shares", CPU_SHARES.to_string()),
            ("freezer", false, "freezer.state", "THAWED".to_owned()),
        ],
        Version::V2 => vec![
            ("memory", false, "memory.max", machine.to_string()),
            ("memory", false, "memory.swap.max", "0".to_owned()),
            ("memory", true, "memory.max", work.to_string()),
            ("memory", true, "memory.swap.max", "0".to_owned()),
            ("pids", false, "pids.max", (pids + AGENT_PIDS).to_string()),
            ("pids", true, "pids.max", pids.to_string()),
            ("cpu", false, "cpu.max", format!("{machine_quota} {CPU_PERIOD_USEC}")),
            ("cpu", true, "cpu.max", format!("{quota} {CPU_PERIOD_USEC}")),
        ],
    }
}

fn detect(root: &Path) -> io::Result<Version> {
    if cgroup::is_unified(root) {
        return Ok(Version::V2);
    }
    let mut hierarchies = Vec::new();
    for entry in fs::read_dir(root)? {
        // Joined hierarchies appear under several names, as links to one directory.
        let dir = fs::canonicalize(entry?.path())?;
        if dir.join("cgroup.procs").exists() && !hierarchies.contains(&dir) {
            hierarchies.push(dir);
        }
    }
    for needed in ["cpu", "cpuacct", "freezer", "memory", "pids"] {
        if !root.join(needed).join("cgroup.procs").exists() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("the cgroup controller `{needed}` is not mounted below {}", root.display()),
            ));
        }
    }
    Ok(Version::V1(hierarchies))
}

fn kill_tree(dir: &Path, killed: &mut Vec<i32>) -> io::Result<()> {
    let pids = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in pids.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw) {
        match rustix::process::kill_process(pid, Signal::KILL) {
            Ok(()) => killed.push(pid.as_raw_pid()),
            Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            kill_tree(&entry.path(), killed)?;
        }
    }
    Ok(())
}

/// A machine without its cgroups has ended.
fn or_gone(what: &'static str) -> impl FnOnce(io::Error) -> DriverError {
    move |error| match error.kind() {
        io::ErrorKind::NotFound => DriverError::Gone,
        _ => DriverError::io(what)(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: MachineLimits = MachineLimits { vcpu: 2, memory_mib: 1024, pids: 4096 };

    fn shown(version: &Version) -> String {
        let dir = |below: bool| if below { "work" } else { "." };
        let lines = limit_files(version, &LIMITS);
        lines.iter().map(|(c, below, file, value)| format!("{c} {} {file} {value}\n", dir(*below))).collect()
    }

    #[test]
    fn limits_by_version() {
        expect_test::expect![[r"
            memory . memory.limit_in_bytes 1140850688
            memory . memory.memsw.limit_in_bytes 1140850688
            memory work memory.limit_in_bytes 1073741824
            memory work memory.memsw.limit_in_bytes 1073741824
            memory work memory.kmem.tcp.limit_in_bytes 268435456
            pids . pids.max 4160
            pids work pids.max 4096
            cpu . cpu.cfs_period_us 100000
            cpu . cpu.cfs_quota_us 300000
            cpu work cpu.cfs_period_us 100000
            cpu work cpu.cfs_quota_us 200000
            cpu work cpu.shares 1024
            freezer . freezer.state THAWED
        "]]
        .assert_eq(&shown(&Version::V1(Vec::new())));
        expect_test::expect![[r"
            memory . memory.max 1140850688
            memory . memory.swap.max 0
            memory work memory.max 1073741824
            memory work memory.swap.max 0
            pids . pids.max 4160
            pids work pids.max 4096
            cpu . cpu.max 300000 100000
            cpu work cpu.max 200000 100000
        "]]
        .assert_eq(&shown(&Version::V2));
    }

    #[test]
    fn paths_by_version() {
        let id: SandboxId = "0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b".parse().unwrap();
        let at = |version| Cgroups {
            version,
            root: PathBuf::from(ROOT),
            parent: "superserve-x".to_owned(),
            guests: 0..0,
        };
        let v1 = at(Version::V1(Vec::new()));
        let v2 = at(Version::V2);
        let leaf = format!("superserve-x/{id}");
        assert_eq!(v1.freezer(id), Path::new(ROOT).join("freezer").join(&leaf).join("freezer.state"));
        assert_eq!(v2.freezer(id), Path::new(ROOT).join(&leaf).join("cgroup.freeze"));
        // Processes only in leaves: version 2 refuses them where controllers are handed down.
        assert_eq!(v2.agent_path(id), Path::new("/").join(&leaf).join("agent"));
    }

    #[test]
    fn instances_cannot_leave_their_place() {
        for bad in ["", "a/b", "..", "a b"] {
            assert!(Cgroups::open(bad, 0..0).is_err(), "{bad}");
        }
    }
}
