//! The archive format of initial file systems ("newc", Documentation/driver-api/early-userspace/buffer-format.rst).

const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive under construction.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(crate) fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[]);
    }

    pub(crate) fn file(&mut self, name: &str, permissions: u32, content: &[u8]) {
        self.entry(name, FILE | permissions, (0, 0), content);
    }

    pub(crate) fn character_device(&mut self, name: &str, permissions: u32, number: (u32, u32)) {
        self.entry(name, CHARACTER_DEVICE | permissions, number, &[]);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        self.entries += 1;
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        // Inode, mode, uid, gid, links, time, size, the file system's device, its own device, name with its end, checksum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            length(content.len()),
            0,
            0,
            major,
            minor,
            length(name.len() + 1),
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_what_other_programs_read() {
        let mut archive = Archive::default();
        archive.directory("dev");
        archive.character_device("dev/console", 0o600, (5, 1));
        archive.file("init", 0o755, b"hello");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.cpio"), &bytes).unwrap();
        let list = std::process::Command::new("cpio")
            .args(["-itv", "--quiet", "-F"])
            .arg(dir.path().join("a.cpio"))
            .output();
        let Ok(list) = list else {
            println!("SKIPPED: cpio is not installed, so nobody else has read the archive");
            return;
        };
        let list = String::from_utf8(list.stdout).unwrap();
        for line in ["drwxr-xr-x", "crw-------", "5,   1", "-rwxr-xr-x", "  5 ", "dev/console", "init"] {
            assert!(list.contains(line), "{line} is missing in {list}");
        }
    }
}
