//! The suite of all engines on `runc` and on gVisor's `runsc`, with the real agent and nothing else in the root file system. Runs as root.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;

use domain::SandboxId;
use driver::{Driver, DriverError, Link, Machine, MachineLimits, MachineSpec, Power, Root};
use driver_oci::{GvisorConfig, GvisorDriver, OciConfig, OciDriver};
use rustix::mount::UnmountFlags;
use rustix::thread::UnshareFlags;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SHIFT: u32 = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn runc_does_what_engines_must() {
    let bed = Bed::new();
    let config = OciConfig {
        runtime: "runc".into(),
        instance: bed.instance("runc"),
        device_dir: bed.dir.path().join("dev"),
        id_shift: SHIFT,
    };
    let driver = OciDriver::new(&config).unwrap();
    driver::conformance::run(&driver, &bed.spec()).await;
    drop(driver);
    assert_eq!(cgroups(&config.instance), Vec::<PathBuf>::new(), "no cgroup is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn runsc_does_what_engines_must() {
    if driver::process::find("runsc".as_ref()).is_err() {
        eprintln!("SKIPPED: runsc is not installed (apt-get install runsc)");
        return;
    }
    let bed = Bed::new();
    let config = GvisorConfig {
        runtime: "runsc".into(),
        instance: bed.instance("runsc"),
        dir: bed.dir.path().join("gvisor"),
        id_shift: SHIFT,
    };
    let null = || std::fs::metadata("/dev/null").map(|of| (of.uid(), of.gid())).unwrap();
    let before = null();
    let driver = GvisorDriver::new(&config).unwrap();
    driver::conformance::run(&driver, &bed.spec()).await;
    // Trials leave nothing but a verdict.
    let kept = std::fs::read_dir(&config.dir).unwrap().map(|entry| entry.unwrap().file_name());
    let kept: std::collections::BTreeSet<_> = kept.collect();
    assert_eq!(kept, ["null", "platform", "secret"].map(Into::into).into());
    a_checkpoint(&driver, &config, &bed).await;
    // The runtime gives what a sandbox has for standard descriptors to another user, and what lies behind with them.
    assert_eq!(null(), before, "the host's devices are the host's");
    drop(driver);
    assert_eq!(cgroups(&config.instance), Vec::<PathBuf>::new(), "no cgroup is left");
}

/// A machine that was written out goes on from there, also a second time, and its tree is as the guest left it.
async fn a_checkpoint(driver: &GvisorDriver, config: &GvisorConfig, bed: &Bed) {
    let spec = bed.spec();
    let saved = bed.dir.path().join("saved");
    let mut machine = driver.create(&spec).await.unwrap();
    put(machine.as_ref(), "/home/file", b"before").await;
    for _ in 0..2 {
        machine.freeze().await.unwrap();
        machine.checkpoint(&saved).await.unwrap();
        assert!(matches!(machine.power().await, Err(DriverError::Gone)), "nothing of it goes on beside that");
        assert_eq!(std::fs::metadata(&saved).unwrap().mode() & 0o777, 0o700);
        machine.destroy().await.unwrap();
        assert_eq!(std::fs::read_dir(&spec.run_dir).unwrap().count(), 0, "nothing is left of it");
        machine = driver.restore(&spec, &saved).await.unwrap();
        assert_eq!(machine.power().await.unwrap(), Power::Frozen, "until it is thawed");
        std::fs::remove_dir_all(&saved).unwrap();
        machine.thaw().await.unwrap();
        put(machine.as_ref(), "/home/file", b"after").await;
    }
    // Of a release that is not installed any more: it is not written, and stays as it is.
    let record = spec.run_dir.join("host/process.json");
    let known = std::fs::read_to_string(&record).unwrap();
    std::fs::write(&record, known.replace("\"runsc version", "\"runsc of old, version")).unwrap();
    machine.freeze().await.unwrap();
    let refused = machine.checkpoint(&saved).await;
    assert!(matches!(refused, Err(DriverError::Unsupported { .. })), "{refused:?}");
    assert!(!saved.exists());
    assert_eq!(machine.power().await.unwrap(), Power::Frozen);
    std::fs::write(&record, known).unwrap();
    // A hold that is noted and did not come about; the agent has to say so.
    std::fs::write(spec.run_dir.join("host/held"), "").unwrap();
    machine.thaw().await.unwrap();
    assert!(!spec.run_dir.join("host/held").exists());
    put(machine.as_ref(), "/home/file", b"after").await;
    let file = std::fs::metadata(bed.root().join("home/file")).unwrap();
    assert_eq!((file.uid(), file.len()), (SHIFT, 5), "its ids are the host's, as with containers");
    // It is removed without the runtime, too.
    drop(machine);
    let gone = GvisorConfig { runtime: "/nonexistent/runsc".into(), ..config.clone() };
    assert!(GvisorDriver::new(&gone).is_err());
    GvisorDriver::removing(&gone).unwrap().purge(spec.id, &spec.run_dir).await.unwrap();
    assert_eq!(std::fs::read_dir(&spec.run_dir).unwrap().count(), 0, "nothing is left of it");

    // Of another release, or none at all.
    std::fs::create_dir(&saved).unwrap();
    assert!(driver.restore(&spec, &saved).await.is_err());
    std::fs::write(saved.join("release"), "runsc version 0").unwrap();
    let refused = driver.restore(&spec, &saved).await.unwrap_err().to_string();
    assert!(refused.contains("runsc version 0"), "{refused}");
    assert_eq!(std::fs::read_dir(&spec.run_dir).unwrap().count(), 0, "nothing is left of it");
}

/// Writes a file as a client would.
async fn put(machine: &dyn Machine, path: &str, content: &[u8]) {
    for (method, target, content) in
        [("PUT", "/_agent/config", &b"{}"[..]), ("POST", &format!("/files?path={path}"), content)]
    {
        let mut stream = machine.agent().await.unwrap();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            content.len()
        );
        stream.write_all(&[head.as_bytes(), content].concat()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 20"), "{}", String::from_utf8_lossy(&answer));
    }
}

fn cgroups(instance: &str) -> Vec<PathBuf> {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
    let ours = format!("superserve-{instance}");
    hierarchies.map(|entry| entry.path().join(&ours)).filter(|path| path.exists()).collect()
}

/// A root file system, a run directory and a network namespace; gone with the test, also when it fails.
struct Bed {
    dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "this test needs root");
        let dir = tempfile::Builder::new().prefix("superserve-conformance-").tempdir().unwrap();
        let bed = Self { dir };
        std::fs::set_permissions(bed.dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
        for dir in ["", "etc", "home"] {
            std::fs::create_dir_all(bed.root().join(dir)).unwrap();
            chown(bed.root().join(dir), Some(SHIFT), Some(SHIFT)).unwrap();
        }
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

    fn instance(&self, runtime: &str) -> String {
        format!("conformance-{runtime}-{}", std::process::id())
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
