//! Nothing leaves a sandbox, nothing reaches another one, and every attempt fails at once instead of hanging.

use std::net::{TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use crate::bed::Bed;

/// Refused means refused: far below any connect timeout, with room for a busy host.
const AT_ONCE: Duration = Duration::from_secs(1);

async fn refused_at_once(bed: &Bed, id: domain::SandboxId, command: &str) {
    let start = Instant::now();
    bed.refused(id, command).await;
    assert!(start.elapsed() < AT_ONCE, "{command} took {:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_refused_at_once() {
    let bed = Bed::new().await;
    let (spec, other) = (bed.create().await, bed.create().await);
    // Something listens on every address of the host and in the other sandbox.
    let host = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = host.local_addr().unwrap().port();
    bed.sh(other.id, &format!("nc -l -p {port} -e echo reached >/dev/null 2>&1 & sleep 0.2")).await;
    bed.sh(other.id, &format!("netstat -ltn | grep -q :{port}")).await;
    let own = UdpSocket::bind("0.0.0.0:0").unwrap();
    // No packet is sent: this only asks the kernel which of the host's addresses would be used.
    let host_address = own.connect("198.51.100.1:9").and_then(|()| own.local_addr()).ok();
    let mut targets: Vec<String> =
        ["100.96.0.0", "100.96.0.2", "100.96.0.3", "1.1.1.1", "198.51.100.7", "10.0.0.1", "224.0.0.1"]
            .map(str::to_owned)
            .to_vec();
    targets.extend(host_address.map(|address| address.ip().to_string()));
    for target in &targets {
        // The gateway takes the connection to find out what it is for, and resets it: nothing comes back.
        let tcp = format!("test -n \"$(nc -w 5 {target} {port} </dev/null)\"");
        refused_at_once(&bed, spec.id, &tcp).await;
        // The answer is an ICMP message here; without one `nc` would wait its time and succeed.
        refused_at_once(&bed, spec.id, &format!("(echo x; sleep 0.2; echo y) | nc -u -w 5 {target} {port}"))
            .await;
    }
    host.set_nonblocking(true).unwrap();
    let arrived = host.accept().map(|(_, from)| from).map_err(|error| error.kind());
    assert_eq!(arrived, Err(std::io::ErrorKind::WouldBlock), "nobody reached the host");
    // The host's loopback is not the sandbox's.
    let local = TcpListener::bind("127.0.0.1:0").unwrap();
    let local_port = local.local_addr().unwrap().port();
    refused_at_once(&bed, spec.id, &format!("nc -w 5 127.0.0.1 {local_port} </dev/null")).await;
    refused_at_once(&bed, spec.id, "nc -w 5 ::1 80 </dev/null").await;
    refused_at_once(&bed, spec.id, "wget -q -T 5 -O - http://1.1.1.1/").await;
    refused_at_once(&bed, spec.id, "wget -q -T 5 -O - http://example.com/").await;
    refused_at_once(&bed, spec.id, "nslookup example.com").await;
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_serves_itself_on_any_port() {
    let bed = Bed::new().await;
    let spec = bed.create().await;
    bed.sh(
        spec.id,
        "nc -l -p 80 -e echo hello >/dev/null 2>&1 & sleep 0.2; nc -w 5 127.0.0.1 80 </dev/null | grep hello",
    )
    .await;
    bed.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_cannot_change_its_network() {
    let bed = Bed::new().await;
    let spec = bed.create().await;
    for attempt in [
        "ip addr add 100.96.0.9/24 dev eth0",
        "ip link set eth0 down",
        "ip link add d0 type dummy",
        "ip route add 10.0.0.0/8 dev eth0",
        "ip addr del 100.96.0.1/31 dev eth0",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "arping -c 1 -I eth0 100.96.0.0",
    ] {
        bed.refused(spec.id, attempt).await;
    }
    bed.finish().await;
}
