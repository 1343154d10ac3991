//! Forks are independent of each other and of their source.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use testing::wait_for;

use super::{activate, delete, fork, id_of, layers, platform, save};

const FORKS: usize = 20;

/// What one sees: the common file, which file is its own, and what is in it.
const LOOK: &str = "cat /srv/common; cd /srv; ls; cat own-* 2>/dev/null; true";

#[tokio::test]
async fn twenty_forks_each_see_only_their_own() {
    let Some(mut p) = platform(&[]).await else { return };
    let (source, token) = p.create(json!({"name": "source"})).await;
    p.run(
        &source,
        &token,
        "echo common > /srv/common; mkdir /srv/d; rm -r /var/cache; ln -s common /srv/link",
    )
    .await;
    let snapshot = id_of(&save(&p, &source, json!({"name": "twenty"})).await);

    let mut forks = Vec::new();
    for some in (0..FORKS).collect::<Vec<_>>().chunks(5) {
        forks.extend(join_all(some.iter().map(|_| fork(&p, &snapshot, json!({})))).await);
    }
    // The source's own, after the snapshot, is in no fork, and theirs not in it.
    p.run(&source, &token, "echo source > /srv/own-source; echo changed > /srv/common").await;
    let writing = forks.iter().enumerate().map(|(n, (id, token, _))| {
        let p = &p;
        async move { p.run(id, token, &format!("echo data-{n} > /srv/own-{n}; rm -d /srv/d")).await }
    });
    join_all(writing).await;
    let expected = |n: usize| format!("common\ncommon\nlink\nown-{n}\ndata-{n}\n");
    for (n, (id, token, made)) in forks.iter().enumerate() {
        assert_eq!(p.run(id, token, LOOK).await, expected(n));
        assert_eq!(
            p.run(id, token, "cat /srv/link; test -e /var/cache || echo gone").await,
            "common\ngone\n"
        );
        assert_eq!(made["source_snapshot_id"], json!(snapshot));
    }
    let names =
        join_all(forks.iter().map(|(id, token, _)| p.run(id, token, "hostname; cat /etc/hostname"))).await;
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), FORKS, "{names:?}");
    for (name, (id, ..)) in names.iter().zip(&forks) {
        let own = format!("sandbox-{}\n", &id[..8]);
        assert_eq!(name, &own.repeat(2));
    }
    assert_eq!(p.run(&source, &token, LOOK).await, "changed\ncommon\nd\nlink\nown-source\nsource\n");

    // Before and after a pause.
    for (id, ..) in &forks {
        assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 204);
    }
    let mut tokens = Vec::new();
    for (n, (id, ..)) in forks.iter().enumerate() {
        tokens.push(activate(&p, id).await);
        assert_eq!(p.run(id, &tokens[n], LOOK).await, expected(n));
    }
    // After a restart of the server, with the snapshot gone and with the source gone.
    delete(&p, &format!("/snapshots/{snapshot}")).await;
    delete(&p, &format!("/sandboxes/{source}")).await;
    p.kill_hard();
    p.spawn().await;
    for (n, (id, ..)) in forks.iter().enumerate() {
        assert_eq!(p.run(id, &tokens[n], LOOK).await, expected(n));
    }
    // One that has lost its memory boots from the same layers.
    let (id, ..) = &forks[0];
    let init = p.remains().init_of(id).unwrap();
    rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
    p.wait_state(id, "paused", Duration::from_secs(20)).await;
    let fresh = activate(&p, id).await;
    assert_eq!(p.run(id, &fresh, LOOK).await, expected(0));

    let remains = p.remains();
    assert_eq!((remains.machines, remains.disks), (FORKS, FORKS), "{remains:?}");
    for (id, ..) in &forks {
        delete(&p, &format!("/sandboxes/{id}")).await;
    }
    let before = layers(&p);
    // Whoever deletes the last snapshot has the layer removed, once nothing stands on it.
    let (other, token) = p.create(json!({"name": "other"})).await;
    p.run(&other, &token, "echo x > /srv/x").await;
    let last = id_of(&save(&p, &other, json!({})).await);
    assert_eq!(layers(&p), (before.0 + 1, 0));
    delete(&p, &format!("/snapshots/{last}")).await;
    wait_for("the layers to go", Duration::from_secs(60), || async {
        (layers(&p).0 < before.0).then_some(())
    })
    .await;
}
