//! `superserve sandbox …` and `bench` as a person types them.

#![expect(clippy::unwrap_used, reason = "the lint is for products; helpers of tests are tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use testing::wait_for;

use crate::{BIN, platform};

/// What a loaded machine may take for a signal to be delivered and felt.
const LIMIT: Duration = Duration::from_secs(20);

/// The program against the server of a state directory.
struct Cli<'a>(&'a Path);

impl Cli<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(BIN);
        command.args(words).env("SUPERSERVE_STATE_DIR", self.0);
        command.env_remove("SUPERSERVE_API_KEY").env_remove("SUPERSERVE_BASE_URL").stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Standard output of a command that must succeed.
    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[&["--json"], words].concat())).unwrap()
    }

    fn create(&self) -> String {
        self.ok(&["sandbox", "create"]).trim().to_owned()
    }

    /// A command whose output is read while it runs.
    fn spawn(&self, words: &[&str]) -> Child {
        self.command(words).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// How many processes of the sandbox have this in their command line, the counting ones left out.
    fn count(&self, id: &str, pattern: &str) -> usize {
        let live = format!(
            "ps -eo stat=,args= | grep -v '^Z' | grep -c '[{}]{}'; true",
            &pattern[..1],
            &pattern[1..]
        );
        self.ok(&["sandbox", "exec", id, &live]).trim().parse().unwrap()
    }
}

/// Exit code and the first line of what was said on standard error.
fn refusal(output: &Output) -> (i32, String) {
    let said = String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), said.lines().next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn the_life_of_a_sandbox() {
    let Some(p) = platform().await else { return };
    let cli = Cli(p.state_dir());
    let created =
        cli.json(&["sandbox", "create", "--name", "box", "--metadata", "env=test", "--env", "GREETING=hi"]);
    assert_eq!((&created["name"], &created["status"]), (&"box".into(), &"active".into()));
    assert!(created.get("access_token").is_none(), "a credential is no result");
    let id = created["id"].as_str().unwrap();

    let output = cli.run(&["sandbox", "exec", id, "echo $GREETING; echo oops >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"hi\n"[..], &b"oops\n"[..]));
    assert_eq!(cli.ok(&["sandbox", "exec", id, "--", "printf", "%s|", "a b", "it's", "*"]), "a b|it's|*|");
    let timed_out = cli.run(&["sandbox", "exec", "--timeout", "1", id, "echo partial; sleep 9"]);
    assert_eq!((timed_out.status.code(), timed_out.stdout.as_slice()), (Some(124), &b"partial\n"[..]));
    assert_eq!(cli.run(&["sandbox", "exec", "--cwd", "/nonexistent", id, "true"]).status.code(), Some(125));

    let listed = cli.json(&["sandbox", "list", "--metadata", "env=test"]);
    assert_eq!(listed[0]["id"], *id);
    assert!(cli.ok(&["sandbox", "list", "--metadata", "env=other"]).is_empty());

    assert_eq!(cli.ok(&["sandbox", "pause", id]), format!("paused {id}\n"));
    assert_eq!(cli.ok(&["sandbox", "pause", id]), format!("already paused {id}\n"));
    assert_eq!(cli.json(&["sandbox", "info", id])["status"], "paused");
    assert_eq!(cli.ok(&["sandbox", "exec", id, "echo back"]), "back\n", "resumed by itself");

    assert_eq!(cli.ok(&["sandbox", "kill", id]), format!("deleted {id}\n"));
    let gone = format!("error: sandbox {id} not found");
    assert_eq!(refusal(&cli.run(&["sandbox", "kill", id])), (1, gone.clone()));
    assert_eq!(refusal(&cli.run(&["sandbox", "exec", id, "true"])), (125, gone));
}

#[tokio::test]
async fn files_and_directories_go_both_ways() {
    let Some(p) = platform().await else { return };
    let cli = Cli(p.state_dir());
    let id = cli.create();
    let dir = tempfile::tempdir().unwrap();
    let here = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let there = |path: &str| format!("{id}:{path}");
    let content: Vec<u8> = (0..1_000_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    std::fs::create_dir_all(here("tree/ü x")).unwrap();
    std::fs::write(here("tree/ü x/data"), &content).unwrap();

    cli.ok(&["sandbox", "cp", &here("tree"), &there("/work/")]);
    let size = cli.ok(&[
        "sandbox",
        "exec",
        &id,
        "find '/work/tree/ü x/data' -printf '%s\\n'; ln -s /etc/passwd /work/tree/l",
    ]);
    assert_eq!(size, "4000000\n");
    cli.ok(&["sandbox", "cp", &there("/work/tree"), &here("back")]);
    assert_eq!(std::fs::read(here("back/ü x/data")).unwrap(), content);
    assert!(!dir.path().join("back/l").is_symlink(), "links stay where they are");

    let mut upload =
        cli.command(&["sandbox", "cp", "-", &there("/tmp/piped")]).stdin(Stdio::piped()).spawn().unwrap();
    upload.stdin.take().unwrap().write_all(&content).unwrap();
    assert!(upload.wait().unwrap().success());
    assert_eq!(cli.run(&["sandbox", "cp", &there("/tmp/piped"), "-"]).stdout, content);

    let (code, said) = refusal(&cli.run(&["sandbox", "cp", &there("/none"), &here("x")]));
    assert_eq!((code, said), (1, format!("error: {id}:/none not found")));
}

#[tokio::test]
async fn ctrl_c_and_a_closed_pipe_end_the_command() {
    let Some(p) = platform().await else { return };
    let cli = Cli(p.state_dir());
    let id = cli.create();

    // Short sleeps: a signal that meets a shell between its fork and its exec is lost to the child, and the shell runs
    // its trap only when that child has ended.
    let mut interrupted = cli.spawn(&[
        "sandbox",
        "exec",
        &id,
        "trap 'echo caught; exit 9' INT; echo on; while :; do sleep 0.1234; done",
    ]);
    let mut output = BufReader::new(interrupted.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "on\n");
    let pid = rustix::process::Pid::from_child(&interrupted);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!((interrupted.wait().unwrap().code(), rest.as_str()), (Some(9), "caught\n"));
    wait_for("the end of the sleep", LIMIT, || async { (cli.count(&id, "sleep 0.1234") == 0).then_some(()) })
        .await;

    let mut piped = cli.spawn(&["sandbox", "exec", &id, "yes superserve"]);
    let mut first = [0; 11];
    piped.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"superserve\n");
    assert!(piped.wait().unwrap().success(), "who stops reading has had enough");
    wait_for("the end of yes", LIMIT, || async { (cli.count(&id, "yes superserve") == 0).then_some(()) })
        .await;
}

#[tokio::test]
async fn the_benchmark_measures_and_cleans_up() {
    let Some(p) = platform().await else { return };
    let cli = Cli(p.state_dir());
    let small =
        ["bench", "--creates", "2", "--burst", "3", "--execs", "5", "--pauses", "2", "--file-mib", "2"];
    let report = cli.json(&small);
    for row in report["rows"].as_array().unwrap() {
        assert!(row["p50"].is_number(), "{row}");
    }
    assert_eq!(report["engine"], testing::isolation());
    assert_eq!(cli.json(&["sandbox", "list"]), Value::Array(Vec::new()));

    let mut interrupted = cli.spawn(&["bench", "--creates", "500"]);
    wait_for("a sandbox of the benchmark", LIMIT, || async {
        let listed = cli.json(&["sandbox", "list"]);
        listed.get(0).map(drop)
    })
    .await;
    let pid = rustix::process::Pid::from_child(&interrupted);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(interrupted.wait().unwrap().code(), Some(130));
    assert_eq!(cli.json(&["sandbox", "list"]), Value::Array(Vec::new()));
}
