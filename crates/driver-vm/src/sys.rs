//! System calls that need `unsafe`: what a machine's process becomes between fork and exec, and tap devices.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::io::FdFlags;
use rustix::process::{Gid, Resource, Rlimit, Uid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::firecracker::Jail;

/// Open at once: what is inherited, events, and the two connections.
const MAX_DESCRIPTORS: u64 = 1_024;

/// What a machine's process is to be.
#[derive(Debug)]
pub(crate) struct Process {
    /// Owns the machine's disk and nothing else.
    pub(crate) owner: u32,
    /// May use what it needs.
    pub(crate) group: Option<u32>,
    /// The most it writes into one file, bytes.
    pub(crate) largest_file: u64,
    /// Ways into its cgroup.
    pub(crate) cgroup: Vec<OwnedFd>,
}

/// Has the process that `command` starts keep `inherited`, leave the host's network and IPC, and become nobody. It outlives its
/// starter and is not reached by signals to its terminal.
pub(crate) fn become_machine(command: &mut tokio::process::Command, process: Process, inherited: Vec<RawFd>) {
    let enter = move || {
        enter_cgroup(&process.cgroup)?;
        for fd in &inherited {
            #[expect(unsafe_code, reason = "only numbers can be moved into the child")]
            // SAFETY: the caller keeps the descriptors open until the child has started.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
        }
        rustix::process::setsid()?;
        let own = UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
        leave(own)?;
        // A dump of its memory would be the guest's memory on the host's disk.
        limit(Resource::Core, 0)?;
        limit(Resource::Fsize, process.largest_file)?;
        limit(Resource::Nofile, MAX_DESCRIPTORS)?;
        let gid = Gid::from_raw(process.owner);
        let groups = [process.group.map_or(gid, Gid::from_raw)];
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        let uid = Uid::from_raw(process.owner);
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        rustix::thread::set_no_new_privs(true)?;
        Ok(())
    };
    #[expect(unsafe_code, reason = "ids and namespaces must change between fork and exec")]
    // SAFETY: `enter` makes system calls only, which are async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(enter);
    }
}

/// Has the process that `command` starts, a jailer, find its jail, in namespaces of its own and the given one for its network.
/// It outlives its starter and is not reached by signals to its terminal.
pub(crate) fn become_jailer(
    command: &mut tokio::process::Command,
    jail: Jail,
    netns: OwnedFd,
    cgroup: Vec<OwnedFd>,
) {
    let enter = move || {
        enter_cgroup(&cgroup)?;
        rustix::process::setsid()?;
        let own = UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
        leave(own)?;
        rustix::thread::move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?;
        jail.appear()?;
        // The jailer sets the other limits.
        limit(Resource::Core, 0)?;
        Ok(rustix::thread::set_no_new_privs(true)?)
    };
    #[expect(unsafe_code, reason = "namespaces must change between fork and exec")]
    // SAFETY: `enter` makes system calls only, which are async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(enter);
    }
}

/// Moves the calling process.
fn enter_cgroup(ways: &[OwnedFd]) -> io::Result<()> {
    for way in ways {
        rustix::io::write(way, b"0")?;
    }
    Ok(())
}

fn limit(what: Resource, most: u64) -> io::Result<()> {
    Ok(rustix::process::setrlimit(what, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Runs `work` on a thread of its own, which may leave what it shares with others.
fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        scope.spawn(work).join().map_err(|_| io::Error::other("a thread in a namespace panicked"))?
    })
}

fn leave(what: UnshareFlags) -> io::Result<()> {
    #[expect(unsafe_code, reason = "leaving a namespace can be unsafe with other flags")]
    // SAFETY: no caller gives the flag for file tables, which alone is dangerous.
    Ok(unsafe { rustix::thread::unshare_unsafe(what) }?)
}

/// Runs `work` inside a network namespace.
pub(crate) fn in_netns<T: Send>(
    netns: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    on_thread(move || {
        rustix::thread::move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?;
        work()
    })
}

/// A new network namespace with nothing in it, for as long as somebody has it.
pub(crate) fn new_netns() -> io::Result<OwnedFd> {
    on_thread(|| {
        leave(UnshareFlags::NEWNET)?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    })
}

/// Runs `work` with the mounts, and the root, of a mount namespace.
pub(crate) fn in_mounts<T: Send>(
    mounts: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    on_thread(move || {
        // A thread shares its root with the others, and may not change it before it has one of its own.
        leave(UnshareFlags::FS)?;
        rustix::thread::move_into_link_name_space(mounts, Some(LinkNameSpaceType::Mount))?;
        work()
    })
}

// linux/if_tun.h
const TUNSETIFF: u64 = 0x4004_54ca;
const IFF_TAP: libc::c_short = 0x0002;
const IFF_NO_PI: libc::c_short = 0x1000;

/// Takes hold of a tap device that exists in a network namespace.
pub(crate) fn open_tap(netns: &Path, name: &str) -> io::Result<OwnedFd> {
    in_netns(File::open(netns)?.as_fd(), || attach_tap(name))
}

fn attach_tap(name: &str) -> io::Result<OwnedFd> {
    // Without this a missing device would be made, and be nobody's.
    rustix::net::netdevice::name_to_index(
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?,
        name,
    )?;
    let tun = File::options().read(true).write(true).open("/dev/net/tun")?;
    let flags = libc::__c_anonymous_ifr_ifru { ifru_flags: IFF_TAP | IFF_NO_PI };
    let mut request = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: flags };
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::other("the name of a link is too long"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    #[expect(unsafe_code, reason = "tap devices have no wrapper")]
    // SAFETY: TUNSETIFF reads a `struct ifreq`, which outlives the call.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFF as libc::Ioctl, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::io::ioctl_fionbio(&tun, true)?;
    Ok(tun.into())
}
