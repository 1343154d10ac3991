//! A sandbox has a credential's stand-in and never the credential; nobody can read a value back, and it lies nowhere in
//! clear. That requests carry it is tested with the broker.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use testing::Platform;

use crate::{BIN, platform, platform_with_env};

const VALUE: &str = "planted/value+4711-\u{e4}";

/// The value in the forms in which it could lie somewhere: itself, base64 in all alignments, percent-encoded, reversed.
fn forms(value: &str) -> Vec<Vec<u8>> {
    let percent: String = value
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect();
    let mut forms =
        vec![value.as_bytes().to_vec(), percent.to_lowercase().into_bytes(), percent.into_bytes()];
    for skip in 0..3 {
        // Whole groups only: what surrounds it does not matter.
        let inner = &value.as_bytes()[skip..];
        let inner = &inner[..inner.len() - inner.len() % 3];
        forms.push(base64(inner, b"+/"));
        forms.push(base64(inner, b"-_"));
    }
    forms.push(value.bytes().rev().collect());
    forms
}

fn base64(bytes: &[u8], last: &[u8; 2]) -> Vec<u8> {
    let mut letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789".to_vec();
    letters.extend_from_slice(last);
    let groups = bytes.chunks_exact(3);
    groups
        .flat_map(|g| {
            let n = u32::from(g[0]) << 16 | u32::from(g[1]) << 8 | u32::from(g[2]);
            [18, 12, 6, 0].map(|shift| letters[(n >> shift) as usize & 63])
        })
        .collect()
}

fn has(bytes: &[u8], forms: &[Vec<u8>]) -> bool {
    forms.iter().any(|form| bytes.windows(form.len()).any(|part| part == form.as_slice()))
}

/// Every file below a directory that holds one of the forms; sparse disks are read as far as they have data.
fn files_with(dir: &Path, forms: &[Vec<u8>], found: &mut Vec<String>, seen: &mut usize) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files_with(&entry.path(), forms, found, seen);
        } else if kind.is_file()
            && std::fs::read(entry.path()).is_ok_and(|bytes| {
                *seen += 1;
                has(&bytes, forms)
            })
        {
            found.push(entry.path().display().to_string());
        }
    }
}

fn command(p: &Platform, args: &[&str], input: &str) -> Output {
    let mut command = Command::new(BIN);
    command.args(["--json", "secret", "--state-dir"]).arg(p.state_dir()).args(args);
    command.env_remove("SUPERSERVE_API_KEY").env_remove("SUPERSERVE_BASE_URL");
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that does not read has nothing to wait for.
    let _closed = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn json_of(output: Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn new_processes_see_a_stand_in_and_nothing_has_the_value() {
    // Everything that could be logged is.
    let Some(mut p) = platform_with_env(&[], &[("SUPERSERVE_LOG", "trace")]).await else { return };
    let made = json_of(command(&p, &["create", "prod", "--provider", "anthropic"], &format!("{VALUE}\n")));
    assert_eq!((&made["name"], made.get("value")), (&json!("prod"), None));
    let (id, token) =
        p.create(json!({"secrets": {"ANTHROPIC_API_KEY": "prod"}, "env_vars": {"PLAIN": "1"}})).await;
    let stand_in = p.run(&id, &token, "printf %s \"$ANTHROPIC_API_KEY\"").await;
    assert!(stand_in.starts_with("sk-ant-api03-") && stand_in.len() == 61, "{stand_in}");

    // A process that runs keeps what it has; the next one sees what is bound now.
    p.run(
        &id,
        &token,
        "nohup sh -c 'while ! [ -e /tmp/go ]; do sleep 0.05; done; printenv >/tmp/old' >/dev/null 2>&1 &",
    )
    .await;
    json_of(command(&p, &["attach", &id, "SECOND", "prod"], ""));
    json_of(command(&p, &["detach", &id, "ANTHROPIC_API_KEY"], ""));
    p.run(&id, &token, "touch /tmp/go; until grep -q PLAIN /tmp/old 2>/dev/null; do sleep 0.05; done").await;
    let old = p.run(&id, &token, "cat /tmp/old").await;
    assert!(old.contains(&stand_in) && !old.contains("SECOND="), "{old}");
    let new = p.run(&id, &token, "printenv").await;
    assert!(
        new.contains("SECOND=sk-ant-api03-") && !new.contains(&stand_in) && new.contains("PLAIN=1"),
        "{new}"
    );

    // Paused: applied at the resume. And all of it outlives the server.
    p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await;
    json_of(command(&p, &["attach", &id, "THIRD", "prod"], ""));
    let rotated = json_of(command(&p, &["rotate", "prod"], &format!("{VALUE}-again")));
    assert!(rotated.get("value").is_none());
    assert_eq!(p.stop().await, Some(0));
    p.spawn().await;
    let resumed = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    let token = resumed.body["access_token"].as_str().unwrap().to_owned();
    let third = p.run(&id, &token, "printenv SECOND THIRD").await;
    assert_eq!(third.lines().filter(|line| line.starts_with("sk-ant-api03-")).count(), 2, "{third}");
    let shown = p.rest("GET", &format!("/sandboxes/{id}"), None).await.body["secrets"].clone();
    assert_eq!(
        shown,
        json!([{"env_key": "SECOND", "secret_name": "prod"}, {"env_key": "THIRD", "secret_name": "prod"}])
    );
    let bound = json_of(command(&p, &["sandboxes", "prod"], ""));
    assert_eq!(bound.as_array().unwrap().len(), 2);

    // What refuses a value does not repeat it.
    let bad = json!({"name": "bad", "value": format!("{VALUE}\n"), "provider": "openai"});
    assert_eq!(p.rest("POST", "/secrets", Some(bad)).await.status, 400);
    let bad = json!({"name": ["bad"], "value": VALUE, "provider": "openai"});
    assert_eq!(p.rest("POST", "/secrets", Some(bad)).await.status, 400);
    let forms = forms(VALUE);
    assert!(
        has(format!("x{VALUE}x").as_bytes(), &forms)
            && has(&base64(format!("Bearer {VALUE}..").as_bytes(), b"+/"), &forms)
    );
    for path in [
        "/secrets",
        "/secrets/prod",
        "/secrets/prod/audit",
        "/activity",
        "/sandboxes",
        "/metrics",
        "/providers",
    ] {
        let answer = p.rest("GET", path, None).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(!has(answer.body.to_string().as_bytes(), &forms), "{path}");
    }
    let guest = p
        .run(
            &id,
            &token,
            "cat /proc/*/environ /tmp/old /etc/environ* /root/* /home/user/* 2>/dev/null | tr '\\0' '\\n'",
        )
        .await;
    assert!(guest.contains("SECOND=") && !has(guest.as_bytes(), &forms));
    let log = p.log();
    assert!(log.len() > 10_000);
    if let Some(line) = log.lines().find(|line| has(line.as_bytes(), &forms)) {
        panic!("the log has it: {line}");
    }
    // Stand-ins are no credentials, but they look like ones: they are in no log either.
    assert!(!log.contains("sk-ant-api03-"), "the log has a stand-in");
    assert_eq!(p.stop().await, Some(0));
    let (mut found, mut seen) = (Vec::new(), 0);
    // Without the disks: what is in them was looked at from inside.
    for entry in std::fs::read_dir(p.state_dir()).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir()
            && !["disks", "layers"].contains(&entry.file_name().to_str().unwrap())
        {
            files_with(&entry.path(), &forms, &mut found, &mut seen);
        } else if entry.file_type().unwrap().is_file() {
            seen += 1;
            if has(&std::fs::read(entry.path()).unwrap(), &forms) {
                found.push(entry.path().display().to_string());
            }
        }
    }
    assert!(seen >= 5, "{seen} files");
    assert_eq!(found, Vec::<String>::new());
    p.spawn().await;
}

#[tokio::test]
async fn the_sealing_key_is_replaced_while_the_server_is_stopped() {
    let Some(mut p) = platform().await else { return };
    json_of(command(&p, &["create", "own", "--auth", "bearer", "--host", "api.example.com"], VALUE));
    let (id, token) = p.create(json!({"secrets": {"KEY": "own"}})).await;
    let stand_in = p.run(&id, &token, "printf %s \"$KEY\"").await;
    assert!(stand_in.starts_with("ssrv_proxy_") && stand_in.len() == 54, "{stand_in}");
    let keys = p.state_dir().join("secret.keys");
    let before = std::fs::read_to_string(&keys).unwrap();
    let refused = command(&p, &["rotate-key"], "");
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("stop the server"),
        "{refused:?}"
    );
    assert_eq!(std::fs::read_to_string(&keys).unwrap(), before);
    assert_eq!(p.stop().await, Some(0));
    let done = json_of(command(&p, &["rotate-key"], ""));
    assert_eq!(done["secrets"], 1);
    let after = std::fs::read_to_string(&keys).unwrap();
    assert!(after != before && after.lines().count() == 1 && !after.contains(before.trim()), "one new key");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&keys).unwrap().permissions().mode() & 0o777, 0o600);
    p.spawn().await;
    // The token is not of the sealing key's doing, and neither is the stand-in.
    assert_eq!(p.run(&id, &token, "printf %s \"$KEY\"").await, stand_in);
    assert!(!p.log().contains("is missing"), "{}", p.log());
    let log = p.rest("GET", "/activity?category=secret", None).await.body;
    assert_eq!(
        (&log[0]["action"], &log[0]["metadata"]["actor_type"]),
        (&json!("key_rotated"), &json!("operator"))
    );
    // Without its key a value is lost, and said to be; another value mends it.
    assert_eq!(p.stop().await, Some(0));
    std::fs::write(&keys, before).unwrap();
    p.spawn().await;
    assert!(p.log().contains("the key of some secrets is missing"));
    json_of(command(&p, &["rotate", "own"], "another"));
    let empty = command(&p, &["rotate", "own"], "");
    assert!(String::from_utf8_lossy(&empty.stderr).contains("no value on standard input"), "{empty:?}");
    let unknown = command(&p, &["info", "nothing"], "");
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("superserve secret list"), "{unknown:?}");
}
