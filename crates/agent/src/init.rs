//! What PID 1 of a sandbox does before anything else: it puts one more wall around everything it will start.
//!
//! ```text
//! engine ─ user namespace A, mounts made by the engine (masks, read-only /proc/sys, …)
//!            └ agent ─ user namespace B with the same ids, a mount namespace of its own: A's mounts are locked in it
//!                        └ workload: root of B; may mount FUSE, tmpfs, overlay; cannot unmount or remount A's
//! ```
//!
//! Network, processes, host name, IPC and cgroups belong to A or to the host, so B's root holds no capability over
//! them. Afterwards the dangerous capabilities are gone from what any child can ever have, further user and network
//! namespaces are refused, and the agent cannot be traced. Runs before any thread exists.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{DumpableBehavior, WaitOptions};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// All ids of the outer namespace, unchanged.
const IDENTITY_MAP: &str = "0 0 65536\n";
/// What package managers, `sudo` and FUSE mounts need; the engine grants it too, and what only this module needs.
const KEPT: CapabilitySet = CapabilitySet::AUDIT_WRITE
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_CHROOT);
/// Namespaces whose owner gains capabilities over parts of the kernel that sandboxes have no use for.
const REFUSED_NAMESPACES: [libc::c_int; 4] =
    [libc::CLONE_NEWUSER, libc::CLONE_NEWNET, libc::CLONE_NEWCGROUP, CLONE_NEWTIME];
/// Missing in `libc` for this target (linux/sched.h); in `clone` the bit belongs to the exit signal.
const CLONE_NEWTIME: libc::c_int = 0x80;

/// Builds the wall; only for the first process of a sandbox.
///
/// # Errors
/// Any step failed. The agent must not start then: without the wall the workload could take down the engine's.
pub(crate) fn enter() -> io::Result<()> {
    let step =
        |what: &'static str| move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
    limit_shared_counters().map_err(step("limit shared counters"))?;
    enter_own_namespaces().map_err(step("enter the inner namespaces"))?;
    let _as_far_as_it_goes = describe_host();
    limit_capabilities().map_err(step("limit capabilities"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| step("refuse tracing")(error.into()))?;
    install(&filter().map_err(|error| step("compile the filter")(io::Error::other(error)))?)
        .map_err(step("install the filter"))
}

/// The same on gVisor, whose kernel is a process of the host's and itself the wall: it has no mount namespaces to build another
/// one of, nothing of the host's in its `/proc`, and a root that may do what it likes with what is its own.
///
/// # Errors
/// As [`enter`].
pub(crate) fn enter_sentry() -> io::Result<()> {
    // The runtime covers an empty one with memory; the disk is what is meant. It is not there where it was not empty.
    let _nothing_to_uncover = rustix::mount::unmount("/tmp", UnmountFlags::DETACH);
    let _as_far_as_it_goes = describe_host();
    limit_capabilities()?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    install(&filter().map_err(io::Error::other)?)
}

/// What the kernel counts for the outer namespace, and through it for the host's root, who made it: without limits of its
/// own, one sandbox could use up what all of them and the host share. Also a second refusal of namespaces.
fn limit_shared_counters() -> io::Result<()> {
    const COUNTERS: &str = "/proc/sys/user";
    const LIMITS: [(&str, &str); 6] = [
        // Development servers use a few each.
        ("max_inotify_instances", "1024"),
        // One for each directory of a large project.
        ("max_inotify_watches", "131072"),
        // The inner one, and no more.
        ("max_user_namespaces", "1"),
        ("max_net_namespaces", "0"),
        ("max_cgroup_namespaces", "0"),
        ("max_time_namespaces", "0"),
    ];
    let settings = "/proc/sys";
    let flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Other engines have neither this mount nor these files, and count nothing across sandboxes.
    if !Path::new(COUNTERS).exists() || rustix::mount::mount_remount(settings, flags, c"").is_err() {
        return Ok(());
    }
    let limited = LIMITS.iter().try_for_each(|(name, most)| {
        match std::fs::write(Path::new(COUNTERS).join(name), most) {
            // Kernels without that kind.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    });
    rustix::mount::mount_remount(settings, flags | MountFlags::RDONLY, c"")?;
    limited
}

/// A process cannot map all ids for itself: that takes a capability in the namespace it has just left. A child that
/// stayed behind does it.
fn enter_own_namespaces() -> io::Result<()> {
    let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let agent = rustix::process::getpid();
    #[expect(unsafe_code, reason = "fork")]
    // SAFETY: no other thread exists, so the child is a whole process; it ends in `_exit`.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            drop(go);
            let code = match write_maps(&wait, agent) {
                Ok(()) => 0,
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            #[expect(unsafe_code, reason = "ends the child without running anything of the parent's")]
            // SAFETY: the call does not return.
            unsafe {
                libc::_exit(code)
            }
        }
        _ => {}
    }
    drop(wait);
    #[expect(unsafe_code, reason = "leaving a namespace can be unsafe with other flags")]
    // SAFETY: only the flag for file tables is dangerous, and it is not given.
    let moved = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) };
    if moved.is_ok() {
        rustix::io::write(&go, b"1")?;
    }
    drop(go);
    let waited = rustix::process::waitpid(rustix::process::Pid::from_raw(child), WaitOptions::empty())?;
    moved?;
    match waited.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => Err(io::Error::other("the process that maps ids was killed")),
    }
}

/// In the child: waits for the agent to be in its namespace, then maps the ids.
fn write_maps(wait: &std::os::fd::OwnedFd, agent: rustix::process::Pid) -> io::Result<()> {
    let mut go = [0; 1];
    if rustix::io::read(wait, &mut go)? == 0 {
        return Err(io::Error::from_raw_os_error(libc::ECANCELED));
    }
    for map in ["uid_map", "gid_map"] {
        std::fs::write(format!("/proc/{}/{map}", agent.as_raw_nonzero()), IDENTITY_MAP)?;
    }
    Ok(())
}

/// Names and resolvers, written from inside, where a link planted in the template leads nowhere but into the sandbox.
/// The disk may be full or the files missing on purpose: a sandbox starts all the same, but does not become another one.
///
/// # Errors
/// A machine id that is another sandbox's cannot be changed. It is as it was.
pub(crate) fn describe_host() -> io::Result<()> {
    let name = rustix::system::uname();
    let name = name.nodename().to_str().map_err(io::Error::other)?;
    let hosts = format!("{LOCALHOST}127.0.1.1\t{name}\n");
    for (path, text) in [
        ("/etc/hostname", format!("{name}\n")),
        ("/etc/resolv.conf", "nameserver 1.1.1.1\nnameserver 8.8.8.8\n".to_owned()),
        ("/etc/hosts", hosts),
    ] {
        // The guest's own additions stay when its disk is started again.
        let current = read_small(Path::new(path)).unwrap_or_default();
        if !current.starts_with(&text) {
            // In a fork the first lines are those of its source.
            let own = if path == "/etc/hosts" { additions(&current) } else { "" };
            let _ = replace(Path::new(path), &format!("{text}{own}"));
        }
    }
    ["/etc/machine-id", "/var/lib/dbus/machine-id"]
        .map(|path| own_machine_id(Path::new(path), name))
        .into_iter()
        .collect()
}

/// Lists of names that nobody wants to reach have some megabytes.
const MAX_NAMES_BYTES: u64 = 16 * 1024 * 1024;

/// Nothing that could keep the boot waiting, and no more than that.
fn read_small(path: &Path) -> io::Result<String> {
    let of = std::fs::metadata(path)?;
    if !of.is_file() || of.len() > MAX_NAMES_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_NAMES_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

const LOCALHOST: &str = "127.0.0.1\tlocalhost\n";

/// What the guest wrote below the lines that another sandbox's agent wrote.
fn additions(hosts: &str) -> &str {
    let below = hosts.strip_prefix(LOCALHOST).filter(|rest| rest.starts_with("127.0.1.1\tsandbox-"));
    below.and_then(|rest| rest.split_once('\n')).map_or("", |(_, own)| own)
}

/// A machine id that came with the disk belongs to the sandbox in which it was made, and all forks of it would share it: its
/// first digits become those of this sandbox's own name. One that is not there, or not an id, is left to the guest.
fn own_machine_id(path: &Path, hostname: &str) -> io::Result<()> {
    let Some(own) = hostname.strip_prefix("sandbox-").filter(|own| is_hex(own) && own.len() == 8) else {
        return Ok(());
    };
    // No link, and nothing that cannot be read: whatever it is, it is not what all have in common.
    if !std::fs::symlink_metadata(path).is_ok_and(|of| of.is_file()) {
        return Ok(());
    }
    let Ok(id) = read_small(path) else { return Ok(()) };
    let id = id.trim_end();
    if id.len() == 32 && is_hex(id) && !id.starts_with(own) {
        // In their place: that needs no room on a full disk, and never leaves half of it.
        std::fs::File::options().write(true).open(path)?.write_all_at(own.as_bytes(), 0)?;
    }
    Ok(())
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    // Images often have a link here, to a file that some service would make; a pipe would be waited for.
    if std::fs::symlink_metadata(path).is_ok_and(|of| !of.is_file()) {
        std::fs::remove_file(path)?;
    }
    std::fs::write(path, text)
}

/// A new user namespace starts with every capability; the bounding set decides what a child can ever get back.
fn limit_capabilities() -> io::Result<()> {
    for one in CapabilitySet::all().difference(KEPT).iter() {
        match rustix::thread::remove_capability_from_bounding_set(one) {
            // A capability newer than the kernel.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let sets = CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Refuses new namespaces of the kinds above. `clone3`, whose flags a filter cannot see, is answered by the engine's own
/// filter with "no such call", here too for engines without one.
fn filter() -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let asks_for = |flag: libc::c_int| {
        let flag = u64::from(flag.unsigned_abs());
        let equal = SeccompCmpOp::MaskedEq(flag);
        SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Qword, equal, flag)?])
    };
    let any = |flags: &[libc::c_int]| flags.iter().map(|&flag| asks_for(flag)).collect::<Result<Vec<_>, _>>();
    let refused = BTreeMap::from([
        (libc::SYS_unshare, any(&REFUSED_NAMESPACES)?),
        (libc::SYS_clone, any(&REFUSED_NAMESPACES[..3])?),
        (libc::SYS_setns, Vec::new()),
    ]);
    let absent = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    [(refused, libc::EPERM), (absent, libc::ENOSYS)]
        .into_iter()
        .map(|(rules, error)| {
            let action = SeccompAction::Errno(error.unsigned_abs());
            SeccompFilter::new(rules, SeccompAction::Allow, action, std::env::consts::ARCH.try_into()?)?
                .try_into()
        })
        .collect()
}

/// Installs filters without `no_new_privs`, which would take `sudo` from the sandbox; `CAP_SYS_ADMIN` permits that.
fn install(programs: &[BpfProgram]) -> io::Result<()> {
    for program in programs {
        let length = u16::try_from(program.len()).map_err(io::Error::other)?;
        let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
        #[expect(unsafe_code, reason = "the library's installer would set no_new_privs")]
        // SAFETY: the program outlives the call, `len` is its length, its instructions have the kernel's layout, and
        // the kernel only reads them.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_has_its_own_names_and_its_sources_additions() {
        let old = "127.0.0.1\tlocalhost\n127.0.1.1\tsandbox-0b8e6b1e\n10.0.0.7\tdb\n";
        assert_eq!(additions(old), "10.0.0.7\tdb\n");
        for other in
            ["", "127.0.0.1\tlocalhost\n", "127.0.0.1\tlocalhost\n127.0.1.1\thost\nx\n", "10.0.0.7\tdb\n"]
        {
            assert_eq!(additions(other), "", "{other}");
        }
        let dir = std::env::temp_dir().join(format!("superserve-machine-id-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (file, link) = (dir.join("id"), dir.join("link"));
        let id = "0123456789abcdef0123456789abcdef\n";
        std::fs::write(&file, id).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let read = || std::fs::read_to_string(&file).unwrap();
        own_machine_id(&link, "sandbox-ffffffff").unwrap();
        own_machine_id(&file, "elsewhere").unwrap();
        assert_eq!(read(), id);
        own_machine_id(&file, "sandbox-ffffffff").unwrap();
        assert_eq!(read(), "ffffffff89abcdef0123456789abcdef\n");
        for no_id in ["", "uninitialized\n", "0123"] {
            std::fs::write(&file, no_id).unwrap();
            own_machine_id(&file, "sandbox-ffffffff").unwrap();
            assert_eq!(read(), no_id);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_filter_compiles_and_nothing_over_the_network_is_kept() {
        assert_eq!(filter().unwrap().len(), 2);
        for gone in [
            CapabilitySet::NET_ADMIN,
            CapabilitySet::NET_RAW,
            CapabilitySet::SYS_MODULE,
            CapabilitySet::SYS_PTRACE,
            CapabilitySet::SYS_RAWIO,
            CapabilitySet::SYS_RESOURCE,
            CapabilitySet::SYS_TIME,
            CapabilitySet::BPF,
        ] {
            assert!(!KEPT.contains(gone));
        }
    }
}
