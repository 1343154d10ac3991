//! What people do as root on a Debian system, on a real one. Needs the base template's layer, which takes minutes to
//! make: `SUPERSERVE_BASE_LAYER` names its directory.

use std::path::Path;

use node::Host;

use crate::bed::Bed;

const LAYER: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

#[tokio::test(flavor = "multi_thread")]
async fn packages_sudo_and_fuse() {
    let Some(layer) = std::env::var_os("SUPERSERVE_BASE_LAYER") else {
        println!("SKIPPED: SUPERSERVE_BASE_LAYER does not name the base template's layer");
        return;
    };
    let bed = Bed::new().await;
    std::os::unix::fs::symlink(Path::new(&layer), bed.state().join("layers").join(LAYER)).unwrap();
    let mut spec = bed.spec();
    spec.layers = vec![LAYER.to_owned()];
    spec.shape.memory_mib = 1024;
    bed.node.create(&spec).await.map_err(|problem| problem.chain()).unwrap();
    for wanted in [
        // A package with a user, a set-id program and a file capability: what package installation needs rights for.
        "mkdir -p /tmp/p/DEBIAN /tmp/p/usr/local/bin && cd /tmp && cp /bin/true p/usr/local/bin/hello-suid && \
         printf 'Package: hello-local\\nVersion: 1\\nArchitecture: all\\nMaintainer: a <a@example.com>\\nDescription: x\\n' \
           > p/DEBIAN/control && \
         printf '#!/bin/sh\\nset -e\\nuseradd -r -m hello && chown hello:hello /usr/local/bin/hello-suid && \
           chmod 4755 /usr/local/bin/hello-suid\\n' > p/DEBIAN/postinst && chmod 755 p/DEBIAN/postinst && \
         dpkg-deb --build p hello.deb",
        "cd /tmp && DEBIAN_FRONTEND=noninteractive apt-get install -y ./hello.deb",
        "test \"$(stat -c %U:%a /usr/local/bin/hello-suid)\" = hello:4755 && id hello",
        "apt-get remove -y hello-local",
        "useradd -m worker && echo 'worker ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/worker",
        "su worker -c 'sudo -n id -u' | grep -qx 0",
        "su worker -c 'id -un' | grep -qx worker",
        "python3 -c 'import os,multiprocessing as m; p=m.Pool(2); print(p.map(abs,[-1,-2])); p.close(); p.join()'",
        "python3 -c 'import pty; pty.spawn([\"/bin/true\"])'",
        "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)'",
        "node -e 'require(\"worker_threads\"); setTimeout(()=>{},10)'",
        "git init -q /tmp/repo && cd /tmp/repo && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x",
        "echo 'int main(){return 0;}' > /tmp/a.c && cc -o /tmp/a /tmp/a.c && /tmp/a",
        "python3 -m venv --without-pip /tmp/venv && /tmp/venv/bin/python -c 'print(1)'",
    ] {
        bed.sh(spec.id, wanted).await;
    }
    // bpf, io_uring_setup, userfaultfd, keyctl, perf_event_open, open_by_handle_at: refused as calls.
    if cfg!(target_arch = "x86_64") {
        let calls = "import ctypes; l=ctypes.CDLL(None,use_errno=True); \
             print([n for n in (321,425,323,250,298,304) if l.syscall(n,0,0,0,0,0)!=-1 or ctypes.get_errno()!=1])";
        assert_eq!(bed.sh(spec.id, &format!("python3 -c '{calls}'")).await, "[]\n");
    }
    // The network's refusal reaches ordinary programs at once, names included.
    let start = std::time::Instant::now();
    bed.refused(spec.id, "curl -sS -m 20 https://example.com/").await;
    bed.refused(spec.id, "apt-get -o Acquire::Retries=0 update -o APT::Update::Error-Mode=any").await;
    bed.refused(spec.id, "pip install --retries 0 --timeout 10 requests").await;
    println!("curl, apt-get update and pip gave up after {:?}", start.elapsed());
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
    for refused in [
        "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
        "python3 -c 'import socket; socket.socket(40, socket.SOCK_STREAM)'",
        "python3 -c 'import socket; socket.socket(38, socket.SOCK_SEQPACKET)'",
        "su worker -c 'cat /etc/shadow'",
        "su worker -c 'unshare -Ur true'",
    ] {
        bed.refused(spec.id, refused).await;
    }
    bed.finish().await;
}
