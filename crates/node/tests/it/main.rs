//! Smoke.
use driver_oci::{OciConfig, OciDriver};
use node::{Host, Node, NodeConfig, SandboxSpec};
use std::sync::Arc;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn sh(node: &Node, id: domain::SandboxId, cmd: &str) -> String {
    let mut s = node.agent(id).await.unwrap();
    s.write_all(format!("RUN x\r\n\r\n{cmd}").as_bytes()).await.unwrap();
    let mut out = String::new();
    tokio::time::timeout(std::time::Duration::from_secs(20), s.read_to_string(&mut out))
        .await
        .unwrap()
        .unwrap();
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn smoke() {
    let state = std::path::PathBuf::from("/tmp/node/state");
    let layer = "a".repeat(64);
    let dir = state.join("layers").join(&layer);
    std::fs::create_dir_all(dir.join("bin")).unwrap();
    for d in ["tmp", "etc", "proc", "sys", "dev"] {
        std::fs::create_dir_all(dir.join(d)).unwrap();
    }
    std::fs::copy("/usr/bin/busybox", dir.join("bin/busybox")).unwrap();
    for l in [
        "sh", "ls", "cat", "id", "mount", "umount", "ping", "wget", "nc", "ps", "dd", "ip", "echo", "head",
        "grep", "sleep", "mknod", "unshare", "nslookup", "hostname",
    ] {
        let _ = std::os::unix::fs::symlink("busybox", dir.join("bin").join(l));
    }
    std::process::Command::new("chown").args(["-hR", "1000000:1000000"]).arg(&dir).status().unwrap();
    let driver = OciDriver::new(&OciConfig {
        runtime: "runc".into(),
        instance: "smoke".into(),
        device_dir: state.join("dev"),
        id_shift: 1_000_000,
    })
    .unwrap();
    let node = Node::open(
        NodeConfig {
            state_dir: state.clone(),
            layers_dir: state.join("layers"),
            run_dir: "/run/superserve-smoke".into(),
            agent: std::env::var("AGENT").unwrap_or("/tmp/node/agent".into()).into(),
            id_shift: 1_000_000,
            link_range: "100.96.0.0".parse().unwrap(),
        },
        Arc::new(driver),
    )
    .await
    .unwrap();
    println!("{:?}", node.adopt(vec![]).await.map_err(|e| e.chain()));
    let spec = |link| SandboxSpec {
        id: domain::SandboxId::new(),
        shape: domain::Shape { vcpu: 1, memory_mib: 256, disk_mib: 1024 },
        layers: vec![layer.clone()],
        link,
        guest: Default::default(),
    };
    let s = spec(1);
    let t = Instant::now();
    node.create(&s).await.map_err(|e| e.chain()).unwrap();
    println!("create {:?}", t.elapsed());
    if let Ok(cmd) = std::env::var("CMD") {
        println!("{}", sh(&node, s.id, &cmd).await);
    }
    let t = Instant::now();
    node.freeze(s.id).await.unwrap();
    println!("freeze {:?}", t.elapsed());
    let t = Instant::now();
    node.thaw(&s).await.unwrap();
    println!("thaw {:?}", t.elapsed());
    let t = Instant::now();
    node.destroy(s.id).await.unwrap();
    println!("destroy {:?}", t.elapsed());
    let mut times = vec![];
    for _ in 0..20 {
        let s = spec(2);
        let t = Instant::now();
        node.create(&s).await.map_err(|e| e.chain()).unwrap();
        times.push(t.elapsed());
        node.destroy(s.id).await.unwrap();
    }
    times.sort();
    println!("p50 {:?} max {:?}", times[10], times[19]);
    node.close().await.map_err(|e| e.chain()).unwrap();
}
