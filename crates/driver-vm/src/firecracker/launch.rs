//! From a description to a machine that runs, under Firecracker: jail, link, process, requests.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use driver::{DriverError, MachineSpec, process};

use super::describe::QUIET;
use super::jail::{self, Jail};
use super::link::Visiting;
use super::{CONTROL_SOCKET, Firecracker, MEMORY, STATE};
use crate::cgroup::Bounds;
use crate::checkpoint::Checkpoint;
use crate::host_dir::{HostDir, Recorded};
use crate::machine::VmMachine;
use crate::{BOOT_LIMIT, VmDriver, Words, cgroup, command, files, owner, sys};

/// Open at once: disks, devices, events, and the streams to the agent.
const MAX_DESCRIPTORS: u32 = 1_024;
/// What Firecracker itself needs of the host's memory, MiB: a few, its program, which is in its jail, and page tables.
const OVERHEAD_MIB: u32 = 96;
/// One for devices, one for requests, and the jailer's.
const THREADS: u32 = 16;

impl VmDriver {
    /// Starts a machine; it runs and its agent answers, or it is frozen as its checkpoint says.
    pub(crate) async fn start_firecracker(
        &self,
        programs: &Firecracker,
        spec: &MachineSpec,
        from: Option<&Path>,
        words: &mut Words,
    ) -> Result<Arc<VmMachine>, DriverError> {
        let machine = self.bring_up(programs, spec, from, QUIET, words).await?;
        if from.is_none() {
            machine.wait_ready(BOOT_LIMIT).await?;
        }
        Ok(machine)
    }

    /// As far as Firecracker itself goes.
    pub(super) async fn bring_up(
        &self,
        programs: &Firecracker,
        spec: &MachineSpec,
        from: Option<&Path>,
        console: &str,
        words: &mut Words,
    ) -> Result<Arc<VmMachine>, DriverError> {
        let checkpoint = from.map(Checkpoint::open).transpose()?;
        let host = HostDir::create(&spec.run_dir)?;
        host.record_memory(command::memory_mib(spec))
            .map_err(DriverError::io("record the machine's size"))?;
        let (jail, tap) = self.jail(programs, spec, from, &host)?;
        let netns = sys::new_netns().map_err(DriverError::io("make a namespace"))?;
        let shared = netns.try_clone().map_err(DriverError::io("copy a namespace"))?;
        self.spawn(programs, spec, jail, &host, shared, words)?;
        // While the jailer works.
        let link = Visiting::begin(&spec.link, tap, netns).await;
        let link = link.map_err(DriverError::io("lend the machine's link"))?;
        let machine = self.handle(spec.id, &spec.run_dir)?.ok_or(DriverError::Gone)?;
        let control = machine.firecracker()?;
        let brought_up = async {
            control.wait().await?;
            match from {
                Some(_) => control.load(tap).await,
                None => control.boot(spec, tap, console).await,
            }
        };
        brought_up.await.map_err(|error| machine.or_gone(error))?;
        link.end().await.map_err(DriverError::io("take back the machine's link"))?;
        if let Some(Checkpoint { of, .. }) = checkpoint {
            self.rename(&machine, spec, of)?;
        }
        Ok(machine)
    }

    pub(super) fn jail<'a>(
        &'a self,
        programs: &Firecracker,
        spec: &'a MachineSpec,
        from: Option<&Path>,
        host: &HostDir,
    ) -> Result<(Jail, &'a str), DriverError> {
        let parts = self.parts(spec)?;
        let program = process::find(&programs.program)?;
        let program = program.canonicalize().map_err(DriverError::io("find Firecracker"))?;
        let make = || {
            let mut jail = Jail::make(&jail::base(host.path()), &program, &command::jailed_name(spec.id))?;
            for (file, place, read_only) in [
                (&parts.kernel, jail::KERNEL, true),
                (&parts.initial, jail::INITIAL, true),
                (&parts.base, jail::BASE, true),
                (&parts.own, jail::OWN, false),
            ] {
                jail.add(file, place, read_only)?;
            }
            if let Some(from) = from {
                jail.add(&files::open(&from.join(STATE), false)?, jail::STATE_IN, true)?;
                jail.add(&files::open(&from.join(MEMORY), false)?, jail::MEMORY_IN, true)?;
            }
            Ok(jail)
        };
        Ok((make().map_err(DriverError::io("make the machine's jail"))?, parts.tap))
    }

    pub(super) fn spawn(
        &self,
        programs: &Firecracker,
        spec: &MachineSpec,
        jail: Jail,
        host: &HostDir,
        netns: OwnedFd,
        words: &mut Words,
    ) -> Result<(), DriverError> {
        let jailer = process::find(&programs.jailer)?;
        let program = process::find(&programs.program)?;
        let said = words.listen().map_err(DriverError::io("make a pipe"))?;
        let owner = owner(spec).to_string();
        let mut command = tokio::process::Command::new(&jailer);
        command
            .args(["--id", &command::jailed_name(spec.id), "--uid", &owner, "--gid", &owner])
            .arg("--exec-file")
            .arg(&program)
            .arg("--chroot-base-dir")
            .arg(jail::base(host.path()))
            .args(["--resource-limit", &format!("no-file={MAX_DESCRIPTORS}")])
            .args(["--resource-limit", &format!("fsize={}", crate::largest_file(spec)?)])
            .args(["--", "--api-sock", CONTROL_SOCKET, "--level", "Warning"])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(said.try_clone().map_err(DriverError::io("make a pipe"))?)
            .stderr(said);
        let bounds = Bounds {
            memory_mib: command::memory_mib(spec) + OVERHEAD_MIB,
            vcpu: spec.limits.vcpu,
            pids: spec.limits.vcpu + THREADS,
        };
        let cgroup = cgroup::make(spec.id, bounds).map_err(DriverError::io("make the machine's cgroup"))?;
        sys::become_jailer(&mut command, jail, netns, cgroup);
        let child = command.spawn().map_err(DriverError::io("start the jailer"))?;
        drop(command);
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let start = process::start_of(pid).unwrap_or_default();
        host.record(Recorded { pid, start }).map_err(DriverError::io("record the machine's process"))
    }
}
