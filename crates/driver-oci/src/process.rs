//! Names a process so that a reused number is never taken for it: process id and start time together.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::Value;

/// Reads process id and start time from the runtime's record; `None` when there is none (yet).
fn recorded(state: &Path) -> Option<(i32, u64)> {
    let text = std::fs::read(state).ok()?;
    let value: Value = serde_json::from_slice(&text).ok()?;
    let pid = value.get("init_process_pid")?.as_i64()?;
    Some((i32::try_from(pid).ok()?, value.get("init_process_start")?.as_u64()?))
}

/// Opens the process that the runtime's record names, if it is still the same one.
pub(crate) fn open(state: &Path) -> io::Result<Option<OwnedFd>> {
    let Some((pid, start)) = recorded(state) else { return Ok(None) };
    let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
    let fd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Checked after the descriptor is held: from here on the number cannot change hands unnoticed.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let (state, started) = parse_stat(&stat).unwrap_or(('X', 0));
    Ok((started == start && !matches!(state, 'Z' | 'X')).then_some(fd))
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
pub(crate) fn kill(pidfd: impl AsFd) -> io::Result<()> {
    match rustix::process::pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Kills every process that has `argument` on its command line: runtimes that outlived the server which started them,
/// and would go on making the machine that is being removed.
pub(crate) fn kill_with_argument(argument: &Path) -> io::Result<()> {
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
            Ok(fd) if has_argument() => kill(fd)?,
            Ok(_) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
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
            command.spawn().unwrap()
        };
        let (mut meant, mut other) = (start(&mark), start(&format!("{mark}x")));
        // The arguments are the child's only once it has replaced its image, which `spawn` waits for.
        kill_with_argument(Path::new(&mark)).unwrap();
        assert_eq!(meant.wait().unwrap().signal(), Some(9));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_reused_number_is_not_the_recorded_process() {
        let dir = std::env::temp_dir().join(format!("superserve-process-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let state = dir.join("state.json");
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let (_, start) = parse_stat(&stat).unwrap();
        let pid = std::process::id();
        let write = |start: u64| {
            let text = format!(r#"{{"init_process_pid":{pid},"init_process_start":{start}}}"#);
            std::fs::write(&state, text).unwrap();
        };
        write(start);
        assert!(open(&state).unwrap().is_some());
        write(start + 1);
        assert!(open(&state).unwrap().is_none());
        std::fs::write(&state, "{").unwrap();
        assert!(open(&state).unwrap().is_none());
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(open(&state).unwrap().is_none());
    }
}
