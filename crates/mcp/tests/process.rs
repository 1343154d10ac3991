//! The process as clients start it: exit codes, what goes to which stream, how soon it answers and how soon it ends.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const KEY: &str = "ss_live_planted_key_planted_key_planted_key";
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
/// Far more than any of this takes; a hang is a failure, not a wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// The example `stdio`, which cargo builds along with the tests.
fn server() -> Command {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples/stdio");
    assert!(
        path.exists(),
        "{} is built by `cargo test -p mcp`, or `cargo build -p mcp --example stdio`",
        path.display()
    );
    let mut command = Command::new(path);
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn started(key: &str) -> Child {
    server().env("SUPERSERVE_API_KEY", key).env("SUPERSERVE_BASE_URL", "http://127.0.0.1:9").spawn().unwrap()
}

fn wait(child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the server does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn all(stream: Option<impl Read>) -> String {
    let mut text = String::new();
    stream.unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn without_a_key_it_says_so_on_stderr_and_exits_with_1() {
    for key in [None, Some("  ")] {
        let mut command = server();
        if let Some(key) = key {
            command.env("SUPERSERVE_API_KEY", key);
        }
        let mut child = command.spawn().unwrap();
        assert_eq!(wait(&mut child).code(), Some(1));
        assert_eq!(all(child.stdout.take()), "");
        let stderr = all(child.stderr.take());
        assert!(stderr.starts_with("[superserve-mcp] ") && stderr.lines().count() == 1, "{stderr}");
        for word in ["SUPERSERVE_API_KEY", "ss_live_", "https://console.superserve.ai", "`env`"] {
            assert!(stderr.contains(word), "{word}");
        }
    }
}

#[test]
fn standard_output_is_pure_and_nothing_private_leaves() {
    let mut child = started(KEY);
    let mut input = child.stdin.take().unwrap();
    let lines = [
        INITIALIZE,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        "{broken",
        "[]",
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"sandbox_list"}}"#,
        r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"sandbox_exec","arguments":{"sandbox_id":"a","command":"echo planted-command","env":{"A":"planted-value"}}}}"#,
        r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"no_such_tool"}}"#,
    ];
    for line in lines {
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    assert_eq!(wait(&mut child).code(), Some(0));
    let (stdout, stderr) = (all(child.stdout.take()), all(child.stderr.take()));
    let answers: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(answers.iter().all(|answer| answer["jsonrpc"] == "2.0"), "{stdout}");
    for id in [1, 2, 3, 4] {
        assert_eq!(answers.iter().filter(|answer| answer["id"] == id).count(), 1, "{id}: {stdout}");
    }
    assert_eq!(answers.iter().filter(|answer| answer["id"].is_null()).count(), 2, "{stdout}");
    assert!(stderr.contains("ready on stdio") && stderr.contains("sandbox_exec"), "{stderr}");
    for private in [KEY, "planted-command", "planted-value"] {
        assert!(!stdout.contains(private) && !stderr.contains(private), "{private}: {stderr}");
    }
}

#[test]
fn an_unusual_key_only_warns() {
    let mut child = started("staging-key");
    drop(child.stdin.take());
    assert_eq!(wait(&mut child).code(), Some(0));
    let stderr = all(child.stderr.take());
    assert!(stderr.contains("does not begin with `ss_live_`") && !stderr.contains("staging-key"), "{stderr}");
}

#[test]
fn it_answers_soon_and_ends_on_a_signal() {
    for signal in ["-TERM", "-INT"] {
        let began = Instant::now();
        let mut child = started(KEY);
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "{INITIALIZE}").unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("\"superserve\""));
        // The budget is 20 ms for a release build on a quiet machine; this only catches a start-up that does I/O.
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        let ended = Instant::now();
        let kill = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        assert_eq!(wait(&mut child).code(), Some(0), "{signal}");
        assert!(ended.elapsed() < Duration::from_secs(2), "{signal}: {:?}", ended.elapsed());
        drop(input);
    }
}

#[test]
fn a_terminal_or_socket_as_input_ends_on_a_signal_too() {
    // Node hands a socket pair, not pipes, to its children.
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let theirs_out = theirs.try_clone().unwrap();
    let mut child = server()
        .env("SUPERSERVE_API_KEY", KEY)
        .stdin(std::os::fd::OwnedFd::from(theirs))
        .stdout(std::os::fd::OwnedFd::from(theirs_out))
        .spawn()
        .unwrap();
    let mut ours = ours;
    writeln!(ours, "{INITIALIZE}").unwrap();
    let mut line = String::new();
    BufReader::new(ours.try_clone().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("\"superserve\""));
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(wait(&mut child).code(), Some(0));
}
