//! Somebody is root in a sandbox and wants out. Each test is what such a person tries first.

use std::net::TcpListener;

use serde_json::json;

use crate::platform;

#[tokio::test]
async fn no_host_file_is_readable() {
    let Some(p) = platform().await else { return };
    // Something only the host has, outside and inside the state directory.
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "host secret").unwrap();
    let (id, token) = p.create(json!({})).await;
    for path in [secret.path().to_str().unwrap(), p.state_dir().join("master.key").to_str().unwrap()] {
        for tried in [path.to_owned(), format!("/proc/1/root{path}"), format!("/../../../..{path}")] {
            let answer = p.exec(&id, &token, &format!("cat '{tried}'")).await;
            assert_ne!(answer.body["exit_code"], 0, "{tried} was read: {answer:?}");
        }
        let read = p.data("GET", &format!("/files?path={path}"), &id, &token, vec![]).await;
        assert_eq!(read.status, 404, "{read:?}");
    }
    // A link made inside leads inside.
    p.run(&id, &token, &format!("ln -s {} /tmp/link", secret.path().display())).await;
    assert_eq!(p.data("GET", "/files?path=/tmp/link", &id, &token, vec![]).await.status, 404);
    // Root here is nobody there.
    let map = p.run(&id, &token, "cat /proc/self/uid_map").await;
    assert!(
        !map.split_whitespace().collect::<Vec<_>>().starts_with(&["0", "0"]) || map.contains("65536"),
        "{map}"
    );
    let init = p.remains().init_of(&id).expect("a first process");
    let status = std::fs::read_to_string(format!("/proc/{}/status", init.as_raw_nonzero())).unwrap();
    let uid: u32 = status
        .lines()
        .find(|l| l.starts_with("Uid:"))
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    assert!(uid >= 1_000_000, "the sandbox's root is {uid} outside");
}

#[tokio::test]
async fn the_kernel_offers_nothing_to_root() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    for attack in [
        "mknod /tmp/sda b 8 0 && head -c 1 /tmp/sda",
        "mknod /tmp/vda b 254 0 && head -c 1 /tmp/vda",
        "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem",
        "mknod /tmp/kmsg c 1 11 && head -c 1 /tmp/kmsg",
        "echo b > /proc/sysrq-trigger",
        "echo 1 > /proc/sys/kernel/panic",
        "echo '|/tmp/x' > /proc/sys/kernel/core_pattern",
        "head -c 1 /proc/kcore | grep -q .",
        "umount /proc/kcore",
        "umount /proc/sys",
        "mount -o remount,rw /proc/sys",
        "mount -t proc proc /mnt && echo 1 > /mnt/sys/kernel/panic",
        "mount -t sysfs sysfs /mnt && ls /mnt/kernel",
        "mount -t cgroup -o memory cgroup /mnt",
        "mount -t cgroup2 cgroup2 /mnt",
        "mount --bind /proc/1/ns /mnt && nsenter --net=/mnt/net true && false",
        "unshare -U true",
        "unshare -Ur true",
        "unshare -n true",
        "hostname pwned",
        "dmesg",
        "python3 -c \"import ctypes,sys; sys.exit(0 if ctypes.CDLL(None).syscall(321,0,0,0) >= 0 else 1)\"", // bpf
        "python3 -c \"import ctypes,sys; sys.exit(0 if ctypes.CDLL(None).syscall(425,8,0) >= 0 else 1)\"", // io_uring
        "python3 -c \"import ctypes,sys; sys.exit(0 if ctypes.CDLL(None).syscall(250,0,0,0) >= 0 else 1)\"", // keyctl
        "ip link add dummy0 type dummy",
        "ip addr add 100.96.0.99/16 dev eth0",
        "nft list ruleset",
    ] {
        let answer = p.exec(&id, &token, attack).await;
        assert_eq!(answer.status, 200, "{attack}: {answer:?}");
        assert_ne!(answer.body["exit_code"], 0, "succeeded: {attack}: {:?}", answer.body);
    }
    assert_eq!(p.run(&id, &token, "echo alive").await, "alive\n");
}

#[tokio::test]
async fn nothing_is_reachable_and_nothing_hangs() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({"name": "attacker"})).await;
    let (other, other_token) = p.create(json!({"name": "victim"})).await;
    p.run(&other, &other_token, "python3 -m http.server 8000 --bind 0.0.0.0 >/dev/null 2>&1 & sleep 1").await;
    let address = |id: String, token: String| {
        let p = &p;
        async move { p.run(&id, &token, "hostname -I 2>/dev/null || ip -4 -o addr show eth0").await }
    };
    let victim = address(other.clone(), other_token.clone()).await;
    let victim = victim.split([' ', '/', '\n']).find(|w| w.starts_with("100.")).unwrap().to_owned();
    let host = TcpListener::bind("0.0.0.0:0").unwrap();
    let host_port = host.local_addr().unwrap().port();
    let api_port = p.base_url().rsplit(':').next().unwrap().to_owned();
    let gateway = p.run(&id, &token, "ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p'").await;
    let mut targets = vec![
        (victim, "8000".to_owned()),
        ("127.0.0.1".to_owned(), api_port.clone()),
        (gateway.trim().to_owned(), api_port),
        (gateway.trim().to_owned(), "22".to_owned()),
        ("169.254.169.254".to_owned(), "80".to_owned()),
        ("10.0.0.1".to_owned(), "443".to_owned()),
    ];
    for line in std::fs::read_to_string("/proc/net/fib_trie").unwrap().lines() {
        let word = line.trim().trim_start_matches("|-- ");
        if word.parse::<std::net::Ipv4Addr>().is_ok_and(|a| !a.is_loopback() && !a.is_unspecified()) {
            targets.push((word.to_owned(), host_port.to_string()));
        }
    }
    targets.truncate(20);
    for (host, port) in targets {
        // The gateway takes every connection to hear what it wants, so that only an answer shows that somebody was reached.
        let script = format!(
            "python3 -c \"
import socket
s=socket.socket(); s.settimeout(5)
try:
    s.connect(('{host}',{port})); s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); said=s.recv(4096)
    ours=b' 403 ' in said[:16] and b'X-Superserve-Proxy-Error' in said
    print('refused' if not said or ours else 'REACHED', said)
except socket.timeout: print('HUNG')
except OSError as e: print('refused', e)\""
        );
        let out = p.run(&id, &token, &script).await;
        assert!(out.starts_with("refused"), "{host}:{port}: {out}");
    }
    drop(host);
}

#[tokio::test]
async fn the_token_of_one_opens_no_other() {
    let Some(p) = platform().await else { return };
    let (one, one_token) = p.create(json!({})).await;
    let (two, two_token) = p.create(json!({})).await;
    for (id, token) in
        [(&one, &two_token), (&two, &one_token), (&one, &String::from("x")), (&one, &String::new())]
    {
        assert_eq!(p.exec(id, token, "true").await.status, 401);
    }
    for path in [
        "/_agent/health",
        "/_agent/config",
        "/_agent/dial?port=22",
        "/files/../_agent/config",
        "//_agent/health",
    ] {
        let answer = p.data("GET", path, &one, &one_token, vec![]).await;
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
    }
    let log = p.log();
    for private in [&one_token, &two_token, &p.key().to_owned()] {
        assert!(!log.contains(private.as_str()), "a token or key is in the log");
    }
}

#[tokio::test]
async fn sudo_fuse_and_packages_work_for_root_inside() {
    let Some(p) = platform().await else { return };
    let (id, token) = p.create(json!({})).await;
    assert_eq!(p.run(&id, &token, "sudo -n id -u").await, "0\n");
    p.run(&id, &token, "test -c /dev/fuse && python3 -c \"import os; os.open('/dev/fuse', os.O_RDWR)\"")
        .await;
    // The kernel side of a FUSE mount, without needing a FUSE program in the image.
    p.run(
        &id,
        &token,
        "mkdir -p /mnt/fuse && python3 - <<'E'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open('/dev/fuse', os.O_RDWR)
opts = f'fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other'.encode()
assert libc.mount(b'test', b'/mnt/fuse', b'fuse', 0, opts) == 0, os.strerror(ctypes.get_errno())
assert libc.umount2(b'/mnt/fuse', 2) == 0
E",
    )
    .await;
    // A package from a local file, since nothing can be fetched yet.
    p.run(
        &id,
        &token,
        "set -e; cd /tmp; mkdir -p pkg/DEBIAN pkg/usr/share/hello; echo hi > pkg/usr/share/hello/file
printf 'Package: hello-local\\nVersion: 1\\nArchitecture: all\\nMaintainer: t <t@example.com>\\nDescription: t\\n' > pkg/DEBIAN/control
printf '#!/bin/sh\\nadduser --system --no-create-home hellouser >/dev/null 2>&1 || useradd -r hellouser\\n' > pkg/DEBIAN/postinst
chmod 755 pkg/DEBIAN/postinst; dpkg-deb -b pkg hello.deb >/dev/null; chown -R nobody hello.deb
apt-get install -y ./hello.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log >&2; exit 1; }
cat /usr/share/hello/file; id hellouser",
    )
    .await;
}
