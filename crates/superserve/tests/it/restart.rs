//! The server dies; the sandboxes do not.

use std::time::Duration;

use serde_json::json;

use crate::platform;

#[tokio::test]
async fn everything_is_found_again_after_kill_9() {
    let Some(mut p) = platform().await else { return };
    let (active, token) = p.create(json!({"name": "active"})).await;
    let (paused, paused_token) = p.create(json!({"name": "paused"})).await;
    let (doomed, _) = p.create(json!({"name": "doomed"})).await;
    p.run(&active, &token, "sleep 4000 >/dev/null 2>&1 & echo $! > /tmp/pid").await;
    p.run(&paused, &paused_token, "sleep 4001 >/dev/null 2>&1 & echo $! > /tmp/pid").await;
    assert_eq!(p.rest("POST", &format!("/sandboxes/{paused}/pause"), None).await.status, 204);

    // Creates in flight when the server dies.
    let creates: Vec<_> = (0..4)
        .map(|n| {
            let http = reqwest::Client::builder().no_proxy().build().unwrap();
            let request = http
                .post(format!("{}/sandboxes", p.base_url()))
                .header("x-api-key", p.key())
                .body(json!({"name": format!("half-{n}")}).to_string());
            tokio::spawn(async move { request.send().await.ok().map(|a| a.status().as_u16()) })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(25)).await;
    p.kill_hard();
    let mut finished = 0;
    for create in creates {
        finished += usize::from(create.await.unwrap() == Some(201));
    }
    p.spawn().await;

    assert_eq!(p.rest("GET", &format!("/sandboxes/{active}"), None).await.body["status"], "active");
    p.run(&active, &token, "kill -0 $(cat /tmp/pid)").await;
    assert_eq!(p.rest("GET", &format!("/sandboxes/{paused}"), None).await.body["status"], "paused");
    let resumed = p.rest("POST", &format!("/sandboxes/{paused}/activate"), None).await;
    assert_eq!(resumed.status, 200, "{resumed:?}");
    let fresh = resumed.body["access_token"].as_str().unwrap().to_owned();
    p.run(&paused, &fresh, "kill -0 $(cat /tmp/pid)").await;
    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{doomed}"), None).await.status, 204);

    let listed = p.rest("GET", "/sandboxes", None).await;
    let rows = listed.body.as_array().unwrap();
    let half = rows.iter().filter(|r| r["name"].as_str().unwrap().starts_with("half-")).count();
    assert!(half >= finished, "an answered create is kept: {half} of {finished}");
    assert!(rows.iter().all(|r| r["status"] == "active"), "nothing is left half made: {rows:?}");
    let remains = p.remains();
    assert_eq!(remains.machines, rows.len(), "{remains:?}");
    assert_eq!(remains.disks, rows.len(), "{remains:?}");
    assert_eq!(remains.links, rows.len(), "{remains:?}");
    for row in rows {
        let id = row["id"].as_str().unwrap();
        assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);
    }
    let remains = p.remains();
    assert_eq!((remains.machines, remains.disks, remains.links), (0, 0, 0), "{remains:?}");
}

#[tokio::test]
async fn a_stop_is_graceful_and_leaves_sandboxes_running() {
    let Some(mut p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    p.run(&id, &token, "echo kept > /tmp/file").await;
    assert_eq!(p.stop().await, Some(0));
    assert_eq!(p.remains().machines, 1);
    p.spawn().await;
    assert_eq!(p.run(&id, &token, "cat /tmp/file").await, "kept\n");
}

#[tokio::test]
async fn a_machine_that_died_boots_again_from_its_disk() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({"env_vars": {"KEPT": "yes"}})).await;
    p.run(&id, &token, "echo disk > /home/user/file; sync").await;
    // From outside, as a host failure would: the first process of the sandbox ends.
    let init = p.remains().init_of(&id).expect("the sandbox has a first process");
    rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
    p.wait_state(&id, "paused", Duration::from_secs(20)).await;
    let again = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert_eq!(again.status, 200, "{again:?}");
    let fresh = again.body["access_token"].as_str().unwrap().to_owned();
    assert_eq!(p.run(&id, &fresh, "cat /home/user/file; echo $KEPT").await, "disk\nyes\n");
}

/// A disk that is damaged and a row that cannot be read cost one sandbox each; the others are there as before.
#[tokio::test]
async fn broken_sandboxes_do_not_keep_the_others_down() {
    let Some(mut p) = platform().await else { return };
    let (good, token) = p.create(json!({"name": "good"})).await;
    let (cut, _) = p.create(json!({"name": "cut"})).await;
    let (unreadable, _) = p.create(json!({"name": "unreadable"})).await;
    let init = p.remains().init_of(&cut).expect("the sandbox has a first process");
    rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
    p.wait_state(&cut, "paused", Duration::from_secs(20)).await;
    // The next start lets go of the disk of a machine that ended.
    assert_eq!(p.stop().await, Some(0));
    p.spawn().await;
    assert_eq!(p.stop().await, Some(0));
    // By either name, of whoever mounts it.
    let images = ["img", "guest"].map(|kind| p.state_dir().join(format!("disks/{cut}.{kind}")));
    let image = images.into_iter().find(|image| image.exists()).unwrap();
    std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(100).unwrap();
    damage_row(&p.state_dir().join("superserve.db"), &unreadable);

    p.spawn().await;
    p.run(&good, &token, "true").await;
    let listed = p.rest("GET", "/sandboxes?sort=name&order=asc", None).await.body;
    let listed: Vec<_> =
        listed.as_array().unwrap().iter().map(|row| (&row["name"], &row["status"])).collect();
    assert_eq!(listed, [(&json!("cut"), &json!("failed")), (&json!("good"), &json!("active"))]);
    let refused = p.rest("POST", &format!("/sandboxes/{cut}/activate"), None).await;
    assert_eq!((refused.status, refused.code()), (409, "conflict"));
    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{cut}"), None).await.status, 204);
    assert!(!image.exists(), "a failed sandbox can be deleted");
    assert!(p.remains().init_of(&unreadable).is_some(), "nobody touches what cannot be understood");
    assert!(p.log().contains("the database row of a sandbox is damaged"), "and the log says so");
    let activity = p.rest("GET", &format!("/activity?sandbox_id={cut}&action=failed"), None).await;
    assert_eq!(activity.body.as_array().unwrap().len(), 1);
}

/// Writes nonsense over the state in a sandbox's row, wherever the file has it.
fn damage_row(database: &std::path::Path, id: &str) {
    let mut bytes = std::fs::read(database).unwrap();
    let mut found = 0;
    for at in 0..bytes.len() - id.len() {
        if bytes[at..].starts_with(id.as_bytes()) {
            // The state is the fifth column; the first is the id.
            let end = bytes.len().min(at + 200);
            let row = &mut bytes[at..end];
            if let Some(state) = row.windows(6).position(|text| text == b"active") {
                row[state..state + 6].copy_from_slice(b"broken");
                found += 1;
            }
        }
    }
    assert!(found > 0, "the row is in the file");
    std::fs::write(database, bytes).unwrap();
}
