//! Disks, a link and a run directory for one machine; gone with the test, also when it fails.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use domain::SandboxId;
use driver::{Driver, Link, Machine, MachineLimits, MachineSpec, Root};
use driver_vm::{Acceleration, Kernel, VmConfig, VmDriver};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) const HEALTH: &str = "GET /_agent/health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

/// What the template has.
pub(crate) const MACHINE_ID: &str = "0123456789abcdef0123456789abcdef\n";

pub(crate) struct Bed {
    dir: tempfile::TempDir,
    kernel: Kernel,
    id: SandboxId,
    netns: String,
    /// Machines beside the first, with their run directories.
    others: Mutex<Vec<(SandboxId, PathBuf)>>,
}

impl Bed {
    /// `None` where this host cannot run virtual machines; says so.
    pub(crate) fn new() -> Option<Self> {
        Self::with(&[])
    }

    /// With this host's shell in the root.
    pub(crate) fn with_shell() -> Option<Self> {
        Self::with(&[
            ("/bin/sh", "bin/sh"),
            ("/lib/x86_64-linux-gnu/libc.so.6", "lib/x86_64-linux-gnu/libc.so.6"),
            ("/lib64/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2"),
        ])
    }

    fn with(programs: &[(&str, &str)]) -> Option<Self> {
        if driver::process::find(Path::new("qemu-system-x86_64")).is_err() {
            eprintln!("SKIPPED: qemu-system-x86_64 is not installed (apt-get install qemu-system-x86)");
            return None;
        }
        Self::with_kernel(programs)
    }

    /// The same whatever runs them.
    pub(crate) fn with_kernel(programs: &[(&str, &str)]) -> Option<Self> {
        assert!(rustix::process::geteuid().is_root(), "this test needs root");
        let Some(kernel) = kernel() else {
            eprintln!(
                "SKIPPED: no guest kernel (scripts/install-test-deps.sh, or SUPERSERVE_VM_KERNEL_ROOT)"
            );
            return None;
        };
        let dir = tempfile::Builder::new().prefix("superserve-vm-").tempdir().unwrap();
        let id = SandboxId::new();
        let netns = format!("superserve-vm-{}", &id.to_string()[..8]);
        let bed = Self { dir, kernel, id, netns, others: Mutex::default() };
        std::fs::create_dir_all(bed.path("tree/etc")).unwrap();
        std::fs::write(bed.path("tree/etc/machine-id"), MACHINE_ID).unwrap();
        std::fs::create_dir(bed.path("run")).unwrap();
        for (from, to) in programs {
            let to = bed.path("tree").join(to);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(from, to).unwrap();
        }
        for (name, mib) in [("base", 16), ("own", 64)] {
            let mut make = Command::new("mke2fs");
            make.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0"]);
            if name == "base" {
                make.arg("-d").arg(bed.path("tree"));
            }
            let image = bed.path(name);
            assert!(make.arg(image).arg(format!("{mib}M")).status().unwrap().success());
        }
        ip(&["netns", "add", &bed.netns]);
        bed.add_tap("g0", "100.96.0.0/31");
        Some(bed)
    }

    fn add_tap(&self, name: &str, address: &str) {
        ip(&["-n", &self.netns, "tuntap", "add", name, "mode", "tap"]);
        ip(&["-n", &self.netns, "address", "add", address, "dev", name]);
        ip(&["-n", &self.netns, "link", "set", name, "up"]);
    }

    /// Another machine with a copy of the first one's disk.
    pub(crate) fn fork(&self, number: u8) -> MachineSpec {
        let id = SandboxId::new();
        let (tap, gateway) = (format!("g{number}"), [100, 96, 0, 2 * number]);
        let (own, run_dir) = (self.path(&format!("own{number}")), self.path(&format!("run{number}")));
        self.add_tap(&tap, &format!("100.96.0.{}/31", gateway[3]));
        std::fs::copy(self.path("own"), &own).unwrap();
        std::fs::create_dir(&run_dir).unwrap();
        self.others.lock().unwrap().push((id, run_dir.clone()));
        let first = self.spec();
        MachineSpec {
            id,
            hostname: format!("sandbox-{}", &id.to_string()[..8]),
            root: Root::Disks { base: self.path("base"), own },
            run_dir,
            link: Link {
                tap: Some(tap),
                guest: [100, 96, 0, gateway[3] + 1].into(),
                gateway: gateway.into(),
                ..first.link
            },
            ..first
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// What `ip` says of the namespace of the link.
    pub(crate) fn ip(&self, words: &[&str]) -> String {
        let output = Command::new("ip").args(["-n", &self.netns]).args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Somewhere with room for a mebibyte.
    pub(crate) fn small_file_system(&self) -> PathBuf {
        let at = self.path("small");
        std::fs::create_dir(&at).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", &at, "tmpfs", flags, Some(c"size=1m")).unwrap();
        at
    }

    pub(crate) fn driver(&self) -> VmDriver {
        let config = VmConfig {
            qemu: "qemu-system-x86_64".into(),
            kernel: Some(self.kernel.clone()),
            boot_dir: self.path("boot"),
            acceleration: Acceleration::Emulated,
        };
        VmDriver::new(&config).unwrap()
    }

    pub(crate) fn spec(&self) -> MachineSpec {
        MachineSpec {
            id: self.id,
            hostname: "conformance".to_owned(),
            root: Root::Disks { base: self.path("base"), own: self.path("own") },
            run_dir: self.path("run"),
            agent: driver::conformance::agent(),
            limits: MachineLimits { vcpu: 1, memory_mib: 128, pids: 256 },
            link: Link {
                netns: Path::new("/run/netns").join(&self.netns),
                tap: Some("g0".to_owned()),
                guest: [100, 96, 0, 1].into(),
                gateway: [100, 96, 0, 0].into(),
            },
            id_shift: 1_000_000,
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Only after a failed test is anything left of the machine.
        let driver = self.driver();
        let mut all = self.others.lock().unwrap().split_off(0);
        all.push((self.id, self.path("run")));
        let purge = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            for (id, run_dir) in all {
                let _gone = runtime.block_on(driver.purge(id, &run_dir));
            }
        });
        let _gone = purge.join();
        let _gone = rustix::mount::unmount(self.path("small"), rustix::mount::UnmountFlags::DETACH);
        let _gone = Command::new("ip").args(["netns", "del", &self.netns]).status();
    }
}

fn ip(words: &[&str]) {
    assert!(Command::new("ip").args(words).status().unwrap().success(), "ip {words:?}");
}

/// One exchange with the agent: what it answers until it closes.
pub(crate) async fn ask(machine: &dyn Machine, request: &str) -> String {
    let mut stream = machine.agent().await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// Below the root that is named, or where the tests' dependencies are, or this host's own.
fn kernel() -> Option<Kernel> {
    let named = std::env::var_os("SUPERSERVE_VM_KERNEL_ROOT").map(PathBuf::from);
    let roots = [named, Some(workspace().join("target/vm-kernel")), Some(PathBuf::from("/"))];
    roots.into_iter().flatten().find_map(|root| Kernel::installed(&root))
}

/// A file in the guest, whose root has a shell.
pub(crate) async fn read(machine: &dyn Machine, path: &str) -> String {
    let body = format!(r#"{{"command":"while read -r line; do echo \"$line\"; done < {path}"}}"#);
    let head = format!("POST /exec HTTP/1.1\r\nhost: a\r\ncontent-length: {}", body.len());
    let answer = ask(machine, &format!("{head}\r\nconnection: close\r\n\r\n{body}")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    let (_, answer) = answer.split_once("\r\n\r\n").unwrap();
    let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
    answer["stdout"].as_str().unwrap().to_owned()
}
