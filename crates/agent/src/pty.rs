//! Pseudoterminals. The guest may put anything in the place of `/dev/ptmx`, also something that never answers; the
//! directory held since the start still leads to the kernel's.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::fs::{Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::{InputModes, OptionalActions, SpecialCodeIndex, Winsize};
use wire::data_plane::TtySize;

use crate::sys::identity::Identity;

static DEVICES: OnceLock<OwnedFd> = OnceLock::new();

/// Takes hold of the terminals' directory; once, before the guest runs. Without it there are no terminals.
pub(crate) fn hold() {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(devices) = rustix::fs::open("/dev/pts", flags, Mode::empty()) {
        // A second call would change nothing.
        let _ = DEVICES.set(devices);
    }
}

/// Both ends of a new terminal that belongs to `owner`: the agent's, non-blocking, and the command's.
pub(crate) fn open(size: TtySize, owner: &Identity) -> io::Result<(OwnedFd, OwnedFd)> {
    let devices = DEVICES.get().ok_or_else(|| io::Error::other("the sandbox has no /dev/pts"))?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let master = device(devices, b"ptmx", flags)?;
    rustix::pty::unlockpt(&master)?;
    let peer = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = match rustix::pty::ioctl_tiocgptpeer(&master, peer) {
        // Kernels that do not hand it out (gVisor until the middle of 2026): by its name, of which only the number counts.
        Err(Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => {
            let name = rustix::pty::ptsname(&master, Vec::new())?;
            let number = name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            device(devices, number, flags - OFlags::NONBLOCK)?
        }
        given => given?,
    };
    resize(&master, size)?;
    let mut settings = rustix::termios::tcgetattr(&slave)?;
    // Erasing a character erases all its bytes.
    settings.input_modes |= InputModes::IUTF8;
    rustix::termios::tcsetattr(&slave, OptionalActions::Now, &settings)?;
    // The group stays the terminals' own, as `mesg` and `write` expect.
    rustix::fs::fchown(&slave, Some(Uid::from_raw(owner.uid)), None::<Gid>)?;
    Ok((master, slave))
}

/// Opens one of the kernel's terminals, whatever the guest has mounted there.
fn device(devices: &OwnedFd, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let strict = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(devices, name, flags, Mode::empty(), strict) {
        // Kernels without the call.
        Err(Errno::NOSYS) => rustix::fs::openat(devices, name, flags | OFlags::NOFOLLOW, Mode::empty()),
        opened => opened,
    }
}

pub(crate) fn resize(master: &OwnedFd, size: TtySize) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(master, size)?)
}

/// What to type for the end of input.
pub(crate) fn end_of_file(master: &OwnedFd) -> u8 {
    const CONTROL_D: u8 = 4;
    rustix::termios::tcgetattr(master).map_or(CONTROL_D, |set| set.special_codes[SpecialCodeIndex::VEOF])
}
