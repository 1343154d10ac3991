//! The isolation engines of this host, and which of them new sandboxes may run on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use domain::{Engine, Offer};
use driver::{Driver, DriverError};
use driver_oci::{OciConfig, OciDriver};
use driver_vm::{Acceleration, Firecracker, FirecrackerConfig, Kernel, VmConfig, VmDriver};
use node::Engines;

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

/// Opens every engine of this host. One that cannot start machines says why, and still removes what it left, if it can.
pub(crate) fn open(config: &Config, instance: &str) -> Engines {
    let engines = match container(config, instance) {
        Ok(driver) => Engines::default().with(driver),
        Err(error) => Engines::default().without(Engine::Container, chain(&error)),
    };
    let engines = match qemu(config) {
        Ok(driver) => engines.with(driver),
        Err(why) => match qemu_for_removal(config) {
            Ok(driver) => engines.only_removing(driver, why),
            Err(_) => engines.without(Engine::Qemu, why),
        },
    };
    let engines = match firecracker(config) {
        Ok(driver) => engines.with(driver),
        Err(why) => match firecracker_for_removal() {
            Ok(driver) => engines.only_removing(driver, why),
            Err(_) => engines.without(Engine::Firecracker, why),
        },
    };
    engines.without(Engine::Gvisor, "it is not part of this version".to_owned())
}

fn container(config: &Config, instance: &str) -> Result<Arc<dyn Driver>, DriverError> {
    Ok(Arc::new(OciDriver::new(&OciConfig {
        runtime: PathBuf::from("runc"),
        instance: instance.to_owned(),
        device_dir: config.state_dir.join("dev"),
        id_shift: templates::ID_SHIFT,
    })?))
}

fn qemu(config: &Config) -> Result<Arc<dyn Driver>, String> {
    driver::process::find(Path::new(QEMU)).map_err(|error| error.to_string())?;
    let kernel = config.vm.kernel().ok_or("there is no kernel for virtual machines")?;
    let driver = VmDriver::new(&VmConfig { kernel: Some(kernel), ..vm_config(config) });
    Ok(Arc::new(driver.map_err(|error| chain(&error))?))
}

fn qemu_for_removal(config: &Config) -> Result<Arc<dyn Driver>, DriverError> {
    Ok(Arc::new(VmDriver::new(&vm_config(config))?))
}

fn vm_config(config: &Config) -> VmConfig {
    VmConfig {
        qemu: PathBuf::from(QEMU),
        kernel: None,
        boot_dir: config.state_dir.join("vm"),
        acceleration: config.vm.acceleration,
    }
}

/// Firecracker as it was set up, with the kernel that is named, that was set up with it, or that is installed.
fn firecracker(config: &Config) -> Result<Arc<dyn Driver>, String> {
    let programs = firecracker::programs(&config.state_dir)
        .ok_or("it is not installed (superserve setup firecracker --download)")?;
    if !Path::new("/dev/kvm").exists() {
        return Err("/dev/kvm is absent".to_owned());
    }
    let kernel = firecracker::kernel_of(config).ok_or("there is no kernel for virtual machines")?;
    let boot_dir = config.state_dir.join("vm/firecracker");
    let driver = VmDriver::firecracker(&FirecrackerConfig { programs, kernel: Some(kernel), boot_dir });
    Ok(Arc::new(driver.map_err(|error| chain(&error))?))
}

/// Removing machines needs neither of them.
fn firecracker_for_removal() -> Result<Arc<dyn Driver>, DriverError> {
    let programs = Firecracker { program: PathBuf::new(), jailer: PathBuf::new() };
    let config = FirecrackerConfig { programs, kernel: None, boot_dir: PathBuf::new() };
    Ok(Arc::new(VmDriver::firecracker(&config)?))
}

/// What new sandboxes may run on.
///
/// # Errors
/// The engine that the configuration names cannot start machines here.
pub(crate) fn offer(config: &Config, engines: &Engines) -> Result<Offer, Failure> {
    let default = match config.isolation {
        Isolation::Auto | Isolation::Container => Engine::Container,
        Isolation::Gvisor => Engine::Gvisor,
        Isolation::Qemu => Engine::Qemu,
        Isolation::Firecracker => Engine::Firecracker,
    };
    if let Some(why) = engines.absence(default) {
        return Err(Failure::new(format!("sandboxes cannot run with {default} isolation: {why}"))
            .hint("`superserve doctor` says what it needs"));
    }
    // Whoever names an engine wants at least that between sandboxes and the host.
    let least = if config.isolation == Isolation::Auto { Engine::Container } else { default };
    Ok(Offer::new(default, engines.working().filter(|engine| *engine >= least)))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
