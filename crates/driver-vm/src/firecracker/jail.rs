//! What one Firecracker process sees of the host's files: a small file system in memory that exists for it alone, with the
//! machine's files mounted into it. All of it is in the process's own mount namespace, so it ends with the process, however that
//! ends, and no file has to lie on a particular file system.
//!
//! ```text
//! <run_dir>/host/jail/<program>/<name>/root    empty for everybody else
//!     kernel initial base own                  mounted; all but the last read-only
//!     state.in memory.in                       of the checkpoint that is continued, read-only
//!     state.out memory.out                     where a checkpoint is mounted while it is written
//!     run/                                     sockets that the process makes
//! ```
//!
//! The jailer makes devices in it, copies the program into it, makes it the process's root and gives up all rights.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};
use tokio::net::UnixStream;

use crate::host_dir::Recorded;
use crate::sys;

pub(crate) const KERNEL: &str = "/kernel";
pub(crate) const INITIAL: &str = "/initial";
pub(crate) const BASE: &str = "/base";
pub(crate) const OWN: &str = "/own";
pub(crate) const STATE_IN: &str = "/state.in";
pub(crate) const MEMORY_IN: &str = "/memory.in";
pub(crate) const STATE_OUT: &str = "/state.out";
pub(crate) const MEMORY_OUT: &str = "/memory.out";

/// Where files are mounted.
const PLACES: [&str; 8] = [KERNEL, INITIAL, BASE, OWN, STATE_IN, MEMORY_IN, STATE_OUT, MEMORY_OUT];
/// What the jail holds besides the program: sockets, devices, places to mount at.
const ROOM_BYTES: u64 = 1024 * 1024;
const ROOM_FILES: &str = "64";

/// A jail that nobody has entered yet; without that it is gone when this is.
#[derive(Debug)]
pub(crate) struct Jail {
    /// The file system, mounted nowhere.
    files: OwnedFd,
    root: CString,
    inside: Vec<Inside>,
}

/// A file to be mounted in the jail.
#[derive(Debug)]
struct Inside {
    file: OwnedFd,
    /// Below the jail's root, and on the host.
    name: CString,
    path: CString,
    read_only: bool,
}

impl Jail {
    /// Makes the jail of a process that will have this name. `base` is the directory that the jailer is told.
    pub(crate) fn make(base: &Path, program: &Path, name: &str) -> io::Result<Self> {
        let root = base.join(program.file_name().unwrap_or_default()).join(name).join("root");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&root)?;
        let room = std::fs::metadata(program)?.len().next_multiple_of(4096) + ROOM_BYTES;
        let made = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in [("size", room.to_string().as_str()), ("nr_inodes", ROOM_FILES), ("mode", "0700")]
        {
            rustix::mount::fsconfig_set_string(made.as_fd(), key, value)?;
        }
        rustix::mount::fsconfig_create(made.as_fd())?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID;
        let files = rustix::mount::fsmount(made.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
        for place in PLACES {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(&files, below(place), flags, Mode::empty())?;
        }
        Ok(Self { files, root: text(root.as_os_str())?, inside: Vec::new() })
    }

    /// Lets the process have a file.
    pub(crate) fn add(&mut self, file: &File, place: &str, read_only: bool) -> io::Result<()> {
        let file = take(file)?;
        let root = Path::new(std::ffi::OsStr::from_bytes(self.root.as_bytes()));
        let path = text(root.join(below(place)).as_os_str())?;
        self.inside.push(Inside { file, name: text(below(place).as_ref())?, path, read_only });
        Ok(())
    }

    /// Makes the calling process, which has a mount namespace of its own and is about to become the jailer, see it. Between fork
    /// and exec: system calls only.
    pub(crate) fn appear(&self) -> io::Result<()> {
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change(c"/", private)?;
        let from_here = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&self.files, c"", CWD, self.root.as_c_str(), from_here)?;
        for inside in &self.inside {
            rustix::mount::move_mount(&inside.file, c"", &self.files, inside.name.as_c_str(), from_here)?;
            let closed = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            let flags = if inside.read_only { closed | MountFlags::RDONLY } else { closed };
            rustix::mount::mount_remount(inside.path.as_c_str(), MountFlags::BIND | flags, c"")?;
        }
        Ok(())
    }
}

/// Takes hold of a file as a mount of its own.
fn take(file: &File) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(rustix::mount::open_tree(file, c"", flags)?)
}

fn below(place: &str) -> &str {
    place.trim_start_matches('/')
}

fn text(path: &std::ffi::OsStr) -> io::Result<CString> {
    CString::new(path.as_bytes()).map_err(io::Error::other)
}

/// The jail of a process that runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inhabited(pub(crate) Recorded);

impl Inhabited {
    /// Its root; while the jailer is still at work there is none.
    fn root(self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{}/root", self.0.pid), flags, Mode::empty())?;
        // Looked at now that it is held: the number may be another process's by now.
        let same = driver::process::start_of(self.0.pid) == Some(self.0.start);
        let (its, ours) = (rustix::fs::fstat(&root)?, rustix::fs::stat("/")?);
        if !same || (its.st_dev, its.st_ino) == (ours.st_dev, ours.st_ino) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(root)
    }

    /// Connects to a socket that the process has made. It may have put something else there: a link would lead into the host's
    /// files, which are ours and not its own.
    pub(crate) async fn connect(self, socket: &str) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let found = rustix::fs::openat2(self.root()?, below(socket), flags, Mode::empty(), resolve)?;
        if !rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode).is_socket() {
            return Err(io::Error::other(format!("{socket} of the virtual machine is no socket")));
        }
        UnixStream::connect(format!("/proc/self/fd/{}", found.as_raw_fd())).await
    }

    /// Lets the process write into a file, at a place of its jail, until [`Inhabited::take_back`].
    pub(crate) fn lend(self, file: &File, place: &'static str) -> io::Result<()> {
        let file = take(file)?;
        self.inside(move || {
            let from_here = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            Ok(rustix::mount::move_mount(&file, c"", CWD, place, from_here)?)
        })
    }

    /// Takes a file away again, if it was lent.
    pub(crate) fn take_back(self, place: &'static str) -> io::Result<()> {
        self.inside(move || {
            match rustix::mount::unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                // Nothing is mounted there, or nothing is there at all.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
                other => Ok(other?),
            }
        })
    }

    /// Runs `work` with the process's mounts.
    fn inside<T: Send>(self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let _in_its_jail = self.root()?;
        let mounts = File::open(format!("/proc/{}/ns/mnt", self.0.pid))?;
        if driver::process::start_of(self.0.pid) != Some(self.0.start) {
            return Err(io::ErrorKind::NotFound.into());
        }
        sys::in_mounts(mounts.as_fd(), work)
    }

    /// Whose process it is.
    pub(crate) fn owner(self) -> io::Result<u32> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.pid))?;
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        let owner = ids.and_then(|ids| ids.split_ascii_whitespace().nth(1)?.parse().ok());
        owner.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Where the jailer makes jails, below the machine's own directory.
pub(crate) fn base(host: &Path) -> PathBuf {
    host.join("jail")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process with a root of its own, as Firecracker has one, whose content the test decides.
    struct Prisoner {
        child: Child,
        root: tempfile::TempDir,
    }

    impl Prisoner {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let prison = "mount --bind \"$0\" \"$0\"; cd \"$0\"; mkdir run usr old; mount --rbind /usr usr; \
                          for l in bin lib lib64; do ln -s usr/$l $l; done; \
                          pivot_root . old; cd /; echo in; read never";
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", prison]).arg(root.path());
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
            Self { child, root }
        }

        fn inhabited(&self) -> Inhabited {
            let pid = i32::try_from(self.child.id()).unwrap();
            Inhabited(Recorded { pid, start: driver::process::start_of(pid).unwrap_or_default() })
        }
    }

    impl Drop for Prisoner {
        fn drop(&mut self) {
            let _gone = self.child.kill().and_then(|()| self.child.wait());
        }
    }

    #[tokio::test]
    async fn what_is_in_the_place_of_a_socket_leads_nowhere() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: a process with a root of its own needs root");
            return;
        }
        let host = tempfile::tempdir().unwrap();
        let _of_the_host = tokio::net::UnixListener::bind(host.path().join("x.sock")).unwrap();
        let mut prisoner = Prisoner::new();
        let (jail, run) = (prisoner.inhabited(), prisoner.root.path().join("run"));
        let refused = |what: &'static str| async move {
            let why = jail.connect("/run/x.sock").await.map(drop).unwrap_err();
            println!("{what}: {why}");
        };
        refused("nothing").await;
        // A link to a socket of the host, on the last step and before.
        std::os::unix::fs::symlink(host.path().join("x.sock"), run.join("x.sock")).unwrap();
        refused("a link").await;
        std::fs::remove_file(run.join("x.sock")).unwrap();
        std::fs::rename(&run, prisoner.root.path().join("aside")).unwrap();
        std::os::unix::fs::symlink(host.path(), &run).unwrap();
        refused("a linked directory").await;
        std::fs::remove_file(&run).unwrap();
        std::fs::rename(prisoner.root.path().join("aside"), &run).unwrap();
        // Opening these as what they are would hang, or change something.
        for kind in [rustix::fs::FileType::Fifo, rustix::fs::FileType::CharacterDevice] {
            let null = rustix::fs::makedev(1, 3);
            rustix::fs::mknodat(CWD, run.join("x.sock"), kind, Mode::RUSR, null).unwrap();
            refused("a file of another kind").await;
            std::fs::remove_file(run.join("x.sock")).unwrap();
        }
        // What it should be.
        let _its_own = tokio::net::UnixListener::bind(run.join("x.sock")).unwrap();
        jail.connect("/run/x.sock").await.unwrap();
        assert_eq!(jail.owner().unwrap(), 0);
        // Another process of this number, and none.
        let other = Inhabited(Recorded { start: jail.0.start + 1, ..jail.0 });
        assert_eq!(other.connect("/run/x.sock").await.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(other.lend(&File::open("/dev/null").unwrap(), STATE_OUT).is_err());
        prisoner.child.kill().and_then(|()| prisoner.child.wait()).unwrap();
        assert_eq!(jail.connect("/run/x.sock").await.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(jail.take_back(STATE_OUT).is_err());
        // Ourselves: somebody whose root is the host's.
        let pid = i32::try_from(std::process::id()).unwrap();
        let ours = Inhabited(Recorded { pid, start: driver::process::start_of(pid).unwrap() });
        assert_eq!(ours.connect("/run/x.sock").await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn a_file_is_lent_for_a_time_and_whatever_lies_at_its_place() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: a process with a root of its own needs root");
            return;
        }
        let host = tempfile::tempdir().unwrap();
        let prisoner = Prisoner::new();
        let (jail, place) = (prisoner.inhabited(), prisoner.root.path().join("state.out"));
        let file = host.path().join("state");
        std::fs::write(&file, "").unwrap();
        std::fs::write(&place, "").unwrap();
        let seen = || std::fs::write(format!("/proc/{}/root/state.out", jail.0.pid), "written").is_ok();
        jail.take_back(STATE_OUT).unwrap();
        jail.lend(&File::open(&file).unwrap(), STATE_OUT).unwrap();
        assert!(seen());
        assert_eq!(std::fs::read(&file).unwrap(), b"written");
        assert_eq!(std::fs::read(&place).unwrap(), b"", "for it alone");
        jail.take_back(STATE_OUT).unwrap();
        std::fs::write(&file, "").unwrap();
        assert!(seen());
        assert_eq!(std::fs::read(&file).unwrap(), b"", "not any more");
        // A link there is not followed to a file of the host.
        let victim = host.path().join("victim");
        std::fs::write(&victim, "").unwrap();
        std::fs::remove_file(&place).unwrap();
        std::os::unix::fs::symlink(&victim, &place).unwrap();
        println!(
            "at a link: {:?}",
            jail.lend(&File::open(&file).unwrap(), STATE_OUT).map_err(|error| error.to_string())
        );
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains("victim"));
    }

    #[test]
    fn a_jail_that_nobody_enters_leaves_nothing() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: jails need root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        std::fs::write(&program, "program").unwrap();
        let mut jail = Jail::make(&dir.path().join("jail"), &program, "one").unwrap();
        jail.add(&File::open(&program).unwrap(), OWN, false).unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(dir.path().to_str().unwrap()));
        drop(jail);
        std::fs::remove_dir_all(dir.path().join("jail")).unwrap();
    }
}
