//! Memory, processes and disk: hitting a limit hurts only the workload that hits it.

use std::time::{Duration, Instant};

use crate::bed::Bed;

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_hog_dies_alone() {
    let bed = Bed::new().await;
    let (spec, other) = (bed.create().await, bed.create().await);
    // `tail` keeps what has no end of line.
    let hog = bed.exec(spec.id, "tail /dev/zero; exit $?").await;
    assert_eq!(hog.exit_code, 137, "{hog:?}");
    // Through memory file systems too.
    let shm = bed.exec(spec.id, "dd if=/dev/zero of=/dev/shm/x bs=1M count=1000").await;
    assert_ne!(shm.exit_code, 0, "{shm:?}");
    bed.sh(spec.id, "rm -f /dev/shm/x").await;
    for id in [spec.id, other.id] {
        assert_eq!(bed.sh(id, "echo alive").await, "alive\n");
    }
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_processes_stay_inside() {
    use node::Host;
    let bed = Bed::new().await;
    let other = bed.create().await;
    // As many processes as it may have, and memory enough for them. One that also uses up the processors is in the platform's
    // own tests.
    let mut spec = bed.spec();
    spec.shape.memory_mib = 1024;
    bed.node.create(&spec).await.map_err(|problem| problem.chain()).unwrap();
    bed.exec(spec.id, "for i in $(seq 6000); do sleep 500 & done >/dev/null 2>&1; true").await;
    // The host and the others stay quick, the agent answers, and a command that cannot be started says so.
    let start = Instant::now();
    assert_eq!(bed.sh(other.id, "echo alive").await, "alive\n");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let answer = bed.exec(spec.id, "echo alive").await;
    println!("in the bombed sandbox: {answer:?}");
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_full_for_one() {
    let bed = Bed::new().await;
    let (spec, other) = (bed.create().await, bed.create().await);
    let full = bed.exec(spec.id, "dd if=/dev/zero of=/home/user/big bs=1M count=2000").await;
    assert_ne!(full.exit_code, 0);
    assert!(full.stderr.contains("No space left"), "{full:?}");
    assert_eq!(bed.sh(spec.id, "echo alive").await, "alive\n");
    bed.sh(other.id, "dd if=/dev/zero of=/home/user/x bs=1M count=20").await;
    bed.sh(spec.id, "rm /home/user/big && dd if=/dev/zero of=/home/user/x bs=1M count=100").await;
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_still_boots() {
    use node::Host;
    let mut bed = Bed::new().await;
    let spec = bed.create().await;
    bed.exec(spec.id, "dd if=/dev/zero of=/home/user/big bs=1M count=2000; sync").await;
    // As after a restart of the host: the disk, and nothing else.
    bed.restart().await;
    bed.node.boot(&spec).await.map_err(|problem| problem.chain()).unwrap();
    bed.sh(spec.id, "rm /home/user/big && echo room > /home/user/room").await;
    bed.finish().await;
}
