//! Limits hurt only the sandbox that hits them.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::platform;

/// Far above what an undisturbed neighbour needs, far below a hang.
const NEIGHBOUR: Duration = Duration::from_secs(15);

async fn hurts_only_itself(attack: &str, then: &str) {
    let Some(p) = platform().await else { return };
    let (bad, bad_token) = p.create(json!({"name": "bad"})).await;
    let (good, good_token) = p.create(json!({"name": "good"})).await;
    let body = json!({"command": attack, "timeout_s": 20}).to_string();
    let attacked = p.data("POST", "/exec", &bad, &bad_token, body.into_bytes());
    let neighbour = async {
        let mut slowest = Duration::ZERO;
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let begun = Instant::now();
            p.run(&good, &good_token, "echo fine").await;
            slowest = slowest.max(begun.elapsed());
        }
        slowest
    };
    let (attacked, slowest) = tokio::join!(attacked, neighbour);
    assert_eq!(attacked.status, 200, "{attacked:?}");
    assert!(slowest < NEIGHBOUR, "the neighbour waited {slowest:?}");
    // The agent of the attacked sandbox answers, too.
    testing::wait_for("the attacked sandbox answers", Duration::from_secs(30), || async {
        let answer = p.exec(&bad, &bad_token, then).await;
        (answer.status == 200 && answer.body["exit_code"] == 0).then_some(())
    })
    .await;
    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{bad}"), None).await.status, 204);
    p.run(&good, &good_token, "echo still fine").await;
}

#[tokio::test]
async fn a_fork_bomb() {
    hurts_only_itself("f() { f | f & }; f; sleep 5", "echo alive").await;
}

#[tokio::test]
async fn a_memory_hog() {
    hurts_only_itself(
        "python3 -c \"b=[bytearray(50_000_000) for _ in range(400)]\"; test $? = 137 && echo killed",
        "echo alive",
    )
    .await;
}

#[tokio::test]
async fn a_full_disk_is_507_and_heals() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let (other, other_token) = p.create(json!({"name": "other"})).await;
    let filled = p
        .exec(&id, &token, "dd if=/dev/zero of=/home/user/fill bs=1M count=100000 2>&1; df -m / | tail -1")
        .await;
    assert_eq!(filled.status, 200);
    assert!(filled.body["stdout"].as_str().unwrap().contains("No space left"), "{filled:?}");
    let refused = p.data("POST", "/files?path=/home/user/more", &id, &token, vec![7; 4 * 1024 * 1024]).await;
    assert_eq!((refused.status, refused.code()), (507, "sandbox_storage_full"), "{refused:?}");
    assert_eq!(
        p.data("GET", "/files?path=/home/user/more", &id, &token, vec![]).await.status,
        404,
        "no partial file"
    );
    p.run(&other, &other_token, "dd if=/dev/zero of=/tmp/x bs=1M count=50 2>/dev/null").await;
    p.run(&id, &token, "rm /home/user/fill").await;
    let stored = p.data("POST", "/files?path=/home/user/more", &id, &token, vec![7; 1024]).await;
    assert_eq!(stored.status, 200, "{stored:?}");
}

#[tokio::test]
async fn the_shape_is_what_the_template_says() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let disk: u64 = p.run(&id, &token, "df -m --output=size / | tail -1").await.trim().parse().unwrap();
    assert!((3_000..=4_200).contains(&disk), "{disk} MiB of disk for a template of 4096");
}

/// The processor time of the whole workload stays near the shape's, whatever the number of processes, and the agent
/// answers beside it.
#[tokio::test]
async fn a_busy_workload_gets_its_processors_and_no_more() {
    const SECONDS: f64 = 3.0;
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    let busy = format!(
        "python3 - <<'E'\n\
         import os, time\n\
         end = time.monotonic() + {SECONDS}\n\
         children = []\n\
         for _ in range(8):\n\
         \x20   pid = os.fork()\n\
         \x20   if pid == 0:\n\
         \x20       while time.monotonic() < end: pass\n\
         \x20       os._exit(0)\n\
         \x20   children.append(pid)\n\
         for pid in children: os.waitpid(pid, 0)\n\
         spent = os.times()\n\
         print(spent.children_user + spent.children_system)\n\
         E"
    );
    let (used, answered) = tokio::join!(p.run(&id, &token, &busy), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        p.run(&id, &token, "echo fine").await
    });
    assert_eq!(answered, "fine\n");
    let used: f64 = used.trim().parse().unwrap();
    // One processor, and what a period in progress at either end adds.
    assert!(used < SECONDS * 1.3, "{used} s of processor time in {SECONDS} s");
}
