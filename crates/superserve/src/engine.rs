//! The isolation engines of this host: what each needs, how it is opened, and which of them new sandboxes may run on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use domain::{Engine, Offer};
use driver::{Driver, DriverError};
use driver_oci::{GvisorConfig, GvisorDriver, OciConfig, OciDriver};
use driver_vm::{Acceleration, Firecracker, FirecrackerConfig, Kernel, VmConfig, VmDriver};
use node::Engines;

use crate::config::{Config, Isolation};
use crate::firecracker;
use crate::output::Failure;

/// The program that runs virtual machines.
pub(crate) const QEMU: &str = "qemu-system-x86_64";
/// The program that runs sandboxes of gVisor.
pub(crate) const RUNSC: &str = "runsc";
/// Where the processor runs guests' instructions.
pub(crate) const KVM: &str = "/dev/kvm";

/// How virtual machines are run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VmSettings {
    /// What they boot instead of the newest cloud kernel that is installed.
    pub(crate) kernel: Option<Kernel>,
    /// Emulated when nobody says, but for what proves itself.
    pub(crate) acceleration: Option<Acceleration>,
}

impl VmSettings {
    /// How they are run.
    pub(crate) fn acceleration(&self) -> Acceleration {
        self.acceleration.unwrap_or_default()
    }

    /// The kernel that is used, if there is one.
    pub(crate) fn kernel(&self) -> Option<Kernel> {
        self.kernel.clone().or_else(|| Kernel::installed(Path::new("/")))
    }
}

/// Why an engine starts nothing here, and what changes that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Absent {
    pub(crate) why: String,
    pub(crate) mend: &'static str,
}

impl Absent {
    pub(crate) fn new(why: impl Into<String>, mend: &'static str) -> Self {
        Self { why: why.into(), mend }
    }
}

/// The files of which an engine consists: without one of them it is not here, and with another one it is another engine.
pub(crate) fn needs(config: &Config, engine: Engine) -> Result<Vec<PathBuf>, Absent> {
    match engine {
        Engine::Container => Ok(vec![program("runc", "apt-get install -y runc")?]),
        Engine::Qemu => {
            let mut files = vec![program(QEMU, "apt-get install -y qemu-system-x86")?];
            let mend =
                "apt-get install -y linux-image-cloud-amd64, or name one with --vm-kernel and --vm-modules";
            let kernel =
                config.vm.kernel().ok_or_else(|| Absent::new("no cloud kernel is installed", mend))?;
            for file in [kernel.image, kernel.modules] {
                if !file.exists() {
                    return Err(Absent::new(format!("{} is absent", file.display()), mend));
                }
                files.push(file);
            }
            files.push(device("/dev/net/tun", "modprobe tun")?);
            if config.vm.acceleration() == Acceleration::Kvm {
                files.push(device(KVM, "leave --vm-acceleration out, or modprobe kvm-intel or kvm-amd")?);
            }
            Ok(files)
        }
        Engine::Gvisor => Ok(vec![program(RUNSC, "apt-get install -y runsc")?]),
        Engine::Firecracker => {
            let mend = "superserve setup firecracker --download, or --from DIR";
            let programs = firecracker::programs(&config.state_dir)
                .ok_or_else(|| Absent::new("it is not installed", mend))?;
            let kernel =
                firecracker::kernel_of(config).ok_or_else(|| Absent::new("it has no guest kernel", mend))?;
            let kvm = device(KVM, "modprobe kvm-intel or kvm-amd")?;
            let tap = device("/dev/net/tun", "modprobe tun")?;
            Ok(vec![programs.program, programs.jailer, kernel.image, kernel.modules, kvm, tap])
        }
    }
}

fn program(name: &str, mend: &'static str) -> Result<PathBuf, Absent> {
    driver::process::find(Path::new(name)).map_err(|_| Absent::new(format!("{name} is not installed"), mend))
}

fn device(path: &str, mend: &'static str) -> Result<PathBuf, Absent> {
    let path = PathBuf::from(path);
    if path.exists() { Ok(path) } else { Err(Absent::new(format!("{} is absent", path.display()), mend)) }
}

/// Opens every engine of this host. One that cannot start machines says why, and still removes what it left, if it can.
pub(crate) fn open(config: &Config, instance: &str) -> Engines {
    Engine::ALL.into_iter().fold(Engines::default(), |engines, engine| {
        match (open_one(config, instance, engine), engine) {
            (Ok(driver), _) => engines.with(driver),
            (Err(why), Engine::Qemu) => match VmDriver::new(&vm_config(config)) {
                Ok(driver) => engines.only_removing(Arc::new(driver), why),
                Err(_) => engines.without(engine, why),
            },
            (Err(why), Engine::Firecracker) => match VmDriver::firecracker(&firecracker_config(config)) {
                Ok(driver) => engines.only_removing(Arc::new(driver), why),
                Err(_) => engines.without(engine, why),
            },
            // Where it never ran it has left nothing.
            (Err(why), Engine::Gvisor) if gvisor_config(config, instance).dir.exists() => {
                match GvisorDriver::removing(&gvisor_config(config, instance)) {
                    Ok(driver) => engines.only_removing(Arc::new(driver), why),
                    Err(_) => engines.without(engine, why),
                }
            }
            (Err(why), _) => engines.without(engine, why),
        }
    })
}

/// Opens one engine, or says why it cannot start machines.
pub(crate) fn open_one(config: &Config, instance: &str, engine: Engine) -> Result<Arc<dyn Driver>, String> {
    needs(config, engine).map_err(|absent| absent.why)?;
    let opened: Result<Arc<dyn Driver>, DriverError> = match engine {
        Engine::Container => OciDriver::new(&OciConfig {
            runtime: PathBuf::from("runc"),
            instance: instance.to_owned(),
            device_dir: config.engines_dir.join("dev"),
            id_shift: templates::ID_SHIFT,
        })
        .map(|driver| Arc::new(driver) as _),
        Engine::Qemu => {
            let kernel = config.vm.kernel();
            VmDriver::new(&VmConfig { kernel, ..vm_config(config) }).map(|driver| Arc::new(driver) as _)
        }
        Engine::Gvisor => {
            GvisorDriver::new(&gvisor_config(config, instance)).map(|driver| Arc::new(driver) as _)
        }
        Engine::Firecracker => {
            let kernel = firecracker::kernel_of(config);
            VmDriver::firecracker(&FirecrackerConfig { kernel, ..firecracker_config(config) })
                .map(|driver| Arc::new(driver) as _)
        }
    };
    opened.map_err(|error| chain(&error))
}

/// Enough to remove machines.
fn firecracker_config(config: &Config) -> FirecrackerConfig {
    let [program, jailer] = firecracker::paths(&config.state_dir);
    FirecrackerConfig {
        programs: Firecracker { program, jailer },
        kernel: None,
        boot_dir: config.engines_dir.join("vm/firecracker"),
    }
}

/// The same.
fn gvisor_config(config: &Config, instance: &str) -> GvisorConfig {
    GvisorConfig {
        runtime: PathBuf::from(RUNSC),
        instance: instance.to_owned(),
        dir: config.engines_dir.join("gvisor"),
        id_shift: templates::ID_SHIFT,
    }
}

/// The same.
fn vm_config(config: &Config) -> VmConfig {
    VmConfig {
        qemu: PathBuf::from(QEMU),
        kernel: None,
        boot_dir: config.engines_dir.join("vm"),
        acceleration: config.vm.acceleration(),
    }
}

/// The engine that the configuration names; `None` when the host is to decide.
pub(crate) fn named(isolation: Isolation) -> Option<Engine> {
    match isolation {
        Isolation::Auto => None,
        Isolation::Container => Some(Engine::Container),
        Isolation::Gvisor => Some(Engine::Gvisor),
        Isolation::Qemu => Some(Engine::Qemu),
        Isolation::Firecracker => Some(Engine::Firecracker),
    }
}

/// Whether the configuration leaves an engine to those who ask, or to `auto`.
pub(crate) fn listed(config: &Config, engine: Engine) -> bool {
    config.engines.as_ref().is_none_or(|listed| listed.contains(&engine))
}

/// Whether sandboxes may ask for an engine, if it works.
pub(crate) fn offered(config: &Config, engine: Engine) -> bool {
    // Whoever names an engine wants at least that between sandboxes and the host.
    let least = named(config.isolation).unwrap_or(Engine::Container);
    listed(config, engine) && (config.engines.is_some() || engine >= least)
}

/// What new sandboxes may run on, where `default` is what they get that ask for nothing.
///
/// # Errors
/// The default cannot start machines here.
pub(crate) fn offer(config: &Config, engines: &Engines, default: Engine) -> Result<Offer, Failure> {
    if let Some(why) = engines.absence(default) {
        return Err(Failure::new(format!("sandboxes cannot run with {default} isolation: {why}"))
            .hint("`superserve doctor` says what it needs"));
    }
    for engine in config.engines.iter().flatten() {
        if let Some(why) = engines.absence(*engine) {
            tracing::warn!(%engine, why, "an engine that `engines` lists does not work here and is not offered");
        }
    }
    Ok(Offer::new(default, engines.working().filter(|engine| offered(config, *engine))))
}

pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
