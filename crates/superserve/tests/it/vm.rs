//! Sandboxes as virtual machines, emulated: one that does what all do, is paused to disk, and outlives its server there.
//! Skipped loudly where QEMU or a guest kernel is missing. `make test-vm` runs much of the rest of this suite on them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use driver_vm::Kernel;
use serde_json::json;
use testing::{Internet, Platform};

use crate::{BIN, platform_with};

/// Counts in its memory alone, holds a file open that has no name any more, and tells both to whoever connects.
const COUNTER: &str = r#"
import os, socket, threading, time
count = 0
held = open('/tmp/held', 'w+')
os.unlink('/tmp/held')
held.write('still here'); held.flush()
def counting():
    global count
    while True:
        count += 1
        time.sleep(0.02)
threading.Thread(target=counting, daemon=True).start()
server = socket.socket()
server.bind(('127.0.0.1', 4000)); server.listen()
while True:
    peer, _ = server.accept()
    peer.recv(4096)
    held.seek(0)
    text = '%d %d %s %s' % (os.getpid(), count, held.read(), os.environ['MARK'])
    peer.sendall(b'HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s' % (len(text), text.encode()))
    peer.close()
"#;
/// Seconds by which a guest's clock may be outside the time in which it was asked: at a boot it comes from one of whole seconds.
pub(crate) const CLOCK_SLACK: f64 = 2.0;
/// A sandbox is paused for at least this long; a clock that had stood still would show it.
const PAUSED: Duration = Duration::from_secs(5);

/// What makes virtual machines run here; `None`, with the reason, where they cannot.
pub(crate) fn flags() -> Option<Vec<String>> {
    if driver::process::find(Path::new("qemu-system-x86_64")).is_err() {
        eprintln!("SKIPPED: qemu-system-x86_64 is not installed (apt-get install qemu-system-x86)");
        return None;
    }
    let provided = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/vm-kernel");
    let named = std::env::var_os("SUPERSERVE_VM_KERNEL_ROOT").map(PathBuf::from);
    let roots = [named, Some(provided), Some(PathBuf::from("/"))];
    let Some(kernel) = roots.into_iter().flatten().find_map(|root| Kernel::installed(&root)) else {
        eprintln!("SKIPPED: no guest kernel (scripts/install-test-deps.sh, or SUPERSERVE_VM_KERNEL_ROOT)");
        return None;
    };
    let words = [
        "--isolation",
        "qemu",
        "--vm-kernel",
        kernel.image.to_str()?,
        "--vm-modules",
        kernel.modules.to_str()?,
    ];
    Some(words.map(str::to_owned).to_vec())
}

pub(crate) struct Sandbox<'a> {
    pub(crate) p: &'a Platform,
    pub(crate) id: String,
    pub(crate) token: String,
}

impl Sandbox<'_> {
    pub(crate) async fn run(&self, command: &str) -> String {
        self.p.run(&self.id, &self.token, command).await
    }

    pub(crate) async fn upload(&self, path: &str, content: &str) {
        let path = format!("/files?path={path}");
        let put = self.p.data("POST", &path, &self.id, &self.token, content.into()).await;
        assert_eq!(put.status, 200, "{put:?}");
    }

    pub(crate) async fn exec_code(&self, command: &str) -> i64 {
        self.p.exec(&self.id, &self.token, command).await.body["exit_code"].as_i64().unwrap()
    }

    /// What is published on port 4000.
    pub(crate) async fn visited(&self) -> String {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = http
            .get(format!("http://{}/", self.p.edge()))
            .header("host", format!("4000-{}.sandbox.localhost", self.id));
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200, "{}", self.p.log());
        answer.text().await.unwrap()
    }

    /// What the counter says to a visitor: its process, its count, and the rest.
    async fn visit(&self) -> (String, u64, String) {
        let text = self.visited().await;
        let mut words = text.splitn(3, ' ').map(str::to_owned);
        let mut word = || words.next().unwrap();
        (word(), word().parse().unwrap(), word())
    }

    /// Its clock is ours, however long it takes to ask.
    pub(crate) async fn assert_clock(&self) {
        let now =
            || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let before = now() - CLOCK_SLACK;
        let theirs: f64 = self.run("date +%s.%N").await.trim().parse().unwrap();
        let after = now() + CLOCK_SLACK;
        assert!((before..=after).contains(&theirs), "{theirs} is not between {before} and {after}");
    }

    /// Whether something answers outside.
    async fn reaches(&self, address: &str) -> bool {
        let program = format!(
            "import socket\ntry: print(socket.create_connection(('{address}', 7004), 5).recv(9))\nexcept OSError as e: print(e)"
        );
        self.upload("/tmp/reach.py", &program).await;
        self.run("python3 /tmp/reach.py").await.contains("bye")
    }

    pub(crate) async fn rest(&self, method: &str, path: &str) -> testing::Answer {
        self.p.rest(method, &format!("/sandboxes/{}{path}", self.id), None).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_machine_outlives_its_server_with_all_it_had_in_memory() {
    let Some(own) = flags() else { return };
    let Some(internet) = Internet::start() else { return };
    let all = [internet.flags(), own].concat();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let Some(mut p) = platform_with(&all).await else { return };
    let network = json!({"allow_out": ["198.51.100.1"], "deny_out": ["0.0.0.0/0"]});
    let made = p.create(json!({"network": network, "env_vars": {"MARK": "kept"}})).await;
    let (id, token) = made;
    let sandbox = Sandbox { p: &p, id: id.clone(), token };

    // A computer like any other, except for its kernel.
    let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let guest = sandbox.run("uname -r; id -u; hostname; stat -c '%u:%g' /etc/passwd").await;
    let lines: Vec<&str> = guest.lines().collect();
    assert!(lines[0].contains("cloud") && lines[0] != host.trim(), "{guest}");
    assert_eq!(lines[1..], ["0", &format!("sandbox-{}", &id[..8]), "0:0"], "{guest}");
    assert_eq!(sandbox.exec_code("exit 7").await, 7);
    sandbox.upload("/home/user/file", "content").await;
    assert_eq!(sandbox.run("cat /home/user/file").await, "content");
    let read = p.data("GET", "/files?path=/home/user/file", &id, &sandbox.token, Vec::new()).await;
    assert_eq!(read.body, json!("content"));
    assert_eq!(session(&p, &id), "through a session\n");
    // What tells the guest that a server calls is on no command line.
    assert_eq!(sandbox.run("! grep superserve.mark /proc/cmdline").await, "");
    sandbox.assert_clock().await;
    // An upload that looks like one, with the mark as it was once made of the public id, is a file like any other.
    let mut smuggled = uuid::Uuid::parse_str(&id).unwrap().into_bytes().to_vec();
    smuggled.iter_mut().zip(b"\xe7superserve-call").for_each(|(byte, mix)| *byte ^= mix);
    smuggled.extend_from_slice(b"smuggledPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let expected = smuggled.len();
    let put = p.data("POST", "/files?path=/tmp/smuggled", &id, &sandbox.token, smuggled).await;
    assert_eq!(put.status, 200, "{put:?}");
    assert_eq!(sandbox.run("wc -c < /tmp/smuggled").await, format!("{expected}\n"));
    // Neither the kernel nor the disks nor what guards the agent is the workload's.
    let refused = "for f in /proc/sysrq-trigger /proc/sys/kernel/panic; do echo 1 2>/dev/null > $f && echo $f; done; \
                   mknod /tmp/d b 254 0 2>/dev/null && cat /tmp/d 2>/dev/null | head -c1; ls /dev/vd* 2>/dev/null; \
                   ip link set eth0 down 2>/dev/null && echo link; kill -9 1; kill -0 1 && true";
    assert_eq!(sandbox.run(refused).await, "");
    // Rules, and nothing but them.
    assert!(sandbox.reaches("198.51.100.1").await);
    assert!(!sandbox.reaches("198.18.0.1").await);

    sandbox.upload("/home/user/counter.py", COUNTER).await;
    let start = "(nohup python3 /home/user/counter.py >/tmp/log 2>&1 &); for i in $(seq 100); do \
                 curl -s localhost:4000 >/dev/null && exit 0; sleep 0.1; done; cat /tmp/log; exit 1";
    sandbox.run(start).await;
    let publish = json!({"port": 4000, "access": "public"});
    let published = p.rest("POST", &format!("/sandboxes/{id}/preview-ports"), Some(publish)).await;
    assert!(published.status < 300, "{published:?}");
    let (process, before, rest) = sandbox.visit().await;
    assert_eq!(rest, "still here kept");

    let running = p.remains();
    assert_eq!((running.machines, running.memories, running.links), (1, 0, 1), "{running:?}");
    let machine = running.init_of(&id).unwrap();
    assert_confined(machine.as_raw_nonzero().get());
    assert_eq!(sandbox.rest("POST", "/pause").await.status, 204, "{}", p.log());
    let paused = p.remains();
    assert_eq!((paused.machines, paused.memories, paused.links, paused.disks), (0, 1, 0, 1), "{paused:?}");
    let refused = p.exec(&id, &sandbox.token, "true").await;
    assert_eq!(refused.status, 503, "{refused:?}");
    p.kill_hard();
    // All that a restart of the machine takes away.
    let namespaces = p.netns(&id).parent().unwrap().to_owned();
    rustix::mount::unmount(namespaces.join("router"), rustix::mount::UnmountFlags::DETACH).unwrap();
    std::fs::remove_dir_all(namespaces.parent().unwrap()).unwrap();
    tokio::time::sleep(PAUSED).await;
    p.spawn().await;
    let path = format!("/sandboxes/{id}");
    assert_eq!(p.rest("GET", &path, None).await.body["status"], "paused", "{}", p.log());
    let resumed = p.rest("POST", &format!("{path}/activate"), None).await;
    assert_eq!(resumed.status, 200, "{resumed:?}\n{}", p.log());
    let token = resumed.body["access_token"].as_str().unwrap().to_owned();
    let sandbox = Sandbox { p: &p, id, token };
    sandbox.assert_clock().await;
    let (again, after, rest) = sandbox.visit().await;
    assert_eq!((again, rest.as_str()), (process, "still here kept"), "the same process with the same file");
    assert!(after > before, "{after} after {before}");
    assert!(sandbox.reaches("198.51.100.1").await && !sandbox.reaches("198.18.0.1").await);
    assert_eq!(p.remains().memories, 0, "what is on disk is the past");

    // A running one outlives its server, too.
    let Sandbox { id, token, .. } = sandbox;
    p.kill_hard();
    p.spawn().await;
    let sandbox = Sandbox { p: &p, id, token };
    assert_eq!(sandbox.run("cat /home/user/file").await, "content");
    assert_eq!(sandbox.rest("DELETE", "").await.status, 204);
    let left = p.remains();
    assert_eq!((left.machines, left.memories, left.links, left.disks), (0, 0, 0, 0), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_dies_is_noticed_and_boots_again_from_its_disk() {
    let Some(own) = flags() else { return };
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let Some(mut p) = platform_with(&own).await else { return };
    let (id, token) = p.create(json!({"env_vars": {"KEPT": "yes"}})).await;
    p.run(&id, &token, "echo disk > /home/user/file; sync").await;
    let shown = command(&p, &["sandbox", "info", &id]);
    assert!(shown.contains("isolation:         qemu"), "{shown}");
    assert_eq!(p.run(&id, &token, "cat /home/user/file").await, "disk\n", "and nothing has happened to it");
    let machine = p.remains().init_of(&id).expect("a machine has a process");
    rustix::process::kill_process(machine, rustix::process::Signal::KILL).unwrap();
    p.wait_state(&id, "paused", Duration::from_secs(20)).await;
    let told = p.rest("GET", &format!("/activity?sandbox_id={id}"), None).await;
    let died = told.body.as_array().unwrap().iter().find(|row| row["action"] == "machine_died");
    assert_eq!(died.expect("it is told")["metadata"]["isolation"], "qemu");
    // A memory that is there is what the sandbox is, whatever is believed lost: it is tried, and never deleted unread.
    let checkpoint = p.state_dir().join(format!("disks/{id}.mem"));
    let memory = checkpoint.join("state");
    std::fs::create_dir(&checkpoint).unwrap();
    std::fs::write(&memory, "rubbish").unwrap();
    let refused = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert!(refused.status >= 500, "{refused:?}");
    assert_eq!(std::fs::read(&memory).unwrap(), b"rubbish");
    std::fs::remove_dir_all(&checkpoint).unwrap();
    let again = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert_eq!(again.status, 200, "{again:?}\n{}", p.log());
    let token = again.body["access_token"].as_str().unwrap();
    assert_eq!(p.run(&id, token, "cat /home/user/file; echo $KEPT").await, "disk\nyes\n");

    // A memory that cannot be read costs nothing but the attempt; without it there is still the disk.
    assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 204);
    let kept = std::fs::read(&memory).unwrap();
    std::fs::write(&memory, "rubbish").unwrap();
    let refused = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert!(refused.status >= 500, "{refused:?}");
    assert_eq!(p.rest("GET", &format!("/sandboxes/{id}"), None).await.body["status"], "paused");
    assert_eq!(p.remains().machines, 0, "nothing runs of a failed resume");
    std::fs::write(&memory, kept).unwrap();
    let again = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert_eq!(again.status, 200, "{again:?}\n{}", p.log());

    // Another default changes nothing of what is there: each sandbox keeps its engine, whatever new ones get.
    let token = again.body["access_token"].as_str().unwrap();
    assert_eq!(p.stop().await, Some(0));
    let kernel: Vec<&str> = own.iter().copied().skip_while(|flag| *flag != "--vm-kernel").collect();
    p.set_flags(&[&["--isolation", "container"][..], &kernel].concat());
    p.spawn().await;
    assert_eq!(p.run(&id, token, "cat /home/user/file").await, "disk\n");
    let (container, its_token) = p.create(json!({})).await;
    let kernels = [p.run(&id, token, "uname -r").await, p.run(&container, &its_token, "uname -r").await];
    assert_ne!(kernels[0], kernels[1]);
    let disks =
        |id: &str| ["guest", "img"].map(|kind| p.state_dir().join(format!("disks/{id}.{kind}")).exists());
    assert_eq!((disks(&id), disks(&container)), ([true, false], [false, true]));

    // Where virtual machines cannot run now, theirs is left alone, and nothing else takes it.
    p.kill_hard();
    p.set_flags(&["--isolation", "container", "--vm-kernel", "/nowhere", "--vm-modules", "/nowhere"]);
    p.spawn().await;
    p.wait_state(&id, "paused", Duration::from_secs(20)).await;
    let refused = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert_eq!((refused.status, refused.body.to_string().contains("qemu")), (503, true), "{refused:?}");
    assert_eq!(p.run(&container, &its_token, "echo alive").await, "alive\n");
    assert!(p.remains().init_of(&id).is_some(), "its machine is left alone");
    p.kill_hard();
    p.set_flags(&[&["--isolation", "container"][..], &kernel].concat());
    p.spawn().await;
    p.wait_state(&id, "paused", Duration::from_secs(40)).await;
    let again = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert_eq!(again.status, 200, "{again:?}\n{}", p.log());
    let token = again.body["access_token"].as_str().unwrap();
    assert_eq!(p.run(&id, token, "cat /home/user/file").await, "disk\n");
    for id in [&id, &container] {
        assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);
    }
    let left = p.remains();
    assert_eq!((left.machines, left.memories, left.links, left.disks), (0, 0, 0, 0), "{left:?}");
}

/// What QEMU may do itself: nothing over the network, nothing as root.
fn assert_confined(pid: i32) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let ids = field("Uid:");
    assert!(ids.iter().all(|id| *id == ids[0] && id.parse::<u32>().unwrap() > 1_065_535), "{ids:?}");
    assert_eq!(field("CapEff:"), ["0000000000000000"]);
    assert_eq!(field("NoNewPrivs:"), ["1"]);
    assert_eq!(field("Seccomp:"), ["2"]);
    let links = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap();
    let links: Vec<&str> =
        links.lines().skip(2).filter_map(|line| line.split_once(':')).map(|l| l.0.trim()).collect();
    assert!(
        links.iter().all(|link| *link == "lo" || link.ends_with("tnl0") || link.ends_with("vti0")),
        "{links:?}"
    );
}

/// What a command of ours prints.
fn command(p: &Platform, words: &[&str]) -> String {
    let mut command = Command::new(BIN);
    command.args(words).env("SUPERSERVE_API_KEY", p.key()).env("SUPERSERVE_BASE_URL", p.base_url());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A command with an input of its own, by the command line over a WebSocket.
fn session(p: &Platform, id: &str) -> String {
    let mut child = Command::new(BIN)
        .args(["sandbox", "exec", "-i", id, "--", "cat"])
        .env("SUPERSERVE_API_KEY", p.key())
        .env("SUPERSERVE_BASE_URL", p.base_url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through a session\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
