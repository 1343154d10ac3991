//! Firecracker as `superserve setup firecracker` installs it: two programs of one release and a kernel for their guests.
//!
//! ```text
//! <state_dir>/firecracker/firecracker, jailer     0755
//!                         vmlinux, modules/       what guests boot
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use driver_vm::{Firecracker, Kernel};
use rustix::fs::{CWD, RenameFlags};

use crate::config::Config;
use crate::output::Failure;

/// The release that is downloaded, and that the engine was tested with.
pub(crate) const VERSION: Version = Version(1, 16, 1);
/// The first one whose guests give pages back that they have freed.
const OLDEST: Version = Version(1, 14, 0);
/// Names of the programs; also of the lines that say their versions.
const PROGRAMS: [&str; 2] = ["firecracker", "jailer"];
/// They say their version and end.
const VERSION_LIMIT: Duration = Duration::from_secs(10);
const VERSION_POLL: Duration = Duration::from_millis(5);
/// What is read of that.
const VERSION_BYTES: u64 = 4_096;
/// A program with debugging information has a tenth of it.
const MAX_PROGRAM_BYTES: u64 = 256 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u32, u32, u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Version {
    /// Out of `Firecracker v1.16.1`, whatever follows.
    fn parse(said: &str) -> Option<Self> {
        let word = said.lines().next()?.split_ascii_whitespace().find_map(|word| word.strip_prefix('v'))?;
        let mut numbers = word.split(['.', '-']).map(|part| part.parse().ok());
        Some(Self(numbers.next()??, numbers.next()??, numbers.next()??))
    }
}

/// Where it is installed.
pub(crate) fn dir(state: &Path) -> PathBuf {
    state.join("firecracker")
}

/// Where its programs are, or would be.
pub(crate) fn paths(state: &Path) -> [PathBuf; 2] {
    PROGRAMS.map(|name| dir(state).join(name))
}

/// The programs that are installed.
pub(crate) fn programs(state: &Path) -> Option<Firecracker> {
    let [program, jailer] = paths(state);
    (program.is_file() && jailer.is_file()).then_some(Firecracker { program, jailer })
}

/// The kernel that its guests boot: the one that is named, or that is installed with it, or with this host.
pub(crate) fn kernel_of(config: &Config) -> Option<Kernel> {
    let own = config.vm.kernel.clone().or_else(|| Kernel::kept_in(&dir(&config.state_dir)));
    own.or_else(|| config.vm.kernel())
}

/// A kernel for guests: its image, and its modules unless it has all of them built in.
#[derive(Debug)]
pub(crate) struct GivenKernel {
    pub(crate) image: PathBuf,
    pub(crate) modules: Option<PathBuf>,
}

/// Finds the two programs in a directory, by their plain names or by those of a release.
pub(crate) fn find(from: &Path) -> Result<[PathBuf; 2], Failure> {
    let names: Vec<String> = std::fs::read_dir(from)
        .map_err(|error| Failure::new(format!("{} cannot be read: {error}", from.display())))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let one = |program: &str| {
        let release = format!("-{}", std::env::consts::ARCH);
        let of_release = |name: &&String| {
            name.strip_prefix(program).is_some_and(|rest| rest.starts_with("-v") && rest.ends_with(&release))
        };
        let mut found = names.iter().filter(|name| *name == program).chain(names.iter().filter(of_release));
        match (found.next(), found.next()) {
            (Some(name), None) => Ok(from.join(name)),
            (None, _) => Err(Failure::new(format!("{} has no {program}", from.display())).hint(format!(
                "it must be called {program}, or as in a release {program}-v{VERSION}{release}"
            ))),
            (Some(one), Some(other)) => {
                Err(Failure::new(format!("{} has both {one} and {other}", from.display()))
                    .hint("leave the one that is meant"))
            }
        }
    };
    let [program, jailer] = PROGRAMS;
    Ok([one(program)?, one(jailer)?])
}

/// Installs them in the place of what was there; all of it or nothing. For whoever holds the state directory.
pub(crate) fn install(
    state: &Path,
    programs: &[PathBuf; 2],
    kernel: &GivenKernel,
) -> Result<Version, Failure> {
    // By the same name each time, so that nothing of one that was cut off stays.
    let new = state.join("firecracker.new");
    let installed = stage(&new, programs, kernel).and_then(|version| {
        exchange(&new, &dir(state))?;
        Ok(version)
    });
    // What is left there is what was there before, or what could not be installed.
    match std::fs::remove_dir_all(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => installed.and(Err(error.into())),
        _ => installed,
    }
}

fn stage(new: &Path, programs: &[PathBuf; 2], kernel: &GivenKernel) -> Result<Version, Failure> {
    let _of_one_that_was_cut_off = std::fs::remove_dir_all(new);
    std::fs::create_dir(new)?;
    let mut versions = Vec::new();
    for (from, name) in programs.iter().zip(PROGRAMS) {
        let to = new.join(name);
        copy_program(from, &to)?;
        if is_dynamic(&to)? {
            return Err(Failure::new(format!(
                "{} needs libraries, which it would not have in its jail",
                from.display()
            ))
            .hint("a release's programs are linked statically"));
        }
        versions.push(version(&to, name).map_err(|why| Failure::new(format!("{}: {why}", from.display())))?);
    }
    if versions[0] != versions[1] {
        return Err(Failure::new(format!("firecracker is {} and jailer is {}", versions[0], versions[1]))
            .hint("take both from one release"));
    }
    if versions[0] < OLDEST {
        return Err(Failure::new(format!("Firecracker {} is too old", versions[0]))
            .hint(format!("{OLDEST} or newer; {VERSION} is what was tested")));
    }
    Kernel::keep(&kernel.image, kernel.modules.as_deref(), new)?;
    File::open(new)?.sync_all()?;
    Ok(versions[0])
}

fn copy_program(from: &Path, to: &Path) -> Result<(), Failure> {
    let mut source = File::open(from)?;
    if !source.metadata()?.is_file() || source.metadata()?.len() > MAX_PROGRAM_BYTES {
        return Err(Failure::new(format!("{} is no program", from.display())));
    }
    let mut copy = File::options().write(true).create_new(true).open(to)?;
    io::copy(&mut source, &mut copy)?;
    copy.set_permissions(PermissionsExt::from_mode(0o755))?;
    Ok(copy.sync_all()?)
}

/// Whether a program asks for another one to load its libraries (`PT_INTERP`).
fn is_dynamic(program: &Path) -> io::Result<bool> {
    const HEADERS_AT: usize = 32;
    const HEADER_BYTES: usize = 54;
    const INTERPRETER: u32 = 3;
    let mut head = Vec::new();
    File::open(program)?.take(64 * 1024).read_to_end(&mut head)?;
    let no_program = || io::Error::other(format!("{} is no program for this machine", program.display()));
    let number = |at: usize, bytes: usize| -> io::Result<u64> {
        let found = head.get(at..at + bytes).ok_or_else(no_program)?;
        Ok(found.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    // 64 bits, the lower byte first.
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return Err(no_program());
    }
    let start = usize::try_from(number(HEADERS_AT, 8)?).map_err(io::Error::other)?;
    let (size, count) = (number(HEADER_BYTES, 2)?, number(HEADER_BYTES + 2, 2)?);
    for header in 0..count {
        let at = usize::try_from(header * size).ok().and_then(|at| at.checked_add(start));
        if number(at.filter(|at| *at < head.len()).ok_or_else(no_program)?, 4)? == u64::from(INTERPRETER) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a program says its version is, which also shows that it runs here.
fn version(program: &Path, name: &str) -> Result<Version, String> {
    let mut child = Command::new(program)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("it does not start: {error}"))?;
    let begun = Instant::now();
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if begun.elapsed() < VERSION_LIMIT => std::thread::sleep(VERSION_POLL),
            Ok(None) => {
                break Err(format!("it does not say its version within {} s", VERSION_LIMIT.as_secs()));
            }
            Err(error) => break Err(error.to_string()),
        }
    };
    if ended.is_err() {
        let _it_ends = child.kill().and_then(|()| child.wait());
    }
    let mut said = Vec::new();
    if let (Ok(_), Some(output)) = (&ended, child.stdout.take()) {
        output.take(VERSION_BYTES).read_to_end(&mut said).map_err(|error| error.to_string())?;
    }
    let said = String::from_utf8_lossy(&said);
    let its_own = said.to_ascii_lowercase().starts_with(name);
    match ended {
        Ok(status) if status.success() && its_own => {
            Version::parse(&said).ok_or_else(|| format!("it says no version: {}", said.trim()))
        }
        Ok(status) => Err(format!("it is not {name} ({status})")),
        Err(why) => Err(why),
    }
}

/// Puts `new` in the place of `old`, and `old`, if it was there, in the place of `new`.
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Err(rustix::io::Errno::NOENT) => std::fs::rename(new, old)?,
        other => other?,
    }
    File::open(old.parent().unwrap_or(old))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let version = |said| Version::parse(said);
        assert_eq!(version("Firecracker v1.16.1\n\nmore"), Some(VERSION));
        assert_eq!(version("Jailer v1.16.0-dev"), Some(Version(1, 16, 0)));
        assert!(version("Firecracker v1.9.1") < Some(OLDEST));
        for said in
            ["", "Firecracker", "Firecracker 1.2.3", "Firecracker v1.2", "Firecracker v1.2.x", "\nv1.2.3"]
        {
            assert_eq!(version(said), None, "{said}");
        }
        assert_eq!(VERSION.to_string(), "1.16.1");
    }

    #[test]
    fn programs_are_found_by_either_name() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| std::fs::write(dir.path().join(name), "").unwrap();
        assert!(find(dir.path()).is_err());
        make(&format!("firecracker-v1.16.1-{}", std::env::consts::ARCH));
        make(&format!("firecracker-v1.16.1-{}.debug", std::env::consts::ARCH));
        assert!(find(dir.path()).is_err(), "no jailer");
        make("jailer");
        let [program, jailer] = find(dir.path()).unwrap();
        assert!(
            program.ends_with(format!("firecracker-v1.16.1-{}", std::env::consts::ARCH))
                && jailer.ends_with("jailer")
        );
        make("firecracker");
        assert!(find(dir.path()).is_err(), "which one?");
    }

    #[test]
    fn what_is_no_release_is_refused_and_changes_nothing() {
        let state = tempfile::tempdir().unwrap();
        let at = |name: &str| state.path().join(name);
        std::fs::create_dir(dir(state.path())).unwrap();
        std::fs::write(dir(state.path()).join("firecracker"), "of before").unwrap();
        std::fs::write(at("text"), "#!/bin/sh\necho Firecracker v1.16.1\n").unwrap();
        std::fs::create_dir_all(at("firecracker.new/of/one/cut/off")).unwrap();
        std::fs::write(at("cut"), b"\x7fELF\x02\x01").unwrap();
        let kernel = GivenKernel { image: at("text"), modules: None };
        let own = std::env::current_exe().unwrap();
        for program in [at("text"), at("cut"), at("absent"), state.path().to_owned(), own] {
            let programs = [program.clone(), program];
            let Err(failure) = install(state.path(), &programs, &kernel) else { panic!("{programs:?}") };
            println!("{failure:?}");
            assert_eq!(std::fs::read(dir(state.path()).join("firecracker")).unwrap(), b"of before");
            let names = std::fs::read_dir(state.path()).unwrap().flatten().map(|e| e.file_name());
            assert_eq!(names.filter(|name| name.to_string_lossy().ends_with(".new")).count(), 0);
        }
    }

    #[test]
    fn one_directory_takes_the_place_of_the_other() {
        let root = tempfile::tempdir().unwrap();
        let (new, old) = (root.path().join("new"), root.path().join("old"));
        for content in ["first", "second"] {
            std::fs::create_dir(&new).unwrap();
            std::fs::write(new.join("file"), content).unwrap();
            exchange(&new, &old).unwrap();
            assert_eq!(std::fs::read_to_string(old.join("file")).unwrap(), content);
            let _former = std::fs::remove_dir_all(&new);
        }
    }
}
