//! The isolation engine that the configuration asks for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use driver::Driver;
use driver_oci::{OciConfig, OciDriver};
use driver_vm::{Acceleration, FirecrackerConfig, Kernel, VmConfig, VmDriver};

use crate::config::{Config, Isolation};
use crate::firecracker;
use crate::output::Failure;

/// The program that runs virtual machines.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// How virtual machines are run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VmSettings {
    /// What they boot instead of the newest cloud kernel that is installed.
    pub(crate) kernel: Option<Kernel>,
    pub(crate) acceleration: Acceleration,
}

impl VmSettings {
    /// The kernel that is used, if there is one.
    pub(crate) fn kernel(&self) -> Option<Kernel> {
        self.kernel.clone().or_else(|| Kernel::installed(Path::new("/")))
    }
}

/// Makes the engine that removes what is there, whatever the configuration asks for now.
pub(crate) fn for_removal(config: &Config, instance: &str) -> Result<Arc<dyn Driver>, Failure> {
    if node::guests_mount_disks(&config.state_dir) {
        return Ok(Arc::new(VmDriver::new(&VmConfig {
            qemu: PathBuf::from(QEMU),
            kernel: None,
            boot_dir: config.state_dir.join("vm"),
            acceleration: config.vm.acceleration,
        })?));
    }
    open(&Config { isolation: Isolation::Container, ..config.clone() }, instance)
}

/// Makes the engine. `auto` is the engine of containers until a stronger one can prove itself.
pub(crate) fn open(config: &Config, instance: &str) -> Result<Arc<dyn Driver>, Failure> {
    match config.isolation {
        Isolation::Auto | Isolation::Container => Ok(Arc::new(OciDriver::new(&OciConfig {
            runtime: PathBuf::from("runc"),
            instance: instance.to_owned(),
            device_dir: config.state_dir.join("dev"),
            id_shift: templates::ID_SHIFT,
        })?)),
        Isolation::Qemu => {
            let kernel = config.vm.kernel().ok_or_else(|| {
                Failure::new("there is no kernel for virtual machines")
                    .hint("apt-get install -y linux-image-cloud-amd64, or name one with --vm-kernel and --vm-modules")
            })?;
            Ok(Arc::new(VmDriver::new(&VmConfig {
                qemu: PathBuf::from(QEMU),
                kernel: Some(kernel),
                boot_dir: config.state_dir.join("vm"),
                acceleration: config.vm.acceleration,
            })?))
        }
        Isolation::Firecracker => firecracker(config),
        // `doctor`, and with it `up`, has refused this.
        Isolation::Gvisor => Err(Failure::new("this isolation engine is not part of this version")),
    }
}

/// Firecracker as it was set up, with the kernel that is named, that was set up with it, or that is installed.
fn firecracker(config: &Config) -> Result<Arc<dyn Driver>, Failure> {
    let programs = firecracker::programs(&config.state_dir).ok_or_else(|| {
        Failure::new("Firecracker is not installed").hint("superserve setup firecracker --download")
    })?;
    let own = config.vm.kernel.clone().or_else(|| firecracker::kernel(&config.state_dir));
    let kernel = own.or_else(|| config.vm.kernel()).ok_or_else(|| {
        Failure::new("there is no kernel for virtual machines").hint("superserve setup firecracker")
    })?;
    Ok(Arc::new(VmDriver::firecracker(&FirecrackerConfig {
        programs,
        kernel: Some(kernel),
        boot_dir: config.state_dir.join("vm/firecracker"),
    })?))
}
