//! The exec contract: what a command gets and what its answer says.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Agent, Setup, agent, alive, exists, peak_kib, wait_for, zombies_below};

#[test]
fn a_daemon_that_keeps_the_pipes_never_delays_the_answer_and_lives_on() {
    let agent = agent();
    for command in [
        "sleep 60 & echo $! > pid; echo done",
        "setsid sleep 60 & echo $! > pid; echo done",
        "setsid sh -c 'sleep 60 & echo $! > pid' ; echo done",
    ] {
        let before = Instant::now();
        let answer = agent.run(command);
        assert!(before.elapsed() < Duration::from_millis(900), "{command} took {:?}", before.elapsed());
        assert_eq!((answer.stdout.as_str(), answer.exit_code), ("done\n", 0), "{command}");
        assert!(alive(&agent.wait_for("pid")), "{command}");
    }
}

#[test]
fn a_daemon_may_go_on_writing_to_the_pipes() {
    let agent = agent();
    let command =
        "(sleep 0.3; for i in 1 2 3; do head -c 100000 /dev/zero; echo more >&2; done; echo yes > written) &";
    assert_eq!(agent.run(command).exit_code, 0);
    assert_eq!(agent.wait_for("written"), "yes\n");
}

#[test]
fn trailing_output_is_never_cut() {
    let agent = agent();
    for round in 0..40 {
        let answer = agent
            .run("head -c 65536 /dev/zero | tr '\\0' x; head -c 60000 /dev/zero | tr '\\0' y >&2; exit 7");
        assert_eq!(
            (answer.stdout.len(), answer.stderr.len(), answer.exit_code),
            (65536, 60000, 7),
            "round {round}"
        );
    }
    // Also when a daemon holds the pipes, and from a helper the leader does not wait for.
    let answer = agent.run("sleep 60 & head -c 65536 /dev/zero | tr '\\0' x");
    assert_eq!(answer.stdout.len(), 65536);
    // Such a helper has 200 ms; on a machine this busy it may once miss them, but not every time.
    let caught = (0..10).any(|_| agent.run("exec bash -c 'echo last > >(cat)'").stdout == "last\n");
    assert!(caught, "output of a helper that outlives the leader by a moment is lost");
}

#[test]
fn exit_codes() {
    let agent = agent();
    let check = |command: &str, code: i32| assert_eq!(agent.run(command).exit_code, code, "{command}");
    check("true", 0);
    check("exit 255", 255);
    check("no-such-command", 127);
    check("/etc/passwd", 126);
    check("kill -TERM $$", 143);
    check("kill -KILL $$", 137);
    check("kill -SEGV $$", 139);
    check("-c", 127);
}

#[test]
fn direct_arguments() {
    let agent = agent();
    let answer = agent.exec(json!({"command": "printf", "args": ["%s|", "a b", "$HOME", ""]}));
    assert_eq!(answer.stdout, "a b|$HOME||");
    let answer = agent.exec(json!({"command": "/etc/passwd", "args": []}));
    assert_eq!(answer.exit_code, 126);
    assert!(answer.stderr.contains("/etc/passwd"), "{}", answer.stderr);
    let answer = agent.send("POST", "/exec", br#"{"command": "no-such-command", "args": []}"#);
    assert_eq!(answer.refusal(), (400, "bad_request".to_owned()));
    // The path that counts is the command's own.
    let answer = agent.exec(json!({"command": "true", "args": [], "env": {"PATH": "/nowhere:/bin"}}));
    assert_eq!(answer.exit_code, 0);
}

#[test]
fn standard_input_is_empty() {
    let answer = agent().run("cat; wc -c; read line; echo $?");
    assert_eq!(answer.stdout.split_whitespace().collect::<Vec<_>>(), ["0", "1"]);
}

#[test]
fn output_of_any_bytes_becomes_valid_text() {
    let answer = agent().run(r"printf '\n\na\r\nb\0c\n\n'; printf '\377\303ok\303\274\303' >&2");
    assert_eq!(answer.stdout, "\n\na\r\nb\0c\n\n");
    assert_eq!(answer.stderr, "\u{fffd}\u{fffd}okü\u{fffd}");
}

#[test]
fn long_commands() {
    let agent = agent();
    for length in [100_000, 131_060, 131_071, 131_072, 131_073, 300 * 1024, 4 * 1024 * 1024] {
        let mut command = "# first a comment\necho \"$0\"; ls /proc/self/fd | wc -l; wc -c; ".to_owned();
        let end = "echo end; exit 3";
        command += &" ".repeat(length - command.len() - end.len());
        command += end;
        let answer = agent.run(&command);
        let lines: Vec<&str> = answer.stdout.lines().collect();
        assert_eq!(lines, ["/bin/sh", "4", "0", "end"], "{length}: {}", answer.stderr);
        assert_eq!(answer.exit_code, 3);
    }
    // As another user, who may not read the agent's own descriptors.
    let config = json!({"user": "54321", "workdir": "/tmp"});
    let agent = Agent::start(Setup { config: Some(config), ..Setup::default() });
    let answer = agent.run(&format!("id -u; : {}", "x".repeat(300 * 1024)));
    assert_eq!((answer.stdout.as_str(), answer.exit_code), ("54321\n", 0), "{}", answer.stderr);
}

#[test]
fn many_parallel_commands_report_their_own_code_and_leave_no_zombie() {
    let agent = agent();
    std::thread::scope(|scope| {
        for number in 0..200 {
            let agent = &agent;
            scope.spawn(move || {
                let answer = agent.run(&format!("(true &) ; echo {number}; exit {number}"));
                assert_eq!((answer.exit_code, answer.stdout), (number, format!("{number}\n")));
            });
        }
    });
    wait_for(|| (zombies_below(agent.pid()) == 0).then_some(()));
}

#[test]
fn as_pid_1_it_reaps_orphans() {
    let agent = Agent::start(Setup { pid1: true, ..Setup::default() });
    assert_eq!(agent.run("for i in 1 2 3 4 5; do (setsid sleep 0.1 &); done").exit_code, 0);
    let zombies = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l; cat /proc/1/comm";
    wait_for(|| (agent.run(&format!("sleep 0.1; {zombies}")).stdout == "0\nsuperserve-agen\n").then_some(()));
}

#[test]
fn endless_output_is_cut_and_costs_no_memory() {
    let agent = agent();
    let answer = agent.exec(json!({"command": "yes 0123456789abcde | head -c 5000000000", "timeout_s": 60}));
    assert_eq!((answer.exit_code, answer.truncated), (0, true));
    assert_eq!(answer.stdout.len(), 8 * 1024 * 1024);
    assert!(answer.stderr.contains("truncated"), "{}", answer.stderr);
    assert!(answer.stdout.starts_with("0123456789abcde\n0123"));
    let peak = peak_kib(agent.pid());
    assert!(peak < 48 * 1024, "{peak} KiB");
}

#[test]
fn answers_stay_below_what_clients_take() {
    let agent = agent();
    for command in
        ["head -c 20000000 /dev/zero", "head -c 20000000 /dev/urandom >&2", "yes | head -c 20000000"]
    {
        let answer = agent.send("POST", "/exec", json!({"command": command}).to_string().as_bytes());
        assert_eq!((answer.status, answer.json()["truncated"].as_bool()), (200, Some(true)), "{command}");
        assert!((8 << 20..=10 << 20).contains(&answer.body.len()), "{command}: {}", answer.body.len());
    }
}

#[test]
fn output_below_the_cap_is_whole() {
    let answer = agent().run("head -c 8388607 /dev/zero | tr '\\0' x; printf y >&2");
    assert_eq!((answer.stdout.len(), answer.stderr.as_str(), answer.truncated), (8_388_607, "y", false));
}

#[test]
fn what_a_command_starts_with() {
    let agent = agent();
    let script = "umask; cat /proc/self/oom_score_adj; ls /proc/self/fd | tr '\\n' ' '; echo; \
                  cat /proc/self/status | grep -E '^Sig(Blk|Ign|Cgt)' | cut -f2; \
                  test $(cut -d' ' -f6 /proc/self/stat) = $$ && echo own session; ulimit -n";
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
    let none = "0000000000000000";
    let expected = format!("0022\n500\n0 1 2 3 \n{none}\n{none}\n{none}\nown session\n{files}\n");
    assert_eq!(agent.run(script).stdout, expected);
    let own = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", agent.pid())).unwrap();
    assert_eq!(own, std::fs::read_to_string("/proc/self/oom_score_adj").unwrap());
}

#[test]
fn variables_and_their_order() {
    let config = json!({
        "template_env": {"A": "template", "B": "template", "C": "template", "PATH": "/opt/bin:/usr/bin:/bin"},
        "env": {"B": "sandbox", "C": "sandbox", "D": "$A `x` \"y\"\nz"},
    });
    let agent = Agent::start(Setup { config: Some(config), ..Setup::default() });
    let answer =
        agent.exec(json!({"command": "env -0 | sort -z | tr '\\0' ';'", "env": {"C": "command", "E": ""}}));
    let expected = "A=template;B=sandbox;C=command;D=$A `x` \"y\"\nz;E=;HOME=/home/user;LOGNAME=user;\
                    PATH=/opt/bin:/usr/bin:/bin;";
    assert_eq!(answer.stdout, format!("{expected}PWD={};USER=user;", agent.path("")));
    for name in ["", "A=B", "A\u{0}"] {
        let body = json!({"command": "true", "env": {name: "x"}}).to_string();
        assert_eq!(agent.send("POST", "/exec", body.as_bytes()).status, 400, "{name:?}");
    }
    // A variable too large for the kernel is the caller's mistake.
    let body = json!({"command": "true", "env": {"BIG": "x".repeat(200_000)}}).to_string();
    assert_eq!(agent.send("POST", "/exec", body.as_bytes()).refusal(), (400, "bad_request".to_owned()));
}

#[test]
fn working_directories() {
    let agent = agent();
    let answer = agent.exec(json!({"command": "pwd", "working_dir": "/usr"}));
    assert_eq!(answer.stdout, "/usr\n");
    for directory in ["/no/such/place", "/etc/passwd", "relative", "/a\u{0}b"] {
        let body = json!({"command": "true", "working_dir": directory}).to_string();
        assert_eq!(agent.send("POST", "/exec", body.as_bytes()).refusal(), (400, "bad_request".to_owned()));
    }
    // A default directory is made, owned by the user it is for.
    let work = agent.path("made/work");
    let config = json!({"user": "54321:54322", "workdir": work});
    assert_eq!(agent.send("PUT", "/_agent/config", config.to_string().as_bytes()).status, 204);
    assert_eq!(agent.run("pwd; stat -c '%a %u %g' .").stdout, format!("{work}\n755 54321 54322\n"));
    // Also by threads that have just acted on files as that user, who could not make it.
    for round in 0..6 {
        for _ in 0..=round {
            assert_eq!(agent.get("/files?path=/etc/shadow").status, 403);
        }
        let work = agent.path(&format!("again/{round}"));
        let config = json!({"user": "54321:54322", "workdir": work});
        assert_eq!(agent.send("PUT", "/_agent/config", config.to_string().as_bytes()).status, 204);
        assert_eq!(agent.run("pwd").stdout, format!("{work}\n"));
    }
}

#[test]
fn without_a_workdir_commands_start_at_home() {
    let config = Some(json!({"workdir": null}));
    let agent =
        Agent::start(Setup { before: Some("mount -t tmpfs tmpfs /home"), config, ..Setup::default() });
    assert_eq!(agent.run("pwd; echo $HOME; stat -c '%a %u' .").stdout, "/home/user\n/home/user\n755 0\n");
    // `nobody` has a home that does not exist.
    let config = json!({"user": "nobody"}).to_string();
    assert_eq!(agent.send("PUT", "/_agent/config", config.as_bytes()).status, 204);
    assert_eq!(agent.run("pwd; echo $HOME").stdout, "/home/user\n/nonexistent\n");
    assert_eq!(agent.exec(json!({"command": "pwd", "env": {"HOME": "/tmp"}})).stdout, "/home/user\n");
}

#[test]
fn other_users() {
    let config = json!({"user": "nobody", "workdir": "/tmp"});
    let agent = Agent::start(Setup { config: Some(config), ..Setup::default() });
    let answer = agent
        .run("id -un; id -G; echo $USER; cat /etc/shadow; grep Cap.*f$ /proc/self/status | grep -v CapBnd");
    assert!(answer.stdout.starts_with("nobody\n65534\nnobody\n"), "{}", answer.stdout);
    assert!(!answer.stdout.contains("root:") && !answer.stdout.contains("CapEff"), "{}", answer.stdout);
    let config = json!({"user": "no-such-user"}).to_string();
    agent.send("PUT", "/_agent/config", config.as_bytes());
    let answer = agent.send("POST", "/exec", br#"{"command": "true"}"#);
    assert_eq!(answer.refusal(), (400, "bad_request".to_owned()));
}

#[test]
fn refused_requests() {
    let agent = agent();
    for body in
        ["", "{", "[]", "{}", r#"{"command": ""}"#, r#"{"command": 5}"#, "{\"command\": \"a\\u0000b\"}"]
    {
        assert_eq!(
            agent.send("POST", "/exec", body.as_bytes()).refusal(),
            (400, "bad_request".to_owned()),
            "{body}"
        );
    }
    for path in ["/exec", "/exec/stream"] {
        let answer = agent.get(path);
        assert_eq!(answer.refusal().0, 405);
        assert_eq!(answer.headers["allow"], "POST");
    }
    let answer = agent.exec(json!({"command": "echo ok", "unknown": [1], "timeout_s": -5}));
    assert_eq!(answer.stdout, "ok\n");
    let big = vec![b' '; 9 * 1024 * 1024];
    assert_eq!(agent.send("POST", "/exec", &big[..1]).status, 400);
    let head = agent.open("POST", "/exec", &[("content-length", "9000000")], b"");
    assert_eq!(crate::harness::Answer::read(head, "POST").status, 413);
    assert!(!exists(agent.path("x")));
}
