//! One cgroup around each machine's process, on version 1 (a hierarchy per controller) and version 2 (one for all). The process
//! enters it before it becomes what runs the guest. A guest that has taken it over gets no more memory, processor time and
//! threads than the machine was meant to have, and what the process itself needs.
//!
//! ```text
//! superserve-vm/<id>
//! ```

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::SandboxId;
use driver::DriverError;
use driver::cgroup::{CPU_PERIOD_USEC, ROOT, is_unified, remove_tree, write};
use driver_port::limited;

const PARENT: &str = "superserve-vm";
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// A process that has ended leaves its cgroup a moment later.
const CLEAR_LIMIT: Duration = Duration::from_secs(5);
/// The kernel offers no event for it on version 1.
const CLEAR_POLL: Duration = Duration::from_millis(2);
/// Another machine that ends may take the empty parent away in between.
const ATTEMPTS: usize = 16;

/// What a machine's process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) memory_mib: u32,
    /// Processors that run the guest; what devices need comes on top.
    pub(crate) vcpu: u32,
    /// Threads.
    pub(crate) pids: u32,
}

/// Makes a machine's cgroup. Whoever writes `0` into each of these files is in it.
pub(crate) fn make(id: SandboxId, bounds: Bounds) -> io::Result<Vec<OwnedFd>> {
    make_below(Path::new(ROOT), id, bounds)
}

/// Removes it once its process has ended; one that is not there is fine.
pub(crate) async fn remove(id: SandboxId) -> Result<(), DriverError> {
    let clearing = async {
        for dir in dirs(Path::new(ROOT), id) {
            while !remove_tree(&dir).map_err(DriverError::io("remove the machine's cgroup"))? {
                tokio::time::sleep(CLEAR_POLL).await;
            }
            // Others may be in it.
            let _kept = dir.parent().map(fs::remove_dir);
        }
        Ok(())
    };
    limited("emptying the machine's cgroup", CLEAR_LIMIT, clearing).await
}

/// The machine's directory in every hierarchy.
fn dirs(root: &Path, id: SandboxId) -> Vec<PathBuf> {
    let below = Path::new(PARENT).join(id.to_string());
    if is_unified(root) {
        return vec![root.join(below)];
    }
    CONTROLLERS.map(|controller| root.join(controller).join(&below)).to_vec()
}

fn make_below(root: &Path, id: SandboxId, bounds: Bounds) -> io::Result<Vec<OwnedFd>> {
    let unified = is_unified(root);
    let dirs = dirs(root, id);
    for dir in &dirs {
        make_dir(dir)?;
    }
    if unified {
        // From the top down, each before its children can have limits.
        for dir in [root.to_owned(), root.join(PARENT)] {
            write(&dir.join("cgroup.subtree_control"), "+memory +cpu +pids")?;
        }
    }
    for (controller, file, value) in files(unified, bounds) {
        let dir = if unified { &dirs[0] } else { &dirs[controller] };
        match write(&dir.join(file), &value) {
            // Kernels that do not count swap lack the file, and then there is nothing to limit.
            Err(error) if error.kind() == io::ErrorKind::NotFound && file.contains("sw") => {}
            other => other?,
        }
    }
    dirs.iter().map(|dir| Ok(OpenOptions::new().write(true).open(dir.join("cgroup.procs"))?.into())).collect()
}

fn make_dir(dir: &Path) -> io::Result<()> {
    let mut made = fs::create_dir_all(dir);
    for _ in 1..ATTEMPTS {
        match &made {
            Err(error) if error.kind() == io::ErrorKind::NotFound => made = fs::create_dir_all(dir),
            _ => break,
        }
    }
    made
}

/// Controller by its place in the list, file and value, in the order of writing: memory with swap is never less than memory.
fn files(unified: bool, bounds: Bounds) -> Vec<(usize, &'static str, String)> {
    let memory = (u64::from(bounds.memory_mib) * 1024 * 1024).to_string();
    let quota = (u64::from(bounds.vcpu) + 1) * CPU_PERIOD_USEC;
    let pids = bounds.pids.to_string();
    if unified {
        return vec![
            (0, "memory.max", memory),
            (0, "memory.swap.max", "0".to_owned()),
            (1, "cpu.max", format!("{quota} {CPU_PERIOD_USEC}")),
            (2, "pids.max", pids),
        ];
    }
    vec![
        (0, "memory.limit_in_bytes", memory.clone()),
        (0, "memory.memsw.limit_in_bytes", memory),
        (1, "cpu.cfs_period_us", CPU_PERIOD_USEC.to_string()),
        (1, "cpu.cfs_quota_us", quota.to_string()),
        (2, "pids.max", pids),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { memory_mib: 300, vcpu: 2, pids: 70 };

    #[test]
    fn the_limits_are_those_of_both_versions() {
        let all = |unified| {
            files(unified, BOUNDS)
                .into_iter()
                .map(|(_, file, value)| format!("{file}={value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            all(true),
            ["memory.max=314572800", "memory.swap.max=0", "cpu.max=300000 100000", "pids.max=70"]
        );
        assert!(all(false).contains(&"memory.memsw.limit_in_bytes=314572800".to_owned()));
        assert!(all(false).contains(&"cpu.cfs_quota_us=300000".to_owned()));
    }

    #[tokio::test]
    async fn a_process_in_it_is_held_and_it_goes_with_the_process() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: cgroups need root");
            return;
        }
        let id = SandboxId::new();
        let entries = make(id, BOUNDS).unwrap();
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        for entry in entries {
            rustix::io::write(&entry, child.id().to_string().as_bytes()).unwrap();
        }
        let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", child.id())).unwrap();
        assert!(cgroups.contains(&format!("/{PARENT}/{id}")), "{cgroups}");
        let busy = remove(id);
        let waited = tokio::time::timeout(Duration::from_millis(50), busy).await;
        assert!(waited.is_err(), "not while somebody is in it");
        child.kill().unwrap();
        child.wait().unwrap();
        for _ in 0..2 {
            remove(id).await.unwrap();
        }
        assert!(dirs(Path::new(ROOT), id).iter().all(|dir| !dir.exists()));
    }
}
