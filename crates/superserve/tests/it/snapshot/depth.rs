//! Forks of forks of forks: at the most layers that a sandbox may have, everything is still there, and one more becomes one.

use std::path::Path;
use std::process::Command;

use domain::{MAX_LAYERS, RuntimeDefaults, Shape, TemplateId, TemplateStatus};
use jiff::Timestamp;
use serde_json::json;
use store::{Store, TemplateRow};
use templates::LayerStore;
use testing::Platform;

use super::{delete, fork, id_of, save};
use crate::BIN;
use crate::registry::{own_layers, small_root};

/// An archive of some files of a directory, as one layer.
fn layer(store: &LayerStore, dir: &Path, files: &[&str]) -> String {
    let tar =
        Command::new("tar").arg("-C").arg(dir).args(["-c", "--owner=0", "--group=0"]).args(files).output();
    let tar = tar.unwrap();
    assert!(tar.status.success(), "{tar:?}");
    store.import_tar(tar.stdout.as_slice(), &|_| {}).unwrap().digest
}

#[tokio::test]
async fn as_many_layers_as_there_may_be_and_one_more() {
    if !rustix::process::geteuid().is_root() || !Path::new("/bin/busybox").exists() {
        eprintln!("SKIPPED: sandboxes need root, and this test /bin/busybox");
        return;
    }
    let state = Platform::new_state();
    let layers = state.path().join("layers");
    own_layers(&layers);
    let mut p = Platform::start_on(BIN, state, &["--layers-dir", layers.to_str().unwrap()], &[]).await;
    assert_eq!(p.stop().await, Some(0));
    // One less than the most, each with a file of its own, and one that the next one replaces.
    let (work, layer_store) = (tempfile::tempdir().unwrap(), LayerStore::open(&layers).unwrap());
    small_root(&work.path().join("root"));
    let mut digests = vec![layer(&layer_store, &work.path().join("root"), &["."])];
    for n in 1..MAX_LAYERS - 1 {
        std::fs::write(work.path().join(format!("own-{n}")), n.to_string()).unwrap();
        std::fs::write(work.path().join("last"), n.to_string()).unwrap();
        digests.push(layer(&layer_store, work.path(), &[&format!("own-{n}"), "last"]));
    }
    let store = Store::open(&p.state_dir().join("superserve.db")).await.unwrap();
    let team = store.team_ensure("default", Timestamp::now()).await.unwrap().id;
    let env = [("PATH".to_owned(), "/bin".to_owned())].into();
    let template = TemplateRow {
        id: TemplateId::new(),
        team,
        name: "deep".to_owned(),
        status: TemplateStatus::Ready,
        shape: Shape { vcpu: 1, memory_mib: 256, disk_mib: 1024 },
        engine: None,
        defaults: RuntimeDefaults {
            env,
            start_cmd: Some("echo started >> /started".to_owned()),
            ..RuntimeDefaults::default()
        },
        layers: digests,
        size_bytes: None,
        created_at: Timestamp::now(),
        built_at: None,
        error: None,
        spec: None,
    };
    store.template_put(&template).await.unwrap();
    store.close().await;
    p.spawn().await;

    let (first, token) = p.create(json!({"from_template": "deep"})).await;
    let look = "cat /last; ls / | grep -c own-; ls -d /own-1 /own-50 /mine /theirs 2>/dev/null; true";
    let own = MAX_LAYERS - 2;
    assert_eq!(p.run(&first, &token, look).await, format!("{own}{own}\n/own-1\n/own-50\n"));
    p.run(&first, &token, "rm /own-1; echo 1 > /mine; mkdir /d; echo x > /d/x; mv /srv /moved").await;
    let full = save(&p, &first, json!({})).await;
    let (second, token, _) = fork(&p, &id_of(&full), json!({})).await;
    // Processes are not kept: it is started again, over what the source's had written.
    let starts = "until [ \"$(wc -l < /started)\" = 2 ]; do sleep 0.1; done";
    p.run(&second, &token, starts).await;
    let expected = |theirs: &str| format!("{own}{}\n/mine\n/own-50\n{theirs}", own - 1);
    assert_eq!(p.run(&second, &token, look).await, expected(""));
    p.run(&second, &token, "echo 2 > /theirs; rm /d/x; ln /theirs /linked").await;
    let flat = save(&p, &second, json!({})).await;
    // All of it is in there, not only what was written last.
    let program = std::fs::metadata("/bin/busybox").unwrap().len();
    let size = |snapshot: &serde_json::Value| snapshot["size_bytes"].as_u64().unwrap();
    assert!(size(&full) < program && size(&flat) > program, "{full} {flat}");
    let (third, token, _) = fork(&p, &id_of(&flat), json!({})).await;
    assert_eq!(p.run(&third, &token, look).await, expected("/theirs\n"));
    assert_eq!(
        p.run(&third, &token, "ls /d /srv 2>/dev/null; ls /moved; stat -c %h /theirs").await,
        "/d:\ngone\nold\n2\n"
    );
    // And the stack begins anew.
    p.run(&third, &token, "rm /own-50").await;
    let after = save(&p, &third, json!({})).await;
    assert!(size(&after) < program, "{after}");
    let (last, token, _) = fork(&p, &id_of(&after), json!({})).await;
    assert_eq!(p.run(&last, &token, look).await, format!("{own}{}\n/mine\n/theirs\n", own - 2));
    for id in [first, second, third, last] {
        delete(&p, &format!("/sandboxes/{id}")).await;
    }
}
