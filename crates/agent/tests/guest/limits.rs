//! The agent under attack by its own guest.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::json;

use crate::harness::{Agent, Setup, alive, below, wait_for};

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

#[test]
fn no_room_for_a_process_is_said_clearly() {
    let config = json!({"user": "54398", "workdir": "/tmp"});
    let agent = Agent::start(Setup { nproc: 3, config: Some(config), ..Setup::default() });
    let sleepers = RefCell::new(Vec::new());
    let refused = || {
        let sleeper = agent.open("POST", "/exec/stream", &[], br#"{"command": "exec sleep 60"}"#);
        sleepers.borrow_mut().push(sleeper);
        let answer = agent.send("POST", "/exec", br#"{"command": "true"}"#);
        (answer.status != 200).then_some(answer)
    };
    let answer = wait_for(refused);
    assert_eq!(answer.refusal(), (500, "internal_error".to_owned()));
    assert!(answer.text().contains("limit of processes"), "{}", answer.text());
    assert_eq!(agent.get("/_agent/health").status, 200);
    assert_eq!(agent.get("/files?path=/etc/passwd").status, 200);
}

#[test]
fn time_in_the_freezer_does_not_count() {
    let agent = Agent::start(Setup::default());
    let signal = |signal| {
        let own = Pid::from_raw(i32::try_from(agent.pid()).unwrap());
        for pid in below(agent.pid()).into_iter().chain(own) {
            rustix::process::kill_process(pid, signal).unwrap();
        }
    };
    let request =
        json!({"command": "echo > started; for i in 1 2 3; do sleep 1; done; echo done", "timeout_s": 5});
    let (sync, stream) = std::thread::scope(|scope| {
        let sync = scope.spawn(|| agent.exec(request.clone()));
        let stream =
            scope.spawn(|| agent.send("POST", "/exec/stream", request.to_string().as_bytes()).text());
        agent.wait_for("started");
        std::thread::sleep(Duration::from_millis(500));
        signal(Signal::STOP);
        std::thread::sleep(Duration::from_secs(8));
        signal(Signal::CONT);
        (sync.join().unwrap(), stream.join().unwrap())
    });
    assert_eq!((sync.stdout.as_str(), sync.exit_code), ("done\n", 0));
    assert!(stream.contains("\"exit_code\":0"), "{stream}");
}

#[test]
fn a_guest_that_hides_proc_cannot_escape_its_time_limit() {
    let agent = Agent::start(Setup::default());
    assert_eq!(agent.run("mount -t tmpfs tmpfs /proc && ls /proc").stdout, "");
    let answer = agent.exec(json!({"command": "setsid sleep 60 & echo $! > pid; sleep 60", "timeout_s": 1}));
    assert_eq!(answer.exit_code, 124);
    assert!(!alive(&agent.wait_for("pid")));
}

/// With the wall that PID 1 builds around its sandbox.
#[test]
fn as_pid_1_the_contract_holds_too() {
    let agent = Agent::start(Setup { pid1: true, ..Setup::default() });
    let answer =
        agent.run("cat /proc/self/oom_score_adj; ls /proc/self/fd | tr '\\n' ' '; umask; echo $$ > pid");
    assert_eq!(answer.stdout, "500\n0 1 2 3 0022\n");
    let tree = "trap '' TERM; (setsid sleep 61 &); setsid sh -c 'setsid sleep 62 & exit' & echo a; sleep 63; sleep 64";
    let answer = agent.exec(json!({"command": tree, "timeout_s": 1}));
    assert_eq!((answer.stdout.as_str(), answer.exit_code), ("a\n", 124));
    let left = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 6[1-4]'; kill -9 1; kill -STOP 1; kill -TERM 1; true";
    assert_eq!(agent.run(left).stdout, "");
    let config = json!({"user": "54321", "workdir": "/tmp"}).to_string();
    assert_eq!(agent.send("PUT", "/_agent/config", config.as_bytes()).status, 204);
    let long = format!("id -u; id -G; : {}", "x".repeat(300 * 1024));
    assert_eq!(agent.run(&long).stdout, "54321\n54321\n");
    assert_eq!(agent.get("/files?path=/etc/shadow").refusal().0, 403);
    let target = format!("/files?path=/tmp/superserve-agent-test-{}", agent.pid());
    assert_eq!(agent.send("POST", &target, b"abc").status, 200);
    assert_eq!(agent.get(&target).text(), "abc");
    let name = target.strip_prefix("/files?path=").unwrap();
    assert_eq!(agent.run(&format!("stat -c '%u %g %a' {name}; rm {name}")).stdout, "54321 54321 644\n");
}
