//! A server that dies while it saves, machines that are gone, and everything at once: the source is usable and nothing is
//! left behind.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testing::{Platform, wait_for};

use super::{activate, delete, fork, id_of, layers, platform, save};
use crate::BIN;
use crate::registry::own_layers;

/// Enough to save for a while, and a sum to know it by.
const WRITE: &str = "head -c 400M /dev/urandom > /srv/large; sha256sum /srv/large | cut -c 1-64";
const SUM: &str = "sha256sum /srv/large | cut -c 1-64";

/// Asks for a snapshot and returns once it is being saved.
async fn saving(p: &Platform, id: &str) -> tokio::task::JoinHandle<()> {
    let request = reqwest::Client::builder()
        .no_proxy()
        .build()
        .unwrap()
        .post(format!("{}/sandboxes/{id}/snapshot", p.base_url()))
        .header("x-api-key", p.key());
    let asking = tokio::spawn(async move { drop(request.send().await) });
    wait_for("a snapshot that is being saved", Duration::from_secs(20), || async {
        let list = p.rest("GET", &format!("/sandboxes/{id}/snapshots?limit=1"), None).await.body;
        (list[0]["status"] == "creating" && layers(p).1 > 0).then_some(())
    })
    .await;
    asking
}

async fn newest(p: &Platform, id: &str) -> Value {
    p.rest("GET", &format!("/sandboxes/{id}/snapshots?limit=1"), None).await.body[0].clone()
}

#[tokio::test]
async fn kill_9_while_saving_costs_the_snapshot_and_nothing_else() {
    let Some(mut p) = platform(&[]).await else { return };
    let (id, token) = p.create(json!({})).await;
    let sum = p.run(&id, &token, WRITE).await;
    p.run(&id, &token, "sleep 4000 >/dev/null 2>&1 & echo $! > /tmp/pid").await;
    let before = (p.remains(), layers(&p));

    // Active.
    let asking = saving(&p, &id).await;
    p.kill_hard();
    asking.await.unwrap();
    p.spawn().await;
    assert_eq!(newest(&p, &id).await["status"], "failed");
    let token = activate(&p, &id).await;
    assert_eq!(p.run(&id, &token, &format!("kill -0 $(cat /tmp/pid); {SUM}")).await, sum);
    assert_eq!((p.remains(), layers(&p)), before);

    // Paused, and then with nothing left but its disk, as after a restart of the host.
    assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 204);
    for gone in [false, true] {
        if gone {
            activate(&p, &id).await;
            let init = p.remains().init_of(&id).unwrap();
            rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
            p.wait_state(&id, "paused", Duration::from_secs(20)).await;
        }
        let asking = saving(&p, &id).await;
        p.kill_hard();
        asking.await.unwrap();
        p.spawn().await;
        assert_eq!(newest(&p, &id).await["status"], "failed");
        assert_eq!(p.rest("GET", &format!("/sandboxes/{id}"), None).await.body["status"], "paused");
        assert_eq!(layers(&p), before.1, "gone: {gone}");
    }
    let remains = p.remains();
    assert_eq!((remains.machines, remains.loops, remains.disks), (0, 0, 1), "{remains:?}");
    // The disk alone is enough.
    let snapshot = id_of(&save(&p, &id, json!({})).await);
    assert_eq!(p.remains(), remains, "and is at rest again");
    let (copy, copy_token, _) = fork(&p, &snapshot, json!({})).await;
    assert_eq!(p.run(&copy, &copy_token, SUM).await, sum);
    delete(&p, &format!("/sandboxes/{copy}")).await;

    // Who asks meanwhile waits, and is answered.
    let token = activate(&p, &id).await;
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        p.run(&id, &token, "echo meanwhile").await
    };
    let (saved, said) = tokio::join!(save(&p, &id, json!({})), meanwhile);
    assert_eq!((&saved["status"], said.as_str()), (&json!("ready"), "meanwhile\n"));

    // A stop is no crash: the machine goes on.
    let asking = saving(&p, &id).await;
    assert_eq!(p.stop().await, Some(0));
    asking.await.unwrap();
    p.spawn().await;
    // It is given some time to end, or cut off.
    assert_ne!(newest(&p, &id).await["status"], "creating");
    assert_eq!(p.run(&id, &token, SUM).await, sum, "with the token it had");
    assert_eq!(layers(&p).1, 0);
}

#[tokio::test]
async fn snapshot_pause_and_delete_at_once_end_well() {
    let Some(p) = platform(&[]).await else { return };
    for round in 0..6 {
        let (id, token) = p.create(json!({})).await;
        p.run(&id, &token, "head -c 20M /dev/urandom > /srv/some").await;
        let ask = |method: &'static str, rest: &str, after: u64| {
            let (p, path) = (&p, format!("/sandboxes/{id}{rest}"));
            async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                let answer = p.rest(method, &path, None).await;
                (answer.status, answer.code().to_owned())
            }
        };
        let (first, second, pause, gone) = tokio::join!(
            ask("POST", "/snapshot", 0),
            ask("POST", "/snapshot", 10 * round),
            ask("POST", "/pause", 20 * round),
            ask("DELETE", "", 30 * round)
        );
        for answer in [&first, &second] {
            assert!(matches!(answer.0, 201 | 404 | 409), "{round}: {answer:?}");
        }
        assert!(matches!(pause.0, 204 | 404 | 409), "{round}: {pause:?}");
        assert_eq!(gone.0, 204, "{round}: {gone:?}");
        let list = p.rest("GET", &format!("/sandboxes/{id}/snapshots"), None).await.body;
        let list = list.as_array().unwrap();
        let saved = [&first, &second].iter().filter(|answer| answer.0 == 201).count();
        assert_eq!(list.len(), saved, "{round}: what was answered is there, and no more");
        for row in list {
            assert_eq!(row["status"], "ready");
            delete(&p, &format!("/snapshots/{}", id_of(row))).await;
        }
    }
    let remains = p.remains();
    assert_eq!((remains.machines, remains.disks, remains.links), (0, 0, 0), "{remains:?}");
    // A layer that nothing refers to any more has such a name while it is removed, which nobody waits for.
    wait_for("what is unfinished to go", Duration::from_secs(20), || async {
        (layers(&p).1 == 0).then_some(())
    })
    .await;
}

/// A file system of its own, which goes with the test.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(size: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("ss-layers-").tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "layers"]).arg(dir.path());
        assert!(mount.status().unwrap().success());
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _already_failing = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_host_without_room_refuses_and_the_source_goes_on() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: sandboxes need root");
        return;
    }
    // A gigabyte is left free, whatever is asked for.
    let small = Mounted::new("1080M");
    own_layers(small.path());
    let p = Platform::start_with(BIN, &["--layers-dir", small.path().to_str().unwrap()]).await;
    let (id, token) = p.create(json!({})).await;
    p.run(&id, &token, "echo kept > /srv/kept").await;
    let first = save(&p, &id, json!({})).await;
    assert!(first["size_bytes"].as_u64().unwrap() > 0);
    p.run(&id, &token, "head -c 100M /dev/urandom > /srv/large").await;
    let refused = p.rest("POST", &format!("/sandboxes/{id}/snapshot"), None).await;
    assert_eq!((refused.status, refused.code()), (503, "host_capacity"), "{refused:?}");
    // What only looks large enough to be refused half-way is: a file of holes is written out on the way.
    p.run(&id, &token, "rm /srv/large; truncate -s 900M /srv/holes").await;
    let refused = p.rest("POST", &format!("/sandboxes/{id}/snapshot"), None).await;
    assert_eq!((refused.status, refused.code()), (503, "host_capacity"), "{refused:?}");
    p.run(&id, &token, "rm /srv/holes; test \"$(cat /srv/kept)\" = kept").await;
    save(&p, &id, json!({})).await;
    let left = std::fs::read_dir(small.path()).unwrap().flatten();
    assert_eq!(left.filter(|entry| entry.file_name().to_string_lossy().starts_with(".tmp-")).count(), 0);
    drop(p);
}
