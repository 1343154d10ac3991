//! What a guest packs of its disk.

use std::collections::BTreeMap;
use std::time::Duration;

use driver::{Driver, Machine, NotPacked, Pack, PackStream};
use tokio::io::AsyncReadExt;

use crate::bed::{self, Bed, ask};

fn pack(everything: bool, max_bytes: u64) -> Pack {
    Pack { everything, except: vec!["etc/hosts".to_owned()], max_bytes }
}

async fn send(machine: &dyn Machine, method: &str, path: &str, body: &[u8]) -> String {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    ask(machine, &(head + std::str::from_utf8(body).unwrap())).await
}

/// Names and contents.
async fn unpack(mut archive: PackStream) -> BTreeMap<String, Vec<u8>> {
    let mut bytes = Vec::new();
    archive.read_to_end(&mut bytes).await.unwrap();
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(&bytes[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
        assert_eq!((entry.header().uid().unwrap(), entry.header().gid().unwrap()), (0, 0));
        found.insert(entry.path().unwrap().display().to_string(), content);
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_packs_its_disk_and_its_workload_stands_still() {
    let Some(bed) = Bed::new() else { return };
    let driver = bed.driver();
    let handle = driver.create(&bed.spec()).await.unwrap();
    let machine = handle.as_ref();
    assert!(send(machine, "PUT", "/_agent/config", b"{}").await.starts_with("HTTP/1.1 204"));
    let content = "x".repeat(300_000);
    let put = send(machine, "POST", "/files?path=/srv/file", content.as_bytes()).await;
    assert!(put.starts_with("HTTP/1.1 200"), "{put}");

    let found = unpack(machine.pack(&pack(false, 1 << 30)).await.unwrap()).await;
    assert_eq!(found["srv/file"], content.as_bytes());
    assert!(found.contains_key("./") && !found.contains_key("etc/hosts"), "{:?}", found.keys());
    let all = unpack(machine.pack(&pack(true, 1 << 30)).await.unwrap()).await;
    assert!(all.contains_key("lost+found/") && all["srv/file"] == content.as_bytes(), "{:?}", all.keys());

    // The agent is part of what stands still: it answers when the archive is over, read or not.
    for read in [false, true] {
        let archive = machine.pack(&pack(true, 1 << 30)).await.unwrap();
        let mut health = Box::pin(ask(machine, bed::HEALTH));
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut health).await.is_err(), "it answers");
        // One at a time.
        assert!(machine.pack(&pack(true, 1 << 30)).await.is_err());
        if read {
            unpack(archive).await;
        } else {
            drop(archive);
        }
        assert!(health.await.starts_with("HTTP/1.1 200"));
    }

    // What cannot be packed is said, and the workload goes on.
    let mut archive = machine.pack(&pack(false, 1_000)).await.unwrap();
    let error = archive.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&NotPacked::TooLarge));
    let put = send(machine, "POST", "/files?path=/srv/.wh.x", b"a mark").await;
    assert!(put.starts_with("HTTP/1.1 200"), "{put}");
    let mut archive = machine.pack(&pack(false, 1 << 30)).await.unwrap();
    let error = archive.read_to_end(&mut Vec::new()).await.unwrap_err();
    let refused = error.get_ref().unwrap().downcast_ref();
    assert!(matches!(refused, Some(NotPacked::Refused { path, .. }) if path == "srv/.wh.x"), "{error}");
    assert!(ask(machine, bed::HEALTH).await.starts_with("HTTP/1.1 200"));

    // A server that ends in the middle leaves nobody standing still.
    let mut archive = machine.pack(&pack(true, 1 << 30)).await.unwrap();
    drop(handle);
    let again = bed.driver().recover(&bed.spec()).await.unwrap().unwrap();
    assert!(ask(again.as_ref(), bed::HEALTH).await.starts_with("HTTP/1.1 200"));
    assert!(archive.read_to_end(&mut Vec::new()).await.is_err(), "cut off is not whole");
    again.destroy().await.unwrap();
}
