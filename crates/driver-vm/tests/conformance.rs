//! The suite of all engines on QEMU, with a real kernel and the real agent and nothing else in the root. Runs as root;
//! says loudly what it skipped where QEMU or a kernel is missing.
#![expect(clippy::unwrap_used, reason = "tests")]

#[expect(dead_code, reason = "the rest is for tests of Firecracker")]
mod bed;
mod packing;
mod specs;

use std::time::Duration;

use bed::{Bed, ask};
use driver::{Driver, Power};

#[tokio::test(flavor = "multi_thread")]
async fn qemu_does_what_engines_must() {
    let Some(bed) = Bed::new() else { return };
    let driver = bed.driver();
    driver::conformance::run(&driver, &bed.spec()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_a_machine_that_goes_on() {
    let Some(bed) = Bed::new() else { return };
    let driver = bed.driver();
    let spec = bed.spec();
    let file = bed.path("checkpoint");
    let machine = driver.create(&spec).await.unwrap();
    let config = r#"{"env":{"MARK":"kept"}}"#;
    let put = format!(
        "PUT /_agent/config HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{config}",
        config.len()
    );
    assert!(ask(machine.as_ref(), &put).await.starts_with("HTTP/1.1 204"));

    machine.checkpoint(&file).await.unwrap();
    assert_eq!(machine.power().await.unwrap(), Power::Frozen);
    assert!(std::fs::metadata(file.join("state")).unwrap().len() > 1024 * 1024);
    let model = std::fs::read_to_string(file.join("machine")).unwrap();
    assert!(model.starts_with("pc-q35-"), "{model} means the same in every release");
    // Of no use twice at once, but one after the other.
    machine.destroy().await.unwrap();
    drop(machine);
    for _ in 0..2 {
        let again = driver.restore(&spec, &file).await.unwrap();
        assert_eq!(again.power().await.unwrap(), Power::Frozen, "it waits");
        again.thaw().await.unwrap();
        // Before the first configuration, which this memory has, it would be another refusal.
        let exec = "POST /exec HTTP/1.1\r\nhost: a\r\ncontent-length: 18\r\nconnection: close\r\n\r\n{\"command\":\"true\"}";
        let answer = ask(again.as_ref(), exec).await;
        assert!(answer.contains("no /bin/sh"), "{answer}");
        again.destroy().await.unwrap();
    }

    // One that is none leaves nothing, and stays.
    std::fs::write(file.join("state"), "rubbish").unwrap();
    assert!(driver.restore(&spec, &file).await.is_err());
    assert_eq!(std::fs::read(file.join("state")).unwrap(), b"rubbish");
    assert!(driver.recover(&spec).await.unwrap().is_none());
    // No room to write it: the machine is frozen, and goes on.
    let machine = driver.create(&spec).await.unwrap();
    let small = bed.small_file_system();
    assert!(machine.checkpoint(&small.join("checkpoint")).await.is_err());
    assert_eq!(std::fs::read_dir(&small).unwrap().count(), 0, "nothing is left of it");
    assert_eq!(machine.power().await.unwrap(), Power::Frozen);
    machine.thaw().await.unwrap();
    assert!(ask(machine.as_ref(), bed::HEALTH).await.starts_with("HTTP/1.1 200"));

    // A server that ends in the middle of one: the next finds a machine that is frozen, and goes on.
    let half = bed.path("half");
    let cut = tokio::time::timeout(Duration::from_millis(60), machine.checkpoint(&half)).await;
    println!("cut off: {}", cut.is_err());
    drop(machine);
    let machine = bed.driver().recover(&spec).await.unwrap().unwrap();
    std::fs::remove_dir_all(&half).unwrap();
    assert_eq!(machine.power().await.unwrap(), Power::Frozen);
    machine.thaw().await.unwrap();
    assert!(ask(machine.as_ref(), bed::HEALTH).await.starts_with("HTTP/1.1 200"));
    machine.checkpoint(&half).await.unwrap();
    machine.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_sends_is_no_call() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use wire::agent::vm::{MARK_BYTES, PREFIX};
    let Some(bed) = Bed::new() else { return };
    let driver = bed.driver();
    let spec = bed.spec();
    let machine = driver.create(&spec).await.unwrap();
    // Open all the while; a call would end it.
    let mut other = machine.agent().await.unwrap();
    other.write_all(&bed::HEALTH.as_bytes()[..10]).await.unwrap();
    // All that everybody can know: the prefix, and the mark as it was once made of the id.
    let id = *uuid::Uuid::from(spec.id).as_bytes();
    let known: [u8; MARK_BYTES] = std::array::from_fn(|at| id[at] ^ b"\xe7superserve-call"[at]);
    let mut body = Vec::new();
    for mark in [known, id, [0; MARK_BYTES]] {
        body.extend([&mark[..], b"smuggled", &PREFIX, &mark, b"smuggled"].concat());
        body.extend(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    }
    let mut stream = machine.agent().await.unwrap();
    let head = format!(
        "PUT /_agent/config HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 4"), "it is no configuration: {answer}");
    other.write_all(&bed::HEALTH.as_bytes()[10..]).await.unwrap();
    let mut answer = Vec::new();
    other.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "the other stream was cut");
    machine.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_streams_share_the_port_and_none_holds_up_the_others() {
    use tokio::io::AsyncWriteExt;
    let Some(bed) = Bed::new() else { return };
    let driver = bed.driver();
    let spec = bed.spec();
    let machine = driver.create(&spec).await.unwrap();
    // Requests whose answers nobody reads, and bodies that never come.
    let mut stalled = Vec::new();
    for _ in 0..50 {
        let mut stream = machine.agent().await.unwrap();
        stream
            .write_all(b"PUT /_agent/config HTTP/1.1\r\nhost: a\r\ncontent-length: 999\r\n\r\n")
            .await
            .unwrap();
        let mut unread = machine.agent().await.unwrap();
        unread.write_all(bed::HEALTH.repeat(200).as_bytes()).await.unwrap();
        stalled.push((stream, unread));
    }
    for _ in 0..20 {
        let asked = tokio::time::timeout(Duration::from_secs(30), ask(machine.as_ref(), bed::HEALTH)).await;
        assert!(asked.unwrap().starts_with("HTTP/1.1 200"));
    }
    drop(stalled);
    assert!(ask(machine.as_ref(), bed::HEALTH).await.starts_with("HTTP/1.1 200"));
    machine.destroy().await.unwrap();
}
