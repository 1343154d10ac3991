//! Ends of whole process trees: time limits, clients that go away, guests that attack their supervisor.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Agent, agent, alive, below, wait_for};

/// A stubborn leader with children in its group, in another session, and forked twice.
const TREE: &str = "trap '' TERM HUP INT; echo out; echo err >&2; echo $$ > leader; \
                    sleep 60 & echo $! > child; \
                    setsid sh -c 'trap \"\" TERM; echo $$ > session; sleep 60; sleep 60' & \
                    setsid sh -c 'setsid sh -c \"echo \\$\\$ > twice; sleep 60; sleep 60\" & exit' & \
                    while :; do sleep 60; done";
const NAMES: [&str; 4] = ["leader", "child", "session", "twice"];

fn pids(agent: &Agent) -> Vec<String> {
    NAMES.iter().map(|name| agent.wait_for(name)).collect()
}

#[test]
fn a_time_limit_ends_the_whole_tree_and_keeps_the_output() {
    let agent = agent();
    assert_eq!(agent.run("setsid sleep 60 & echo $! > earlier").exit_code, 0);
    let before = Instant::now();
    let answer = agent.exec(json!({"command": TREE, "timeout_s": 1}));
    let took = before.elapsed();
    assert_eq!((answer.exit_code, answer.stdout.as_str(), answer.stderr.as_str()), (124, "out\n", "err\n"));
    assert!((Duration::from_millis(950)..Duration::from_secs(10)).contains(&took), "{took:?}");
    for (name, pid) in NAMES.iter().zip(pids(&agent)) {
        assert!(!alive(&pid), "{name} lives");
    }
    assert!(alive(&agent.wait_for("earlier")), "a daemon of an earlier command must live on");
    wait_for(|| (below(agent.pid()).len() == 1).then_some(()));
}

#[test]
fn a_time_limit_ends_a_command_that_floods_its_pipes() {
    let answer = agent().exec(json!({"command": "yes & yes >&2", "timeout_s": 1}));
    assert_eq!((answer.exit_code, answer.truncated), (124, true));
}

#[test]
fn a_client_that_goes_away_takes_its_command_with_it() {
    let agent = agent();
    let connection = agent.open("POST", "/exec", &[], json!({"command": TREE}).to_string().as_bytes());
    let pids = pids(&agent);
    assert!(pids.iter().all(|pid| alive(pid)));
    drop(connection);
    wait_for(|| pids.iter().all(|pid| !alive(pid)).then_some(()));
    wait_for(|| below(agent.pid()).is_empty().then_some(()));
    assert_eq!(agent.run("echo still here").stdout, "still here\n");
}

#[test]
fn a_guest_that_kills_its_supervisor_still_gets_its_answer() {
    let agent = agent();
    let answer = agent.run("kill -9 $PPID; echo a; sleep 0.1; echo b; exit 5");
    assert_eq!((answer.stdout.as_str(), answer.exit_code), ("a\nb\n", 5));
    let answer =
        agent.exec(json!({"command": "kill -9 $PPID; sleep 60 & echo $! > child; sleep 60", "timeout_s": 1}));
    assert_eq!(answer.exit_code, 124);
    assert!(!alive(&agent.wait_for("child")));
    wait_for(|| below(agent.pid()).is_empty().then_some(()));
}

#[test]
fn a_stopped_leader_ends_at_its_time_limit() {
    let answer = agent().exec(json!({"command": "echo a; kill -STOP $$; echo b", "timeout_s": 1}));
    assert_eq!((answer.stdout.as_str(), answer.exit_code), ("a\n", 124));
}
