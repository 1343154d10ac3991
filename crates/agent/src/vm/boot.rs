//! From a bare kernel to devices: the kernel's views, what the engine wrote on its command line, its modules.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use rustix::mount::MountFlags;
use wire::agent::vm::{MODULES_DIR, word};

use super::step;

/// What the engine decided about this machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) address: Ipv4Addr,
    pub(super) gateway: Ipv4Addr,
    pub(super) hostname: String,
    pub(super) nproc: String,
    /// The vsock port to listen on, if the host calls there.
    pub(super) vsock: Option<u32>,
}

pub(super) fn mount_kernel_views() -> io::Result<()> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        std::fs::create_dir_all(target)?;
        match rustix::mount::mount(kind, target, kind, MountFlags::empty(), None) {
            // Kernels that mount it by themselves.
            Ok(()) | Err(rustix::io::Errno::BUSY) => {}
            Err(error) => return Err(step("mount the kernel's views")(error.into())),
        }
    }
    Ok(())
}

pub(super) fn read_command_line() -> io::Result<Given> {
    parse(&std::fs::read_to_string("/proc/cmdline")?)
}

fn parse(line: &str) -> io::Result<Given> {
    let word = |name: &str| {
        line.split_ascii_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
            .ok_or_else(|| io::Error::other(format!("{name} is missing on the kernel's command line")))
    };
    let malformed = |name: &str| io::Error::other(format!("{name} is malformed"));
    let address = |name: &str| word(name)?.parse::<Ipv4Addr>().map_err(|_| malformed(name));
    Ok(Given {
        address: address(word::ADDRESS)?,
        gateway: address(word::GATEWAY)?,
        hostname: word(word::HOSTNAME)?.to_owned(),
        nproc: word(word::NPROC)?.to_owned(),
        vsock: word(word::VSOCK)
            .ok()
            .map(|port| port.parse().map_err(|_| malformed(word::VSOCK)))
            .transpose()?,
    })
}

/// In the order of their names, which is the order in which they need each other.
pub(super) fn load_modules() -> io::Result<()> {
    let mut files: Vec<_> =
        std::fs::read_dir(MODULES_DIR)?.collect::<io::Result<Vec<_>>>()?.iter().map(|e| e.path()).collect();
    files.sort();
    for file in files {
        load(&file).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))?;
    }
    Ok(())
}

fn load(file: &Path) -> io::Result<()> {
    match rustix::system::finit_module(File::open(file)?, c"", 0) {
        // Built into this kernel.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_whole_or_refused() {
        let line = "console=ttyS0 superserve.address=100.96.0.1 superserve.gateway=100.96.0.0 superserve.hostname=sandbox-1 superserve.nproc=4096\n";
        let given = parse(line).unwrap();
        assert_eq!(given.gateway, Ipv4Addr::new(100, 96, 0, 0));
        assert_eq!(given.vsock, None);
        assert_eq!(parse(&format!("{line} superserve.vsock=1010")).unwrap().vsock, Some(1010));
        assert!(parse(&format!("{line} superserve.vsock=x")).is_err());
        assert_eq!((given.hostname.as_str(), given.nproc.as_str()), ("sandbox-1", "4096"));
        for name in ["address", "gateway", "hostname", "nproc"] {
            let error = parse(&line.replace(&format!("superserve.{name}="), "x=")).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        assert!(parse(&line.replace("100.96.0.1", "100.96.0")).is_err());
    }
}
