//! Archives of everything that a tar archive can have, honest or not, out of a seed.

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
    "a/b/.wh..wh..opq",
    ".wh..wh.plnk",
    "dir/sub/deep/x",
];

pub struct Random(u64);

impl Random {
    pub fn new(seed: u32) -> Self {
        // Never zero, and far apart for seeds that are close.
        Self((u64::from(seed) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).unwrap()
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

/// An archive of some entries.
pub fn any(random: &mut Random, outside: &str) -> Vec<u8> {
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
                    "gid",
                    "mtime",
                    "GNU.sparse.major",
                    "SCHILY.xattr.user.a",
                    "SCHILY.xattr.security.capability",
                    "SCHILY.xattr.trusted.overlay.opaque",
                ];
                let record = format!("={}\n", random.pick(NAMES));
                let key = random.pick(&keys);
                let length = key.len() + record.len() + 3;
                format!("{length} {key}{record}").into_bytes()
            }
            2 => vec![0; random.below(9_000)],
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
    bytes
}

/// Mends the checksum of each header, as far as one follows the other.
pub fn mend(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(block) = bytes.get_mut(at..at + 512) {
        let mut header = tar::Header::new_old();
        header.as_mut_bytes().copy_from_slice(block);
        header.set_cksum();
        block.copy_from_slice(header.as_bytes());
        let size = header.entry_size().ok().and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
        at = at.saturating_add(512).saturating_add(size.saturating_add(511) / 512 * 512);
        if at > bytes.len() {
            return;
        }
    }
}
