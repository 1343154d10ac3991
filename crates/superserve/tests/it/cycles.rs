//! Pause and resume, many times in a row: files, processes and variables stay.

use std::time::Duration;

use client::{Client, ClientConfig, ExecRequest, SessionEvent, SessionEvents, SessionInput};
use domain::Secret;
use serde_json::json;
use testing::Platform;

use crate::platform;

/// Counts tenths of seconds into a file, as long as it lives.
const COUNTER: &str = "setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > /tmp/count; sleep 0.1; done' \
                       >/dev/null 2>&1 & echo $!";

async fn pause(p: &Platform, id: &str) {
    let paused = p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await;
    assert_eq!(paused.status, 204, "{paused:?}");
    assert_eq!(p.rest("GET", &format!("/sandboxes/{id}"), None).await.body["status"], "paused");
}

async fn activate(p: &Platform, id: &str) -> String {
    let answer = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body["access_token"].as_str().expect("a token").to_owned()
}

async fn count(p: &Platform, id: &str, token: &str) -> u64 {
    // The writer truncates before it writes.
    p.run(id, token, "until [ -s /tmp/count ]; do :; done; cat /tmp/count").await.trim().parse().unwrap_or(0)
}

/// A command that stays in conversation through all cycles: the connection ends with each pause, the session does not.
struct OpenSession {
    input: SessionInput,
    events: SessionEvents,
}

impl OpenSession {
    async fn start(p: &Platform, id: &str) -> Self {
        let client = Client::new(ClientConfig::new(p.base_url(), Secret::new(p.key()))).expect("a client");
        let request = ExecRequest { command: "exec cat".to_owned(), ..ExecRequest::default() };
        let session = client.start_session(id, request, None).await.expect("a session");
        let (input, events) = session.split();
        Self { input, events }
    }

    async fn echoes(&mut self, text: String) {
        self.input.write(text.clone().into()).await;
        let mut heard = Vec::new();
        let listen = async {
            while heard.len() < text.len() {
                match self.events.next().await {
                    Some(Ok(SessionEvent::Stdout(bytes))) => heard.extend_from_slice(&bytes),
                    Some(Ok(SessionEvent::Paused | SessionEvent::Reconnecting { .. })) => {}
                    Some(Ok(SessionEvent::Reconnected { lost, .. })) => assert_eq!(lost, 0),
                    other => panic!("the session ended: {other:?}"),
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), listen).await.expect("the session answers");
        assert_eq!(String::from_utf8_lossy(&heard), text);
    }
}

/// `rounds` cycles on one sandbox; every fifth without a gap between pause and resume.
async fn cycles(rounds: usize) {
    let Some(p) = platform().await else { return };
    let (id, mut token) = p.create(json!({"env_vars": {"KEPT": "a value"}})).await;
    let counter = p.run(&id, &token, COUNTER).await;
    let counter = counter.trim();
    let mut session = OpenSession::start(&p, &id).await;
    session.echoes("before\n".to_owned()).await;
    let quiet = p.remains();
    let mut last = 0;
    for round in 0..rounds {
        let file = format!("/home/user/round-{round}");
        let stored =
            p.data("POST", &format!("/files?path={file}"), &id, &token, format!("{round}").into()).await;
        assert_eq!(stored.status, 200, "{stored:?}");
        pause(&p, &id).await;
        let refused = p.exec(&id, &token, "true").await;
        assert_eq!((refused.status, refused.code()), (503, "sandbox_unavailable"), "{refused:?}");
        if round % 5 != 0 {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
        let fresh = activate(&p, &id).await;
        assert_ne!(fresh, token, "a resume changes the token");
        assert_eq!(p.exec(&id, &token, "true").await.status, 401, "the old token is void");
        token = fresh;
        let seen = p.run(&id, &token, &format!("kill -0 {counter} && echo $KEPT && cat {file}")).await;
        assert_eq!(seen, format!("a value\n{round}"), "round {round}");
        session.echoes(format!("round {round}\n")).await;
        let now = count(&p, &id, &token).await;
        assert!(now >= last, "round {round}: the counter went from {last} to {now}");
        last = now;
    }
    testing::wait_for("the counter goes on", std::time::Duration::from_secs(20), || async {
        (count(&p, &id, &token).await > last).then_some(())
    })
    .await;
    let files = p
        .run(
            &id,
            &token,
            "cat /home/user/round-* | wc -c; find /home/user -mindepth 1 -maxdepth 1 -name '[!.]*' | wc -l",
        )
        .await;
    assert!(files.ends_with(&format!("{rounds}\n")), "all files are there: {files}");
    let after = p.remains();
    assert_eq!(
        (after.machines, after.mounts, after.cgroups, after.links, after.loops),
        (quiet.machines, quiet.mounts, quiet.cgroups, quiet.links, quiet.loops),
        "nothing grows with the cycles"
    );
    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);
}

#[tokio::test]
async fn five_cycles() {
    cycles(5).await;
}

#[tokio::test]
async fn twenty_cycles() {
    cycles(20).await;
}

/// A frozen counter stands still: pause takes the processor away, not only the network.
#[tokio::test]
async fn what_is_paused_does_not_run() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    p.run(&id, &token, COUNTER).await;
    testing::wait_for("the counter runs", std::time::Duration::from_secs(10), || async {
        (count(&p, &id, &token).await > 2).then_some(())
    })
    .await;
    pause(&p, &id).await;
    let upper =
        std::fs::read_dir(format!("/proc/{}/root/tmp", p.remains().init_of(&id).unwrap().as_raw_nonzero()));
    assert!(upper.is_ok(), "the host can look into the sandbox: {upper:?}");
    let read = || {
        let init = p.remains().init_of(&id).expect("a first process").as_raw_nonzero();
        std::fs::read_to_string(format!("/proc/{init}/root/tmp/count")).expect("the count")
    };
    let before = read();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(read(), before, "the count while paused");
    let token = activate(&p, &id).await;
    testing::wait_for("the counter goes on", std::time::Duration::from_secs(10), || async {
        (count(&p, &id, &token).await > before.trim().parse().unwrap_or(0)).then_some(())
    })
    .await;
}

/// Each activate may be followed at once by a pause, by two callers who do not know of each other.
#[tokio::test]
async fn opposite_wishes_without_a_gap() {
    let Some(p) = platform().await else { return };
    let (id, _) = p.create(json!({})).await;
    for round in 0..15 {
        let (pause, activate) = (format!("/sandboxes/{id}/pause"), format!("/sandboxes/{id}/activate"));
        let (paused, activated) = tokio::join!(p.rest("POST", &pause, None), p.rest("POST", &activate, None));
        assert!([204, 409].contains(&paused.status), "round {round}: {paused:?}");
        assert_eq!(activated.status, 200, "round {round}: {activated:?}");
    }
    let token = activate(&p, &id).await;
    assert_eq!(p.run(&id, &token, "echo alive").await, "alive\n");
}
