//! A node of its own for one test, and what it takes to talk to a sandbox in it.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use domain::{SandboxId, Shape};
use driver_oci::{OciConfig, OciDriver};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use node::{Engines, Host, Node, NodeConfig, SandboxSpec};
use wire::data_plane::ExecResponse;

pub(crate) const SHIFT: u32 = 1_000_000;
/// The layer of all tests: busybox and empty directories.
pub(crate) const LAYER: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
/// No command of these tests takes longer, even on a busy host.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Bed {
    pub(crate) node: Running,
    pub(crate) instance: String,
    pub(crate) run_dir: PathBuf,
    state: tempfile::TempDir,
    links: AtomicU32,
    _rubble: Rubble,
}

/// The node, except for the moment in which a test starts it again.
pub(crate) struct Running(Option<Arc<Node>>);

impl std::ops::Deref for Running {
    type Target = Arc<Node>;

    fn deref(&self) -> &Arc<Node> {
        self.0.as_ref().unwrap()
    }
}

impl Bed {
    pub(crate) async fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests need root");
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let instance = format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let state = tempfile::Builder::new().prefix("superserve-node-").tempdir().unwrap();
        make_layer(&state.path().join("layers").join(LAYER));
        let run_dir = PathBuf::from(format!("/run/superserve-test-{instance}"));
        let node = Running(Some(open(&instance, state.path(), &run_dir).await));
        let rubble = Rubble(instance.clone());
        Self { node, instance, run_dir, state, links: AtomicU32::new(0), _rubble: rubble }
    }

    pub(crate) fn state(&self) -> &Path {
        self.state.path()
    }

    pub(crate) fn spec(&self) -> SandboxSpec {
        spec(self.links.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) async fn create(&self) -> SandboxSpec {
        let spec = self.spec();
        self.node.create(&spec).await.map_err(|problem| problem.chain()).unwrap();
        spec
    }

    /// Drops the node as a killed server would.
    pub(crate) fn stop(&mut self) {
        self.node.0 = None;
    }

    /// Drops the node as a killed server would and starts another on the same directories.
    pub(crate) async fn restart(&mut self) {
        self.stop();
        self.node.0 = Some(open(&self.instance, self.state.path(), &self.run_dir).await);
    }

    /// The same with engines of the test's own.
    pub(crate) async fn restart_with(&mut self, engines: Engines) {
        self.stop();
        self.node.0 = Some(open_with(engines, self.state.path(), &self.run_dir).await);
    }

    /// Runs a command; panics when the agent does not answer.
    pub(crate) async fn exec(&self, id: SandboxId, command: &str) -> ExecResponse {
        exec(&self.node, id, command).await
    }

    /// Runs a command that must succeed.
    pub(crate) async fn sh(&self, id: SandboxId, command: &str) -> String {
        let answer = self.exec(id, command).await;
        assert_eq!(answer.exit_code, 0, "{command}: {} {}", answer.stdout, answer.stderr);
        answer.stdout
    }

    /// Runs a command that must fail.
    pub(crate) async fn refused(&self, id: SandboxId, command: &str) {
        let answer = self.exec(id, command).await;
        assert_ne!(answer.exit_code, 0, "must fail, but did not: {command}: {}", answer.stdout);
    }

    /// Removes the sandboxes and the node, and fails when anything is left of them.
    pub(crate) async fn finish(self) {
        self.node.adopt(Vec::new(), BTreeSet::new()).await.map_err(|problem| problem.chain()).unwrap();
        self.node.close().await.map_err(|problem| problem.chain()).unwrap();
        drop(self.node);
        assert!(!self.run_dir.exists(), "{} is left", self.run_dir.display());
        wait_for("everything to be gone", || left_over(&self.instance, self.state.path()).is_empty())
            .unwrap_or_else(|_| panic!("left over: {:#?}", left_over(&self.instance, self.state.path())));
    }
}

/// Ends what a failed test left running: a fork bomb that goes on would fail all others.
struct Rubble(String);

impl Drop for Rubble {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let machines = format!("/sys/fs/cgroup/freezer/superserve-{}", self.0);
        for machine in std::fs::read_dir(machines).into_iter().flatten().flatten() {
            // Stopped, they cannot outrun the list of them; signals wait until they run again.
            let _gone_already = std::fs::write(machine.path().join("freezer.state"), "FROZEN");
            for group in ["work", "agent"] {
                let pids = std::fs::read_to_string(machine.path().join(group).join("cgroup.procs"))
                    .unwrap_or_default();
                for pid in pids
                    .lines()
                    .filter_map(|line| line.parse().ok())
                    .filter_map(rustix::process::Pid::from_raw)
                {
                    let _gone_already = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            let _gone_already = std::fs::write(machine.path().join("freezer.state"), "THAWED");
        }
    }
}

/// A sandbox of the smallest shape.
pub(crate) fn spec(link: u32) -> SandboxSpec {
    SandboxSpec {
        id: SandboxId::new(),
        engine: domain::Engine::Container,
        shape: Shape { vcpu: 1, memory_mib: 256, disk_mib: 1024 },
        layers: vec![LAYER.to_owned()],
        link,
        network: domain::EgressRules::default(),
        guest: wire::agent::AgentConfig::default(),
    }
}

/// The engine of containers.
pub(crate) fn oci(instance: &str, state: &Path) -> OciDriver {
    OciDriver::new(&OciConfig {
        runtime: "runc".into(),
        instance: instance.to_owned(),
        device_dir: state.join("dev"),
        id_shift: SHIFT,
    })
    .unwrap()
}

pub(crate) async fn open(instance: &str, state: &Path, run_dir: &Path) -> Arc<Node> {
    open_with(Engines::default().with(Arc::new(oci(instance, state))), state, run_dir).await
}

pub(crate) async fn open_with(engines: Engines, state: &Path, run_dir: &Path) -> Arc<Node> {
    let config = NodeConfig {
        state_dir: state.to_owned(),
        run_dir: run_dir.to_owned(),
        layers_dir: state.join("layers"),
        agent: driver::conformance::agent(),
        id_shift: SHIFT,
        link_range: [100, 96, 0, 0].into(),
        template_states: 0,
        // Nobody is let out: what a gateway permits is tested with a test internet elsewhere.
        egress: egress::GatewayConfig {
            blocked: vec!["0.0.0.0/0".parse().unwrap()],
            ..egress::GatewayConfig::default()
        },
        network_log: Arc::new(NoLog),
    };
    Node::open(config, engines).await.map_err(|problem| problem.chain()).unwrap()
}

#[derive(Debug)]
struct NoLog;

impl domain::NetworkSink for NoLog {
    fn record(&self, _event: domain::NetworkEvent) {}
}

pub(crate) async fn exec(node: &Node, id: SandboxId, command: &str) -> ExecResponse {
    let body = serde_json::json!({ "command": command, "timeout_s": 50 }).to_string();
    let ask = async {
        let stream = node.agent(id).await.map_err(|problem| problem.chain()).unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        let request = hyper::Request::post("/exec")
            .header("host", "agent")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200, "{command}");
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        connection.abort();
        serde_json::from_slice(&bytes).unwrap()
    };
    let answer = tokio::time::timeout(COMMAND_LIMIT, ask).await;
    answer.unwrap_or_else(|_| panic!("no answer to: {command}"))
}

/// Waits until a condition holds.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) -> Result<(), String> {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > Duration::from_secs(10) {
            return Err(format!("waited in vain for {what}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Everything on the host that still names this test: mounts, loop devices, cgroups, processes, disks.
pub(crate) fn left_over(instance: &str, state: &Path) -> Vec<String> {
    let mut left = Vec::new();
    let state = state.to_str().unwrap();
    let run = format!("superserve-test-{instance}/");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    left.extend(mounts.lines().filter(|l| l.contains(&run) || l.contains(state)).map(str::to_owned));
    for device in glob("/sys/block") {
        let backing = std::fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        if backing.contains(state) {
            left.push(format!("{}: {backing}", device.display()));
        }
    }
    for hierarchy in glob("/sys/fs/cgroup") {
        let ours = hierarchy.join(format!("superserve-{instance}"));
        left.extend(ours.exists().then(|| ours.display().to_string()));
    }
    for process in glob("/proc") {
        // The agent's process sits in a root that only this test has.
        let cgroup = std::fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        left.extend(
            cgroup.contains(&format!("superserve-{instance}/")).then(|| process.display().to_string()),
        );
    }
    let disks = glob(format!("{state}/disks"));
    left.extend(disks.iter().filter(|path| path.is_file()).map(|path| path.display().to_string()));
    left
}

fn glob(dir: impl AsRef<Path>) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// A root file system of one static program, owned by the guest's root.
fn make_layer(layer: &Path) {
    const PROGRAM: &str = "/bin/busybox";
    for dir in ["bin", "dev", "etc", "mnt", "proc", "root", "sys", "tmp", "home/user"] {
        std::fs::create_dir_all(layer.join(dir)).unwrap();
    }
    let source = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    let source = source.expect("these tests need a static busybox: apt-get install busybox-static");
    std::fs::copy(source, layer.join("bin/busybox")).unwrap();
    let list = Command::new(source).arg("--list").output().unwrap();
    for name in String::from_utf8(list.stdout).unwrap().lines().filter(|name| *name != "busybox") {
        symlink(PROGRAM, layer.join("bin").join(name)).unwrap();
    }
    std::fs::write(layer.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    // Where many images point, and nothing is.
    symlink("../run/systemd/resolve/stub-resolv.conf", layer.join("etc/resolv.conf")).unwrap();
    let owner = format!("{SHIFT}:{SHIFT}");
    assert!(Command::new("chown").args(["-hR", &owner]).arg(layer).status().unwrap().success());
}
