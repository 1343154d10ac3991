//! Feeds broken and hostile archives to the unpacker, guided by coverage. Whatever comes in: nothing outside the layer
//! directory changes, nothing half-made stays in it, and the program lives. Run by `scripts/fuzz-unpack.sh`.
//!
//! Bytes alone would never get past a tar header's checksum, so most mutations mend all of them, and some begin anew with
//! an archive that has everything archives can have.

#![no_main]

mod archive;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use templates::{LayerStore, Limits};

/// Runs between two looks at everything; the victim itself is looked at after each.
const LOOK_EVERY: u64 = 256;

struct Bed {
    store: LayerStore,
    layers: PathBuf,
    outside: PathBuf,
    before: Seen,
    runs: AtomicU64,
}

type Seen = BTreeMap<PathBuf, (u32, u32, u64, i64, u64)>;

/// In memory, so that the unpacker is what takes the time.
fn bed() -> &'static Bed {
    static BED: OnceLock<Bed> = OnceLock::new();
    BED.get_or_init(|| {
        let dir = Path::new("/dev/shm").join(format!("fuzz-unpack-{}", std::process::id()));
        let (layers, outside) = (dir.join("layers"), dir.join("outside"));
        std::fs::create_dir_all(outside.join("sub")).unwrap();
        std::fs::write(outside.join("victim"), "intact").unwrap();
        let before = seen(&outside);
        let limits = Limits { bytes: 64 << 20, entries: 1_000, ..Limits::default() };
        let store = LayerStore::open(&layers).unwrap().with_limits(limits);
        Bed { store, layers, outside, before, runs: AtomicU64::new(0) }
    })
}

/// Everything below a directory, and itself, with what could be changed of it.
fn seen(dir: &Path) -> Seen {
    let mut found = BTreeMap::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(path) = pending.pop() {
        let of = path.symlink_metadata().unwrap();
        if of.is_dir() {
            pending.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.insert(path, (of.mode(), of.uid(), of.size(), of.mtime_nsec(), of.nlink()));
    }
    found
}

fuzz_target!(|bytes: &[u8]| {
    let bed = bed();
    if let Ok(layer) = bed.store.import_tar(bytes, &|_| {}) {
        bed.store.remove(&layer.digest).unwrap();
    }
    let victim = bed.outside.join("victim");
    let of = victim.symlink_metadata().expect("the victim is there");
    let now = (of.mode(), of.uid(), of.size(), of.mtime_nsec(), of.nlink());
    assert_eq!(Some(&now), bed.before.get(&victim), "the victim was touched");
    if bed.runs.fetch_add(1, Ordering::Relaxed) % LOOK_EVERY == 0 {
        assert_eq!(seen(&bed.outside), bed.before, "something outside has changed");
        let left = std::fs::read_dir(&bed.layers).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| !name.to_string_lossy().ends_with("lock")).collect();
        assert!(left.is_empty(), "something half-made is left: {left:?}");
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut random = archive::Random::new(seed);
    let size = if random.below(32) == 0 || size < 512 {
        let fresh = archive::any(&mut random, &bed().outside.join("victim").display().to_string());
        let count = fresh.len().min(max_size);
        data[..count].copy_from_slice(&fresh[..count]);
        count
    } else {
        fuzzer_mutate(data, size, max_size)
    };
    if random.below(8) != 0 {
        archive::mend(&mut data[..size]);
    }
    size
});
