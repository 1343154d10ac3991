//! `--isolation auto`: what has to prove itself does, on real machines, and what does not is not chosen. Where QEMU, a guest
//! kernel or `/dev/kvm` is missing there is nothing to prove, which is said loudly.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testing::{Platform, Remains};

use crate::registry::own_layers;
use crate::{BIN, vm};

/// An emulated boot among others, and all that comes before it.
const PROOF: Duration = Duration::from_secs(90);

/// Flags of a platform that decides for itself; `None` where no virtual machine could be tried.
fn flags() -> Option<Vec<String>> {
    if !Path::new("/dev/kvm").exists() {
        eprintln!("SKIPPED: /dev/kvm is absent, so that no virtual machine has to prove itself");
        return None;
    }
    let kernel = vm::flags()?.into_iter().skip_while(|flag| flag != "--vm-kernel");
    Some(["--isolation".to_owned(), "auto".to_owned()].into_iter().chain(kernel).collect())
}

fn verdicts(state: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(state.join("engines.json")).unwrap()).unwrap()
}

/// What they come to.
fn strongest(verdicts: &Value) -> &'static str {
    let proved = |engine: &&str| verdicts[engine]["at"].is_i64() && verdicts[engine]["against"].is_null();
    ["firecracker", "qemu", "gvisor"].into_iter().find(proved).unwrap_or("container")
}

/// Nothing of a proof is on the machine.
fn assert_no_proof(state: &Path) {
    let proof = state.join("proof");
    assert_eq!((Remains::of(&proof), proof.exists()), (Remains::default(), false));
}

fn doctor(p: &Platform, flags: &[&str], path: &str, more: &[&str]) -> String {
    let mut command = Command::new(BIN);
    command.args(["doctor", "--state-dir"]).arg(p.state_dir()).args(flags).args(more).env("PATH", path);
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

async fn chosen(p: &Platform) -> String {
    let descriptor = p.rest("GET", "/.well-known/superserve", None).await;
    descriptor.body["engine"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_file_is_no_proof() {
    let Some(flags) = flags() else { return };
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let state = Platform::new_state();
    let mut p = Platform::start_on(BIN, state, &flags, &[]).await;
    let found = verdicts(p.state_dir());
    let works = found["qemu"]["against"].is_null();
    let engine = strongest(&found);
    let mode = std::fs::metadata(p.state_dir().join("engines.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_no_proof(p.state_dir());
    assert_eq!(chosen(&p).await, engine, "{found}");
    let (id, token) = p.create(json!({})).await;
    assert_eq!(p.rest("GET", &format!("/sandboxes/{id}"), None).await.body["isolation"], engine);
    assert_eq!(p.run(&id, &token, "echo alive").await, "alive\n");

    let path = std::env::var("PATH").unwrap();
    let report = doctor(&p, &flags, &path, &[]);
    let line = report.lines().find(|line| line.contains("engine qemu")).unwrap();
    if works {
        assert!(line.contains("proved itself on /dev/kvm"), "{report}");
    } else {
        assert!(line.contains("not chosen: did not prove itself on /dev/kvm"), "{report}");
    }
    let why =
        if engine == "container" { "nothing stronger has proved" } else { "the strongest that has proved" };
    let why = format!("runs sandboxes: {why} itself");
    assert!(
        report.lines().any(|line| line.contains(&format!("engine {engine}")) && line.contains(&why)),
        "{report}"
    );
    assert!(report.contains("superserve up will work here"), "{report}");

    // Nobody waits for the same again, unless it had too little time, and whoever asks for it does not disturb what runs.
    assert_eq!(p.stop().await, Some(0));
    p.spawn().await;
    let late = |engine: &&str| found[engine]["late"].as_u64().unwrap_or(0) > 0;
    for engine in ["firecracker", "qemu", "gvisor"].iter().filter(|engine| !late(engine)) {
        assert_eq!(verdicts(p.state_dir())[engine], found[engine], "nothing was tried again");
    }
    let report = doctor(&p, &flags, &path, &["--probe"]);
    assert!(report.contains("engine container") && report.contains("proved itself on"), "{report}");
    let again = verdicts(p.state_dir());
    assert!(
        again["container"]["against"].is_null()
            && again["qemu"]["at"].as_i64() >= found["qemu"]["at"].as_i64()
    );
    assert_no_proof(p.state_dir());
    assert_eq!(p.run(&id, &token, "echo alive").await, "alive\n");
}

/// QEMU that takes what is meant for `/dev/kvm` and runs it without, so that this host passes for one where that works.
fn emulating(dir: &Path) -> PathBuf {
    let real = driver::process::find(Path::new("qemu-system-x86_64")).unwrap();
    let program = dir.join("qemu-system-x86_64");
    let script = format!(
        r#"#!/usr/bin/env python3
import os, sys
words = sys.argv[1:]
for flag, value in (("-accel", "tcg"), ("-cpu", "max")):
    if flag in words:
        words[words.index(flag) + 1] = value
os.execv({real:?}, [{real:?}] + words)
"#
    );
    write(&program, &script);
    program
}

fn write(program: &Path, script: &str) {
    std::fs::write(program, script).unwrap();
    std::fs::set_permissions(program, PermissionsExt::from_mode(0o755)).unwrap();
}

/// A template with an engine of its own is tried out on that, and a sandbox may ask for another. The one that comes back is
/// a virtual machine. Steps in virtual machines: `vm_builds`.
async fn built_for_one_and_used_by_both(p: &Platform) -> (String, String) {
    let cli = |words: &[&str]| {
        let mut command = Command::new(BIN);
        command.args(words).env("SUPERSERVE_API_KEY", p.key()).env("SUPERSERVE_BASE_URL", p.base_url());
        let output = command.output().unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    let step = ["--from", "template:superserve/base", "--start-cmd", "uname -r > /started-on"];
    let (built, said) = cli(&[&["template", "build", "my/vm", "--isolation", "qemu"][..], &step].concat());
    assert!(built, "{said}");
    let (refused, said) =
        cli(&[&["template", "build", "my/other", "--isolation", "firecracker"][..], &step].concat());
    assert!(!refused && said.contains("container") && said.contains("left out: qemu"), "{said}");
    let (_, listed) = cli(&["template", "list"]);
    assert!(listed.lines().any(|line| line.contains("my/vm") && line.contains("qemu")), "{listed}");

    let (id, token) = p.create(json!({"from_template": "my/vm"})).await;
    let (_, shown) = cli(&["sandbox", "info", &id]);
    assert!(shown.contains("isolation:         qemu"), "{shown}");
    assert!(p.run(&id, &token, "uname -r").await.contains("cloud"));
    let (_, made) = cli(&["sandbox", "create", "--template", "my/vm", "--isolation", "container"]);
    let other = p.rest("POST", &format!("/sandboxes/{}/activate", made.trim()), None).await.body;
    assert_eq!(other["isolation"], "container");
    let look = p.run(made.trim(), other["access_token"].as_str().unwrap(), "uname -r").await;
    let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(look, host);
    (id, token)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_strongest_that_proved_itself_is_chosen_until_it_changes() {
    let Some(flags) = flags() else { return };
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let bin = tempfile::tempdir().unwrap();
    std::fs::set_permissions(bin.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = emulating(bin.path());
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap());

    // A server that is killed in the middle of a proof leaves a machine, and the next start removes it. One that is told to stop
    // leaves none.
    let state = Platform::new_state();
    let root = state.path().canonicalize().unwrap();
    let layers = root.join("own-layers");
    own_layers(&layers);
    let flags =
        [&flags[..], &["--layers-dir", layers.to_str().unwrap(), "--template-snapshots", "0"]].concat();
    let in_a_proof = async || {
        let mut first = Command::new(BIN)
            .args(["up", "--listen", "127.0.0.1:0", "--edge-listen", "127.0.0.1:0", "--state-dir"])
            .arg(&root)
            .args(&flags)
            .env("PATH", &path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let until = Instant::now() + PROOF;
        while Remains::of(&root.join("proof")).machines == 0 {
            assert!(Instant::now() < until && first.try_wait().unwrap().is_none(), "no proof was begun");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        first
    };
    let mut told = in_a_proof().await;
    rustix::process::kill_process(rustix::process::Pid::from_child(&told), rustix::process::Signal::TERM)
        .unwrap();
    let until = Instant::now() + PROOF;
    while told.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it does not stop");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_no_proof(&root);
    assert!(!root.join("engines.json").exists(), "nothing was shown");

    let mut killed = in_a_proof().await;
    killed.kill().unwrap();
    killed.wait().unwrap();
    let left = Remains::of(&root.join("proof")).machines;
    assert!(left > 0, "its machine outlives it");

    let mut p = Platform::start_on(BIN, state, &flags, &[("PATH", &path)]).await;
    assert_no_proof(&root);
    assert_eq!(
        (chosen(&p).await.as_str(), &verdicts(&root)["qemu"]["against"]),
        ("qemu", &Value::Null),
        "{}",
        p.log()
    );
    let report = doctor(&p, &flags, &path, &[]);
    let line = report.lines().find(|line| line.contains("engine qemu")).unwrap();
    assert!(line.starts_with("ok ") && !line.contains("emulated"), "{report}");
    assert!(line.contains("runs sandboxes: the strongest that has proved itself"), "{report}");
    let (id, token) = built_for_one_and_used_by_both(&p).await;
    assert_eq!(p.stop().await, Some(0));

    // Another program has nothing to show for itself. This one says nothing at all, and is given up.
    write(&program, "#!/bin/sh\nexec sleep 600\n");
    p.spawn().await;
    let now = strongest(&verdicts(&root));
    assert_eq!((chosen(&p).await.as_str(), now == "qemu"), (now, false));
    let against = verdicts(&root)["qemu"]["against"].as_str().unwrap().to_owned();
    assert!(!against.is_empty());
    assert!(p.log().contains("sandboxes get weaker isolation than before"), "{}", p.log());
    assert_no_proof(&root);
    // What is there keeps its engine, whatever new ones get.
    assert!(p.run(&id, &token, "uname -r").await.contains("cloud"));
    let (new, _) = p.create(json!({})).await;
    assert_eq!(p.rest("GET", &format!("/sandboxes/{new}"), None).await.body["isolation"], now);
}
