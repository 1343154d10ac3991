//! Start-up as a user meets it: clear sentences, right exit codes, private files.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::{BIN, platform, platform_with};

fn superserve(args: &[&str]) -> Command {
    let mut command = Command::new(BIN);
    command.args(args).env_remove("SUPERSERVE_API_KEY").env_remove("SUPERSERVE_BASE_URL");
    command
}

/// A start that is refused is so before this; one that is not would serve for ever.
const REFUSED_BY: Duration = Duration::from_secs(60);

/// What `up` says that does not begin to serve.
fn ended(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + REFUSED_BY;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("it was not refused: {}", text(&child.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// One sentence, exit code 1, no panic.
fn refused(output: &Output, names: &str) {
    let shown = text(output);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains(names), "{shown}");
    assert!(!shown.contains("panicked"), "{shown}");
    assert!(shown.lines().count() <= 4, "{shown}");
}

#[test]
fn without_root_it_says_so() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: this test gives up root");
        return;
    }
    // The program and its directory must be reachable for another user.
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let copy = dir.path().join("superserve");
    std::fs::copy(BIN, &copy).unwrap();
    let mut command = Command::new(&copy);
    command.args(["up", "--state-dir"]).arg(dir.path().join("s")).uid(65_534).gid(65_534);
    refused(&ended(&mut command), "root");
}

#[test]
fn a_taken_port_is_named() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    refused(&ended(&mut superserve(&["up", "--state-dir", state, "--listen", &address])), &address);
    refused(
        &ended(&mut superserve(&["up", "--state-dir", state, "--edge-listen", &address])),
        "--edge-listen",
    );
}

#[test]
fn an_unusable_state_directory_is_named() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let state = file.path().join("below-a-file");
    for state in [state.to_str().unwrap(), "/proc/superserve"] {
        let output = ended(&mut superserve(&["up", "--state-dir", state]));
        refused(&output, "--state-dir");
        assert!(text(&output).contains(state), "{}", text(&output));
    }
}

#[test]
fn an_engine_that_is_not_there_is_named() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    for command in ["up", "doctor"] {
        let args = [
            "--state-dir",
            state,
            "--isolation",
            "firecracker",
            "--listen",
            "127.0.0.1:0",
            "--edge-listen",
            "127.0.0.1:0",
        ];
        let output = ended(superserve(&[command]).args(args));
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let why = said.lines().find(|line| line.contains("engine firecracker")).unwrap_or_default();
        assert!(why.contains("it is not installed"), "{said}");
        assert!(said.contains("superserve setup firecracker --download"), "{said}");
    }
}

#[test]
fn a_bad_setting_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("superserve.toml"), "lisen = \"127.0.0.1:1\"").unwrap();
    refused_loosely(&ended(&mut superserve(&["up", "--state-dir", dir.path().to_str().unwrap()])), "lisen");
    std::fs::write(dir.path().join("superserve.toml"), "isolation = \"qemu\"\nengines = [\"gvisor\"]")
        .unwrap();
    let output = ended(&mut superserve(&["up", "--state-dir", dir.path().to_str().unwrap()]));
    refused_loosely(&output, "engines");
    refused_loosely(&output, "`isolation`");
}

/// As [`refused`], for messages that quote several lines of a file.
fn refused_loosely(output: &Output, names: &str) {
    let shown = text(output);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains(names) && !shown.contains("panicked"), "{shown}");
}

#[tokio::test]
async fn two_servers_do_not_share_a_state_directory() {
    let Some(p) = platform().await else { return };
    let state = p.state_dir().to_str().unwrap();
    let second = ["up", "--state-dir", state, "--listen", "127.0.0.1:0", "--edge-listen", "127.0.0.1:0"];
    refused(&ended(&mut superserve(&second)), &p.pid().to_string());
    let unsure = superserve(&["reset", "--state-dir", state]).output().unwrap();
    refused(&unsure, "every snapshot that holds memory");
    refused(&superserve(&["reset", "--yes", "--state-dir", state]).output().unwrap(), &p.pid().to_string());
}

#[tokio::test]
async fn a_reset_forgets_nothing_that_it_cannot_remove() {
    let Some(mut p) = platform_with(&["--isolation", "container"]).await else { return };
    let state = p.state_dir().to_str().unwrap().to_owned();
    let (id, token) = p.create(json!({})).await;
    assert_eq!(p.stop().await, Some(0));
    // A host without runc: something else is in its place for this process alone.
    let hidden = "for f in /usr/sbin /usr/bin /usr/local/sbin /usr/local/bin; do
        [ ! -e $f/runc ] || mount --bind /dev/null $(readlink -f $f/runc) || exit 9; done; exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", hidden, "sh", BIN, "reset", "--yes", "--state-dir", &state])
        .output()
        .unwrap();
    refused(&output, &id);
    refused(&output, "the container engine is not available");
    p.spawn().await;
    assert_eq!(p.run(&id, &token, "echo alive").await, "alive\n");
}

#[tokio::test]
async fn private_files_are_private_and_keys_can_be_managed() {
    let Some(p) = platform().await else { return };
    let state = p.state_dir().to_str().unwrap().to_owned();
    for name in ["api-key", "master.key", "superserve.db"] {
        let mode = std::fs::metadata(p.state_dir().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    assert!(p.key().starts_with("ss_live_") && p.key().len() == 40, "{}", p.key().len());
    let database = std::fs::read(p.state_dir().join("superserve.db")).unwrap();
    let found = database.windows(p.key().len()).any(|w| w == p.key().as_bytes());
    assert!(!found, "only a hash of the key is stored");

    let made =
        superserve(&["key", "--state-dir", &state, "create", "--name", "second", "--json"]).output().unwrap();
    assert!(made.status.success(), "{}", text(&made));
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let key = made["key"].as_str().unwrap().to_owned();
    let status = |key: String| {
        let url = format!("{}/sandboxes", p.base_url());
        async move {
            let http = reqwest::Client::builder().no_proxy().build().unwrap();
            http.get(url).header("x-api-key", key).send().await.unwrap().status().as_u16()
        }
    };
    assert_eq!(status(key.clone()).await, 200);
    let listed = superserve(&["key", "--state-dir", &state, "list", "--json"]).output().unwrap();
    assert!(text(&listed).contains("second") && !text(&listed).contains(&key), "{}", text(&listed));
    let id = made["id"].as_str().unwrap();
    assert!(superserve(&["key", "--state-dir", &state, "revoke", id]).output().unwrap().status.success());
    assert_eq!(status(key).await, 401);
    assert_eq!(status(String::new()).await, 401);
    assert_eq!(status("ss_live_wrong".to_owned()).await, 401);
    refused(
        &superserve(&["key", "--state-dir", &state, "revoke", "no-such-key"]).output().unwrap(),
        "no-such-key",
    );
}

#[tokio::test]
async fn doctor_is_content_where_up_works() {
    let Some(p) = platform().await else { return };
    let state = p.state_dir().to_str().unwrap();
    let found = superserve(&[
        "doctor",
        "--state-dir",
        state,
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--edge-listen",
        "127.0.0.1:0",
    ])
    .output()
    .unwrap();
    assert_eq!(found.status.code(), Some(0), "{}", text(&found));
    // A machine without its tools: nothing on the path but the program itself.
    let poor = superserve(&["doctor", "--state-dir", state, "--agent", "/nonexistent"]).output().unwrap();
    assert_eq!(poor.status.code(), Some(1));
    assert!(text(&poor).contains("fix:"), "{}", text(&poor));
}

#[tokio::test]
async fn the_command_line_does_the_everyday_things() {
    let Some(p) = platform().await else { return };
    let state = p.state_dir().to_str().unwrap().to_owned();
    let run = |args: &[&str]| {
        let mut all = vec!["sandbox", "--state-dir", &state];
        all.extend_from_slice(args);
        superserve(&all).output().unwrap()
    };
    let made = run(&["create", "--name", "cli", "--json"]);
    assert!(made.status.success(), "{}", text(&made));
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let id = made["id"].as_str().unwrap().to_owned();
    assert!(made.get("access_token").is_none(), "tokens are not printed");
    let ran = run(&["exec", &id, "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(ran.status.code(), Some(7), "{}", text(&ran));
    assert_eq!((ran.stdout.as_slice(), ran.stderr.as_slice()), (b"out\n".as_slice(), b"err\n".as_slice()));
    let dir = tempfile::tempdir().unwrap();
    let local = dir.path().join("local.bin");
    std::fs::write(&local, [0, 1, 2, 255]).unwrap();
    assert!(run(&["cp", local.to_str().unwrap(), &format!("{id}:/app/copy.bin")]).status.success());
    let back = dir.path().join("back.bin");
    assert!(run(&["cp", &format!("{id}:/app/copy.bin"), back.to_str().unwrap()]).status.success());
    assert_eq!(std::fs::read(back).unwrap(), [0, 1, 2, 255]);
    assert!(run(&["pause", &id]).status.success());
    assert!(text(&run(&["list"])).contains("paused"));
    assert_eq!(run(&["exec", &id, "--", "true"]).status.code(), Some(0), "exec wakes it");
    assert!(text(&run(&["info", &id])).contains("active"));
    assert!(run(&["kill", &id]).status.success());
    assert!(!run(&["info", &id]).status.success());
    let left = p.rest("GET", "/sandboxes", None).await;
    assert_eq!(left.body, json!([]));
}
