//! What rules mean, that they hold from the first moment, and that a change holds as soon as it is said to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use super::{AT_ONCE, Bed, Guest};

fn get(host: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").into_bytes()
}

/// Whether an address answers on a port without names.
async fn open(bed: &Bed, guest: &Guest, address: &str) -> bool {
    let probe = bed.probe(guest, address, 7004, b"").await;
    assert!(probe.said == "bye" || probe.seconds < AT_ONCE, "{probe:?}");
    probe.said == "bye"
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_their_order() {
    let Some(bed) = Bed::new().await else { return };
    bed.internet.name("a.example", &["198.51.100.1"]);
    bed.internet.name("x.b.example", &["198.51.100.2"]);
    bed.internet.name("b.example", &["198.51.100.3"]);
    // allow, deny, and what 198.51.100.1, 198.18.0.1 and 9.9.9.9 do then.
    for (allow, deny, expected) in [
        (vec![], vec![], [true, true, true]),
        // An allow list alone locks nothing.
        (vec!["198.51.100.9"], vec![], [true, true, true]),
        (vec![], vec!["0.0.0.0/0"], [false, false, false]),
        (vec!["198.51.100.0/24"], vec!["0.0.0.0/0"], [true, false, false]),
        (vec!["198.51.100.1"], vec!["198.51.100.0/24"], [true, true, true]),
        (vec![], vec!["128.0.0.0/1"], [false, false, true]),
        (vec![], vec!["0.0.0.0/1"], [true, true, false]),
        (vec![], vec!["240.0.0.0/4", "255.255.255.255/32"], [true, true, true]),
        (vec![], vec!["198.51.100.1/32"], [false, true, true]),
        // A name opens no port but the two it is said on.
        (vec!["a.example"], vec!["0.0.0.0/0"], [false, false, false]),
    ] {
        let guest = bed.guest(&allow, &deny).await;
        let targets = ["198.51.100.1", "198.18.0.1", "9.9.9.9"].map(|to| (to.to_owned(), 7004, Vec::new()));
        let found: Vec<bool> = bed.probes(&guest, &targets).await.iter().map(|p| p.said == "bye").collect();
        assert_eq!(found, expected, "{allow:?} {deny:?}");
        bed.platform.rest("DELETE", &format!("/sandboxes/{}", guest.id), None).await;
    }
    let guest = bed.guest(&["*.b.example", "a.example"], &["0.0.0.0/0"]).await;
    let names = ["a.example", "x.b.example", "b.example", "x.a.example"];
    let targets = names.map(|name| ("198.51.100.77".to_owned(), 80, get(name)));
    let found: Vec<bool> =
        bed.probes(&guest, &targets).await.iter().map(|p| p.said.contains(" 200 ")).collect();
    assert_eq!(found, [true, true, false, false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_explain_themselves_and_rows_say_which_rule() {
    let Some(bed) = Bed::new().await else { return };
    bed.internet.name("a.example", &["198.51.100.1"]);
    let guest = bed.guest(&["a.example", "198.51.100.8"], &["0.0.0.0/0"]).await;
    let refused =
        bed.request(&guest, "198.51.100.66", "GET /x?secret HTTP/1.1\r\nHost: evil.example\r\n\r\n").await;
    refused.assert_explained("by the rules", "deny_out 0.0.0.0/0");
    assert!(
        refused.said.contains("add \"evil.example\" to allow_out") && refused.said.contains("sandbox_update")
    );
    bed.probe(&guest, "198.51.100.66", 443, b"").await.assert_refused("silence on 443");
    bed.probe(&guest, "198.51.100.66", 22, b"").await.assert_refused("ssh");
    bed.request(&guest, "198.51.100.7", &String::from_utf8(get("a.example")).unwrap()).await;
    bed.probe(&guest, "198.51.100.8", 80, &get("by.address.example")).await;
    // Permitted, and nobody is there.
    bed.probe(&guest, "198.51.100.8", 9, b"").await.assert_refused("a closed port");
    for (port, host, verdict, rule) in [
        (80, json!("evil.example"), "blocked", "cidr"),
        (443, json!(null), "blocked", "cidr"),
        (22, json!(null), "blocked", "cidr"),
        (80, json!("a.example"), "allowed", "domain"),
        (80, json!("by.address.example"), "allowed", "cidr"),
        (9, json!(null), "failed", "cidr"),
    ] {
        let row = bed.row(&guest, "a row", |row| row["dst_port"] == port && row["host"] == host).await;
        assert_eq!((&row["verdict"], &row["match_rule"]), (&json!(verdict), &json!(rule)), "{row}");
        assert_eq!(row["bytes_recv"].as_u64() > Some(50), verdict == "allowed", "{row}");
    }
    assert!(
        !bed.platform.log().contains("evil.example"),
        "names that a guest chose are not in the server's log"
    );
    let metrics = bed.platform.rest("GET", "/metrics", None).await.body.as_str().unwrap().to_owned();
    assert!(metrics.contains("superserve_egress_connections_total{verdict=\"blocked\"} 3"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_outlive_pause_and_restart() {
    let Some(mut bed) = Bed::new().await else { return };
    let guest = bed.guest(&["198.51.100.1"], &["0.0.0.0/0"]).await;
    // From the first moment: a program that runs all the time and tells whenever it gets through.
    let try_on = "cat > /tmp/try.py <<'E'\n\
        import socket, time\n\
        while True:\n\
        \x20   for address in ('198.51.100.1', '198.51.100.66'):\n\
        \x20       try:\n\
        \x20           s = socket.create_connection((address, 7001), timeout=2); s.settimeout(2)\n\
        \x20           if s.recv(3) == b'220': open('/tmp/' + address, 'a').write('x')\n\
        \x20           s.close()\n\
        \x20       except OSError: pass\n\
        \x20   time.sleep(0.005)\n\
        E\n\
        nohup python3 /tmp/try.py >/dev/null 2>&1 &";
    // An emulated processor takes its time.
    let gets_through = "for i in $(seq 60); do test -s /tmp/198.51.100.1 && exit 0; sleep 0.5; done; exit 1";
    bed.sh(&guest, try_on).await;
    bed.sh(&guest, gets_through).await;
    let path = format!("/sandboxes/{}", guest.id);
    for kill in [false, true] {
        assert_eq!(bed.platform.rest("POST", &format!("{path}/pause"), None).await.status, 204);
        let network = json!({"network": {"allow_out": [], "deny_out": []}});
        assert_eq!(bed.platform.rest("PATCH", &path, Some(network)).await.status, 409);
        assert!(!bed.log(&guest, "").await.is_empty(), "readable while paused");
        if kill {
            bed.platform.kill_hard();
            bed.platform.spawn().await;
        }
        let resumed = bed.platform.rest("POST", &format!("{path}/resume"), None).await;
        let token = resumed.body["access_token"].as_str().unwrap().to_owned();
        let again = Guest { id: guest.id.clone(), token };
        bed.sh(&again, &format!("rm -f /tmp/198.51.100.1; sleep 1; {gets_through}")).await;
        assert_eq!(bed.reached("198.51.100.66"), 0);
    }
    // A server that goes and comes back while the sandbox runs.
    bed.platform.kill_hard();
    bed.platform.spawn().await;
    let token = bed.platform.rest("GET", &path, None).await.body["access_token"].as_str().unwrap().to_owned();
    let again = Guest { id: guest.id.clone(), token };
    bed.sh(&again, &format!("rm -f /tmp/198.51.100.1; sleep 1; {gets_through}")).await;
    assert_eq!(bed.reached("198.51.100.66"), 0);
    assert!(bed.reached("198.51.100.1") > 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_else_works_under_deny_all() {
    let Some(bed) = Bed::new().await else { return };
    let guest = bed.guest(&[], &["0.0.0.0/0"]).await;
    assert_eq!(bed.sh(&guest, "echo works; cat /etc/hostname >/dev/null").await, "works\n");
    bed.upload(&guest, "/home/user/file", vec![7; 1_000_000]).await;
    assert_eq!(bed.sh(&guest, "wc -c < /home/user/file").await, "1000000\n");
    let read =
        bed.platform.data("GET", "/files?path=/home/user/file", &guest.id, &guest.token, Vec::new()).await;
    assert_eq!(read.status, 200);
    // Inside, everything may talk to everything.
    bed.sh(&guest, "nohup python3 -m http.server 8000 >/dev/null 2>&1 & curl -sSf --retry 60 --retry-connrefused --retry-delay 1 localhost:8000 >/dev/null").await;
    // Visitors come in, though nothing goes out.
    let publish = json!({"port": 8000, "access": "public"});
    let published =
        bed.platform.rest("POST", &format!("/sandboxes/{}/preview-ports", guest.id), Some(publish)).await;
    assert_eq!(published.status, 200, "{:?}", published.body);
    let visit = std::process::Command::new("curl")
        .args(["-sS", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}", "-H"])
        .arg(format!("Host: 8000-{}.sandbox.localhost", guest.id))
        .arg(format!("http://{}/", bed.platform.edge()))
        .output()
        .unwrap();
    assert_eq!(visit.stdout, b"200", "{}", String::from_utf8_lossy(&visit.stderr));
    let shell = std::process::Command::new(crate::BIN)
        .args(["sandbox", "exec", "-i", &guest.id, "cat"])
        .env("SUPERSERVE_API_KEY", bed.platform.key())
        .env("SUPERSERVE_BASE_URL", bed.platform.base_url())
        .stdin(std::fs::File::open("/etc/hostname").unwrap())
        .output()
        .unwrap();
    assert_eq!(
        shell.stdout,
        std::fs::read("/etc/hostname").unwrap(),
        "{}",
        String::from_utf8_lossy(&shell.stderr)
    );
}

/// Flips the rules a thousand times while a sandbox tries without end: once a denial has been acknowledged, nothing that
/// had not begun before arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_changes() {
    const FLIPS: usize = 1_000;
    let Some(bed) = Bed::new().await else { return };
    bed.internet.name("a.example", &["198.51.100.1"]);
    let guest = bed.guest(&[], &["0.0.0.0/0"]).await;
    let storm = "cat > /tmp/storm.py <<'E'\n\
        import socket, threading\n\
        def attempt(port, data):\n\
        \x20   while True:\n\
        \x20       try:\n\
        \x20           s = socket.create_connection(('198.51.100.1', port), timeout=2); s.settimeout(2)\n\
        \x20           s.sendall(data); s.recv(99); s.close()\n\
        \x20       except OSError: pass\n\
        http = b'GET / HTTP/1.1\\r\\nHost: a.example\\r\\nConnection: close\\r\\n\\r\\n'\n\
        for port, data in ((7001, b''), (80, http), (7000, b'x')):\n\
        \x20   for _ in range(2): threading.Thread(target=attempt, args=(port, data)).start()\n\
        E\n\
        nohup python3 /tmp/storm.py >/dev/null 2>&1 &";
    bed.sh(&guest, storm).await;
    let capture = bed.internet.capture();
    let wrong = Arc::new(AtomicBool::new(false));
    let mut opened = 0;
    for flip in 0..FLIPS {
        let permit = flip % 2 == 0;
        let network = match (permit, flip % 4) {
            (true, 0) => json!({"allow_out": ["198.51.100.1"], "deny_out": ["0.0.0.0/0"]}),
            (true, _) => json!({"allow_out": ["a.example"], "deny_out": ["0.0.0.0/0"]}),
            (false, _) => json!({"allow_out": [], "deny_out": ["0.0.0.0/0"]}),
        };
        bed.patch(&guest, network).await;
        if !permit && flip % 40 == 1 {
            // What the kernel still has to hand over of before is handed over here.
            let before = capture.opened().len();
            tokio::time::sleep(Duration::from_millis(30)).await;
            let after = capture.opened().len();
            if after != before {
                wrong.store(true, Ordering::Relaxed);
            }
            opened = opened.max(after);
        }
    }
    assert!(!wrong.load(Ordering::Relaxed), "something left after a denial had been acknowledged");
    assert!(opened > 100, "the storm was none: {opened}");
    assert!(!open(&bed, &guest, "198.51.100.1").await);
}
