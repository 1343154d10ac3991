//! Forks of virtual machines, emulated: each goes on with the processes of its source, is a machine of its own, and needs nothing
//! but itself. Skipped loudly where QEMU or a guest kernel is missing.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testing::Platform;

use crate::platform_with;
use crate::vm::{CLOCK_SLACK, Sandbox, flags};

/// In CI; `SUPERSERVE_FORKS` says otherwise.
const FORKS: usize = 3;

/// Counts in memory, makes random numbers without a pause, holds a file open that has no name any more, and tells all of it to
/// whoever connects.
const SERVER: &str = r#"
import json, os, socket, threading, time
count, numbers = 0, []
held = open('/tmp/held', 'w+')
os.unlink('/tmp/held')
held.write('still here'); held.flush()
def working():
    global count
    while True:
        count += 1
        if len(numbers) < 200000:
            numbers.append(os.getrandom(8).hex())
        time.sleep(0.001)
threading.Thread(target=working, daemon=True).start()
server = socket.socket()
server.bind(('127.0.0.1', 4000)); server.listen()
while True:
    peer, _ = server.accept()
    peer.recv(4096)
    held.seek(0)
    told = {'pid': os.getpid(), 'count': count, 'held': held.read(), 'mark': os.environ['MARK'],
            'key': os.environ['KEY'], 'time': time.time(), 'numbers': numbers[:]}
    text = json.dumps(told).encode()
    peer.sendall(b'HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s' % (len(text), text))
    peer.close()
"#;

async fn platform() -> Option<Platform> {
    let own = flags()?;
    platform_with(&own.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// Saves a sandbox with its memory.
async fn save(p: &Platform, id: &str) -> String {
    let saved = p.rest("POST", &format!("/sandboxes/{id}/snapshot"), Some(json!({}))).await;
    assert_eq!(saved.status, 201, "{saved:?}\n{}", p.log());
    assert_eq!((&saved.body["status"], &saved.body["captured"]), (&json!("ready"), &json!("memory+disk")));
    assert!(saved.body["size_bytes"].as_u64().unwrap() > 1 << 20, "{saved:?}");
    saved.body["id"].as_str().unwrap().to_owned()
}

async fn try_fork(p: &Platform, snapshot: &str, mark: &str) -> testing::Answer {
    let body = json!({"name": "fork", "from_snapshot": snapshot, "env_vars": {"MARK": mark}});
    p.rest("POST", "/sandboxes", Some(body)).await
}

async fn fork<'a>(p: &'a Platform, snapshot: &str, mark: &str) -> Sandbox<'a> {
    let made = try_fork(p, snapshot, mark).await;
    assert_eq!(made.status, 201, "{made:?}\n{}", p.log());
    let text = |key: &str| made.body[key].as_str().unwrap().to_owned();
    Sandbox { p, id: text("id"), token: text("access_token") }
}

/// What the server that was started in the source tells through the fork's preview.
async fn told(sandbox: &Sandbox<'_>) -> Value {
    let publish = json!({"port": 4000, "access": "public"});
    let path = format!("/sandboxes/{}/preview-ports", sandbox.id);
    let published = sandbox.p.rest("POST", &path, Some(publish)).await;
    assert!(published.status < 300, "{published:?}");
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let before = now() - CLOCK_SLACK;
    let told: Value = serde_json::from_str(&sandbox.visited().await).unwrap();
    let range = before..=now() + CLOCK_SLACK;
    assert!(range.contains(&told["time"].as_f64().unwrap()), "processes that go on know the time");
    told
}

/// What tells one computer from another.
async fn facts(sandbox: &Sandbox<'_>) -> Vec<String> {
    let ask = "hostname; cat /etc/hostname; [ -s /etc/machine-id ] && cat /etc/machine-id || echo $(hostname) none; cat /proc/sys/kernel/random/boot_id; \
               head -c16 /dev/urandom | od -An -tx1; python3 -c 'import os; print(os.getrandom(16).hex())'; \
               grep -o '100\\.96\\.[0-9.]*' /proc/net/fib_trie | sort -u | tr '\\n' ' '; echo; cat /sys/class/net/eth0/address";
    let mut facts: Vec<String> = sandbox.run(ask).await.lines().map(str::to_owned).collect();
    assert_eq!(facts.len(), 8, "{facts:?}");
    assert_eq!(facts.remove(0), facts[0], "both names are the same");
    facts.push(sandbox.token.clone());
    facts
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_go_on_where_their_source_was_and_are_machines_of_their_own() {
    let Some(p) = platform().await else { return };
    let secret = json!({"name": "one", "value": "real-value-of-a-secret-that-is-long-enough", "auth": {"type": "bearer"}, "hosts": ["a.example"]});
    assert_eq!(p.rest("POST", "/secrets", Some(secret)).await.status, 201);
    let (id, token) = p.create(json!({"env_vars": {"MARK": "old"}, "secrets": {"KEY": "one"}})).await;
    let source = Sandbox { p: &p, id, token };
    source.upload("/home/user/server.py", SERVER).await;
    source.run("echo 0123456789abcdef0123456789abcdef > /etc/machine-id").await;
    let start = "(nohup python3 /home/user/server.py >/tmp/log 2>&1 &); for i in $(seq 100); do \
                 curl -s localhost:4000 >/dev/null && exit 0; sleep 0.1; done; cat /tmp/log; exit 1";
    source.run(start).await;
    let snapshot = save(&p, &source.id).await;
    assert_eq!(source.run("echo on").await, "on\n", "the source goes on with the token it had");

    let many = std::env::var("SUPERSERVE_FORKS").ok().map_or(FORKS, |many| many.parse().unwrap());
    let mut all = vec![(told(&source).await, facts(&source).await)];
    let mut forks = Vec::new();
    for number in 0..many {
        let begun = std::time::Instant::now();
        let fork = fork(&p, &snapshot, &format!("new {number}")).await;
        println!("fork {number}: {} ms", begun.elapsed().as_millis());
        fork.assert_clock().await;
        assert_eq!(fork.run("echo $MARK").await, format!("new {number}\n"));
        let key = fork.run("echo $KEY").await;
        assert!(key.len() > 20 && key.trim() != all[0].0["key"].as_str().unwrap(), "a stand-in of its own");
        all.push((told(&fork).await, facts(&fork).await));
        fork.run(&format!("echo {number} > /home/user/mine")).await;
        forks.push(fork);
    }
    let (of_source, _) = all[0].clone();
    for (told, facts) in &all[1..] {
        for same in ["pid", "held", "mark", "key"] {
            assert_eq!(told[same], of_source[same], "{same} is the source's");
        }
        assert!(facts[0].starts_with("sandbox-") && facts[1].starts_with(&facts[0]["sandbox-".len()..]));
    }
    let mut beginnings = BTreeSet::new();
    for (at, (told, facts)) in all.iter().enumerate() {
        for (other, theirs) in &all[at + 1..] {
            for (number, (mine, theirs)) in facts.iter().zip(theirs).enumerate() {
                assert_ne!(mine, theirs, "fact {number}");
            }
            let (mine, theirs) = (told["numbers"].as_array().unwrap(), other["numbers"].as_array().unwrap());
            let common = mine.iter().zip(theirs).take_while(|(a, b)| a == b).count();
            assert!(common > 0 && common < mine.len() && common < theirs.len(), "{common}");
            assert!(mine[common..].iter().all(|one| !theirs.contains(one)), "no number twice");
            beginnings.insert(common);
        }
    }
    assert_eq!(
        beginnings.len(),
        1,
        "not one was made between the snapshot and the new beginning: {beginnings:?}"
    );

    // Each is on its own.
    for (number, fork) in forks.iter().enumerate() {
        assert_eq!(fork.run("cat /home/user/mine").await, format!("{number}\n"));
        let told: Value = serde_json::from_str(&fork.visited().await).unwrap();
        assert!(told["count"].as_u64() > all[number + 1].0["count"].as_u64(), "it goes on");
    }
    assert_eq!(source.exec_code("cat /home/user/mine").await, 1);
    assert_eq!(p.remains().states, 1);
    assert_eq!(p.rest("DELETE", &format!("/snapshots/{snapshot}"), None).await.status, 204);
    assert_eq!(source.rest("DELETE", "").await.status, 204);
    assert_eq!(p.remains().states, 0, "nothing is left of the snapshot");
    let first = forks.swap_remove(0);
    assert_eq!(first.run("cat /home/user/mine; sync; ls / | grep -c usr").await, "0\n1\n");
    // A fork is a sandbox like any: paused, saved while it is, resumed, forked again.
    assert_eq!(first.rest("POST", "/pause").await.status, 204);
    let again = save(&p, &first.id).await;
    assert_eq!(p.rest("GET", &format!("/sandboxes/{}", first.id), None).await.body["status"], "paused");
    let second = fork(&p, &again, "newest").await;
    let deeper = told(&second).await;
    assert_eq!((&deeper["pid"], &deeper["mark"]), (&of_source["pid"], &json!("old")));
    assert_ne!(facts(&second).await[1..3], all[1].1[1..3]);
    let resumed = first.rest("POST", "/activate").await;
    assert_eq!(resumed.status, 200, "{resumed:?}\n{}", p.log());
    let token = resumed.body["access_token"].as_str().unwrap().to_owned();
    let first = Sandbox { token, ..first };
    assert_eq!(first.run("cat /home/user/mine").await, "0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_save_or_fork_that_is_cut_off_leaves_nothing_and_costs_nothing() {
    let Some(mut p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    p.run(&id, &token, "nohup sleep 1000 >/dev/null 2>&1 & echo $! > /home/user/pid; sync").await;
    let snapshot = save(&p, &id).await;
    // The server ends in the middle of each.
    let forking = json!({"name": "fork", "from_snapshot": snapshot});
    for (path, body, after) in [
        (format!("/sandboxes/{id}/snapshot"), json!({}), Duration::from_millis(150)),
        ("/sandboxes".to_owned(), forking, Duration::from_millis(700)),
    ] {
        let asked = tokio::time::timeout(after, p.rest("POST", &path, Some(body))).await;
        println!("{path} was cut off: {}", asked.is_err());
        p.kill_hard();
        p.spawn().await;
        let left = p.remains();
        let done = usize::from(asked.is_ok());
        assert!(left.states <= 1 + done && left.machines <= 1 + done, "{left:?}");
        let states = p.state_dir().join("states");
        let half = std::fs::read_dir(states).unwrap().flatten().filter(|e| e.path().extension().is_some());
        assert_eq!(half.count(), 0, "nothing is half there");
        p.wait_state(&id, "active", Duration::from_secs(30)).await;
        // One that stood still was resumed.
        let active = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
        let token = active.body["access_token"].as_str().unwrap().to_owned();
        assert_eq!(p.run(&id, &token, "kill -0 $(cat /home/user/pid) && echo alive").await, "alive\n");
    }

    // A memory that cannot be continued: a clear answer, nothing left, and the snapshot as it was.
    let memory = p.state_dir().join(format!("states/{snapshot}/checkpoint/state"));
    let kept = std::fs::read(&memory).unwrap();
    std::fs::write(&memory, &kept[..kept.len() / 2]).unwrap();
    let before = p.remains();
    let refused = try_fork(&p, &snapshot, "x").await;
    assert!(
        refused.status == 500 && refused.body.to_string().contains("could not be continued"),
        "{refused:?}"
    );
    assert_eq!(p.remains(), before, "nothing is left of it");
    assert_eq!(p.rest("GET", &format!("/snapshots/{snapshot}"), None).await.body["status"], "ready");
    std::fs::write(&memory, kept).unwrap();
    let again = fork(&p, &snapshot, "x").await;
    assert_eq!(again.run("kill -0 $(cat /home/user/pid) && echo alive").await, "alive\n");
}

/// Where templates are kept with their memory.
fn template_states(p: &Platform) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir(p.state_dir().join("states")).unwrap().flatten().map(|entry| entry.path());
    all.filter(|path| path.to_string_lossy().contains("/template-") && path.extension().is_none()).collect()
}

/// The state, when it is whole and the machine that made it has gone.
async fn wait_for_template(p: &Platform, others: usize) -> std::path::PathBuf {
    for _ in 0..600 {
        if let ([state], machines) = (&template_states(p)[..], p.remains().machines)
            && machines == others
        {
            return state.clone();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no template is kept:\n{}", p.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_is_booted_once_and_has_nothing_of_anybodys() {
    let Some(own) = flags() else { return };
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let env = [("SUPERSERVE_TEMPLATE_SNAPSHOTS", "1")];
    let Some(mut p) = crate::platform_with_env(&own, &env).await else { return };
    let create = async |p: &Platform, what: &str| {
        let begun = std::time::Instant::now();
        let (id, token) = p.create(json!({"env_vars": {"MARK": "a-variable-of-a-tenant"}})).await;
        assert_eq!(p.run(&id, &token, "echo $MARK").await, "a-variable-of-a-tenant\n");
        println!("create to the end of a command, {what}: {} ms", begun.elapsed().as_millis());
        (id, token)
    };
    let (first, token) = create(&p, "booted").await;
    let whole = std::env::var_os("SUPERSERVE_ISOLATION").is_some();
    if whole {
        // The server ends while the template boots: nothing is left of that.
        p.kill_hard();
        p.spawn().await;
        let left = p.remains();
        assert_eq!((left.machines, left.links, left.disks, left.states), (1, 1, 1, 0), "{left:?}");
        create(&p, "booted").await;
    } else {
        eprintln!("SKIPPED: an end of the server, and a damaged state (make test-vm has them)");
    }
    let state = wait_for_template(&p, 1 + usize::from(whole)).await;
    let made = std::fs::metadata(&state).unwrap().modified().unwrap();
    let (second, other) = create(&p, "from the template's memory").await;
    assert!(std::fs::metadata(&state).unwrap().modified().unwrap() > made, "it began with it");
    let one = facts(&Sandbox { p: &p, id: first, token }).await;
    let second = Sandbox { p: &p, id: second, token: other };
    second.assert_clock().await;
    for (number, (one, other)) in one.iter().zip(facts(&second).await).enumerate() {
        assert_ne!(*one, other, "fact {number}");
    }
    // As an archive, which leaves out the holes of the disk.
    let found = format!("tar -C {} -Scf - . | grep -ac a-variable-of-a-tenant", state.display());
    let found = Command::new("sh").args(["-c", &found]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "0\n", "nothing of a tenant's is in it");
    assert_eq!(p.remains().machines, 2 + usize::from(whole));
    if whole {
        std::fs::write(state.join("checkpoint/state"), "rubbish").unwrap();
        create(&p, "booted, the template's memory being damaged").await;
        assert!(p.log().contains("is of no use; booting instead"));
    }
    let begun = std::time::Instant::now();
    assert_eq!(p.stop().await, Some(0));
    println!("stop: {} ms", begun.elapsed().as_millis());
    let (left, all) = (p.remains(), if whole { 4 } else { 2 });
    assert_eq!((left.machines, left.links, left.states), (all, all, usize::from(!whole)), "{left:?}");
}
