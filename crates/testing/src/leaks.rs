//! What one platform has on the machine, counted from outside: a test compares before and after, or with the database.

use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// Everything that belongs to one state directory. All zero when nothing is left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remains {
    /// Sandboxes with a live first process.
    pub machines: usize,
    /// Disk images.
    pub disks: usize,
    /// Memories of paused virtual machines, whole or half written.
    pub memories: usize,
    /// What was kept of sandboxes with their memory, whole or half.
    pub states: usize,
    /// Network namespaces or tap devices of sandboxes.
    pub links: usize,
    /// Mounts below the state and run directories, the router's namespace included.
    pub mounts: usize,
    /// Loop devices over files of the state directory.
    pub loops: usize,
    /// Control groups, over all hierarchies.
    pub cgroups: usize,
    /// Processes in them.
    pub processes: usize,
    inits: Vec<(String, i32)>,
}

impl Remains {
    /// Looks at the machine.
    #[must_use]
    pub fn of(state_dir: &Path) -> Self {
        let state = state_dir.canonicalize().unwrap_or_else(|_| state_dir.to_path_buf());
        let run = run_dir(&state);
        let below = |path: &str| Path::new(path).starts_with(&state) || Path::new(path).starts_with(&run);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts =
            mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|path| below(path)).count();
        let loops = entries(Path::new("/sys/block"))
            .filter_map(|dev| std::fs::read_to_string(dev.join("loop/backing_file")).ok())
            .filter(|file| below(file.trim().trim_end_matches(" (deleted)")))
            .count();
        let name = format!("superserve-{}", instance(&state));
        let mut groups = Vec::new();
        let mut roots: Vec<PathBuf> =
            entries(Path::new("/sys/fs/cgroup")).filter(|path| path.is_dir()).collect();
        roots.push("/sys/fs/cgroup".into());
        for root in roots {
            collect(&root.join(&name), &mut groups);
        }
        let mut pids: Vec<i32> = groups
            .iter()
            .filter_map(|dir| std::fs::read_to_string(dir.join("cgroup.procs")).ok())
            .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
            .collect();
        pids.sort_unstable();
        pids.dedup();
        let inits = inits(&run);
        Self {
            machines: inits.len(),
            disks: entries(&state.join("disks"))
                .filter(|path| path.extension().is_some_and(|e| e == "img" || e == "guest"))
                .count(),
            memories: entries(&state.join("disks"))
                .filter(|path| {
                    path.extension()
                        .is_some_and(|e| ["mem", "saving", "resuming"].iter().any(|kind| e == *kind))
                })
                .count(),
            states: entries(&state.join("states")).count(),
            links: entries(&run.join("n")).filter(|path| !path.ends_with("router")).count(),
            mounts,
            loops,
            cgroups: groups.len(),
            processes: pids.len(),
            inits,
        }
    }

    /// The first process of a sandbox, as the host sees it.
    #[must_use]
    pub fn init_of(&self, id: &str) -> Option<Pid> {
        self.inits.iter().find(|(of, _)| of == id).and_then(|(_, pid)| Pid::from_raw(*pid))
    }
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

fn collect(dir: &Path, into: &mut Vec<PathBuf>) {
    if dir.is_dir() {
        entries(dir).filter(|path| path.is_dir()).for_each(|path| collect(&path, into));
        into.push(dir.to_path_buf());
    }
}

/// The platform's own naming, on purpose written a second time: a test that asked the platform would believe it.
fn instance(state: &Path) -> String {
    use std::fmt::Write;
    use std::os::unix::ffi::OsStrExt;

    use sha2::{Digest, Sha256};
    let mut name = String::new();
    for byte in Sha256::digest(state.as_os_str().as_bytes()).iter().take(6) {
        let _a_string_takes_everything = write!(name, "{byte:02x}");
    }
    name
}

pub(crate) fn run_dir(state: &Path) -> PathBuf {
    Path::new("/run/superserve").join(instance(state))
}

/// The engines' records name the first process of each machine, or the process it runs in.
fn inits(run: &Path) -> Vec<(String, i32)> {
    let mut found = Vec::new();
    for machine in entries(&run.join("m")) {
        let Some(id) = machine.file_name().map(|name| name.to_string_lossy().into_owned()) else { continue };
        let records = [
            (machine.join("host/runc").join(&id).join("state.json"), "init_process_pid"),
            (machine.join("host/process.json"), "pid"),
        ];
        let pid = records.iter().find_map(|(record, key)| {
            let state: serde_json::Value = serde_json::from_slice(&std::fs::read(record).ok()?).ok()?;
            i32::try_from(state[key].as_i64()?).ok()
        });
        if let Some(pid) = pid.filter(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            found.push((id, pid));
        }
    }
    found
}
