//! Starts an agent and speaks HTTP to it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::io::FdFlags;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use tempfile::TempDir;
use wire::data_plane::ExecResponse;

/// Longer than anything asked for here may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the agent is started.
pub(crate) struct Setup {
    /// A shell line that runs in a mount namespace of the agent's own, before it.
    pub(crate) before: Option<&'static str>,
    /// As PID 1 of a process namespace.
    pub(crate) pid1: bool,
    pub(crate) nproc: u32,
    pub(crate) cgroups: Vec<std::fs::File>,
    pub(crate) config: Option<Value>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { before: None, pid1: false, nproc: 100_000, cgroups: Vec::new(), config: Some(json!({})) }
    }
}

/// A running agent; dropped, it goes with everything below it.
pub(crate) struct Agent {
    child: Child,
    dir: TempDir,
}

pub(crate) fn agent() -> Agent {
    Agent::start(Setup::default())
}

impl Agent {
    pub(crate) fn start(setup: Setup) -> Self {
        let dir = tempfile::Builder::new().prefix("agent").tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(0), Some(0)).unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        rustix::io::fcntl_setfd(&listener, FdFlags::empty()).unwrap();
        for file in &setup.cgroups {
            rustix::io::fcntl_setfd(file, FdFlags::empty()).unwrap();
        }
        let binary = env!("CARGO_BIN_EXE_superserve-agent");
        let line =
            format!("{}exec {binary} guest", setup.before.map_or(String::new(), |line| format!("{line}; ")));
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        if setup.pid1 {
            command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        }
        let cgroups: Vec<String> = setup.cgroups.iter().map(|file| file.as_raw_fd().to_string()).collect();
        let child = command
            .args(["sh", "-c", &line])
            .env("TEST_DIR", dir.path())
            .env("SUPERSERVE_LISTEN_FD", listener.as_raw_fd().to_string())
            .env("SUPERSERVE_CGROUP_FDS", cgroups.join(","))
            .env("SUPERSERVE_NPROC", setup.nproc.to_string())
            .current_dir("/")
            .spawn()
            .unwrap();
        let agent = Self { child, dir };
        assert_eq!(agent.get("/_agent/health").status, 200);
        if let Some(mut config) = setup.config {
            if config.get("workdir").is_none() {
                config["workdir"] = json!(agent.path(""));
            }
            assert_eq!(agent.send("PUT", "/_agent/config", config.to_string().as_bytes()).status, 204);
        }
        agent
    }

    /// The agent's process, where it is not PID 1.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A path in the test's directory, the default working directory of commands.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().trim_end_matches('/').to_owned()
    }

    pub(crate) fn files(&self, name: &str) -> String {
        format!("/files?path={}", self.path(name))
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.dir.path().join("socket")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request and leaves the answer to be read.
    pub(crate) fn open(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> UnixStream {
        let mut stream = self.connect();
        stream.write_all(&request(method, target, headers, body)).unwrap();
        stream
    }

    pub(crate) fn send(&self, method: &str, target: &str, body: &[u8]) -> Answer {
        Answer::read(self.open(method, target, &[], body), method)
    }

    pub(crate) fn get(&self, target: &str) -> Answer {
        self.send("GET", target, b"")
    }

    pub(crate) fn get_with(&self, target: &str, headers: &[(&str, &str)]) -> Answer {
        Answer::read(self.open("GET", target, headers, b""), "GET")
    }

    /// Runs a command that must get a 200.
    pub(crate) fn run(&self, command: &str) -> ExecResponse {
        self.exec(json!({"command": command}))
    }

    pub(crate) fn exec(&self, request: Value) -> ExecResponse {
        let answer = self.send("POST", "/exec", request.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{request}: {}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// Waits for a file to appear with some content.
    pub(crate) fn wait_for(&self, name: &str) -> String {
        wait_for(|| std::fs::read_to_string(self.path(name)).ok().filter(|text| !text.is_empty()))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Everything that runs in here is below the agent, which is their subreaper.
        for pid in below(self.child.id()) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {target} HTTP/1.1\r\nHost: agent\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("upgrade")) {
        text += "Connection: close\r\n";
    }
    if !headers.iter().any(|(name, _)| ["content-length", "transfer-encoding"].contains(name)) {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    [text.as_bytes(), b"\r\n", body].concat()
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// The body came whole.
    pub(crate) complete: bool,
}

impl Answer {
    pub(crate) fn read(mut stream: UnixStream, method: &str) -> Self {
        let bytes = read_answer(&mut stream);
        let split = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        let head = std::str::from_utf8(&bytes[..split]).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let headers: HashMap<String, String> = head
            .lines()
            .skip(1)
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let raw = &bytes[split + 4..];
        let (body, complete) = if headers.contains_key("transfer-encoding") {
            dechunk(raw)
        } else {
            let length = headers.get("content-length").map(|length| length.parse().unwrap());
            (raw.to_vec(), method == "HEAD" || length.is_none_or(|length: usize| length == raw.len()))
        };
        Self { status, headers, body, complete }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    /// Status and code of a refusal, which has the nested form.
    pub(crate) fn refusal(&self) -> (u16, String) {
        let body = self.json();
        assert!(!body["error"]["message"].as_str().expect("a message").is_empty());
        (self.status, body["error"]["code"].as_str().expect("a code").to_owned())
    }
}

/// Until the promised length or the end: a connection that asked for an upgrade stays open.
fn read_answer(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 65536];
    loop {
        let length = stream.read(&mut buffer).expect("an answer in time");
        bytes.extend_from_slice(&buffer[..length]);
        let head = bytes.windows(4).take(16384).position(|window| window == b"\r\n\r\n");
        let promised = head.and_then(|end| {
            let head = std::str::from_utf8(&bytes[..end]).unwrap();
            let line = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
            Some(end + 4 + line.parse::<usize>().unwrap())
        });
        if length == 0 || promised.is_some_and(|promised| bytes.len() >= promised) {
            return bytes;
        }
    }
}

fn dechunk(mut raw: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = raw.windows(2).position(|window| window == b"\r\n") else { return (body, false) };
        let length = usize::from_str_radix(std::str::from_utf8(&raw[..end]).unwrap(), 16).unwrap();
        raw = &raw[end + 2..];
        if length == 0 {
            return (body, true);
        }
        if raw.len() < length + 2 {
            return (body, false);
        }
        body.extend_from_slice(&raw[..length]);
        raw = &raw[length + 2..];
    }
}

pub(crate) fn wait_for<T>(condition: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn exists(path: impl AsRef<Path>) -> bool {
    path.as_ref().symlink_metadata().is_ok()
}

/// Runs and is no zombie.
pub(crate) fn alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(' ') && !rest.starts_with(" Z"))
}

/// Parent and state of every process.
fn table() -> Vec<(u32, u32, char)> {
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read(PathBuf::from(format!("/proc/{pid}/stat"))).ok()?;
            let stat = String::from_utf8_lossy(&stat).into_owned();
            let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace();
            let state = fields.next()?.chars().next()?;
            Some((pid, fields.next()?.parse().ok()?, state))
        })
        .collect()
}

/// All processes below one.
pub(crate) fn below(root: u32) -> Vec<Pid> {
    let table = table();
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let above = found[at];
        found.extend(table.iter().filter(|(_, parent, _)| *parent == above).map(|(pid, ..)| *pid));
        at += 1;
    }
    found.iter().skip(1).filter_map(|pid| Pid::from_raw(i32::try_from(*pid).unwrap())).collect()
}

pub(crate) fn zombies_below(root: u32) -> usize {
    table().iter().filter(|(_, parent, state)| *parent == root && *state == 'Z').count()
}

/// Most memory the process had resident, KiB.
pub(crate) fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}
