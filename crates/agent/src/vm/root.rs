//! The sandbox's root: the template's image below, read-only, the sandbox's own disk on top. The same overlay that the host
//! mounts for containers, except that the host never mounts what this guest has written.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Dev, FileType, Mode, makedev};
use rustix::mount::{MountFlags, MountPropagationFlags};

use super::identity::BOOT_ID;
use super::step;

/// Where the agent lies in the guest, as in every engine.
pub(super) const AGENT: &str = "/.superserve/agent";
/// Where the root is put together, and stays for this process.
pub(super) const ROOT: &str = "/root";
/// The top of the overlay.
pub(super) const UPPER: &str = "/disk/upper";
/// The template's image and the sandbox's disk, in the order in which the engine attaches them, and where they go.
const BASE: (&str, &str) = ("/dev/vda", "/base");
const DISK: (&str, &str) = ("/dev/vdb", "/disk");
/// Devices appear within milliseconds of their module, within this where everything is emulated on a busy host.
const DEVICE_LIMIT: Duration = Duration::from_secs(20);
const DEVICE_POLL: Duration = Duration::from_millis(5);

/// As a container has them: type, number, mode.
const NODES: [(&str, (u32, u32)); 7] = [
    ("null", (1, 3)),
    ("zero", (1, 5)),
    ("full", (1, 7)),
    ("random", (1, 8)),
    ("urandom", (1, 9)),
    ("tty", (5, 0)),
    ("fuse", (10, 229)),
];
const LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];
/// Shows the kernel's addresses, or lets root reach it: the workload's root has no namespace between itself and these.
const MASKED: [&str; 6] =
    ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kallsyms", "/proc/vmallocinfo", "/proc/modules"];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Waits for something that a driver announces later. The kernel's announcements would take a socket and a parser.
pub(super) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if start.elapsed() > DEVICE_LIMIT {
            return Err(io::Error::other(format!("{what} did not appear")));
        }
        std::thread::sleep(DEVICE_POLL);
    }
}

/// Mounts both disks and the overlay.
pub(super) fn mount() -> io::Result<()> {
    let flags = MountFlags::NODEV | MountFlags::NOATIME;
    for ((device, at), more, options) in
        [(BASE, MountFlags::RDONLY, None), (DISK, MountFlags::empty(), Some(c"noinit_itable,discard"))]
    {
        wait_for(device, || Path::new(device).exists().then_some(()))?;
        std::fs::create_dir_all(at)?;
        rustix::mount::mount(device, at, "ext4", flags | more, options)
            .map_err(|error| step("mount a disk")(error.into()))?;
    }
    let (upper, work) = (Path::new(UPPER), Path::new(DISK.1).join("work"));
    if !upper.exists() {
        // Under another name first, so that a disk either has a whole top or none.
        let unfinished = upper.with_extension("new");
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&unfinished)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(work)?;
        std::fs::rename(unfinished, upper)?;
    }
    std::fs::create_dir_all(ROOT)?;
    let options =
        c"lowerdir=/base,upperdir=/disk/upper,workdir=/disk/work,redirect_dir=on,metacopy=off,index=off,xino=off";
    rustix::mount::mount("superserve", ROOT, "overlay", MountFlags::NODEV, Some(options))
        .map_err(|error| step("mount the root")(error.into()))
}

/// Enters the root; in the child that becomes the agent, inside namespaces of its own.
pub(super) fn enter(hostname: &str) -> io::Result<()> {
    rustix::system::sethostname(hostname.as_bytes())?;
    // When memory runs out, a command goes and the agent stays: commands raise theirs.
    std::fs::write("/proc/self/oom_score_adj", "-900")?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    place_agent()?;
    let boot_id = File::open(BOOT_ID).map_err(step("open the boot id"))?;
    std::env::set_current_dir(ROOT)?;
    rustix::mount::mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    std::env::set_current_dir("/")?;
    let closed = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    mount_new("proc", "/proc", closed, None)?;
    make_devices()?;
    mount_new("sysfs", "/sys", closed | MountFlags::RDONLY, None)?;
    for path in READ_ONLY {
        protect(path, |path| {
            rustix::mount::mount_bind(path, path)?;
            Ok(rustix::mount::mount_remount(path, closed | MountFlags::BIND | MountFlags::RDONLY, c"")?)
        })?;
    }
    for path in MASKED {
        protect(path, |path| Ok(rustix::mount::mount_bind("/dev/null", path)?))?;
    }
    protect("/proc/sys/kernel/random/boot_id", |path| {
        rustix::mount::mount_bind(format!("/proc/self/fd/{}", boot_id.as_raw_fd()), path)?;
        Ok(rustix::mount::mount_remount(path, closed | MountFlags::BIND | MountFlags::RDONLY, c"")?)
    })
}

/// What this kernel does not have needs no cover.
fn protect(path: &str, cover: impl FnOnce(&str) -> io::Result<()>) -> io::Result<()> {
    if Path::new(path).exists() { cover(path) } else { Ok(()) }
}

/// Binds the agent into the root; the template may have something else by that name, which is covered or replaced.
fn place_agent() -> io::Result<()> {
    let target = Path::new(ROOT).join(AGENT.trim_start_matches('/'));
    let parent = Path::new(ROOT).join(".superserve");
    if parent.is_symlink() || (parent.exists() && !parent.is_dir()) {
        std::fs::remove_file(&parent)?;
    }
    std::fs::create_dir_all(&parent)?;
    if target.is_symlink() {
        std::fs::remove_file(&target)?;
    }
    if !target.exists() {
        // With the mode that runc gives it.
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(&target)?;
    }
    rustix::mount::mount_bind("/init", &target)?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount_remount(&target, flags, c"")?)
}

fn make_devices() -> io::Result<()> {
    let closed = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    mount_new("tmpfs", "/dev", MountFlags::NOSUID, Some(c"mode=755,size=4m"))?;
    for (name, (major, minor)) in NODES {
        let path = format!("/dev/{name}");
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            FileType::CharacterDevice,
            mode,
            makedev(major, minor) as Dev,
        )?;
        rustix::fs::chmod(&path, mode)?;
    }
    for (name, target) in LINKS {
        std::os::unix::fs::symlink(target, format!("/dev/{name}"))?;
    }
    let pts = c"newinstance,ptmxmode=0666,mode=0620,gid=5";
    mount_new("devpts", "/dev/pts", MountFlags::NOSUID | MountFlags::NOEXEC, Some(pts))?;
    mount_new("tmpfs", "/dev/shm", closed, Some(c"mode=1777,size=50%"))?;
    mount_new("mqueue", "/dev/mqueue", closed, None)
}

fn mount_new(kind: &str, at: &str, flags: MountFlags, options: Option<&std::ffi::CStr>) -> io::Result<()> {
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("mount {at}: {error}"));
    // The template may have a link there, which would lead elsewhere.
    if Path::new(at).is_symlink() {
        std::fs::remove_file(at).map_err(failed)?;
    }
    std::fs::create_dir_all(at).map_err(failed)?;
    rustix::mount::mount(kind, at, kind, flags, options).map_err(|error| failed(error.into()))
}
