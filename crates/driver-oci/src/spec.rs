//! What a machine looks like to the OCI runtime: a pure function from our description to its configuration.

use std::path::{Path, PathBuf};

use driver::{DriverError, MachineSpec, Root};
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Capabilities, Capability, LinuxBuilder, LinuxCapabilities, LinuxCapabilitiesBuilder, LinuxDeviceCgroup,
    LinuxDeviceCgroupBuilder, LinuxDeviceType, LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespaceBuilder,
    LinuxNamespaceType, LinuxResourcesBuilder, Mount, MountBuilder, ProcessBuilder, RootBuilder, Spec,
    SpecBuilder, UserBuilder,
};
use wire::agent::boot;

use crate::{seccomp, sys};

/// Ids a guest has: 0 to 65535, as images expect.
pub(crate) const MAPPED_IDS: u32 = 65_536;
/// Where the agent lies in the guest.
pub(crate) const AGENT: &str = "/.superserve/agent";
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the agent starts with in the guest's user namespace: what package managers, `sudo` and FUSE mounts need, and
/// `SysResource` for the limits it gives that namespace; it leaves it at once and keeps less (`agent/src/init.rs`).
/// Nothing that acts on network, kernel, clock or other people's processes.
const CAPABILITIES: [Capability; 15] = [
    Capability::AuditWrite,
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::Mknod,
    Capability::NetBindService,
    Capability::Setfcap,
    Capability::Setgid,
    Capability::Setpcap,
    Capability::Setuid,
    Capability::SysAdmin,
    Capability::SysChroot,
    Capability::SysResource,
];

/// Shows the host's hardware and kernel addresses, or lets the guest reach them.
const MASKED: [&str; 16] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// What the machine gets from the driver rather than from its description.
#[derive(Debug)]
pub(crate) struct Host {
    /// The agent's cgroup.
    pub(crate) cgroups_path: PathBuf,
    /// A device node for `/dev/fuse`.
    pub(crate) fuse: PathBuf,
    /// Descriptors handed in: the listening socket first, then the cgroup files.
    pub(crate) inherited: usize,
}

/// A builder fails only when a required field was forgotten, which is a defect here.
pub(crate) fn built<T>(result: Result<T, OciSpecError>) -> Result<T, DriverError> {
    result
        .map_err(|error| DriverError::Engine { what: "describing the container", detail: error.to_string() })
}

pub(crate) fn no_tree() -> DriverError {
    let detail = "its root must be a mounted tree".to_owned();
    DriverError::Engine { what: "describing the container", detail }
}

pub(crate) fn mapping(id_shift: u32) -> Result<LinuxIdMapping, DriverError> {
    built(LinuxIdMappingBuilder::default().container_id(0u32).host_id(id_shift).size(MAPPED_IDS).build())
}

pub(crate) fn capabilities() -> Result<LinuxCapabilities, DriverError> {
    let all: Capabilities = CAPABILITIES.into_iter().collect();
    built(
        LinuxCapabilitiesBuilder::default()
            .bounding(all.clone())
            .effective(all.clone())
            .permitted(all)
            .inheritable(Capabilities::default())
            .ambient(Capabilities::default())
            .build(),
    )
}

pub(crate) fn bundle(spec: &MachineSpec, host: &Host) -> Result<Spec, DriverError> {
    let Root::Tree(tree) = &spec.root else { return Err(no_tree()) };
    let root = built(RootBuilder::default().path(tree).readonly(false).build())?;
    let process = built(
        ProcessBuilder::default()
            .terminal(false)
            .user(built(UserBuilder::default().uid(0u32).gid(0u32).build())?)
            .args(vec![AGENT.to_owned(), "guest".to_owned()])
            .env(environment(spec, host))
            .cwd("/")
            .capabilities(capabilities()?)
            .rlimits(Vec::new())
            // `sudo` must work.
            .no_new_privileges(false)
            .build(),
    )?;
    let linux = built(
        LinuxBuilder::default()
            .uid_mappings(vec![mapping(spec.id_shift)?])
            .gid_mappings(vec![mapping(spec.id_shift)?])
            .namespaces(namespaces(spec)?)
            .cgroups_path(&host.cgroups_path)
            .resources(built(LinuxResourcesBuilder::default().devices(devices()?).build())?)
            .seccomp(seccomp::filter()?)
            .masked_paths(MASKED.map(str::to_owned).to_vec())
            .readonly_paths(READ_ONLY.map(str::to_owned).to_vec())
            .build(),
    )?;
    built(
        SpecBuilder::default()
            .version("1.0.2")
            .root(root)
            .hostname(&spec.hostname)
            .process(process)
            .mounts(mounts(spec, host)?)
            .linux(linux)
            .build(),
    )
}

fn environment(spec: &MachineSpec, host: &Host) -> Vec<String> {
    let first = usize::try_from(sys::FIRST_INHERITED).unwrap_or_default();
    let cgroups: Vec<String> = (first + 1..first + host.inherited).map(|fd| fd.to_string()).collect();
    vec![
        format!("PATH={PATH}"),
        format!("{}={first}", boot::LISTEN_FD),
        format!("{}={}", boot::CGROUP_FDS, cgroups.join(",")),
        format!("{}={}", boot::NPROC, spec.limits.pids),
    ]
}

fn namespaces(spec: &MachineSpec) -> Result<Vec<oci_spec::runtime::LinuxNamespace>, DriverError> {
    let own = [
        LinuxNamespaceType::User,
        LinuxNamespaceType::Pid,
        LinuxNamespaceType::Mount,
        LinuxNamespaceType::Ipc,
        LinuxNamespaceType::Uts,
        LinuxNamespaceType::Cgroup,
    ];
    let mut all = own
        .into_iter()
        .map(|kind| built(LinuxNamespaceBuilder::default().typ(kind).build()))
        .collect::<Result<Vec<_>, _>>()?;
    // Made by `node` and owned by the host's user namespace: the guest holds no capability over it.
    all.push(built(
        LinuxNamespaceBuilder::default().typ(LinuxNamespaceType::Network).path(&spec.link.netns).build(),
    )?);
    Ok(all)
}

fn devices() -> Result<Vec<LinuxDeviceCgroup>, DriverError> {
    let rule = |allow: bool, kind: LinuxDeviceType, numbers: Option<(i64, i64)>, access: &str| {
        let builder = LinuxDeviceCgroupBuilder::default().allow(allow).typ(kind).access(access);
        built(match numbers {
            Some((major, minor)) => builder.major(major).minor(minor).build(),
            None => builder.build(),
        })
    };
    // The runtime adds null, zero, full, random, urandom, tty and the terminals by itself.
    Ok(vec![
        rule(false, LinuxDeviceType::A, None, "rwm")?,
        rule(true, LinuxDeviceType::C, Some((10, 229)), "rw")?,
    ])
}

pub(crate) fn mount(
    destination: &str,
    kind: &str,
    source: &str,
    options: &[&str],
) -> Result<Mount, DriverError> {
    built(
        MountBuilder::default()
            .destination(destination)
            .typ(kind)
            .source(source)
            .options(options.iter().map(|&o| o.to_owned()).collect::<Vec<_>>())
            .build(),
    )
}

pub(crate) fn text(path: &Path) -> Result<String, DriverError> {
    path.to_str().map(str::to_owned).ok_or_else(|| DriverError::Engine {
        what: "describing the container",
        detail: format!("{} is not UTF-8", path.display()),
    })
}

fn mounts(spec: &MachineSpec, host: &Host) -> Result<Vec<Mount>, DriverError> {
    let shm = format!("size={}m", (spec.limits.memory_mib / 2).max(64));
    Ok(vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"])?,
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=4m"])?,
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        )?,
        mount("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", &shm])?,
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"])?,
        mount("/dev/fuse", "bind", &text(&host.fuse)?, &["bind", "rw", "nosuid", "noexec"])?,
        // The network namespace is not the guest's, so the kernel refuses it a sysfs; programs that count
        // processors look here.
        mount("/sys", "tmpfs", "tmpfs", &["nosuid", "noexec", "nodev", "ro", "mode=755", "size=64k"])?,
        mount(
            "/sys/devices/system/cpu",
            "bind",
            "/sys/devices/system/cpu",
            &["bind", "ro", "nosuid", "noexec", "nodev"],
        )?,
        mount(AGENT, "bind", &text(&spec.agent)?, &["bind", "ro", "nosuid", "nodev"])?,
    ])
}
