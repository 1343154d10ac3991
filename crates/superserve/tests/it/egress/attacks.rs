//! Ways around the rules: what is refused never leaves, whatever it claims to be.

use std::process::Command;

use serde_json::json;

use super::{Bed, Guest};

/// Under these rules only `a.example`, which is 198.51.100.1, and the resolvers may be reached.
async fn only_a(bed: &Bed) -> Guest {
    bed.internet.name("a.example", &["198.51.100.1"]);
    bed.guest(&["a.example", "1.1.1.1", "8.8.8.8"], &["0.0.0.0/0"]).await
}

fn get(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

/// The beginning of TLS with one server name.
fn hello(name: &[u8]) -> Vec<u8> {
    let with16 = |data: &[u8]| [&u16::try_from(data.len()).unwrap().to_be_bytes()[..], data].concat();
    let list = with16(&[&[0][..], &with16(name)].concat());
    let extensions = [&[0, 0][..], &with16(&list), &[0, 43, 0, 3, 2, 3, 4]].concat();
    let body = [&[3, 3][..], &[7; 32], &[0], &with16(&[0x13, 1]), &[1, 0], &with16(&extensions)].concat();
    let message = [&[1, 0][..], &with16(&body)].concat();
    [&[22, 3, 1][..], &with16(&message)].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permitted_name_towards_another_address() {
    let Some(bed) = Bed::new().await else { return };
    let guest = only_a(&bed).await;
    let capture = bed.internet.capture();
    let said = bed.request(&guest, "198.51.100.66", &get("a.example")).await.said;
    assert!(said.contains("198.51.100.1:80"), "{said}");
    let ca = bed.internet.authority().as_bytes().to_vec();
    bed.upload(&guest, "/home/user/ca.pem", ca).await;
    let tls =
        "curl -sS -m 10 --cacert /home/user/ca.pem --resolve a.example:443:198.51.100.66 https://a.example/";
    assert!(bed.sh(&guest, tls).await.contains("198.51.100.1:443"));
    // A name opens nothing on other ports, and no port that it was not said on.
    bed.probe(&guest, "198.51.100.1", 7000, &hello(b"a.example")).await.assert_refused("TLS on another port");
    bed.probe(&guest, "198.51.100.1", 443, get("a.example").as_bytes()).await.assert_refused("HTTP on 443");
    bed.probe(&guest, "198.51.100.1", 80, &hello(b"a.example")).await.assert_refused("TLS on 80");
    assert_eq!(bed.reached("198.51.100.66"), 0);
    let opened = capture.opened();
    assert!(opened.iter().all(|(to, _)| to.to_string() == "198.51.100.1"), "{opened:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn permitted_names_that_lead_inside() {
    let Some(bed) = Bed::with(&["--blocked-ranges", "198.51.100.128/25"]).await else { return };
    let host = bed.internet.host_address().to_string();
    // The platform's own ports, as if it listened on all addresses of its host.
    let _host = bed.internet.host_listener(80);
    let _host_tls = bed.internet.host_listener(443);
    let inside = [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "100.96.0.0",
        "100.96.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.0.192",
        "168.63.129.16",
        &host,
    ];
    let mut allow: Vec<String> = vec!["1.1.1.1".into(), "0.0.0.0/1".into(), "128.0.0.0/1".into()];
    for (number, address) in inside.iter().enumerate() {
        bed.internet.name(&format!("n{number}.example"), &[address]);
        allow.push(format!("n{number}.example"));
    }
    // Only IPv6: one that contains a private address, and one a translator would make of it.
    for (name, six) in [("mapped.example", "::ffff:10.0.0.1"), ("nat64.example", "64:ff9b::a00:1")] {
        bed.internet.name_six(name, six);
        allow.push(name.to_owned());
    }
    bed.internet.name("listed.example", &["198.51.100.200"]);
    allow.push("listed.example".to_owned());
    // Even rules that allow everything by name and by address open none of it.
    let guest = bed.guest_with(json!({"allow_out": allow, "deny_out": []})).await;
    let capture = bed.internet.capture();
    let named = |number: usize| format!("n{number}.example");
    let elsewhere = "198.51.100.9".to_owned();
    let http: Vec<_> =
        (0..inside.len()).map(|n| (elsewhere.clone(), 80, get(&named(n)).into_bytes())).collect();
    let tls: Vec<_> =
        (0..inside.len()).map(|n| (elsewhere.clone(), 443, hello(named(n).as_bytes()))).collect();
    for (address, probe) in inside.iter().zip(bed.probes(&guest, &http).await) {
        probe.assert_explained(address, "which no rule can open");
    }
    for (address, probe) in inside.iter().zip(bed.probes(&guest, &tls).await) {
        probe.assert_refused(address);
    }
    // The address itself, on ports with and without sniffing. Some never leave the sandbox.
    let own = bed.sh(&guest, "hostname -I").await.trim().to_owned();
    let leaves = |address: &&&str| {
        !["127.", "0.", "255."].iter().any(|part| address.starts_with(part)) && **address != own
    };
    let targets: Vec<_> = inside.iter().filter(leaves).collect();
    let http: Vec<_> = targets.iter().map(|to| (to.to_string(), 80, get("x.example").into_bytes())).collect();
    for (address, probe) in targets.iter().zip(bed.probes(&guest, &http).await) {
        let unreachable = probe.how.starts_with("ERROR");
        assert!(unreachable || probe.said.contains("which no rule can open"), "{address}: {probe:?}");
    }
    for port in [443, 7000, 8080] {
        let plain: Vec<_> = targets.iter().map(|to| (to.to_string(), port, b"x".to_vec())).collect();
        for (address, probe) in targets.iter().zip(bed.probes(&guest, &plain).await) {
            let unreachable = probe.how.starts_with("ERROR") && probe.said.is_empty();
            assert!(unreachable || probe.how == "RESET", "{address}:{port}: {probe:?}");
        }
    }
    for name in ["mapped.example", "nat64.example"] {
        bed.probe(&guest, "198.51.100.9", 443, &hello(name.as_bytes())).await.assert_refused(name);
    }
    let probe = bed.request(&guest, "198.51.100.9", &get("listed.example")).await;
    probe.assert_explained("listed", "the operator of this platform has closed");
    let row = bed.row(&guest, "a row of the block list", |row| row["match_rule"] == "blocklist").await;
    assert_eq!((&row["host"], &row["verdict"]), (&json!("listed.example"), &json!("blocked")));
    let row = bed.row(&guest, "a row of an internal address", |row| row["host"] == "n7.example").await;
    assert_eq!((&row["match_rule"], &row["verdict"]), (&json!("internal-ip"), &json!("blocked")));
    assert_eq!(capture.opened(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_change() {
    let Some(bed) = Bed::new().await else { return };
    // The sandbox is told one address, the gateway another.
    bed.internet.name_changing("first.example", &[&["198.51.100.1"], &["10.0.0.1"]]);
    bed.internet.name_changing("second.example", &[&["10.0.0.1"], &["198.51.100.1"]]);
    // Good when it is looked up, bad from then on: what was checked is dialled, and looked up once.
    bed.internet.name_changing("third.example", &[&["198.51.100.3"], &["10.0.0.1"]]);
    bed.internet.name("mixed.example", &["10.0.0.1", "198.51.100.4", "127.0.0.1"]);
    let names = ["first.example", "second.example", "third.example", "mixed.example", "1.1.1.1", "8.8.8.8"];
    let guest = bed.guest(&names, &["0.0.0.0/0"]).await;
    let capture = bed.internet.capture();
    let curl = "curl -4 -sS -m 10";
    assert!(bed.sh(&guest, &format!("{curl} http://first.example/")).await.contains("no rule can open"));
    assert!(bed.sh(&guest, &format!("{curl} http://second.example/")).await.contains("no rule can open"));
    let third = bed.request(&guest, "198.51.100.99", &get("third.example")).await.said;
    assert!(third.contains("198.51.100.3:80"), "{third}");
    let mixed = bed.request(&guest, "198.51.100.99", &get("mixed.example")).await.said;
    assert!(mixed.contains("198.51.100.4:80"), "{mixed}");
    let opened: Vec<String> = capture.opened().iter().map(|(to, _)| to.to_string()).collect();
    assert_eq!(opened, ["198.51.100.3", "198.51.100.4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_two_programs_read_in_two_ways() {
    let Some(bed) = Bed::new().await else { return };
    let guest = only_a(&bed).await;
    bed.internet.name("evil.example", &["198.51.100.66"]);
    let long = format!("{}.a.example", "a".repeat(64));
    let odd = [
        "a.example\0.evil.example",
        "a.example%00.evil.example",
        "a.example%00",
        "user@a.example",
        "a.example@evil.example",
        "evil.example#a.example",
        "evil.example/a.example",
        "a.example..",
        ".a.example",
        "a..example",
        "a.example,evil.example",
        "a.example evil.example",
        "a.example\tevil.example",
        "bücher.a.example",
        "a.example:80@evil.example",
        "a.example:x",
        "xa.example",
        "a.example.evil.example",
        "sub.a.example",
        "[a.example]",
        "*",
        "*.example",
        "",
        &long,
    ];
    let capture = bed.internet.capture();
    let http: Vec<_> =
        odd.iter().map(|name| ("198.51.100.66".to_owned(), 80, get(name).into_bytes())).collect();
    let tls: Vec<_> =
        odd.iter().map(|name| ("198.51.100.66".to_owned(), 443, hello(name.as_bytes()))).collect();
    for (name, probe) in odd.iter().zip(bed.probes(&guest, &http).await) {
        let explained = probe.said.starts_with("HTTP/1.1 403 ");
        assert!(explained || (probe.how == "RESET" && probe.said.is_empty()), "{name:?}: {probe:?}");
        assert!(probe.seconds < super::AT_ONCE, "{name:?}: {probe:?}");
    }
    for (name, probe) in odd.iter().zip(bed.probes(&guest, &tls).await) {
        probe.assert_refused(name);
    }
    // Line ends inside, several hosts, targets that contradict the host.
    for head in [
        "GET / HTTP/1.1\r\nHost: a.example\r\nHost: evil.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: evil.example\r\nHost: a.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.example\r\n evil.example\r\n\r\n",
        "GET / HTTP/1.1\nHost: evil.example\n\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET http://evil.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET http://a.example@evil.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET http://198.51.100.66/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "CONNECT evil.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n",
        "CONNECT 198.51.100.66:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let probe = bed.request(&guest, "198.51.100.66", head).await;
        let explained = probe.said.starts_with("HTTP/1.1 403 ");
        assert!(explained || (probe.how == "RESET" && probe.said.is_empty()), "{head:?}: {probe:?}");
    }
    let opened = capture.opened();
    assert!(opened.iter().all(|(to, _)| to.to_string() == "198.51.100.1"), "{opened:?}");
    assert_eq!(bed.reached("198.51.100.66"), 0);
    // One name, written in other ways that everybody reads alike.
    for name in ["A.eXample", "a.example.", "a.example:80"] {
        let said = bed.request(&guest, "198.51.100.66", &get(name)).await.said;
        assert!(said.contains("198.51.100.1:80"), "{name}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn later_requests_of_a_connection() {
    let Some(bed) = Bed::new().await else { return };
    let guest = only_a(&bed).await;
    bed.internet.name("evil.example", &["198.51.100.66"]);
    let keep = |host: &str| format!("GET /{host} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    // In one packet, so that the second one is there before the first is answered.
    let said = bed
        .request(&guest, "198.51.100.1", &(keep("a.example") + &keep("evil.example") + &keep("a.example")))
        .await
        .said;
    assert_eq!(
        (said.matches("HTTP/1.1 200").count(), said.matches("HTTP/1.1 403").count()),
        (1, 1),
        "{said}"
    );
    assert!(said.contains("add \"evil.example\" to allow_out"), "{said}");
    // A second request hidden in what one side takes for the first one's body.
    let hidden = [
        format!(
            "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{}",
            keep("evil.example")
        ),
        format!(
            "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\nContent-Length: 50\r\n\r\n{}",
            keep("evil.example")
        ),
        format!(
            "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n{}",
            keep("evil.example")
        ),
    ];
    let targets = hidden.map(|head| ("198.51.100.1".to_owned(), 80, head.into_bytes()));
    for probe in bed.probes(&guest, &targets).await {
        assert!(!probe.said.contains("\"host\":\"evil.example\""), "{probe:?}");
    }
    // An upgrade to a protocol that carries requests by itself.
    for upgrade in ["h2c", "websocket, h2c", "websocket\r\nUpgrade: H2C"] {
        let head = format!(
            "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {upgrade}\r\n\
             HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        );
        let said = bed.request(&guest, "198.51.100.1", &head).await.said;
        assert!(!said.contains("101 "), "{upgrade:?}: {said}");
    }
    assert_eq!(bed.reached("198.51.100.66"), 0);
    let row = bed.row(&guest, "a row of the refused request", |row| row["host"] == "evil.example").await;
    assert_eq!(row["verdict"], "blocked");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_platform_and_neighbours() {
    let Some(bed) = Bed::new().await else { return };
    let host = bed.internet.host_address().to_string();
    let _host = bed.internet.host_listener(8080);
    let open = ["100.96.0.0/16", "127.0.0.0/8", "10.0.0.0/8", "0.0.0.0/0"];
    let (guest, neighbour) = (bed.guest(&open, &[]).await, bed.guest(&open, &[]).await);
    let address = |text: String| text.trim().to_owned();
    let own = address(bed.sh(&guest, "hostname -I").await);
    let other = address(bed.sh(&neighbour, "hostname -I").await);
    assert_ne!(own, other);
    bed.sh(
        &neighbour,
        "nohup python3 -m http.server 8000 >/dev/null 2>&1 & sleep 1; curl -s -m 5 127.0.0.1:8000 >/dev/null",
    )
    .await;
    let gateway = |guest: &str| {
        let octets: Vec<&str> = guest.split('.').collect();
        format!("{}.{}", octets[..3].join("."), octets[3].parse::<u8>().unwrap() - 1)
    };
    let capture = bed.internet.capture();
    let ports = [bed.platform.edge().port(), 8080, 8000, 15_001, 15_053, 53, 80, 443];
    let targets = [gateway(&own), other.clone(), gateway(&other), host];
    let all: Vec<(String, u16)> =
        targets.iter().flat_map(|to| ports.map(|port| (to.clone(), port))).collect();
    let tcp: Vec<_> =
        all.iter().map(|(to, port)| (to.clone(), *port, get("x.example").into_bytes())).collect();
    for (target, probe) in all.iter().zip(bed.probes(&guest, &tcp).await) {
        let refused = matches!(probe.how.as_str(), "RESET" | "REFUSED") && probe.said.is_empty();
        assert!(refused || probe.said.starts_with("HTTP/1.1 403 "), "{target:?}: {probe:?}");
        assert!(probe.seconds < super::AT_ONCE, "{target:?}: {probe:?}");
    }
    let udp = format!(
        "import socket\n\
         for target in {}:\n\
         \x20   s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); s.connect(tuple(target))\n\
         \x20   try: s.send(b'x'); s.recv(10); print('answered')\n\
         \x20   except TimeoutError: print('silence')\n\
         \x20   except OSError: print('refused')\n",
        json!(all)
    );
    let said = bed.python(&guest, &udp).await;
    assert_eq!(said.lines().filter(|line| *line == "refused").count(), all.len(), "{said}");
    assert_eq!(capture.packets(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_protocols() {
    let Some(bed) = Bed::new().await else { return };
    let guest = bed.guest(&["0.0.0.0/0"], &[]).await;
    let capture = bed.internet.capture();
    let probes = r"
import socket, time
def tell(what, attempt):
    begun = time.time()
    try: said = attempt()
    except OSError as e: said = type(e).__name__ + ' ' + str(e.errno)
    print(what, said, 'quick' if time.time() - begun < 1 else 'SLOW')
def udp(address, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(4); s.connect((address, port)); s.send(b'x'); return s.recv(99)
for port in (53, 123, 443, 7000): tell('udp', lambda: udp('198.51.100.1', port))
for resolver in ('9.9.9.9', '198.51.100.53'): tell('resolver', lambda: udp(resolver, 53))
tell('quic to a resolver', lambda: udp('1.1.1.1', 443))
def ping():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP); s.settimeout(4)
    s.setsockopt(socket.IPPROTO_IP, 11, 1)
    s.connect(('198.51.100.1', 0)); s.send(b'\x08\x00\x00\x00\x00\x01\x00\x01'); return s.recv(99)
tell('icmp', ping)
tell('ipv6', lambda: socket.create_connection(('2001:db8::1', 80), timeout=4))
tell('mapped', lambda: socket.create_connection(('::ffff:10.0.0.1', 7000), timeout=4).recv(9))
tell('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP))
tell('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
tell('sctp', lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).connect(('198.51.100.1', 80)))
";
    let said = bed.python(&guest, probes).await;
    for line in said.lines() {
        assert!((line.contains("Error") || line.contains("Refused")) && line.ends_with("quick"), "{said}");
    }
    assert_eq!(said.lines().count(), 13, "{said}");
    assert_eq!(capture.packets(), []);
    // As nobody in particular, the same.
    let other = "sudo useradd -m other 2>/dev/null; sudo -u other python3 /tmp/program.py";
    let said = bed.sh(&guest, other).await;
    assert!(said.lines().all(|line| line.ends_with("quick") && line.contains("Err")), "{said}");
    assert_eq!(capture.packets(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_hold_for_every_user_inside() {
    let Some(bed) = Bed::new().await else { return };
    let guest = only_a(&bed).await;
    bed.sh(&guest, "sudo useradd -m other").await;
    for user in ["root", "other", "nobody"] {
        let curl = |host: &str| {
            format!("sudo -u {user} curl -sS -m 5 --resolve {host}:80:198.51.100.66 http://{host}/")
        };
        assert!(bed.sh(&guest, &curl("a.example")).await.contains("198.51.100.1:80"), "{user}");
        assert!(bed.sh(&guest, &curl("b.example")).await.contains("Superserve refused"), "{user}");
    }
    assert_eq!(bed.reached("198.51.100.66"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_sources() {
    let Some(bed) = Bed::new().await else { return };
    // One may reach everything, the other nothing.
    let (open, shut) = (bed.guest(&["0.0.0.0/0"], &[]).await, bed.guest(&[], &["0.0.0.0/0"]).await);
    let address = bed.sh(&open, "hostname -I").await.trim().to_owned();
    let own = bed.sh(&shut, "hostname -I").await.trim().to_owned();
    // Only somebody outside with all rights over the sandbox's network could forge at all: the test itself.
    let netns = bed.platform.netns(&shut.id);
    let forge = format!(
        "import socket, struct\n\
         def packet(source, protocol, inner):\n\
         \x20   return struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(inner), 1, 0, 64, protocol, 0, socket.inet_aton(source), socket.inet_aton('198.51.100.1')) + inner\n\
         s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)\n\
         syn = struct.pack('!HHIIBBHHH', 40000, 7000, 1, 0, 0x50, 2, 65535, 0, 0)\n\
         udp = struct.pack('!HHHH', 40000, 53, 9, 0) + b'x'\n\
         for source in ('{address}', '198.51.100.7', '10.0.0.1', '127.0.0.1'):\n\
         \x20   for _ in range(5):\n\
         \x20       for protocol, inner in ((6, syn), (17, udp)):\n\
         \x20           try: s.sendto(packet(source, protocol, inner), ('198.51.100.1', 0))\n\
         \x20           except OSError: pass\n"
    );
    let capture = bed.internet.capture();
    let run = Command::new("nsenter")
        .arg(format!("--net={}", netns.display()))
        .args(["python3", "-c", &forge])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(capture.packets(), []);
    assert_eq!(bed.internet.arrivals(), []);
    let router = netns.parent().unwrap().join("router");
    let counted = Command::new("nsenter")
        .arg(format!("--net={}", router.display()))
        .args(["nft", "list", "counter", "inet", "superserve", "spoofed"])
        .output()
        .unwrap();
    let counted = String::from_utf8_lossy(&counted.stdout).into_owned();
    let packets: u64 =
        counted.split("packets ").nth(1).and_then(|n| n.split(' ').next()).unwrap().parse().unwrap();
    assert!(packets >= 20, "{counted}");
    // Neither has noticed anything.
    assert_eq!(bed.log(&open, "").await, Vec::<serde_json::Value>::new());
    bed.probe(&shut, "198.51.100.1", 7000, b"x").await.assert_refused(&own);
    assert_eq!(bed.reached("198.51.100.1"), 0);
}
