//! Memory of an idle sandbox, all its processes counted, as the host sees it. Only possible where the sandbox runs.

use std::fs;
use std::time::Duration;

use client::Client;

use super::report::Row;

const NAME: &str = "memory per idle sandbox";

/// Time for what the last command left behind to end: the agent watches its tree for about a second more.
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) async fn row(client: &Client, id: &str) -> Row {
    if !is_local(client.base_url()) {
        return Row::absent(NAME, "MiB", "the platform is on another machine");
    }
    tokio::time::sleep(SETTLE).await;
    match processes(id) {
        Ok(found) if found.is_empty() => {
            Row::absent(NAME, "MiB", "no process here carries the sandbox's id in its cgroup or command line")
        }
        Ok(found) => {
            let kib: u64 = found.iter().map(|process| process.pss_kib).sum();
            let names: Vec<_> =
                found.iter().map(|process| format!("{} {} KiB", process.name, process.pss_kib)).collect();
            Row::samples(NAME, "MiB", vec![kib as f64 / 1024.0])
                .note(format!("proportional share: {}", names.join(", ")))
        }
        Err(error) => Row::absent(NAME, "MiB", format!("cannot read the sandbox's processes: {error}")),
    }
}

fn is_local(base_url: &str) -> bool {
    let host = base_url.split_once("://").map_or("", |(_, rest)| rest);
    ["127.", "localhost", "[::1]"].iter().any(|prefix| host.starts_with(prefix))
}

/// `ESRCH` and `ENOENT`.
const GONE: i32 = rustix::io::Errno::SRCH.raw_os_error();
const NO_FILE: i32 = rustix::io::Errno::NOENT.raw_os_error();

struct Process {
    name: String,
    pss_kib: u64,
}

/// Everything that runs for this sandbox and nothing else: in its control group, or started with its id.
fn processes(id: &str) -> std::io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let is_process =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit));
        if !is_process || path.ends_with(std::process::id().to_string()) {
            continue;
        }
        // Processes that end meanwhile are none of the idle ones.
        let text =
            |file: &str| fs::read(path.join(file)).map(|text| String::from_utf8_lossy(&text).into_owned());
        let mentions = |file: &str| text(file).is_ok_and(|text| text.contains(id));
        if !mentions("cgroup") && !mentions("cmdline") {
            continue;
        }
        let rollup = match text("smaps_rollup") {
            // It ended meanwhile, or waits to be reaped: no memory either way.
            Err(error) if matches!(error.raw_os_error(), Some(GONE | NO_FILE)) => continue,
            rollup => rollup?,
        };
        let pss_kib = rollup
            .lines()
            .find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse().ok());
        let name = text("comm").unwrap_or_default();
        found.push(Process { name: crate::out::printable(name.trim()), pss_kib: pss_kib.unwrap_or(0) });
    }
    Ok(found)
}
