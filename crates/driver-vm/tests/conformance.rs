//! The suite of all engines on QEMU, with a real kernel and the real agent and nothing else in the root. Runs as root;
//! says loudly what it skipped where QEMU or a kernel is missing.
#![expect(clippy::unwrap_used, reason = "tests")]

#[expect(dead_code, reason = "the rest is for tests of Firecracker")]
mod bed;
mod packing;
mod specs;

use std::time::Duration;

use bed::{Bed, ask, read};
use driver::{Driver, Machine, Power};

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
    let model = std::fs::read_to_string(file.join("model")).unwrap();
    assert!(model.starts_with("pc-q35-"), "{model} means the same in every release");
    // Nobody waits for this one any more: it ends, and the machine is as it was.
    let unwanted = std::sync::atomic::AtomicBool::new(true);
    let long = machine.checkpoint_within(&bed.path("unwanted"), Duration::from_secs(60), &unwanted).await;
    assert!(long.is_err() && !bed.path("unwanted").exists());
    assert_eq!(machine.power().await.unwrap(), Power::Frozen);
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

    // Written with another processor, it is refused unread and stays.
    let processor = file.join("acceleration");
    assert_eq!(std::fs::read_to_string(&processor).unwrap(), "emulated");
    std::fs::write(&processor, "kvm").unwrap();
    let refused = driver.restore(&spec, &file).await.unwrap_err();
    assert!(refused.to_string().contains("vm_acceleration = \"kvm\""), "{refused}");
    assert!(std::fs::metadata(file.join("state")).unwrap().len() > 1024 * 1024);
    std::fs::write(&processor, "emulated").unwrap();

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
async fn one_checkpoint_is_the_beginning_of_machines_that_differ() {
    let Some(bed) = Bed::with_shell() else { return };
    let driver = bed.driver();
    let spec = bed.spec();
    let machine = driver.create(&spec).await.unwrap();
    let config = "PUT /_agent/config HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    assert!(ask(machine.as_ref(), config).await.starts_with("HTTP/1.1 204"));
    let boot = read(machine.as_ref(), "/proc/sys/kernel/random/boot_id").await;
    let saved = bed.path("saved");
    machine.checkpoint(&saved).await.unwrap();
    // It is the same still.
    machine.checkpoint(&bed.path("twice")).await.unwrap();
    let forks = [bed.fork(1), bed.fork(2)];
    // It was written, and goes on where it was.
    machine.thaw().await.unwrap();
    assert_eq!(machine.power().await.unwrap(), Power::Running);
    assert_eq!(read(machine.as_ref(), "/proc/sys/kernel/random/boot_id").await, boot);

    let mut seen = vec![facts(machine.as_ref()).await];
    assert_eq!(seen[0][0], "conformance\n");
    let mut running = Vec::new();
    for fork in &forks {
        let again = driver.restore(fork, &saved).await.unwrap();
        assert_eq!(again.power().await.unwrap(), Power::Frozen, "it waits");
        again.thaw().await.unwrap();
        running.push(again);
    }
    for (fork, machine) in forks.iter().zip(&running) {
        // Twice the same, and over a connection that knows the new mark alone.
        let facts = facts(machine.as_ref()).await;
        assert_eq!(facts[0], format!("{}\n", fork.hostname));
        assert!(facts[1].starts_with(&fork.hostname["sandbox-".len()..]), "{}", facts[1]);
        assert!(facts[4].contains(&fork.link.guest.to_string()), "{} in {}", fork.link.guest, facts[4]);
        assert!(!facts[4].contains("100.96.0.1\n"), "the former address is gone: {}", facts[4]);
        seen.push(facts);
    }
    for (one, facts) in seen.iter().enumerate() {
        for other in &seen[one + 1..] {
            for (fact, (mine, theirs)) in facts.iter().zip(other).enumerate() {
                assert_ne!(mine, theirs, "fact {fact}");
            }
        }
    }
    // A server that comes later knows each by its own mark; a fork is a machine like any, also to be written.
    drop(running.remove(0));
    let driver = bed.driver();
    let again = driver.recover(&forks[0]).await.unwrap().unwrap();
    assert!(ask(again.as_ref(), bed::HEALTH).await.starts_with("HTTP/1.1 200"));
    let paused = bed.path("paused");
    again.checkpoint(&paused).await.unwrap();
    again.destroy().await.unwrap();
    drop(again);
    let again = driver.restore(&forks[0], &paused).await.unwrap();
    again.thaw().await.unwrap();
    assert_eq!(facts(again.as_ref()).await[..3], seen[1][..3], "the same machine");

    // Whose it is cannot be told: nothing starts, nothing is lost.
    again.destroy().await.unwrap();
    std::fs::write(saved.join("machine"), "nobody").unwrap();
    assert!(driver.restore(&forks[0], &saved).await.is_err());
    assert!(driver.recover(&forks[0]).await.unwrap().is_none());
    std::fs::write(saved.join("machine"), spec.id.to_string()).unwrap();
    // What may have moved while it was written is continued by nobody else.
    driver.serves_others(&saved).unwrap();
    std::fs::rename(saved.join("still"), bed.path("still")).unwrap();
    assert!(driver.serves_others(&saved).is_err() && driver.restore(&forks[0], &saved).await.is_err());
    std::fs::rename(bed.path("still"), saved.join("still")).unwrap();
    let again = driver.restore(&forks[0], &saved).await.unwrap();
    again.thaw().await.unwrap();
    for machine in [again, machine].into_iter().chain(running) {
        machine.destroy().await.unwrap();
    }
}

/// Host name, machine id, boot id, random numbers, addresses.
async fn facts(machine: &dyn Machine) -> [String; 6] {
    [
        read(machine, "/etc/hostname").await,
        read(machine, "/etc/machine-id").await,
        read(machine, "/proc/sys/kernel/random/boot_id").await,
        read(machine, "/proc/sys/kernel/random/uuid").await,
        read(machine, "/proc/net/fib_trie").await,
        read(machine, "/sys/class/net/eth0/address").await,
    ]
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
