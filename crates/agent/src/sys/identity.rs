//! Lets one thread touch files as the sandbox's user, while the rest of the agent stays root.

use std::io;

/// Who a file operation acts as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Supplementary groups.
    pub(crate) groups: Vec<u32>,
}

/// Makes the calling thread act on files as `who`. The raw calls concern this thread alone (the library's wrappers
/// would change every thread), and the kernel takes away the file capabilities with the user id 0.
#[expect(unsafe_code, reason = "per-thread credentials have no safe wrapper")]
pub(crate) fn assume(who: &Identity) -> io::Result<()> {
    const UNCHANGED: libc::c_long = -1;
    // SAFETY: the pointer and length describe a live slice of gid_t; the other calls take plain numbers.
    unsafe {
        // Back to root first, which returns the right to change groups. Some kernels (gVisor) have no ids for files alone.
        if libc::syscall(libc::SYS_setfsuid, 0) < 0 {
            return assume_effective(who);
        }
        if libc::syscall(libc::SYS_setgroups, who.groups.len(), who.groups.as_ptr()) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::syscall(libc::SYS_setfsgid, libc::c_long::from(who.gid));
        libc::syscall(libc::SYS_setfsuid, libc::c_long::from(who.uid));
        // These two calls return the previous id instead of an error: ask what holds now.
        let uid = libc::syscall(libc::SYS_setfsuid, UNCHANGED);
        let gid = libc::syscall(libc::SYS_setfsgid, UNCHANGED);
        if uid != libc::c_long::from(who.uid) || gid != libc::c_long::from(who.gid) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
    }
    Ok(())
}

/// The same with the thread's effective ids. Root stays its real and saved one, so it can return.
#[expect(unsafe_code, reason = "per-thread credentials have no safe wrapper")]
fn assume_effective(who: &Identity) -> io::Result<()> {
    const KEPT: libc::c_long = -1;
    let root: libc::c_long = 0;
    let (uid, gid) = (libc::c_long::from(who.uid), libc::c_long::from(who.gid));
    // SAFETY: as above.
    unsafe {
        if libc::syscall(libc::SYS_setresuid, KEPT, root, KEPT) < 0
            || libc::syscall(libc::SYS_setgroups, who.groups.len(), who.groups.as_ptr()) < 0
            || libc::syscall(libc::SYS_setresgid, KEPT, gid, KEPT) < 0
            || libc::syscall(libc::SYS_setresuid, KEPT, uid, KEPT) < 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
