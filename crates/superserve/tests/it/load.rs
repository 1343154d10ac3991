//! Many sandboxes, each used by callers who know nothing of each other. Every answer is a documented one, and what the
//! server and the machine hold afterwards is what they held before.
//!
//! `SUPERSERVE_LOAD="100 600" cargo nextest run -p superserve load::` runs 100 sandboxes for 600 seconds.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::json;
use testing::{Platform, Remains, wait_for};

use crate::platform_with;

/// Sandboxes and seconds in an ordinary run.
const ORDINARY: (usize, u64) = (20, 30);
/// What the server may keep of each sandbox it has seen: allocators do not give everything back.
const KEPT_KIB: u64 = 64 * 1024;
/// A client that is told to wait does so.
const AGAIN: Duration = Duration::from_millis(200);

fn extent() -> (usize, u64) {
    let wanted = std::env::var("SUPERSERVE_LOAD").unwrap_or_default();
    let mut numbers = wanted.split_whitespace().filter_map(|word| word.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(sandboxes), Some(seconds)) => (usize::try_from(sandboxes).unwrap_or(1), seconds),
        _ => ORDINARY,
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    threads: usize,
    descriptors: usize,
    resident_kib: u64,
    /// Of the whole machine: nothing else makes these while a test of this kind runs alone, so they are only shown.
    processes: usize,
}

fn held(pid: u32) -> Held {
    let count = |path: String| std::fs::read_dir(path).map_or(0, Iterator::count);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    Held {
        threads: count(format!("/proc/{pid}/task")),
        descriptors: count(format!("/proc/{pid}/fd")),
        resident_kib: resident.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0),
        processes: count("/proc".to_owned()),
    }
}

/// Answers by call and status, with the slowest of each.
type Seen = Mutex<BTreeMap<(&'static str, u16), (usize, Duration)>>;

struct User<'a> {
    p: &'a Platform,
    seen: &'a Seen,
    id: String,
    token: String,
    random: u64,
}

impl User<'_> {
    /// A number below `end`, the same ones in every run.
    fn pick(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }

    async fn note(&self, what: &'static str, status: u16, begun: Instant) {
        {
            let mut seen = self.seen.lock().unwrap();
            let (times, slowest) = seen.entry((what, status)).or_default();
            *times += 1;
            *slowest = begun.elapsed().max(*slowest);
        }
        if status == 429 {
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn lifecycle(&mut self, verb: &'static str, accepted: &[u16]) {
        let begun = Instant::now();
        let answer = self.p.rest("POST", &format!("/sandboxes/{}/{verb}", self.id), None).await;
        assert!(accepted.contains(&answer.status), "{verb}: {answer:?}");
        if let Some(token) = answer.body["access_token"].as_str() {
            token.clone_into(&mut self.token);
        }
        self.note(verb, answer.status, begun).await;
    }

    /// One of the things callers do.
    async fn step(&mut self, round: u64) {
        let begun = Instant::now();
        match self.pick(10) {
            0..=3 => {
                let answer = self.p.exec(&self.id, &self.token, &format!("echo {round}; exit 3")).await;
                if answer.status == 200 {
                    assert_eq!(
                        answer.body,
                        json!({"stdout": format!("{round}\n"), "stderr": "", "exit_code": 3})
                    );
                }
                self.check("exec", answer.status, begun).await;
            }
            4 | 5 => {
                let content = vec![u8::try_from(round % 256).unwrap_or(0); 200_000];
                let path = format!("/files?path=/home/user/d{}/file", self.pick(5));
                let answer = self.p.data("POST", &path, &self.id, &self.token, content.clone()).await;
                self.check("write", answer.status, begun).await;
                if answer.status == 200 {
                    let begun = Instant::now();
                    let answer = self.p.data("GET", &path, &self.id, &self.token, vec![]).await;
                    self.check("read", answer.status, begun).await;
                }
            }
            6 => {
                let body = json!({"command": "for n in 1 2 3; do echo $n; sleep 0.02; done"}).to_string();
                let answer = self.p.data("POST", "/exec/stream", &self.id, &self.token, body.into()).await;
                if answer.status == 200 {
                    let text = answer.body.as_str().unwrap_or_default();
                    assert!(text.contains("\"finished\":true"), "a stream without an end: {text}");
                }
                self.check("stream", answer.status, begun).await;
            }
            7 => self.lifecycle("pause", &[204, 409]).await,
            8 => self.lifecycle("activate", &[200]).await,
            _ => {
                let answer = self.p.rest("GET", "/sandboxes?limit=10", None).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                self.note("list", answer.status, begun).await;
            }
        }
    }

    /// A data-plane answer; a paused sandbox is woken, as clients do.
    async fn check(&mut self, what: &'static str, status: u16, begun: Instant) {
        assert!([200, 429, 503].contains(&status), "{what}: {status}");
        self.note(what, status, begun).await;
        if status == 503 {
            self.lifecycle("activate", &[200]).await;
        }
    }
}

#[tokio::test]
async fn many_sandboxes_in_mixed_use() {
    let (sandboxes, seconds) = extent();
    let most = (sandboxes + 5).to_string();
    let Some(mut p) = platform_with(&["--max-active-sandboxes", &most]).await else { return };
    // Whatever is made once is there before the count: a blank disk, workers, caches.
    let (id, token) = p.create(json!({"name": "first"})).await;
    p.run(&id, &token, "true").await;
    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);
    let before = held(p.pid());
    let quiet = p.remains();

    let seen = Seen::default();
    let end = Instant::now() + Duration::from_secs(seconds);
    let users = (0..sandboxes).map(|number| {
        let (p, seen) = (&p, &seen);
        async move {
            let begun = Instant::now();
            let (id, token) = p.create(json!({"name": format!("load-{number}")})).await;
            let mut user = User { p, seen, id, token, random: 0x9e37_79b9 + number as u64 };
            user.note("create", 201, begun).await;
            let mut round = 0;
            while Instant::now() < end {
                user.step(round).await;
                round += 1;
            }
            let begun = Instant::now();
            let deleted = p.rest("DELETE", &format!("/sandboxes/{}", user.id), None).await;
            assert_eq!(deleted.status, 204, "{deleted:?}");
            user.note("delete", deleted.status, begun).await;
            round
        }
    });
    let rounds: u64 = futures_util::future::join_all(users).await.into_iter().sum();
    let during = held(p.pid());
    let after = wait_for("descriptors and machine come back", Duration::from_secs(70), || async {
        let now = held(p.pid());
        // Each caller keeps a connection to either plane for its next call.
        let same = p.remains() == quiet && now.descriptors <= before.descriptors + 2 * sandboxes + 8;
        same.then_some(now)
    })
    .await;
    eprintln!("{sandboxes} sandboxes, {seconds} s: {rounds} steps");
    for ((what, status), (times, slowest)) in seen.lock().unwrap().iter() {
        eprintln!("  {what:8} {status}  {times:6} times, slowest {slowest:?}");
    }
    eprintln!("  server before {before:?}\n  at the end {during:?}\n  after {after:?}");
    assert!(rounds >= sandboxes as u64, "each did something");
    assert!(after.resident_kib < before.resident_kib + KEPT_KIB, "the server grew: {before:?} to {after:?}");
    assert!(!p.log().contains("ERROR") && !p.log().contains("panicked"), "the log:\n{}", p.log());
    assert_eq!(p.tear_down(), Remains::default());
}
