//! Feeds broken and hostile archives to the unpacker for a while: `fuzz_unpack <seconds> [seed]`. Whatever comes in, nothing
//! may be written outside the layer directory, nothing half-made may stay in it, and the program must live. Stable Rust
//! has no coverage-guided fuzzer, so inputs are valid archives with random changes, their checksums mended half of the time.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a program for developers")]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use templates::{LayerStore, Limits};

const NAMES: &[&str] = &[
    "a",
    "a/b",
    "a/b/c",
    "../x",
    "a/../../x",
    "/etc/x",
    ".wh.a",
    ".wh..wh..opq",
    "a/.wh..wh..opq",
    "a/.wh.b",
    ".wh..",
    "./",
    ".",
    "",
    "a//b",
    "link/x",
    "link",
    "dir/",
    "dir/x",
    ".wh.link",
    "victim",
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).unwrap()
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

fn archive(random: &mut Random, outside: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + random.below(12) {
        let mut header = tar::Header::new_gnu();
        let kinds = [b'0', b'1', b'2', b'3', b'4', b'5', b'6', b'7', b'L', b'K', b'x', b'g', 0, b'S'];
        header.as_old_mut().linkflag = [kinds[random.below(kinds.len())]];
        let name = random.pick(NAMES).as_bytes();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        let target = if random.below(3) == 0 { outside.as_bytes() } else { random.pick(NAMES).as_bytes() };
        let target = &target[..target.len().min(100)];
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
        header.set_mode(u32::try_from(random.below(0o10000)).unwrap());
        header.set_uid(random.below(70_000) as u64);
        header.set_gid(random.below(70_000) as u64);
        header.set_mtime(random.next() >> random.below(64));
        let content = match random.below(4) {
            0 => format!("{}\0", random.pick(NAMES)).into_bytes(),
            1 => {
                let keys = [
                    "path",
                    "linkpath",
                    "size",
                    "uid",
                    "SCHILY.xattr.user.a",
                    "SCHILY.xattr.trusted.overlay.opaque",
                ];
                let record = format!("={}\n", random.pick(NAMES));
                let key = random.pick(&keys);
                let length = key.len() + record.len() + 3;
                format!("{length} {key}{record}").into_bytes()
            }
            2 => vec![0; random.below(200_000)],
            _ => Vec::new(),
        };
        header.set_size(content.len() as u64);
        if random.below(20) == 0 {
            header.set_size(random.next() >> random.below(64));
        }
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.extend_from_slice(&[0; 1024]);
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len());
        bytes[at] = u8::try_from(random.below(256)).unwrap();
        if random.below(2) == 0 {
            let block = at / 512 * 512;
            let mut header = tar::Header::new_old();
            header.as_mut_bytes().copy_from_slice(&bytes[block..block + 512]);
            header.set_cksum();
            bytes[block..block + 512].copy_from_slice(header.as_bytes());
        }
    }
    if random.below(10) == 0 {
        bytes.truncate(random.below(bytes.len()));
    }
    bytes
}

/// Everything below a directory, with what could be changed of it.
fn seen(dir: &Path) -> BTreeMap<String, (u32, u32, u64, i64)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let of = entry.metadata().unwrap();
            found.insert(entry.path().display().to_string(), (of.mode(), of.uid(), of.size(), of.mtime()));
            if of.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    found
}

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds: u64 = args.next().map_or(60, |text| text.parse().unwrap());
    let seed: u64 = args.next().map_or(0x9e37_79b9_7f4a_7c15, |text| text.parse().unwrap());
    let dir = std::env::temp_dir().join(format!("fuzz-unpack-{}", std::process::id()));
    let (layers, outside) = (dir.join("layers"), dir.join("outside"));
    std::fs::create_dir_all(outside.join("sub")).unwrap();
    std::fs::write(outside.join("victim"), "intact").unwrap();
    let before = seen(&outside);
    let store = LayerStore::open(&layers).unwrap().with_limits(Limits { bytes: 64 << 20, entries: 1_000 });
    let mut random = Random(seed | 1);
    let (mut runs, mut taken) = (0_u64, 0_u64);
    let until = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < until {
        let bytes = archive(&mut random, &outside.join("victim").display().to_string());
        if let Ok(layer) = store.import_tar(&bytes[..], &|_| {}) {
            taken += 1;
            store.remove(&layer.digest).unwrap();
        }
        runs += 1;
        if runs % 500 == 0 {
            assert_eq!(seen(&outside), before, "seed {seed}, run {runs}");
        }
    }
    assert_eq!(seen(&outside), before, "seed {seed}");
    assert_eq!(std::fs::read_to_string(outside.join("victim")).unwrap(), "intact");
    let left: Vec<_> = std::fs::read_dir(&layers).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name.to_string_lossy().ends_with("lock")), "{left:?}");
    std::fs::remove_dir_all(dir).unwrap();
    println!("{runs} archives in {seconds} s, {taken} of them taken, nothing outside changed");
}
