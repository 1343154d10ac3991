//! What builds may take: time, disk, and the server's place in its network; and that layers nobody needs go meanwhile.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use testing::{Platform, wait_for};

use crate::registry::Registry;
use crate::templates::{Bed, text_of};

/// Removing layers follows at once; a busy host.
const REMOVAL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn limits_of_builds_hold_and_unused_layers_go_while_others_run() {
    let flags = ["--ready-cmd-seconds", "3", "--build-cache-mib", "0", "--concurrent-builds", "2"];
    let Some(bed) = Bed::with_small(&flags).await else { return };
    let why = bed.failed("never-ready", json!({"from": "small", "ready_cmd": "echo not yet; exit 4"})).await;
    assert_eq!(why, "ready_cmd_failed: ready_cmd did not succeed within 3 s; last: exit code 4: not yet");

    // Another service of this machine is none of a client's business, under whichever name.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let dialled = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&dialled);
    let serving = tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let control_plane = bed.p.base_url().trim_start_matches("http://").to_owned();
    for place in
        [format!("127.0.0.1:{port}"), format!("localhost:{port}"), control_plane, "169.254.169.254".into()]
    {
        let why = bed.failed("inside", json!({"from": format!("{place}/x:1")})).await;
        assert!(
            why.starts_with("image_pull_failed: ") && why.contains("not on the public internet"),
            "{why}"
        );
    }
    assert_eq!(dialled.load(Ordering::Relaxed), 0);
    serving.abort();

    // A build that goes on and on, and needs its layers.
    let slow =
        json!({"from": "small", "steps": [{"run": "echo kept > /kept"}, {"run": "echo here; sleep 600"}]});
    let (template, build) = bed.create("slow", slow).await;
    bed.printed(&build, "here").await;
    let needed = bed.layers();
    let (_, _) = bed.ready("gone", json!({"from": "small", "steps": [{"run": "echo gone > /gone"}]})).await;
    let with_both = bed.layers();
    assert_eq!(with_both.len(), needed.len() + 1, "{with_both:?}");
    assert_eq!(bed.delete("gone").await, 204);
    wait_for("the layer of the deleted template to go", REMOVAL, || async {
        (bed.layers().len() == needed.len()).then_some(())
    })
    .await;
    let left = bed.layers();
    assert!(needed.iter().all(|layer| left.contains(layer)), "{needed:?} {left:?}");
    let cancelled = bed.p.rest("DELETE", &format!("/templates/{template}/builds/{build}"), None).await;
    assert_eq!(cancelled.status, 204);
    // Nothing is kept for a next build here.
    wait_for("all that was made to go", REMOVAL, || async { (bed.layers().len() == 1).then_some(()) }).await;
    bed.nothing_runs();
}

/// A file system of its own, unmounted in the end.
struct Small(PathBuf);

impl Small {
    fn mount(at: &Path, mib: u64) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=0700"), "small"]).arg(at);
        assert!(command.status().unwrap().success());
        Self(at.to_owned())
    }

    fn free_mib(&self) -> u64 {
        let of = rustix::fs::statvfs(&self.0).unwrap();
        of.f_bavail * of.f_frsize / (1024 * 1024)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _gone_with_the_machine = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn the_host_s_disk_is_never_filled() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: a file system of its own needs root");
        return;
    }
    let Some(registry) = Registry::start().await else { return };
    registry.push_small("library/small:latest");
    // Packed they are small, and unpacked more than there is: 60 MiB beyond the reserve.
    registry
        .run("sh", &["-c", "yes superserve | head -c 100000000 > large; tar -cf large.tar large; rm large"]);
    registry.push_tar("library/large:latest", "large.tar", &[]);
    let outside = tempfile::tempdir().unwrap();
    let small = Small::mount(&outside.path().join("layers"), 1_024 + 60);
    let Some(bed) = Bed::over_state(registry, Platform::new_state(), &small.0, &[]).await else { return };
    let why = bed.failed("large", json!({"from": "large"})).await;
    assert!(why.starts_with("build_failed: ") && why.contains("no room for another layer"), "{why}");
    assert!(small.free_mib() >= 1_024, "{} MiB", small.free_mib());
    let writes = "yes superserve | head -c 100000000 > /large";
    let why = bed.failed("writes", json!({"from": "small", "steps": [{"run": writes}]})).await;
    assert!(why.starts_with("snapshot_failed: ") && why.contains("no room for another layer"), "{why}");
    assert!(small.free_mib() >= 1_024, "{} MiB", small.free_mib());
    // What fits is built all the same.
    let (template, build) =
        bed.ready("fits", json!({"from": "small", "steps": [{"run": "echo x > /x"}]})).await;
    assert!(!text_of(&bed.log(&template, &build).await, "system").is_empty());
    bed.nothing_runs();
    assert_eq!(bed.p.remains().machines, 0);
    drop(bed);
}
