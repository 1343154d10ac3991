//! Kernel limits that all sandboxes share. The kernel counts some things for whoever made a user namespace too, which is
//! the host's root, some by user id, which all sandboxes have in common, and some once for the whole machine. A sandbox
//! that used one of them up would take it from all others and from the host. What is counted here is held in memory that is
//! charged to the sandbox, or limited for each sandbox (processes, `agent/src/init.rs`), so those limits must come first.

use std::path::Path;
use std::sync::Once;

/// Enough for some dozens of sandboxes at their own limits.
const AT_LEAST: [(&str, u64); 8] = [
    ("/proc/sys/fs/inotify/max_user_instances", 65_536),
    ("/proc/sys/fs/inotify/max_user_watches", 4_194_304),
    // A gigabyte has room for 5 million, which is all there are on a host of 24 GiB; agents need some, too.
    ("/proc/sys/fs/epoll/max_user_watches", 1 << 30),
    // Past it, new pipes hold 8 KiB.
    (PIPE_PAGES, 1 << 24),
    ("/proc/sys/fs/aio-max-nr", 1 << 30),
    // The most there can be: terminals of one sandbox are bounded by its memory.
    ("/proc/sys/kernel/pty/max", 1 << 20),
    // Eight sandboxes full of processes would fill the usual 32,768.
    ("/proc/sys/kernel/pid_max", 1 << 20),
    ("/proc/sys/kernel/threads-max", 1 << 19),
];
/// Knows no limit when it is 0.
const PIPE_PAGES: &str = "/proc/sys/fs/pipe-user-pages-soft";

/// Raises what is lower, once. A host where that is not permitted still runs sandboxes, fewer at once.
pub(crate) fn raise() {
    static RAISED: Once = Once::new();
    RAISED.call_once(raise_all);
}

fn raise_all() {
    for (path, least) in AT_LEAST {
        if let Err(error) = raise_one(Path::new(path), least) {
            tracing::warn!(path, least, %error, "cannot raise a limit that all sandboxes share");
        }
    }
}

fn raise_one(path: &Path, least: u64) -> std::io::Result<()> {
    let current = std::fs::read_to_string(path)?;
    let enough = |current: u64| current >= least || (current == 0 && path == Path::new(PIPE_PAGES));
    if current.trim().parse::<u64>().is_ok_and(enough) {
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
