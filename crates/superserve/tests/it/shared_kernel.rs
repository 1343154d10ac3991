//! What the kernel counts for all sandboxes together: one that takes all it can get must leave enough to the others.

use std::time::{Duration, Instant};

use serde_json::json;
use testing::Platform;

use crate::platform;

/// Runs a Python program in the background of one sandbox until it prints `held`.
async fn hold(p: &Platform, id: &str, token: &str, program: &str) -> String {
    let program = format!("{program}\nprint('held', flush=True)\nimport time\ntime.sleep(1000)\n");
    let stored = p.data("POST", "/files?path=/tmp/hold.py", id, token, program.into()).await;
    assert_eq!(stored.status, 200, "{stored:?}");
    let start = "setsid python3 /tmp/hold.py >/tmp/hold.log 2>&1 & \
                 for n in $(seq 500); do grep -q held /tmp/hold.log && break; sleep 0.1; done; cat /tmp/hold.log";
    let log = p.run(id, token, start).await;
    assert!(log.contains("held"), "{log}");
    log
}

#[tokio::test]
async fn terminals_pipes_and_aio_are_left_for_others() {
    let Some(p) = platform().await else { return };
    let (bad, bad_token) = p.create(json!({"name": "bad"})).await;
    let (good, good_token) = p.create(json!({"name": "good"})).await;
    let log = hold(
        &p,
        &bad,
        &bad_token,
        "import os, ctypes, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
kept = []
def take(what, most, get):
    n = 0
    try:
        while n < most: kept.append(get()); n += 1
    except OSError as error: print(what, n, error)
take('terminals', 4000, os.openpty)
take('pipes', 1500, os.pipe)
def aio():
    context = ctypes.c_ulong(0)
    if ctypes.CDLL(None).syscall(206, 4000, ctypes.byref(context)) != 0: raise OSError()
    return context
take('aio', 40, aio)",
    )
    .await;
    let left = p
        .run(
            &good,
            &good_token,
            "python3 -c \"
import os, fcntl, ctypes
os.openpty()
print(fcntl.fcntl(os.pipe()[0], 1032))
print(ctypes.CDLL(None).syscall(206, 4000, ctypes.byref(ctypes.c_ulong(0))))\"",
        )
        .await;
    assert_eq!(left, "65536\n0\n", "the other one took: {log}");
}

#[tokio::test]
async fn memory_in_sockets_is_bounded() {
    let Some(p) = platform().await else { return };
    let pages = || -> u64 {
        let text = std::fs::read_to_string("/proc/net/sockstat").unwrap();
        let line = text.lines().find(|line| line.starts_with("TCP:")).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let (id, token) = p.create(json!({})).await;
    let before = pages();
    hold(
        &p,
        &id,
        &token,
        "import socket
listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(1000)
kept = []
for _ in range(300):
    out = socket.create_connection(listener.getsockname()); out.setblocking(False)
    kept.append((out, listener.accept()[0]))
    try:
        while True: out.send(bytes(262144))
    except BlockingIOError: pass",
    )
    .await;
    // A quarter of the template's GiB, and what each socket may have at least.
    let grown = pages().saturating_sub(before) * 4 / 1024;
    assert!(grown < 512, "a sandbox of 1 GiB has {grown} MiB in sockets besides");
    assert_eq!(p.run(&id, &token, "echo alive").await, "alive\n");
}

#[tokio::test]
async fn a_sandbox_full_of_busy_processes_still_answers() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    p.run(
        &id,
        &token,
        "setsid sh -c 'for n in $(seq 400); do (while :; do :; done) & done' >/dev/null 2>&1 & sleep 1",
    )
    .await;
    for _ in 0..5 {
        let begun = Instant::now();
        let answer = p.exec(&id, &token, ":").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        // The command itself is one of 401; without a share of the agent's own it took minutes.
        assert!(begun.elapsed() < Duration::from_secs(20), "an answer took {:?}", begun.elapsed());
    }
    let begun = Instant::now();
    assert_eq!(p.data("GET", "/files?path=/etc/hostname", &id, &token, vec![]).await.status, 200);
    assert!(begun.elapsed() < Duration::from_secs(3), "a file took {:?}", begun.elapsed());
    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);
}
