//! `PUT /_agent/settle`: before the whole machine is written out. gVisor's kernel, a process, cannot write everything, and ends
//! when it cannot: so it is looked for what it is known not to write, and if there is any the machine stays in memory.

use std::fs::DirBuilder;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use http::StatusCode;

use crate::agent::Agent;
use crate::proc;
use crate::reply::{Refusal, Response, empty};

/// The kernel tells its file server about files that are closed in batches of this size; until then they count as open.
const CLOSE_BATCH: usize = 100;
/// Nobody else's: the agent's own directory, on the sandbox's disk.
const SCRATCH: &str = "/.superserve/settle";
/// States of `/proc/net/tcp` that are no connection: closed, listening.
const UNCONNECTED: [&str; 2] = ["07", "0A"];

pub(crate) async fn answer(agent: &Agent) -> Result<Response, Refusal> {
    if agent.conversed.get() {
        return Err(Refusal::new(StatusCode::CONFLICT, "conflict", "there has been a session"));
    }
    let settled = agent.files.run(|| {
        if let Some(obstacle) = obstacle()? {
            return Ok(Some(obstacle));
        }
        rustix::fs::sync();
        hand_over_closed()?;
        Ok(None)
    });
    match settled.await {
        Ok(None) => Ok(empty(StatusCode::NO_CONTENT)),
        Ok(Some(obstacle)) => Err(Refusal::new(StatusCode::CONFLICT, "conflict", obstacle)),
        Err(error) => Err(Refusal::internal(format!("cannot look: {error}"))),
    }
}

fn obstacle() -> io::Result<Option<String>> {
    let text = |path| proc::read(path).map(|text| String::from_utf8_lossy(&text).into_owned());
    if fuse(&text("self/mounts")?) {
        return Ok(Some("a FUSE file system is mounted".to_owned()));
    }
    let connected = connected(&text("net/tcp")?) || text("net/tcp6").is_ok_and(|table| connected(&table));
    Ok(connected.then(|| "a TCP connection leads outside".to_owned()))
}

fn fuse(mounts: &str) -> bool {
    mounts.lines().any(|line| line.split(' ').nth(2).is_some_and(|kind| kind.starts_with("fuse")))
}

/// Whether any connection of the table has an end that is not on loopback.
fn connected(table: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (Some(local), Some(_), Some(state)) = (fields.next(), fields.next(), fields.next()) else {
            return false;
        };
        !UNCONNECTED.contains(&state) && !loopback(local)
    })
}

/// An address as the kernel prints it: words of four bytes, each in the machine's order.
fn loopback(address: &str) -> bool {
    let address = address.split_once(':').map_or(address, |(address, _)| address);
    let mut bytes = Vec::new();
    for at in (0..address.len()).step_by(8) {
        let Some(Ok(word)) = address.get(at..at + 8).map(|word| u32::from_str_radix(word, 16)) else {
            return false;
        };
        bytes.extend(word.to_ne_bytes());
    }
    if let Ok(four) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Ipv4Addr::from(four).is_loopback();
    }
    let Ok(sixteen) = <[u8; 16]>::try_from(bytes.as_slice()) else { return false };
    let address = Ipv6Addr::from(sixteen);
    address.is_loopback() || address.to_ipv4_mapped().is_some_and(|four| four.is_loopback())
}

/// Has the kernel tell its file server about what has been closed so far.
fn hand_over_closed() -> io::Result<()> {
    for _ in 0..=CLOSE_BATCH {
        match DirBuilder::new().create(SCRATCH) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => std::fs::remove_dir(Path::new(SCRATCH))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_itself_are_none_to_the_outside() {
        let table = |local: &str, state: &str| {
            format!(
                "  sl  local_address rem_address   st\n   2: {local} 00000000:0000 {state} 00000000:00000000\n"
            )
        };
        let v4 = |address: [u8; 4]| format!("{:08X}:1F90", u32::from_ne_bytes(address));
        assert!(connected(&table(&v4([100, 96, 0, 1]), "01")));
        assert!(connected(&table(&v4([100, 96, 0, 1]), "08")));
        assert!(!connected(&table(&v4([100, 96, 0, 1]), "0A")));
        assert!(!connected(&table(&v4([127, 0, 0, 1]), "01")));
        let v6 = |address: &str| {
            let words = address.parse::<Ipv6Addr>().unwrap().octets();
            let words = words.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
            words.map(|word| format!("{word:08X}")).collect::<String>() + ":1F90"
        };
        assert!(!connected(&table(&v6("::1"), "01")));
        assert!(!connected(&table(&v6("::ffff:127.0.0.1"), "01")));
        assert!(connected(&table(&v6("::ffff:100.96.0.1"), "01")));
        assert!(connected(&table("rubbish", "01")) && !connected("") && !connected("x\ny\n"));
    }

    #[test]
    fn file_systems_of_the_guest_are_seen() {
        assert!(fuse("none / 9p rw 0 0\nnone /mnt/f fuse rw,fd=3 0 0\n"));
        assert!(fuse("x /mnt fuse.sshfs rw 0 0\n"));
        assert!(!fuse("none / 9p rw 0 0\nfuse /mnt tmpfs rw 0 0\n"));
    }
}
