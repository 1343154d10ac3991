//! What the gateway costs: the same client against the same servers, from a sandbox and from the uplink itself, in one run.
//! `cargo nextest run --release -p superserve egress::speed --no-capture` shows figures worth keeping.

use std::process::Command;

use super::Bed;

/// Milliseconds until the first byte of a server that speaks first, and of an answer over HTTP by name; MB per second.
const CLIENT: &str = r"
import json, socket, statistics, time
def first(port, send):
    begun = time.perf_counter()
    s = socket.create_connection(('198.51.100.1', port)); s.sendall(send); s.recv(1)
    took = (time.perf_counter() - begun) * 1000
    s.close(); return took
def median(port, send): return statistics.median(first(port, send) for _ in range(200))
def down(size):
    s = socket.create_connection(('198.51.100.1', 80))
    s.sendall(b'GET /bytes/%d HTTP/1.0\r\nHost: by.address\r\n\r\n' % size)
    begun, got, buffer = time.perf_counter(), 0, bytearray(1 << 20)
    while (read := s.recv_into(buffer)): got += read
    assert got > size; return size / (time.perf_counter() - begun) / 1e6
def up(size):
    s = socket.create_connection(('198.51.100.1', 7002)); data = bytes(1 << 20)
    begun = time.perf_counter()
    for _ in range(size >> 20): s.sendall(data)
    s.shutdown(socket.SHUT_WR); assert int(s.recv(99)) == size
    return size / (time.perf_counter() - begun) / 1e6
get = b'GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n'
first(7001, b'')
print(json.dumps({'connect': median(7001, b''), 'http': median(80, get), 'down': down(SIZE), 'up': up(SIZE)}))
";

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_against_nothing_between() {
    let Some(bed) = Bed::new().await else { return };
    bed.internet.name_for("a.example", &["198.51.100.1"], 60);
    let size = if cfg!(debug_assertions) { 200_i64 << 20 } else { 2_000 << 20 };
    let client = CLIENT.replace("SIZE", &size.to_string());
    // By address, and by name under deny-all.
    let (open, named) =
        (bed.guest(&[], &[]).await, bed.guest(&["a.example", "198.51.100.1"], &["0.0.0.0/0"]).await);
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let direct = Command::new("nsenter")
        .arg(format!("--net={}", bed.internet.uplink_path()))
        .args(["python3", "-c", &client])
        .output()
        .unwrap();
    let direct = parse(&String::from_utf8_lossy(&direct.stdout));
    let through = parse(&bed.python(&open, &client).await);
    let by_name = parse(&bed.python(&named, &client).await);
    println!("direct {direct}\nthrough the gateway {through}\nby name {by_name}");
    let of = |from: &serde_json::Value, what: &str| from[what].as_f64().unwrap();
    // Far from what is measured, so that only a mistake fails.
    assert!(of(&through, "connect") < of(&direct, "connect") + 20.0, "{direct} {through}");
    assert!(of(&by_name, "http") < of(&direct, "http") + 40.0, "{direct} {by_name}");
    for way in ["down", "up"] {
        assert!(of(&through, way) > of(&direct, way) * 0.05, "{way}: {direct} {through}");
    }
}
