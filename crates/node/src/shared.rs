//! Kernel limits that all sandboxes share: the kernel counts what a sandbox uses for whoever made its user namespace too,
//! which is the host's root. Each sandbox has limits of its own (`agent/src/init.rs`); the shared ones must not be
//! reached before them.

use std::path::Path;

/// Enough for some dozens of sandboxes at their own limits; what they hold is charged to their memory.
const AT_LEAST: [(&str, u64); 2] = [
    ("/proc/sys/fs/inotify/max_user_instances", 65_536),
    ("/proc/sys/fs/inotify/max_user_watches", 4_194_304),
];

/// Raises what is lower. A host where that is not permitted still runs sandboxes, fewer at once.
pub(crate) fn raise() {
    for (path, least) in AT_LEAST {
        if let Err(error) = raise_one(Path::new(path), least) {
            tracing::warn!(path, least, %error, "cannot raise a limit that all sandboxes share");
        }
    }
}

fn raise_one(path: &Path, least: u64) -> std::io::Result<()> {
    let current = std::fs::read_to_string(path)?;
    if current.trim().parse::<u64>().is_ok_and(|current| current >= least) {
        return Ok(());
    }
    std::fs::write(path, least.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_only_rise() {
        let dir = tempfile::tempdir().unwrap();
        let limit = dir.path().join("limit");
        for (before, after) in [("128\n", "1000"), ("1000\n", "1000\n"), ("5000\n", "5000\n")] {
            std::fs::write(&limit, before).unwrap();
            raise_one(&limit, 1000).unwrap();
            assert_eq!(std::fs::read_to_string(&limit).unwrap(), after);
        }
    }
}
