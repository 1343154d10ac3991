//! Names: the guest's two resolvers, and strict mode, in which no other name resolves.

use serde_json::json;

use super::Bed;

#[tokio::test(flavor = "multi_thread")]
async fn resolvers_are_ordinary_destinations() {
    let Some(bed) = Bed::new().await else { return };
    bed.internet.name("a.example", &["198.51.100.1", "198.51.100.2"]);
    bed.internet.name_six("a.example", "2001:db8::1");
    bed.internet.name("many.example", &["198.51.100.3"; 100]);
    let look = |name: &str| {
        format!(
            "python3 -c \"import socket; print(sorted(set(a[4][0] for a in socket.getaddrinfo('{name}', 80, socket.AF_INET))))\""
        )
    };
    let guest = bed.guest(&[], &[]).await;
    assert_eq!(bed.sh(&guest, "cat /etc/resolv.conf").await, "nameserver 1.1.1.1\nnameserver 8.8.8.8\n");
    assert_eq!(bed.sh(&guest, &look("a.example")).await, "['198.51.100.1', '198.51.100.2']\n");
    // Too large for a packet: the same question over TCP.
    assert_eq!(bed.sh(&guest, &look("many.example")).await, "['198.51.100.3']\n");
    let begun = std::time::Instant::now();
    let (code, said) = bed.run(&guest, &look("none.example")).await;
    assert!(code != 0 && said.contains("Name or service not known"), "{said}");
    assert!(begun.elapsed().as_secs() < 2);
    let dns = bed.log(&guest, "limit=200&kinds=dns").await;
    assert!(dns.iter().any(|row| row["kind"] == "dns" && row["host"] == "a.example"), "{dns:?}");
    // Not unless asked for.
    assert!(bed.log(&guest, "limit=200").await.iter().all(|row| row["kind"] == "connection"));

    // Refused like any other address; with one of them permitted, that one answers.
    let asked = bed.internet.asked().len();
    let shut = bed.guest(&[], &["0.0.0.0/0"]).await;
    let begun = std::time::Instant::now();
    let (code, _) = bed.run(&shut, &look("a.example")).await;
    assert!(code != 0 && begun.elapsed().as_secs() < 2, "{:?}", begun.elapsed());
    assert_eq!(bed.internet.asked().len(), asked);
    let second = bed.guest(&["8.8.8.8"], &["0.0.0.0/0"]).await;
    assert_eq!(bed.sh(&second, &look("a.example")).await, "['198.51.100.1', '198.51.100.2']\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_mode_lets_no_other_name_out() {
    let Some(bed) = Bed::new().await else { return };
    bed.internet.name("a.example", &["198.51.100.1"]);
    bed.internet.name("x.b.example", &["198.51.100.2"]);
    bed.internet.name("secret.evil.example", &["198.51.100.66"]);
    let guest = bed
        .guest_with(json!({"allow_out": ["a.example", "*.b.example", "198.51.100.7"], "strict": true}))
        .await;
    let capture = bed.internet.capture();
    assert!(bed.sh(&guest, "curl -sS -m 5 http://a.example/").await.contains("198.51.100.1:80"));
    assert!(bed.sh(&guest, "curl -sS -m 5 http://x.b.example/").await.contains("198.51.100.2:80"));
    assert!(bed.sh(&guest, "curl -sS -m 5 http://198.51.100.7/").await.contains("198.51.100.7:80"));
    let ask = r"
import socket, struct, sys
def question(name, kind=1, extra=b''):
    wire = b''.join(bytes([len(l)]) + l for l in name.split(b'.')) + b'\0'
    return struct.pack('!HHHHHH', 7, 0x100, 1, 0, 0, 1 if extra else 0) + wire + struct.pack('!HH', kind, 1) + extra
def udp(resolver, message):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3); s.connect((resolver, 53)); s.send(message)
    return s.recv(4096)
def tcp(resolver, message):
    s = socket.create_connection((resolver, 53), timeout=3); s.sendall(struct.pack('!H', len(message)) + message)
    length = struct.unpack('!H', s.recv(2))[0]; return s.recv(length)
opt = b'\0' + struct.pack('!HHIH', 41, 1232, 0, 0)
for how in (udp, tcp):
    for resolver in ('1.1.1.1', '8.8.8.8'):
        for name in (b'secret.evil.example', b'a.example.evil.example', b'xa.example', b'b.example', b'a\0.example', b'a.example\xff'):
            for kind in (1, 28, 16, 255):
                answer = how(resolver, question(name, kind, opt))
                assert answer[3] & 15 == 3 and b'network rules' in answer, (how, name, kind, answer)
        assert how(resolver, question(b'A.Example'))[3] & 15 == 0
for resolver in ('9.9.9.9', '198.51.100.53', '198.51.100.7'):
    for how in (udp, tcp):
        try: print(resolver, how(resolver, question(b'secret.evil.example')))
        except (OSError, struct.error): pass
";
    assert_eq!(bed.python(&guest, ask).await, "");
    let asked = bed.internet.asked();
    assert!(asked.iter().all(|name| ["a.example", "x.b.example"].contains(&name.as_str())), "{asked:?}");
    let packets = capture.packets();
    let fine = |packet: &testing::Packet| {
        let to = packet.to.to_string();
        match packet.protocol.as_str() {
            "udp" => to == "198.51.100.53" && packet.port == 53,
            "tcp" => packet.port == 80 || (to == "198.51.100.53" && packet.port == 53),
            _ => false,
        }
    };
    assert!(packets.iter().all(fine), "{packets:?}");
    let rows = bed.log(&guest, "limit=200&kinds=dns&verdict=blocked").await;
    assert!(
        rows.iter().any(|row| row["host"] == "secret.evil.example" && row["match_rule"] == "implicit-deny"),
        "{rows:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_packets_are_rows_when_asked_for() {
    let Some(bed) = Bed::new().await else { return };
    let guest = bed.guest(&[], &[]).await;
    let send = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        for _ in range(7): s.sendto(b'x', ('198.51.100.9', 123))\n";
    bed.python(&guest, send).await;
    let look = || async {
        let rows = bed.log(&guest, "limit=200&kinds=packet").await;
        rows.into_iter().find(|row| row["kind"] == "packet" && row["dst_port"] == 123)
    };
    let row = testing::wait_for("a row of the packets", std::time::Duration::from_secs(4), look).await;
    assert_eq!((&row["dst_ip"], &row["match_rule"]), (&json!("198.51.100.9"), &json!("protocol")), "{row}");
    assert_eq!((&row["protocol"], &row["packets"]), (&json!("udp"), &json!(7)), "{row}");
}
