//! Programs and processes that engines run. A process is named so that a reused number is never taken for it: by its number
//! and its start time together.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal};

use crate::DriverError;

/// Opens a process by its number, if it still is the one that started then.
///
/// # Errors
/// The kernel refuses a descriptor for another reason than that the process is gone.
pub fn open(pid: i32, start: u64) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw) else { return Ok(None) };
    let fd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Checked after the descriptor is held: from here on the number cannot change hands unnoticed.
    Ok((start_of(pid.as_raw_nonzero().get()) == Some(start)).then_some(fd))
}

/// When a living process started, in clock ticks since boot.
#[must_use]
pub fn start_of(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (state, started) = parse_stat(&stat)?;
    (!matches!(state, 'Z' | 'X')).then_some(started)
}

/// Finds a program, as a path or in `PATH`.
///
/// # Errors
/// [`DriverError::Missing`].
pub fn find(program: &Path) -> Result<PathBuf, DriverError> {
    let missing = || DriverError::Missing { program: program.display().to_string() };
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned()).ok_or_else(missing);
    }
    // Servers are often started with a PATH that lacks the administrator's directories, where Debian puts some.
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(
            ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/sbin", "/bin"]
                .map(PathBuf::from),
        )
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
        .ok_or_else(missing)
}

/// State and start time (clock ticks since boot) out of `/proc/<pid>/stat`; the name in it may hold anything.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let rest = stat.rsplit_once(')')?.1;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 22 of proc(5); the state is field 3.
    let start = fields.nth(22 - 4)?.parse().ok()?;
    Some((state, start))
}

/// Kills the process; one that is gone is fine.
///
/// # Errors
/// The kernel refuses.
pub fn kill(pidfd: impl AsFd) -> io::Result<()> {
    match rustix::process::pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Kills every process that has `argument` on its command line: runtimes that outlived the server which started them,
/// and would go on making the machine that is being removed. Returns descriptors of those killed, which tell of their ends.
///
/// # Errors
/// Processes cannot be listed or killed.
pub fn kill_with_argument(argument: &Path) -> io::Result<Vec<OwnedFd>> {
    let mut killed = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        let has_argument = || {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == argument.as_os_str().as_bytes())
        };
        if !has_argument() {
            continue;
        }
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            // Looked at again now that the number cannot change hands.
            Ok(fd) if has_argument() => {
                kill(&fd)?;
                killed.push(fd);
            }
            Ok(_) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(killed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_shift_the_fields() {
        let fields: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let line = format!("7 (evil) S 1 2 3) R {}", fields.join(" "));
        assert_eq!(parse_stat(&line), Some(('R', 22)));
        assert_eq!(parse_stat("7 (x"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn a_process_is_found_by_its_whole_argument() {
        use std::os::unix::process::ExitStatusExt;
        let mark = format!("/nonexistent/superserve-{}", std::process::id());
        let start = |argument: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", "read never", "sh", argument]).stdin(std::process::Stdio::piped());
            let child = command.spawn().unwrap();
            // The kernel lets us go on a moment before the arguments can be read.
            while std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap().is_empty() {
                std::thread::yield_now();
            }
            child
        };
        let (mut meant, mut other) = (start(&mark), start(&format!("{mark}x")));
        assert_eq!(kill_with_argument(Path::new(&mark)).unwrap().len(), 1);
        assert_eq!(meant.wait().unwrap().signal(), Some(9));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_reused_number_is_not_the_same_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let start = start_of(pid).unwrap();
        assert!(open(pid, start).unwrap().is_some());
        assert!(open(pid, start + 1).unwrap().is_none());
        assert!(open(-1, start).unwrap().is_none());
    }

    #[test]
    fn programs_are_found_or_named() {
        assert!(find(Path::new("sh")).is_ok());
        for absent in ["superserve-no-such-program", "/nonexistent/program"] {
            let error = find(Path::new(absent)).unwrap_err();
            assert!(error.to_string().contains(absent), "{error}");
        }
    }
}
