//! The guest's kernel, and the initial file system: the agent and the modules it loads.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use driver::DriverError;
use wire::agent::vm::MODULES_DIR;

use crate::cpio::Archive;
use crate::{firecracker, vmlinux};

/// What guests of QEMU need beyond the kernel itself, in the order in which one needs the other. Kernels that have one of them
/// built in list it in `modules.builtin`.
pub(crate) const MODULES: [&str; 13] = [
    "virtio/virtio_ring",
    "virtio/virtio",
    "virtio/virtio_pci_modern_dev",
    "virtio/virtio_pci_legacy_dev",
    "virtio/virtio_pci",
    "block/virtio_blk",
    "char/virtio_console",
    "char/hw_random/virtio-rng",
    "core/failover",
    "net/net_failover",
    "net/virtio_net",
    "overlayfs/overlay",
    "fuse/fuse",
];
/// Where a kernel lists what it has built in.
const BUILT_IN: &str = "modules.builtin";
/// What a kernel is called that was put aside.
const KEPT_IMAGE: &str = "vmlinux";
const KEPT_MODULES: &str = "modules";
/// How names of files end that are being written.
const UNFINISHED: &str = ".new";
/// Kernels of distributions are a tenth of it; the agent too.
const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// A kernel and its modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The image (`vmlinuz`).
    pub image: PathBuf,
    /// The directory of its modules, as in `/lib/modules/<release>`.
    pub modules: PathBuf,
}

impl Kernel {
    /// The newest cloud kernel that is installed, or extracted below another root.
    #[must_use]
    pub fn installed(root: &Path) -> Option<Self> {
        let names = std::fs::read_dir(root.join("boot")).ok()?.flatten();
        let mut releases: Vec<String> = names
            .filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("vmlinuz-")?.to_owned()))
            .filter(|release| release.contains("-cloud-"))
            .filter(|release| root.join("lib/modules").join(release).is_dir())
            .collect();
        releases.sort_by_key(|release| numbers(release));
        let release = releases.pop()?;
        Some(Self {
            image: root.join("boot").join(format!("vmlinuz-{release}")),
            modules: root.join("lib/modules").join(release),
        })
    }

    /// The one that [`Kernel::keep`] has put into a directory.
    #[must_use]
    pub fn kept_in(dir: &Path) -> Option<Self> {
        let kept = Self { image: dir.join(KEPT_IMAGE), modules: dir.join(KEPT_MODULES) };
        (kept.image.is_file() && kept.modules.is_dir()).then_some(kept)
    }

    /// Puts what Firecracker's guests need of a kernel into a directory: the image, unpacked, and its modules. Without a directory
    /// of modules the kernel has all of them built in, which nothing but a boot can tell.
    ///
    /// # Errors
    /// `Io` says what is wrong with the image or its modules, or that they cannot be written.
    pub fn keep(image: &Path, modules: Option<&Path>, to: &Path) -> Result<Self, DriverError> {
        let kept = Self { image: to.join(KEPT_IMAGE), modules: to.join(KEPT_MODULES) };
        let keep = || {
            write_whole(&kept.image, &vmlinux::from_image(read(image)?)?)?;
            std::fs::create_dir(&kept.modules)?;
            let Some(modules) = modules else {
                let all = firecracker::MODULES.map(|module| format!("kernel/{module}.ko\n")).concat();
                return write_whole(&kept.modules.join(BUILT_IN), all.as_bytes());
            };
            let given = Self { image: image.to_owned(), modules: modules.to_owned() };
            for file in given.module_files(&firecracker::MODULES)? {
                let to = kept.modules.join(file.strip_prefix(modules).map_err(io::Error::other)?);
                std::fs::create_dir_all(to.parent().unwrap_or(&to))?;
                write_whole(&to, &read(&file)?)?;
            }
            write_whole(&kept.modules.join(BUILT_IN), given.built_in().as_bytes())
        };
        keep().map_err(DriverError::io("take the guest kernel"))?;
        Ok(kept)
    }

    /// What the kernel says it has built in.
    fn built_in(&self) -> String {
        std::fs::read_to_string(self.modules.join(BUILT_IN)).unwrap_or_default()
    }

    /// The files of modules, in loading order, without those that the kernel contains.
    fn module_files(&self, modules: &[&str]) -> io::Result<Vec<PathBuf>> {
        let built_in = self.built_in();
        let mut files = Vec::new();
        for module in modules {
            if built_in.lines().any(|line| line.ends_with(&format!("{module}.ko"))) {
                continue;
            }
            let places = ["drivers", "fs", "net"];
            let found = places
                .iter()
                .map(|place| self.modules.join(format!("kernel/{place}/{module}.ko")))
                .find(|file| file.is_file());
            // A kernel that has it neither way, or compressed, cannot be used.
            files.push(found.ok_or_else(|| {
                let message = format!("{} has no module {module}.ko", self.modules.display());
                io::Error::new(io::ErrorKind::NotFound, message)
            })?);
        }
        Ok(files)
    }
}

/// For sorting `6.1.0-57-cloud-amd64` after `6.1.0-9-cloud-amd64`.
fn numbers(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// What machines boot, where any user may read it: the kernel's own file is often root's alone.
#[derive(Debug)]
pub(crate) struct Boot {
    pub(crate) image: PathBuf,
    dir: PathBuf,
    modules: Vec<PathBuf>,
    /// Held while an initial file system is made: whoever comes second finds what the first has made.
    making: Mutex<()>,
}

impl Boot {
    /// Copies the kernel into `dir`, in the form that the machines take, and checks that its modules are there.
    pub(crate) fn prepare(
        kernel: &Kernel,
        dir: &Path,
        modules: &[&str],
        form: impl Fn(Vec<u8>) -> io::Result<Vec<u8>>,
    ) -> Result<Self, DriverError> {
        let modules =
            kernel.module_files(modules).map_err(DriverError::io("look for the guest kernel's modules"))?;
        let prepare = || {
            std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
            let image = dir.join(format!("kernel-{}", stamp(&kernel.image)?));
            if !image.exists() {
                write_whole(&image, &form(read(&kernel.image)?)?)?;
            }
            Ok(image)
        };
        let image = prepare().map_err(DriverError::io("copy the guest kernel"))?;
        Ok(Self { image, dir: dir.to_owned(), modules, making: Mutex::default() })
    }

    /// The initial file system with this agent; made once.
    pub(crate) fn initial(&self, agent: &Path) -> io::Result<PathBuf> {
        let mut names = vec![stamp(agent)?];
        for module in &self.modules {
            names.push(stamp(module)?);
        }
        let path = self.dir.join(format!("initial-{}", digest(&names)));
        let _one = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if path.exists() {
            return Ok(path);
        }
        let mut archive = Archive::default();
        for dir in ["dev", "proc", "sys", MODULES_DIR.trim_start_matches('/')] {
            archive.directory(dir);
        }
        archive.character_device("dev/console", 0o600, (5, 1));
        archive.file("init", 0o755, &read(agent)?);
        for (number, module) in self.modules.iter().enumerate() {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            archive.file(
                &format!("{}/{number:02}-{name}", MODULES_DIR.trim_start_matches('/')),
                0o644,
                &read(module)?,
            );
        }
        self.forget_others(&path)?;
        write_whole(&path, &archive.finish())?;
        Ok(path)
    }

    /// Removes initial file systems of former agents; machines that run have read theirs.
    fn forget_others(&self, keep: &Path) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // What is being made is another server's.
            if name.starts_with("initial-") && !name.ends_with(UNFINISHED) && entry.path() != keep {
                let _another_server_was_first = std::fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// Names the content of a file by what changes with it.
pub(crate) fn stamp(path: &Path) -> io::Result<String> {
    let of = std::fs::metadata(path)?;
    Ok(format!("{:x}-{:x}-{:x}-{:x}", of.dev(), of.ino(), of.len(), of.mtime_nsec() ^ of.mtime()))
}

/// Names the processor, and what of it the host's kernel offers: a memory knows both.
pub(crate) fn processor() -> String {
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let all = read("/proc/cpuinfo");
    // The first one's.
    let mut of: Vec<String> = all
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| ["vendor_id", "model name", "flags"].iter().any(|field| line.starts_with(field)))
        .map(str::to_owned)
        .collect();
    of.extend(["/proc/sys/kernel/osrelease", "/proc/sys/kernel/version"].map(read));
    digest(&of)
}

fn digest(names: &[String]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    // Its own values only have to differ from each other on this machine.
    let mut hasher = DefaultHasher::new();
    names.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if std::fs::metadata(path)?.len() > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("{} is too large", path.display())));
    }
    std::fs::read(path)
}

/// Writes a file that is there as a whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let unfinished = path.with_extension(format!("{}-{number}{UNFINISHED}", std::process::id()));
    let written = File::create(&unfinished).and_then(|mut file| {
        file.write_all(bytes)?;
        file.set_permissions(PermissionsExt::from_mode(0o644))?;
        // After a loss of power an empty one would be there, and stay.
        file.sync_all()?;
        std::fs::rename(&unfinished, path)
    });
    if written.is_err() {
        let _not_there = std::fs::remove_file(&unfinished);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_cloud_kernel_with_modules_is_taken() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Kernel::installed(root.path()), None);
        std::fs::create_dir(root.path().join("boot")).unwrap();
        let add = |release: &str, modules: bool| {
            std::fs::write(root.path().join("boot").join(format!("vmlinuz-{release}")), "").unwrap();
            if modules {
                std::fs::create_dir_all(root.path().join("lib/modules").join(release)).unwrap();
            }
        };
        add("6.1.0-9-cloud-amd64", true);
        add("6.1.0-57-cloud-amd64", true);
        add("6.1.0-60-cloud-amd64", false);
        add("6.9.0-1-amd64", true);
        let kernel = Kernel::installed(root.path()).unwrap();
        assert!(kernel.image.ends_with("boot/vmlinuz-6.1.0-57-cloud-amd64"));
        let error = kernel.module_files(&MODULES).unwrap_err().to_string();
        assert!(error.contains("virtio_ring"), "{error}");
        let all = MODULES.map(|module| format!("kernel/drivers/{module}.ko\n")).concat();
        std::fs::write(kernel.modules.join("modules.builtin"), all).unwrap();
        assert_eq!(kernel.module_files(&MODULES).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_kernel_is_kept_with_what_it_needs() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::write(at("image"), b"\x7fELF of a kernel").unwrap();
        std::fs::create_dir(at("one")).unwrap();
        std::fs::create_dir(at("other")).unwrap();
        // All built in.
        let kept = Kernel::keep(&at("image"), None, &at("one")).unwrap();
        assert_eq!(Kernel::kept_in(&at("one")), Some(kept.clone()));
        assert!(kept.module_files(&firecracker::MODULES).unwrap().is_empty());
        // One missing, then all of them as files, one of them built in besides.
        let file = |module: &str| at("modules/kernel/drivers").join(format!("{module}.ko"));
        assert!(Kernel::keep(&at("image"), Some(&at("modules")), &at("other")).is_err());
        for module in firecracker::MODULES {
            std::fs::create_dir_all(file(module).parent().unwrap()).unwrap();
            std::fs::write(file(module), module).unwrap();
        }
        std::fs::write(at("modules/modules.builtin"), "kernel/fs/fuse/fuse.ko\n").unwrap();
        std::fs::remove_dir_all(at("other")).unwrap();
        std::fs::create_dir(at("other")).unwrap();
        let kept = Kernel::keep(&at("image"), Some(&at("modules")), &at("other")).unwrap();
        let files = kept.module_files(&firecracker::MODULES).unwrap();
        assert_eq!(files.len(), firecracker::MODULES.len() - 1);
        assert!(files.iter().all(|file| file.starts_with(at("other")) && file.is_file()));
        // What is no kernel.
        std::fs::write(at("image"), "rubbish").unwrap();
        assert!(Kernel::keep(&at("image"), None, &at("one")).is_err());
    }

    #[test]
    fn an_initial_file_system_is_made_once_per_agent() {
        let dir = tempfile::tempdir().unwrap();
        let agent = dir.path().join("agent");
        std::fs::write(&agent, "one").unwrap();
        let boot = Boot {
            image: PathBuf::new(),
            dir: dir.path().join("vm"),
            modules: Vec::new(),
            making: Mutex::default(),
        };
        std::fs::create_dir(&boot.dir).unwrap();
        let others = boot.dir.join("initial-0.1-1.new");
        std::fs::write(&others, "half").unwrap();
        // All at once, and each of them finds it afterwards.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert!(boot.initial(&agent).unwrap().exists()));
            }
        });
        assert!(others.exists());
        assert_eq!(std::fs::read_dir(&boot.dir).unwrap().count(), 2);
        let first = boot.initial(&agent).unwrap();
        assert_eq!(boot.initial(&agent).unwrap(), first);
        std::fs::write(&agent, "other").unwrap();
        let second = boot.initial(&agent).unwrap();
        assert!(second != first && second.exists() && !first.exists());
        assert!(boot.initial(&dir.path().join("none")).is_err());
    }
}
