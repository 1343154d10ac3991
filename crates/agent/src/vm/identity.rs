//! Becoming another machine: the memory that the guest continues is also that of others. While the workload stands still,
//! everything that tells machines apart gets a new value: random numbers, boot id, address, host name, machine id, mark.
//!
//! What processes have made of random numbers before is theirs, and the same in all that continue them.

use std::fs::File;
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::LinkNameSpaceType;
use tokio::time::Instant;
use wire::agent::vm::Identity;

use super::port::NextMark;
use super::{link, root, step};
use crate::{init, sys};

/// This program in the initial file system, and its role that writes names.
const PROGRAM: &str = "/init";
pub(crate) const ROLE: &str = "vm-names";
/// What another boot would have another of; bound over the kernel's own.
pub(super) const BOOT_ID: &str = "/boot_id";
/// A program is started and writes five small files; on an emulated, busy processor that takes a tenth of a second. What is in
/// the place of these files is the guest's choice.
const NAMES_LIMIT: Duration = Duration::from_secs(4);
const NAMES_POLL: Duration = Duration::from_millis(5);

/// At a boot the kernel's is right.
pub(super) fn keep_boot_id() -> io::Result<()> {
    std::fs::copy("/proc/sys/kernel/random/boot_id", BOOT_ID).map(drop).map_err(step("keep the boot id"))
}

/// Becomes another machine.
pub(super) async fn assume(identity: &Identity, agent: Pid, next_mark: &NextMark) -> io::Result<()> {
    sys::vm::stir(&identity.seed).map_err(step("stir the random numbers"))?;
    std::fs::copy("/proc/sys/kernel/random/uuid", BOOT_ID).map_err(step("change the boot id"))?;
    link::readdress(identity.address, identity.gateway).map_err(step("change the address"))?;
    write_names(&identity.hostname, agent).await.map_err(step("change the names"))?;
    next_mark.set(identity.mark);
    Ok(())
}

/// In a process of its own, which enters the sandbox's root: links in it must not lead out of it, and what the guest has put
/// there must hold up nobody.
async fn write_names(hostname: &str, agent: Pid) -> io::Result<()> {
    let mut child = Command::new(PROGRAM)
        .arg(ROLE)
        .arg(agent.as_raw_nonzero().to_string())
        .arg(hostname)
        .env_clear()
        .stdin(Stdio::null())
        .spawn()?;
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) };
        }
        if begun.elapsed() > NAMES_LIMIT {
            // It may be stuck in the guest's file system; the names are then what they were.
            let _ending = child.kill();
            return Err(io::ErrorKind::TimedOut.into());
        }
        tokio::time::sleep(NAMES_POLL).await;
    }
}

/// The role of that process: the host name is changed for the agent, whose process number is given, and the files are written as
/// at a start.
pub(crate) fn run_names() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(2).collect();
    let [agent, hostname] = words.as_slice() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let agent: u32 = agent.parse().map_err(io::Error::other)?;
    let names = File::open(format!("/proc/{agent}/ns/uts"))?;
    rustix::thread::move_into_link_name_space(
        std::os::fd::AsFd::as_fd(&names),
        Some(LinkNameSpaceType::HostNameAndNISDomainName),
    )?;
    rustix::system::sethostname(hostname.as_bytes())?;
    std::env::set_current_dir(root::ROOT)?;
    rustix::process::chroot(".")?;
    init::describe_host()
}
