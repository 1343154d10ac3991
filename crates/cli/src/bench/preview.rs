//! What the way through the preview edge adds: the same requests to the same server, once from inside the sandbox straight
//! to its port and once from here through the edge. Each has a connection of its own, so connecting counts on both sides.

use std::time::{Duration, Instant};

use client::{Client, ClientError, ExecRequest, UploadBody};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::report::{Row, millis};

const PORT: u16 = 8_008;
const SCRIPT_PATH: &str = "/tmp/superserve-bench-preview.py";
/// Large answers; the middle one counts.
const ROUNDS: usize = 3;
/// No single request takes longer on a busy machine.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);
/// Starting a Python program on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Serves `/N`, N bytes, or measures that server: plain sockets on either side, so that little but the way is measured.
const SCRIPT: &str = r#"
import json, socket, sys, threading, time
block = bytes(1 << 20)
def talk(peer):
    with peer:
        size = int(peer.recv(65536).split()[1][1:])
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + block[:min(size, 1024)])
        left = size - min(size, 1024)
        while left > 0:
            peer.sendall(block[:left])
            left -= len(block)
def serve(port):
    with socket.create_server(("127.0.0.1", port), backlog=128) as s:
        while True:
            peer, _ = s.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=talk, args=(peer,), daemon=True).start()
def ask(port, size, buffer):
    started = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(b"GET /%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % size)
        got = s.recv_into(buffer)
        first = time.perf_counter() - started
        while more := s.recv_into(buffer): got += more
    return first * 1000, got / 1e6 / (time.perf_counter() - started)
def measure(port, count, size, rounds):
    buffer = bytearray(1 << 20)
    first = [ask(port, 100, buffer)[0] for _ in range(count)]
    print(json.dumps({"first": first, "speed": [ask(port, size, buffer)[1] for _ in range(rounds)]}))
numbers = [int(n) for n in sys.argv[2:]]
serve(*numbers) if sys.argv[1] == "serve" else measure(*numbers)
"#;

/// Milliseconds to first bytes, and MB/s of large answers.
#[derive(Debug, Default, Deserialize)]
struct Measured {
    first: Vec<f64>,
    speed: Vec<f64>,
}

pub(crate) async fn rows(client: &Client, id: &str, count: u32, mib: u32) -> Vec<Row> {
    let first = "preview: first byte";
    let measured = both(client, id, count, u64::from(mib) * 1024 * 1024).await;
    let _gone_with_its_sandbox = client.unpublish_port(id, PORT).await;
    let (direct, edge) = match measured {
        Ok(both) => both,
        Err(error) => return vec![Row::absent(first, "ms", super::reason(&error))],
    };
    let direct_first = Row::samples(format!("{first}, direct inside the sandbox"), "ms", direct.first);
    let edge_first = Row::samples(format!("{first}, through the edge"), "ms", edge.first);
    let speed = |what: &str, speed| Row::samples(format!("preview: {mib} MiB, {what}"), "MB/s", speed);
    let (direct_speed, edge_speed) =
        (speed("direct inside the sandbox", direct.speed), speed("through the edge", edge.speed));
    let added = match (edge_first.p50(), direct_first.p50()) {
        (Some(edge), Some(direct)) => Row::samples("preview: added to first byte", "ms", vec![edge - direct]),
        _ => Row::absent("preview: added to first byte", "ms", "one side was not measured"),
    };
    let share = match (edge_speed.p50(), direct_speed.p50()) {
        (Some(edge), Some(direct)) if direct > 0.0 => {
            Row::samples("preview: share of direct", "%", vec![100.0 * edge / direct])
                .note("inside, client and server share the sandbox's processors")
        }
        _ => Row::absent("preview: share of direct", "%", "one side was not measured"),
    };
    vec![direct_first, edge_first, added.budget("≤ 2"), direct_speed, edge_speed, share]
}

async fn both(
    client: &Client,
    id: &str,
    count: u32,
    bytes: u64,
) -> Result<(Measured, Measured), ClientError> {
    let local = |text: String| ClientError::Local(text);
    client.write_file(id, SCRIPT_PATH, UploadBody::Bytes(SCRIPT.into())).await?;
    let python = |rest: String| ExecRequest {
        command: format!("python3 {SCRIPT_PATH} {rest}"),
        timeout_s: Some(300),
        ..ExecRequest::default()
    };
    let serve = ExecRequest {
        command: format!("(nohup python3 {SCRIPT_PATH} serve {PORT} >/dev/null 2>&1 &)"),
        ..ExecRequest::default()
    };
    client.exec(id, &serve).await?;
    client.publish_port(id, PORT, Some("public")).await?;
    let url = client.preview_url(id, PORT, None).await?;
    let host = url.strip_prefix("http://").ok_or_else(|| {
        local("previews of this server need TLS; this measurement speaks plain HTTP only".to_owned())
    })?;
    // Names below `localhost` are this machine, whether or not its resolver knows.
    let (name, port) = host.rsplit_once(':').unwrap_or((host, "80"));
    let address =
        if name.ends_with(".localhost") { format!("127.0.0.1:{port}") } else { format!("{name}:{port}") };
    let started = Instant::now();
    while ask(&address, host, 100).await.is_err() {
        if started.elapsed() > START_LIMIT {
            return Err(local("the server in the sandbox did not start".to_owned()));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let direct = client.exec(id, &python(format!("measure {PORT} {count} {bytes} {ROUNDS}"))).await?;
    let direct: Measured = serde_json::from_str(&direct.stdout)
        .map_err(|_| local("the measurement inside the sandbox failed".to_owned()))?;
    let failed = |error: std::io::Error| local(format!("a request through the edge failed: {error}"));
    let mut edge = Measured::default();
    for _ in 0..count {
        edge.first.push(millis(ask(&address, host, 100).await.map_err(failed)?.0));
    }
    for _ in 0..ROUNDS {
        let (_, took) = ask(&address, host, bytes).await.map_err(failed)?;
        edge.speed.push(bytes as f64 / 1e6 / took.as_secs_f64());
    }
    Ok((direct, edge))
}

/// Time to the first byte, and to the last.
async fn ask(address: &str, host: &str, bytes: u64) -> std::io::Result<(Duration, Duration)> {
    let asking = async {
        let started = Instant::now();
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let request = format!("GET /{bytes} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut buffer = vec![0; 1 << 20];
        let mut got = stream.read(&mut buffer).await?;
        let first = started.elapsed();
        if !buffer.starts_with(b"HTTP/1.1 200") {
            return Err(std::io::Error::other("it was not answered by the server in the sandbox"));
        }
        loop {
            match stream.read(&mut buffer).await? {
                0 => break,
                more => got += more,
            }
        }
        if (got as u64) < bytes {
            return Err(std::io::Error::other("the answer was cut off"));
        }
        Ok((first, started.elapsed()))
    };
    tokio::time::timeout(REQUEST_LIMIT, asking)
        .await
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}
