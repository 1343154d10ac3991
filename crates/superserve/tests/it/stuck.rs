//! Deleting a sandbox always works and is quick, whatever its guest did; and a file system of the guest's that does not
//! answer stops nothing but its own files.

use std::time::{Duration, Instant};

use serde_json::json;
use testing::{Platform, Remains};

use crate::platform;

/// A second is what the kernel needs to free a gigabyte in small pieces on a busy machine; the rest is margin.
const DELETE_LIMIT: Duration = Duration::from_secs(15);

/// A FUSE server that never answers. `reads`: it takes requests off the queue, after which no signal reaches whoever
/// waits for them. `waits`: it waits for its own file system, so that even its death would not free it.
const FUSE: &str = r#"
import ctypes, os, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
os.makedirs('/mnt/f', exist_ok=True)
fd = os.open('/dev/fuse', os.O_RDWR)
options = f'fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other'.encode()
assert libc.mount(b'test', b'/mnt/f', b'fuse', 0, options) == 0, os.strerror(ctypes.get_errno())
unique = struct.unpack('<IIQ', os.read(fd, 1 << 20)[:16])[2]
init = struct.pack('<IIIIHHIIHHI28x', 7, 31, 0, 0, 16, 12, 4096, 1, 0, 0, 0)
os.write(fd, struct.pack('<IiQ', 16 + len(init), 0, unique) + init)
if 'waits' in sys.argv:
    threading.Thread(target=lambda: os.stat('/mnt/f/x')).start()
    if 'detached' in sys.argv:
        os.read(fd, 1 << 20)
        assert libc.umount2(b'/mnt/f', 2) == 0
open('/tmp/mounted', 'w').close()
while True:
    os.read(fd, 1 << 20)
    open('/tmp/asked', 'w').close()
"#;

async fn mount(p: &Platform, id: &str, token: &str, how: &str) {
    let stored = p.data("POST", "/files?path=/tmp/fuse.py", id, token, FUSE.into()).await;
    assert_eq!(stored.status, 200, "{stored:?}");
    let start = format!(
        "setsid python3 /tmp/fuse.py {how} >/tmp/fuse.log 2>&1 & \
         for n in $(seq 200); do test -e /tmp/mounted && exit; sleep 0.05; done; cat /tmp/fuse.log; exit 1"
    );
    p.run(id, token, &start).await;
}

/// Deletes the only sandbox, and sees that the machine has nothing of it any more.
async fn delete(p: &Platform, id: &str) {
    let begun = Instant::now();
    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);
    testing::wait_for("the sandbox's remains go", DELETE_LIMIT, || async {
        let left = p.remains();
        let gone = left.machines + left.disks + left.links + left.loops + left.processes == 0;
        gone.then_some(())
    })
    .await;
    eprintln!("deleted after {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_file_system_that_waits_for_itself_can_be_deleted() {
    let Some(p) = platform().await else { return };
    for how in ["waits", "waits detached"] {
        let (id, token) = p.create(json!({})).await;
        mount(&p, &id, &token, how).await;
        assert_eq!(p.run(&id, &token, "echo alive").await, "alive\n");
        delete(&p, &id).await;
    }
}

#[tokio::test]
async fn a_server_that_dies_leaves_a_stuck_sandbox_to_the_next_one() {
    let Some(mut p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    mount(&p, &id, &token, "waits").await;
    // The first process goes, the stuck one does not.
    let init = p.remains().init_of(&id).expect("a first process");
    p.kill_hard();
    rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
    p.spawn().await;
    delete(&p, &id).await;
}

#[tokio::test]
async fn a_stopped_file_system_keeps_neither_commands_nor_other_files() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    mount(&p, &id, &token, "reads").await;
    // More than the agent has threads for files.
    let stuck = (0..5).map(|_| p.data("GET", "/files?path=/mnt/f/x", &id, &token, vec![]));
    let stuck = futures_util::future::join_all(stuck);
    let others = async {
        p.run(&id, &token, "until [ -e /tmp/asked ]; do sleep 0.05; done").await;
        let begun = Instant::now();
        assert_eq!(p.run(&id, &token, "echo alive").await, "alive\n");
        assert!(begun.elapsed() < Duration::from_secs(10), "a command waited {:?}", begun.elapsed());
        let stored = p.data("POST", "/files?path=/home/user/other", &id, &token, b"x".to_vec()).await;
        assert_eq!(stored.status, 200, "once threads were replaced: {stored:?}");
    };
    let (stuck, ()) = tokio::join!(stuck, others);
    for answer in stuck {
        assert_eq!((answer.status, answer.code()), (500, "sandbox_filesystem_error"), "{answer:?}");
        assert_eq!(answer.body["error"]["mount"]["fstype"], "fuse", "{answer:?}");
    }
    // The agent's own threads wait for a server that lives and stands still.
    p.run(&id, &token, "pkill -STOP -f '[f]use.py'").await;
    delete(&p, &id).await;
}

#[tokio::test]
async fn busy_guests_can_be_deleted() {
    let Some(p) = platform().await else { return };
    for (what, command) in [
        ("a thousand processes", "for n in $(seq 1000); do sleep 1000 & done >/dev/null 2>&1"),
        ("stopped and traced ones", "for n in $(seq 50); do sh -c 'kill -STOP $$' & done; sleep 1"),
        (
            "mounts in namespaces of their own",
            "for n in $(seq 100); do unshare -m sh -c 'for m in $(seq 20); do mount --bind /etc /mnt; done; \
             sleep 1000' & done >/dev/null 2>&1; sleep 3",
        ),
        (
            "a disk that is being written",
            "for n in 1 2 3 4; do (while :; do dd if=/dev/zero of=/big$n bs=1M count=300 conv=fsync; done) & done \
             >/dev/null 2>&1; sleep 3",
        ),
        (
            "many small files",
            "python3 -c \"\nimport os\nfor n in range(100_000): os.mknod(f'/dev/shm/{n}')\nfor n in range(50_000): \
             os.mknod(f'/home/user/{n}')\"",
        ),
    ] {
        let (id, token) = p.create(json!({})).await;
        p.run(
            &id,
            &token,
            &format!("setsid sh -c '{}' >/dev/null 2>&1 & wait", command.replace('\'', "'\\''")),
        )
        .await;
        eprint!("{what}: ");
        delete(&p, &id).await;
    }
    assert_eq!(p.remains().machines, Remains::default().machines);
}
