//! Sandboxes of gVisor: one that does what all do, is paused to disk, and outlives its server there; one whose guest does its worst.
//! Skipped loudly where `runsc` is missing. `make test-gvisor` runs much of the rest of this suite on them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use testing::{Internet, Platform};

use crate::{BIN, platform_with};

const GVISOR: [&str; 2] = ["--isolation", "gvisor"];
/// Counts in its memory alone, holds a file open, and tells both to whoever connects.
const COUNTER: &str = r#"
import os, socket, threading, time
count = 0
held = open('/home/user/held', 'w+')
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
    # Neither a length nor a pause before the end.
    peer.sendall(b'HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n' + text.encode())
    peer.close()
"#;
/// A guest's clock may be outside the time in which it was asked by this, seconds.
const CLOCK_SLACK: f64 = 1.0;
/// A sandbox is paused for at least this long; a clock that had stood still would show it.
const PAUSED: Duration = Duration::from_secs(3);

fn is_here() -> bool {
    let here = driver::process::find(Path::new("runsc")).is_ok();
    if !here {
        eprintln!("SKIPPED: runsc is not installed (apt-get install runsc)");
    }
    here
}

struct Sandbox<'a> {
    p: &'a Platform,
    id: String,
    token: String,
}

impl Sandbox<'_> {
    async fn run(&self, command: &str) -> String {
        self.p.run(&self.id, &self.token, command).await
    }

    async fn upload(&self, path: &str, content: &str) {
        let path = format!("/files?path={path}");
        let put = self.p.data("POST", &path, &self.id, &self.token, content.into()).await;
        assert_eq!(put.status, 200, "{put:?}");
    }

    /// What the counter says to a visitor: its process, its count, and the rest.
    async fn visit(&self) -> (String, u64, String) {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = http
            .get(format!("http://{}/", self.p.edge()))
            .header("host", format!("4000-{}.sandbox.localhost", self.id));
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200, "{}", self.p.log());
        let text = answer.text().await.unwrap();
        let mut words = text.splitn(3, ' ').map(str::to_owned);
        let mut word = || words.next().unwrap_or_else(|| panic!("{text:?}"));
        (word(), word().parse().unwrap(), word())
    }

    async fn assert_clock(&self) {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
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

    async fn rest(&self, method: &str, path: &str) -> testing::Answer {
        self.p.rest(method, &format!("/sandboxes/{}{path}", self.id), None).await
    }
}

async fn resume<'a>(p: &'a Platform, id: &str) -> Sandbox<'a> {
    let resumed = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert_eq!(resumed.status, 200, "{resumed:?}\n{}", p.log());
    let token = resumed.body["access_token"].as_str().unwrap().to_owned();
    Sandbox { p, id: id.to_owned(), token }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sandbox_outlives_its_server_with_all_it_had_in_memory() {
    if !is_here() {
        return;
    }
    let Some(internet) = Internet::start() else { return };
    let all = [internet.flags(), GVISOR.map(str::to_owned).to_vec()].concat();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let Some(mut p) = platform_with(&all).await else { return };
    let network = json!({"allow_out": ["198.51.100.1"], "deny_out": ["0.0.0.0/0"]});
    let (id, token) = p.create(json!({"network": network, "env_vars": {"MARK": "kept"}})).await;
    let sandbox = Sandbox { p: &p, id: id.clone(), token };

    // A computer like any other, with a kernel of its own.
    let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let guest = sandbox.run("uname -r; id -u; hostname; find /etc/passwd -printf '%U:%G\\n'").await;
    let lines: Vec<&str> = guest.lines().collect();
    assert!(lines[0] != host.trim(), "{guest}");
    assert_eq!(lines[1..], ["0", &format!("sandbox-{}", &id[..8]), "0:0"], "{guest}");
    assert_eq!(p.exec(&id, &sandbox.token, "exit 7").await.body["exit_code"], 7);
    sandbox.upload("/home/user/file", "content").await;
    assert_eq!(sandbox.run("cat /home/user/file").await, "content");
    let read = p.data("GET", "/files?path=/home/user/file", &id, &sandbox.token, Vec::new()).await;
    assert_eq!(read.body, json!("content"));
    sandbox.assert_clock().await;
    // What it writes is on its disk, by the ids of containers, also below /tmp.
    sandbox.run("echo x > /tmp/on-disk; chown 1000:1000 /tmp/on-disk").await;
    let run = p.netns(&id).parent().unwrap().parent().unwrap().to_owned();
    let written = std::fs::metadata(run.join("m").join(&id).join("root/tmp/on-disk")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&written), 1_001_000);

    sandbox.upload("/home/user/counter.py", COUNTER).await;
    let start = "(nohup python3 /home/user/counter.py >/home/user/log 2>&1 &); for i in $(seq 100); do \
                 curl -s localhost:4000 >/dev/null && exit 0; sleep 0.1; done; cat /home/user/log; exit 1";
    sandbox.run(start).await;
    let publish = json!({"port": 4000, "access": "public"});
    let published = p.rest("POST", &format!("/sandboxes/{id}/preview-ports"), Some(publish)).await;
    assert!(published.status < 300, "{published:?}");
    let (process, before, rest) = sandbox.visit().await;
    assert_eq!(rest, "still here kept");

    let running = p.remains();
    assert_eq!((running.machines, running.memories, running.links), (1, 0, 1), "{running:?}");
    assert_confined(running.init_of(&id).unwrap().as_raw_nonzero().get());
    assert_eq!(sandbox.rest("POST", "/pause").await.status, 204, "{}", p.log());
    let paused = p.remains();
    assert_eq!((paused.machines, paused.memories, paused.links, paused.disks), (0, 1, 0, 1), "{}", p.log());
    assert_eq!(paused.processes, 0, "nothing of it runs");
    let refused = p.exec(&id, &sandbox.token, "true").await;
    assert_eq!(refused.status, 503, "{refused:?}");
    p.kill_hard();
    // All that a restart of the machine takes away.
    rustix::mount::unmount(run.join("n/router"), rustix::mount::UnmountFlags::DETACH).unwrap();
    std::fs::remove_dir_all(&run).unwrap();
    tokio::time::sleep(PAUSED).await;
    p.spawn().await;
    assert_eq!(
        p.rest("GET", &format!("/sandboxes/{id}"), None).await.body["status"],
        "paused",
        "{}",
        p.log()
    );
    let sandbox = resume(&p, &id).await;
    sandbox.assert_clock().await;
    let (again, after, rest) = sandbox.visit().await;
    assert_eq!((&again, rest.as_str()), (&process, "still here kept"), "the same process with the same file");
    assert!(after > before, "{after} after {before}");
    assert_eq!(p.remains().memories, 0, "what is on disk is the past");

    // Rules, and nothing but them. What has connections outside stays in memory: its kernel could not write them.
    assert!(sandbox.reaches("198.51.100.1").await && !sandbox.reaches("198.18.0.1").await);
    assert_eq!(sandbox.rest("POST", "/pause").await.status, 204, "{}", p.log());
    let paused = p.remains();
    assert_eq!((paused.machines, paused.memories), (1, 0), "{paused:?}");
    let sandbox = resume(&p, &id).await;
    assert_eq!(sandbox.visit().await.0, process);

    // A running one outlives its server, too, and a dead one is noticed.
    let Sandbox { id, token, .. } = sandbox;
    p.kill_hard();
    p.spawn().await;
    let sandbox = Sandbox { p: &p, id, token };
    assert_eq!(sandbox.run("cat /home/user/file").await, "content");
    let sentry = p.remains().init_of(&sandbox.id).unwrap();
    rustix::process::kill_process(sentry, rustix::process::Signal::KILL).unwrap();
    p.wait_state(&sandbox.id, "paused", Duration::from_secs(20)).await;
    let sandbox = resume(&p, &sandbox.id).await;
    assert_eq!(sandbox.run("cat /home/user/file /tmp/on-disk; echo $MARK").await, "contentx\nkept\n");
    assert_eq!(session(&p, &sandbox.id), "through a session\n");
    assert_eq!(sandbox.rest("DELETE", "").await.status, 204);
    let left = p.remains();
    assert_eq!((left.machines, left.memories, left.links, left.disks), (0, 0, 0, 0), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_guest_does_to_itself_stays_its_own() {
    if !is_here() {
        return;
    }
    let Some(p) = platform_with(&GVISOR).await else { return };
    let (id, token) = p.create(json!({})).await;
    let (other, other_token) = p.create(json!({})).await;
    let sandbox = Sandbox { p: &p, id: id.clone(), token };

    // Root of the guest finds the port among the agent's descriptors. What it floods is its own: whoever waits is cut off, and
    // the next call is answered.
    let flood = "for f in /proc/1/fd/*; do (timeout 2 head -c 300000 /dev/zero > $f) 2>/dev/null & done; wait; echo done";
    let body = json!({"command": flood, "timeout_s": 20}).to_string();
    let request = p.data("POST", "/exec", &id, &sandbox.token, body.into());
    let _cut_off = tokio::time::timeout(Duration::from_secs(15), request).await;
    assert_eq!(p.run(&other, &other_token, "echo untouched").await, "untouched\n");
    // It may have ended its own machine: then it boots again from its disk.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let sandbox = resume(&p, &id).await;
    let shown = sandbox.run("bash -c 'ulimit -u'; grep -c '1048576 kB' /proc/meminfo").await;
    assert!(shown.starts_with("4096\n") && shown.trim_end() != "4096\n0", "{shown}");

    // What cannot be written out stays in memory, whole: a file that has no name any more.
    let hold = "exec 7>/home/user/gone; rm /home/user/gone; echo kept >&7; (sleep 1000 <&7 &) ; echo held";
    assert_eq!(sandbox.run(hold).await, "held\n");
    assert_eq!(sandbox.rest("POST", "/pause").await.status, 204, "{}", p.log());
    assert_eq!((p.remains().machines, p.remains().memories), (2, 0), "{}", p.log());
    let sandbox = resume(&p, &id).await;
    assert_eq!(sandbox.run("pgrep sleep | wc -l").await, "1\n");

    // Terminals are its kernel's.
    assert_eq!(sandbox.run("script -qc 'stty rows 33 cols 44; stty size' /dev/null").await.trim(), "33 44");

    // More memory than it has ends its kernel, which says so, and costs no other sandbox anything; its disk is what it was.
    sandbox.run("echo kept > /home/user/kept; sync").await;
    let hog = "python3 -c \"all = []\nwhile True: all.append(b'x' * (64 << 20))\"";
    let ended = p.exec(&id, &sandbox.token, hog).await;
    assert_eq!(ended.status, 502, "{ended:?}");
    p.wait_state(&id, "paused", Duration::from_secs(20)).await;
    assert_eq!(p.run(&other, &other_token, "echo untouched").await, "untouched\n");
    let sandbox = resume(&p, &id).await;
    assert_eq!(sandbox.run("cat /home/user/kept; pgrep sleep | wc -l").await, "kept\n0\n");
}

/// What the sentry may do itself.
fn assert_confined(pid: i32) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(field("Uid:"), ["65534"; 4]);
    assert_eq!(field("NoNewPrivs:"), ["1"]);
    assert_eq!(field("Seccomp:"), ["2"]);
    // Of a user namespace of its own.
    let own = std::fs::read_link(format!("/proc/{pid}/ns/user")).unwrap();
    assert_ne!(own, std::fs::read_link("/proc/self/ns/user").unwrap());
    // Nothing about the guest is in its arguments but which sandbox it is.
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(!String::from_utf8_lossy(&line).contains("debug"));
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
