//! The agent under attack by its own guest.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Agent, Setup, below, wait_for};

const BOMB: &str = "bomb() { bomb | bomb & }; bomb; sleep 60";

#[test]
fn a_fork_bomb_under_the_process_limit() {
    // An unprivileged user, because on the host itself the limit does not hold for root.
    let config = json!({"user": "54399", "workdir": "/tmp"});
    let agent = Agent::start(Setup { nproc: 40, config: Some(config), ..Setup::default() });
    std::thread::scope(|scope| {
        let bomb = scope.spawn(|| agent.exec(json!({"command": BOMB, "timeout_s": 3})));
        std::thread::sleep(Duration::from_millis(500));
        let before = Instant::now();
        assert_eq!(agent.get("/_agent/health").status, 200);
        assert_eq!(agent.get("/files?path=/etc/passwd").status, 200);
        assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
        assert_eq!(bomb.join().unwrap().exit_code, 124);
    });
    wait_for(|| below(agent.pid()).is_empty().then_some(()));
    assert_eq!(agent.run("ulimit -p; echo ok | cat").stdout, "40\nok\n");
}

/// A process cgroup that goes with the test.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(most: &str) -> Option<Self> {
        let root = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"]
            .into_iter()
            .map(PathBuf::from)
            .find(|root| root.join("cgroup.procs").exists())?;
        let group = Self(root.join(format!("superserve-agent-test-{}", std::process::id())));
        std::fs::create_dir(&group.0).ok()?;
        std::fs::write(group.0.join("pids.max"), most).ok()?;
        Some(group)
    }

    fn entry(&self) -> File {
        OpenOptions::new().write(true).open(self.0.join("cgroup.procs")).unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn children_enter_their_cgroup_and_the_agent_does_not() {
    let Some(group) = Cgroup::new("30") else {
        eprintln!("SKIPPED: no process cgroup can be made here");
        return;
    };
    let agent = Agent::start(Setup { cgroups: vec![group.entry()], ..Setup::default() });
    let name = group.0.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(agent.run("cat /proc/self/cgroup").stdout.contains(&name));
    let own = std::fs::read_to_string(format!("/proc/{}/cgroup", agent.pid())).unwrap();
    assert!(!own.contains(&name), "{own}");
    // As root: only the cgroup holds the bomb.
    std::thread::scope(|scope| {
        let bomb = scope.spawn(|| agent.exec(json!({"command": BOMB, "timeout_s": 3})));
        std::thread::sleep(Duration::from_millis(500));
        // Starting is still possible, as the agent forks outside the limit.
        assert_eq!(agent.run("echo $((6*7))").stdout, "42\n");
        assert_eq!(agent.send("POST", &agent.files("file"), b"x").status, 200);
        assert_eq!(bomb.join().unwrap().exit_code, 124);
    });
    wait_for(|| below(agent.pid()).is_empty().then_some(()));
    drop(agent);
    drop(group);
}
