//! The suite of all engines on `runc`, with the real agent and nothing else in the root file system. Runs as root.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use domain::SandboxId;
use driver::{Link, MachineLimits, MachineSpec, Root};
use driver_oci::{OciConfig, OciDriver};
use rustix::mount::UnmountFlags;
use rustix::thread::UnshareFlags;

const SHIFT: u32 = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn runc_does_what_engines_must() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    let bed = Bed::new();
    let config = OciConfig {
        runtime: "runc".into(),
        instance: format!("conformance-{}", std::process::id()),
        device_dir: bed.dir.path().join("dev"),
        id_shift: SHIFT,
    };
    let parents = || {
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
        let ours = format!("superserve-{}", config.instance);
        hierarchies.map(|entry| entry.path().join(&ours)).filter(|path| path.exists()).collect::<Vec<_>>()
    };
    let driver = OciDriver::new(&config).unwrap();
    driver::conformance::run(&driver, &bed.spec()).await;
    drop(driver);
    assert_eq!(parents(), Vec::<PathBuf>::new(), "no cgroup is left");
}

/// A root file system, a run directory and a network namespace; gone with the test, also when it fails.
struct Bed {
    dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("superserve-conformance-").tempdir().unwrap();
        let bed = Self { dir };
        std::fs::set_permissions(bed.dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
        std::fs::create_dir_all(bed.root().join("etc")).unwrap();
        chown(bed.root(), Some(SHIFT), Some(SHIFT)).unwrap();
        chown(bed.root().join("etc"), Some(SHIFT), Some(SHIFT)).unwrap();
        std::fs::create_dir(bed.dir.path().join("run")).unwrap();
        std::fs::write(bed.netns(), "").unwrap();
        let netns = bed.netns();
        let make = std::thread::spawn(move || {
            #[expect(unsafe_code, reason = "leaving a namespace can be unsafe with other flags")]
            // SAFETY: only the flag for file tables is dangerous, and it is not given.
            unsafe {
                rustix::thread::unshare_unsafe(UnshareFlags::NEWNET).unwrap();
            }
            rustix::mount::mount_bind("/proc/thread-self/ns/net", netns).unwrap();
        });
        make.join().unwrap();
        bed
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn netns(&self) -> PathBuf {
        self.dir.path().join("netns")
    }

    fn spec(&self) -> MachineSpec {
        MachineSpec {
            id: SandboxId::new(),
            hostname: "conformance".to_owned(),
            root: Root::Tree(self.root()),
            run_dir: self.dir.path().join("run"),
            agent: driver::conformance::agent(),
            limits: MachineLimits { vcpu: 1, memory_mib: 256, pids: 256 },
            link: Link {
                netns: self.netns(),
                tap: None,
                guest: [100, 96, 0, 1].into(),
                gateway: [100, 96, 0, 0].into(),
            },
            id_shift: SHIFT,
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _gone = rustix::mount::unmount(self.netns(), UnmountFlags::DETACH);
    }
}
