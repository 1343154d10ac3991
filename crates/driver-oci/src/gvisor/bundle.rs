//! What a machine looks like to `runsc`: the same user, capabilities and agent as for `runc`, and without what its kernel does
//! not share with the host anyway (masks, devices, a filter of the guest's system calls).

use std::path::Path;

use driver::{DriverError, MachineSpec, Root};
use oci_spec::runtime::{
    LinuxBuilder, LinuxCpuBuilder, LinuxMemoryBuilder, LinuxNamespaceBuilder, LinuxNamespaceType,
    LinuxResourcesBuilder, Mount, ProcessBuilder, RootBuilder, Spec, SpecBuilder, UserBuilder,
};
use wire::agent::boot;

use crate::spec::{self, built, mount, text};

/// Period of the processor quota, microseconds; the sentry shows the guest as many processors as the quota is periods.
const CPU_PERIOD_USEC: u64 = 100_000;

/// `memory_mib` is what the guest is told it has, and what its cgroup may use until it has started.
pub(super) fn bundle(machine: &MachineSpec, memory_mib: u32, cgroup: &Path) -> Result<Spec, DriverError> {
    let Root::Tree(tree) = &machine.root else { return Err(spec::no_tree()) };
    let process = built(
        ProcessBuilder::default()
            .terminal(false)
            .user(built(UserBuilder::default().uid(0u32).gid(0u32).build())?)
            .args(vec![spec::AGENT.to_owned(), "guest".to_owned()])
            .env(vec![
                format!("PATH={}", spec::PATH),
                format!("{}=1", boot::PORT),
                format!("{}={}", boot::NPROC, machine.limits.pids),
            ])
            .cwd("/")
            .capabilities(spec::capabilities()?)
            .rlimits(Vec::new())
            .no_new_privileges(false)
            .build(),
    )?;
    let mapping = vec![spec::mapping(machine.id_shift)?];
    // Of the cgroup itself the outer limits hold later (`cgroup`).
    let memory = i64::from(memory_mib) * 1024 * 1024;
    let quota = i64::from(machine.limits.vcpu) * i64::try_from(CPU_PERIOD_USEC).unwrap_or_default();
    let resources = LinuxResourcesBuilder::default()
        .memory(built(LinuxMemoryBuilder::default().limit(memory).build())?)
        .cpu(built(LinuxCpuBuilder::default().quota(quota).period(CPU_PERIOD_USEC).build())?)
        .build();
    let linux = LinuxBuilder::default()
        .uid_mappings(mapping.clone())
        .gid_mappings(mapping)
        .namespaces(namespaces(machine)?)
        .cgroups_path(cgroup)
        .resources(built(resources)?)
        .build();
    built(
        SpecBuilder::default()
            .version("1.0.2")
            .root(built(RootBuilder::default().path(tree).readonly(false).build())?)
            .hostname(&machine.hostname)
            .process(process)
            .mounts(mounts(machine)?)
            .linux(built(linux)?)
            .build(),
    )
}

/// Of gofer and sentry; the user namespace is the gofer's, so that what the guest writes has its ids outside.
fn namespaces(machine: &MachineSpec) -> Result<Vec<oci_spec::runtime::LinuxNamespace>, DriverError> {
    use LinuxNamespaceType::{Ipc, Mount, Network, Pid, User, Uts};
    let mut all = [User, Pid, Mount, Ipc, Uts]
        .into_iter()
        .map(|kind| built(LinuxNamespaceBuilder::default().typ(kind).build()))
        .collect::<Result<Vec<_>, _>>()?;
    let network = LinuxNamespaceBuilder::default().typ(Network).path(&machine.link.netns).build();
    all.push(built(network)?);
    Ok(all)
}

/// All but the agent are the sentry's own.
fn mounts(machine: &MachineSpec) -> Result<Vec<Mount>, DriverError> {
    let shm = format!("size={}m", (machine.limits.memory_mib / 2).max(64));
    Ok(vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"])?,
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "mode=755"])?,
        mount("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", &shm])?,
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"])?,
        mount(spec::AGENT, "bind", &text(&machine.agent)?, &["bind", "ro", "nosuid", "nodev"])?,
    ])
}
