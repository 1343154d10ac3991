//! System calls that need `unsafe`: network namespaces of threads, loop and tap devices, processes with guests' ids.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// Runs `work` on a thread of its own inside a network namespace.
pub(crate) fn in_netns<T: Send>(
    netns: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    on_thread(move || {
        enter_netns(netns)?;
        work()
    })
}

/// Runs `work` on a thread of its own inside a new network namespace.
pub(crate) fn in_new_netns<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    on_thread(|| {
        #[expect(unsafe_code, reason = "leaving a namespace can be unsafe with other flags")]
        // SAFETY: only the flag for file tables is dangerous, and it is not given.
        unsafe {
            rustix::thread::unshare_unsafe(UnshareFlags::NEWNET)?;
        }
        work()
    })
}

/// Moves the current thread; only for threads that end afterwards.
pub(crate) fn enter_netns(netns: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?)
}

fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        scope.spawn(work).join().map_err(|_| io::Error::other("a network thread panicked"))?
    })
}

/// Starts a program as root of a user namespace with the guests' ids.
pub(crate) fn spawn_as_guest(
    command: &mut std::process::Command,
    id_shift: u32,
) -> io::Result<std::process::Child> {
    use rustix::pipe::{PipeFlags, pipe_with};
    use rustix::process::{Gid, Uid, getpid};
    // The child says its number, and waits until somebody outside has mapped its ids.
    let (number, say) = pipe_with(PipeFlags::CLOEXEC)?;
    let (wait, go) = pipe_with(PipeFlags::CLOEXEC)?;
    let (child_say, child_wait) = (say.try_clone()?, wait);
    let enter = move || {
        #[expect(unsafe_code, reason = "leaving a namespace can be unsafe with other flags")]
        // SAFETY: only the flag for file tables is dangerous, and it is not given.
        unsafe {
            rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER)?;
        }
        rustix::io::write(&child_say, &getpid().as_raw_nonzero().get().to_ne_bytes())?;
        let mut mapped = [0; 1];
        if rustix::io::read(&child_wait, &mut mapped)? == 0 || mapped == [0] {
            return Err(io::Error::from_raw_os_error(libc::ECANCELED));
        }
        rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
        Ok(rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?)
    };
    #[expect(unsafe_code, reason = "the namespace must be entered between fork and exec")]
    // SAFETY: `enter` makes system calls only, which are async-signal-safe, and allocates nothing.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(command, enter);
    }
    std::thread::scope(|scope| {
        let mapping = scope.spawn(move || -> io::Result<()> {
            let mut pid = [0; 4];
            // The child's end of the pipe stays open in this process too, so there is always something: its number, or none.
            let read = rustix::io::read(&number, &mut pid)?;
            let pid = i32::from_ne_bytes(pid);
            if read < size_of_val(&pid) || pid == 0 {
                return Ok(());
            }
            let mapped = ["uid_map", "gid_map"].iter().try_for_each(|map| {
                std::fs::write(format!("/proc/{pid}/{map}"), format!("0 {id_shift} 65536\n"))
            });
            // The child has the other end as well, and would wait for ever.
            rustix::io::write(&go, &[u8::from(mapped.is_ok())])?;
            mapped
        });
        // Returns when the program runs, or the child has failed.
        let child = command.spawn();
        if child.is_err() {
            let _it_has_heard_of_one = rustix::io::write(&say, &[0; 4]);
        }
        let mapped = mapping.join().map_err(|_| io::Error::other("a thread that maps ids panicked"))?;
        // Why there is no child is better said by what kept it.
        child.map_err(|error| mapped.err().unwrap_or(error))
    })
}

// linux/if_tun.h
const TUNSETIFF: u64 = 0x4004_54ca;
const TUNSETPERSIST: u64 = 0x4004_54cb;
const IFF_TAP: libc::c_short = 0x0002;
const IFF_NO_PI: libc::c_short = 0x1000;

/// Makes a tap device that stays until it is deleted, in the current thread's network namespace.
pub(crate) fn make_tap(name: &str) -> io::Result<()> {
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::other("the name of a link is too long"));
    }
    let tun = File::options().read(true).write(true).open("/dev/net/tun")?;
    let flags = libc::__c_anonymous_ifr_ifru { ifru_flags: IFF_TAP | IFF_NO_PI };
    let mut request = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: flags };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    ioctl(tun.as_fd(), TUNSETIFF, &raw mut request)?;
    // The number itself is the argument.
    ioctl(tun.as_fd(), TUNSETPERSIST, std::ptr::without_provenance_mut::<libc::ifreq>(1)).map(drop)
}

/// Drops what a mounted ext4 file system has not written yet, and all that would be written to it from now on: it is
/// about to be deleted.
pub(crate) fn abandon(mounted: BorrowedFd<'_>) -> io::Result<()> {
    // linux/ext4.h: EXT4_IOC_SHUTDOWN, without flushing the journal.
    const EXT4_IOC_SHUTDOWN: u64 = 0x8004_587D;
    const NO_LOG_FLUSH: u32 = 2;
    let mut how = NO_LOG_FLUSH;
    ioctl(mounted, EXT4_IOC_SHUTDOWN, &raw mut how).map(drop)
}

// linux/loop.h
const LOOP_CONFIGURE: u64 = 0x4C0A;
const LOOP_CTL_GET_FREE: u64 = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const BLOCK_SIZE: u32 = 4_096;
/// Another process may take the free device between asking for it and configuring it.
const ATTEMPTS: usize = 64;

#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

/// A loop device bound to a file; the binding ends with the last user of the device.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    /// Where the device is.
    pub(crate) path: String,
    /// Holds the binding until the device is mounted.
    _file: File,
}

/// Binds a free loop device to an image.
pub(crate) fn attach_loop(image: &Path) -> io::Result<LoopDevice> {
    // One at a time, a millisecond each: the kernel tells everybody who asks of the same free device, and all but one
    // then wait only to be refused.
    static ASKING: Mutex<()> = Mutex::new(());
    let _one = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    let backing = File::options().read(true).write(true).open(image)?;
    let control = File::options().read(true).write(true).open("/dev/loop-control")?;
    let mut busy = io::Error::from(io::ErrorKind::ResourceBusy);
    for _ in 0..ATTEMPTS {
        let number = ioctl(control.as_fd(), LOOP_CTL_GET_FREE, std::ptr::null_mut::<LoopConfig>())?;
        let path = format!("/dev/loop{number}");
        ensure_node(&path, number)?;
        let file = File::options().read(true).write(true).open(&path)?;
        let mut config = LoopConfig {
            fd: u32::try_from(backing.as_raw_fd()).map_err(io::Error::other)?,
            block_size: BLOCK_SIZE,
            info: LoopInfo64 {
                device: 0,
                inode: 0,
                rdevice: 0,
                offset: 0,
                sizelimit: 0,
                number: 0,
                encrypt_type: 0,
                encrypt_key_size: 0,
                flags: LO_FLAGS_AUTOCLEAR,
                file_name: [0; 64],
                crypt_name: [0; 64],
                encrypt_key: [0; 32],
                init: [0; 2],
            },
            reserved: [0; 8],
        };
        match ioctl(file.as_fd(), LOOP_CONFIGURE, &raw mut config) {
            Ok(_) => return Ok(LoopDevice { path, _file: file }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => busy = error,
            Err(error) => return Err(error),
        }
    }
    Err(busy)
}

/// Where `/dev` is not the kernel's own, nodes of new loop devices do not appear by themselves.
fn ensure_node(path: &str, number: i32) -> io::Result<()> {
    const LOOP_MAJOR: u32 = 7;
    let minor = u32::try_from(number).map_err(io::Error::other)?;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let device = rustix::fs::makedev(LOOP_MAJOR, minor);
    match rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::BlockDevice, mode, device) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn ioctl<T>(fd: BorrowedFd<'_>, request: u64, argument: *mut T) -> io::Result<i32> {
    #[expect(unsafe_code, reason = "rustix has neither loop nor tap devices nor ext4's requests")]
    // SAFETY: the requests of this module take no argument, a number, a `struct loop_config`, whose layout `LoopConfig`
    // repeats, a `struct ifreq`, or a 32-bit number in memory; each caller passes its own kind, which outlives the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as libc::Ioctl, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_layout_is_repeated() {
        assert_eq!(size_of::<LoopInfo64>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
    #[test]
    fn a_guest_that_cannot_start_is_told_and_not_waited_for() {
        let refused = |program: &str, shift| {
            let mut command = std::process::Command::new(program);
            spawn_as_guest(command.stdin(std::process::Stdio::null()), shift).unwrap_err()
        };
        // No such program; a range that the kernel refuses; no process at all, since the argument has a zero in it.
        refused("/nonexistent/program", 1_000_000);
        refused("/bin/true", u32::MAX - 10);
        refused("/bin/true\0", 1_000_000);
    }
}
