//! Connections as such: what goes in comes out, ends and resets included, and what is over leaves nothing.

use std::time::Duration;

use serde_json::json;

use super::Bed;

/// Open descriptors of the server.
fn descriptors(bed: &Bed) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", bed.platform.pid())).unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_resets_and_silence() {
    let Some(bed) = Bed::new().await else { return };
    let guest = bed.guest(&[], &[]).await;
    let program = r"
import socket, struct, time
def connect(port):
    s = socket.create_connection(('198.51.100.1', port), timeout=10); return s
def rest(s):
    got = b''
    while True:
        part = s.recv(65536)
        if not part: return got
        got += part
# A side that ends first still gets the answer.
s = connect(7002); s.sendall(b'x' * 1000000); s.shutdown(socket.SHUT_WR); assert rest(s) == b'1000000\n'
# The other side ends first, and still takes what is sent.
s = connect(7004); assert rest(s) == b'bye\n'; s.sendall(b'x' * 100000); s.shutdown(socket.SHUT_WR); s.close()
# A reset is a reset.
s = connect(7003); s.sendall(b'x')
try: rest(s); raise SystemExit('no reset')
except ConnectionResetError: pass
# Whoever speaks first does not wait for the gateway, not even on ports where it listens for names.
for port in (7001, 22):
    begun = time.time(); s = connect(port); assert s.recv(99).startswith(b'220'); took = time.time() - begun
    assert took < 0.15, took
# Nothing happens for a while, and then something does.
s = connect(7000); s.sendall(b'a'); assert s.recv(9) == b'a'; time.sleep(8); s.sendall(b'b'); assert s.recv(9) == b'b'
# Our reset arrives.
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()
# Urgent and tiny writes, byte by byte.
s = connect(7000)
for i in range(200): s.sendall(bytes([i]))
s.shutdown(socket.SHUT_WR); assert rest(s) == bytes(range(200))
";
    bed.python(&guest, program).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_first_on_a_port_with_names() {
    let Some(bed) = Bed::new().await else { return };
    let guest = bed.guest(&[], &[]).await;
    // A second internet's web port belongs to the web; silence there is what a server-first protocol looks like.
    let program = r"
import socket, time
def head(cut, name):
    s = socket.create_connection(('198.51.100.1', 80), timeout=10)
    data = b'GET / HTTP/1.1\r\nHost: ' + name + b'\r\nConnection: close\r\n\r\n'
    for i in range(0, len(data), cut): s.sendall(data[i:i + cut]); time.sleep(0.002)
    got = b''
    while True:
        part = s.recv(9999)
        if not part: break
        got += part
    return got
assert b'b.example' in head(1, b'b.example')
assert b'c.example' in head(7, b'c.example')
# Silence first, and only then a request: connected without a name after a moment, not refused.
s = socket.create_connection(('198.51.100.1', 80), timeout=10); time.sleep(1)
s.sendall(b'GET / HTTP/1.0\r\nHost: late.example\r\n\r\n'); assert b'late.example' in s.recv(9999)
";
    bed.python(&guest, program).await;
    let row =
        bed.row(&guest, "a row with the name that came in pieces", |row| row["host"] == "b.example").await;
    assert_eq!(row["verdict"], "allowed");
    // Names in hellos that come in pieces open the way, too.
    bed.internet.name("a.example", &["198.51.100.1"]);
    let guest = bed.guest(&["a.example"], &["0.0.0.0/0"]).await;
    bed.upload(&guest, "/tmp/ca.pem", bed.internet.authority().as_bytes().to_vec()).await;
    let pieces = r"
import socket, ssl, time
for cut in (1, 5, 64, 300):
    context = ssl.create_default_context(cafile='/tmp/ca.pem')
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(inward, outward, server_hostname='a.example')
    s = socket.create_connection(('198.51.100.66', 443), timeout=10)
    def step(action):
        while True:
            try: result = action()
            except ssl.SSLWantReadError: result = None
            data = outward.read()
            for i in range(0, len(data), cut): s.sendall(data[i:i + cut]); time.sleep(0.0005)
            if result is not None: return result
            part = s.recv(65536)
            inward.write(part) if part else inward.write_eof()
    step(lambda: tls.do_handshake() or True)
    step(lambda: tls.write(b'GET / HTTP/1.0\r\nHost: a.example\r\n\r\n'))
    assert b'200' in step(lambda: tls.read(9999))
";
    bed.python(&guest, pieces).await;
    assert_eq!(bed.reached("198.51.100.66"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_leave_nothing() {
    let Some(bed) = Bed::new().await else { return };
    let guest = bed.guest(&[], &["198.51.100.66"]).await;
    let storm = |count: usize| {
        format!(
            "import socket, struct, concurrent.futures\n\
             def one(i):\n\
             \x20   address, port = ('198.51.100.66' if i % 10 == 9 else '198.51.100.1'), (7000, 7002, 7003, 7004, 9)[i % 5]\n\
             \x20   try:\n\
             \x20       s = socket.create_connection((address, port), timeout=10); s.settimeout(10)\n\
             \x20       s.sendall(b'x' * 100)\n\
             \x20       if i % 3 == 0: s.shutdown(socket.SHUT_WR)\n\
             \x20       if i % 7 == 0: s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n\
             \x20       elif port != 7002 or i % 3 == 0: s.recv(10)\n\
             \x20       s.close()\n\
             \x20   except OSError: pass\n\
             with concurrent.futures.ThreadPoolExecutor(32) as pool: list(pool.map(one, range({count})))\n"
        )
    };
    bed.python(&guest, &storm(200)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = descriptors(&bed);
    bed.python(&guest, &storm(10_000)).await;
    let settled = || async { (descriptors(&bed) <= before + 4).then_some(()) };
    testing::wait_for("descriptors as few as before", Duration::from_secs(10), settled).await;
    assert!(bed.internet.arrivals().len() > 5_000);
    assert_eq!(bed.reached("198.51.100.66"), 0);
    let metrics = bed.platform.rest("GET", "/metrics", None).await.body.as_str().unwrap().to_owned();
    assert!(metrics.contains("superserve_egress_open_connections 0\n"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sandbox_has_its_share() {
    let flags = ["--sandbox-connections", "20", "--sandbox-bandwidth-mib", "4"];
    let Some(bed) = Bed::with(&flags).await else { return };
    let (greedy, modest) = (bed.guest(&[], &[]).await, bed.guest(&[], &[]).await);
    let hold = "cat > /tmp/hold.py <<'E'\n\
        import socket, time\n\
        held, refused = [], 0\n\
        for _ in range(60):\n\
        \x20   try:\n\
        \x20       s = socket.create_connection(('198.51.100.1', 7001), timeout=5); s.settimeout(5)\n\
        \x20       if s.recv(3): held.append(s)\n\
        \x20   except ConnectionResetError: refused += 1\n\
        print(len(held), refused, flush=True); time.sleep(300)\n\
        E\n\
        nohup python3 /tmp/hold.py > /tmp/held 2>&1 & for i in $(seq 50); do test -s /tmp/held && break; sleep 0.1; done; cat /tmp/held";
    assert_eq!(bed.sh(&greedy, hold).await, "20 40\n");
    let row = bed.row(&greedy, "a row of the limit", |row| row["match_rule"] == "limit").await;
    assert_eq!(row["verdict"], "blocked");
    // 16 MiB at 4 MiB a second, each way; the other sandbox is not held up by the first.
    let begun = std::time::Instant::now();
    let both = "curl -sS -m 30 http://198.51.100.1/bytes/8388608 | wc -c; head -c 8388608 /dev/zero | curl -sS -m 30 --data-binary @- http://198.51.100.1/hash";
    assert!(bed.sh(&modest, both).await.contains("8388608"));
    let took = begun.elapsed().as_secs_f64();
    assert!((3.0..8.0).contains(&took), "{took}");
    // Everything of a sandbox ends with it.
    let open = || async {
        let page = bed.platform.rest("GET", "/metrics", None).await.body.as_str().unwrap().to_owned();
        page.contains("superserve_egress_open_connections 0\n").then_some(())
    };
    assert_eq!(bed.platform.rest("DELETE", &format!("/sandboxes/{}", greedy.id), None).await.status, 204);
    testing::wait_for("its connections to end", Duration::from_secs(5), open).await;
    let answer = bed.platform.rest("GET", &format!("/sandboxes/{}", modest.id), None).await;
    assert_eq!(answer.body["status"], json!("active"));
}
