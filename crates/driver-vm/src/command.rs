//! What a machine looks like to QEMU: a pure function from our description to its command line. Everything it opens it gets
//! as a descriptor, so that it needs no right to any path.

use std::os::fd::RawFd;

use driver::MachineSpec;
use serde_json::json;
use wire::agent::vm::{ARGUMENT, PORT, hardware_address, word};

/// What the kernel, its page tables and the agent take of the memory; the rest is the workload's.
const KERNEL_MIB: u32 = 96;

/// What QEMU itself needs of the host's memory, MiB: some tens when it runs, more while it writes a checkpoint.
const QEMU_MIB: u32 = 256;

/// Most that QEMU keeps of translated instructions, MiB; by default a gigabyte, which a guest could fill at will.
const TRANSLATED_MIB: u32 = 128;

/// The guest is told that the host's disk is full or broken. QEMU would stop it until somebody looks.
const ERRORS: &str = "werror=report,rerror=report";

/// How the guest's instructions run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Acceleration {
    /// Translated by QEMU: works everywhere, several times slower.
    #[default]
    Emulated,
    /// By the processor, through KVM.
    Kvm,
}

impl Acceleration {
    /// Its name in the configuration, and in checkpoints.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Emulated => "emulated",
            Self::Kvm => "kvm",
        }
    }
}

/// Numbers of the descriptors that QEMU inherits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptors {
    pub(crate) kernel: RawFd,
    pub(crate) initial: RawFd,
    pub(crate) base: RawFd,
    pub(crate) own: RawFd,
    pub(crate) tap: RawFd,
    pub(crate) agent: RawFd,
    pub(crate) control: RawFd,
}

/// The address of a guest's network card.
pub(crate) fn card(spec: &MachineSpec) -> String {
    hardware_address(spec.link.guest).map(|byte| format!("{byte:02x}")).join(":")
}

/// A guest's memory.
pub(crate) fn memory_mib(spec: &MachineSpec) -> u32 {
    spec.limits.memory_mib.saturating_add(KERNEL_MIB)
}

/// What its process needs besides.
pub(crate) fn overhead_mib(acceleration: Acceleration) -> u32 {
    match acceleration {
        Acceleration::Emulated => QEMU_MIB + TRANSLATED_MIB,
        Acceleration::Kvm => QEMU_MIB,
    }
}

/// Names the process among all others; one of its arguments.
pub(crate) fn name(spec_id: domain::SandboxId) -> String {
    format!("guest=superserve-{spec_id}")
}

/// The same for one in a jail, whose names have letters, digits and hyphens.
pub(crate) fn jailed_name(spec_id: domain::SandboxId) -> String {
    format!("superserve-{spec_id}")
}

/// The arguments. With `restore` the machine waits for its state.
pub(crate) fn arguments(
    spec: &MachineSpec,
    (acceleration, model): (Acceleration, &str),
    fds: &Descriptors,
    restore: bool,
) -> Vec<String> {
    let by_fd = |fd: RawFd| format!("/proc/self/fd/{fd}");
    let disk = |name: &str, fd: RawFd, read_only: bool| {
        json!({
            "driver": "raw", "node-name": name, "read-only": read_only,
            "discard": if read_only { "ignore" } else { "unmap" },
            "file": { "driver": "file", "filename": by_fd(fd), "read-only": read_only,
                      "discard": if read_only { "ignore" } else { "unmap" } },
        })
        .to_string()
    };
    let (accelerator, processor) = match acceleration {
        Acceleration::Emulated => (format!("tcg,thread=multi,tb-size={TRANSLATED_MIB}"), "max"),
        Acceleration::Kvm => ("kvm".to_owned(), "host"),
    };
    let hardware_address = card(spec);
    let memory = memory_mib(spec);
    let mut words: Vec<String> = [
        "-nodefaults -no-user-config -no-reboot -display none -vga none -monitor none",
        "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        "-rtc base=utc,clock=host",
        // What the kernel prints goes where QEMU's own words go, for as long as somebody reads them.
        "-chardev stdio,id=console,signal=off -serial chardev:console",
        "-device virtio-serial-pci,max_ports=2",
        "-device virtio-rng-pci",
    ]
    .iter()
    .flat_map(|line| line.split(' '))
    .map(str::to_owned)
    .collect();
    let mut add = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
    add("-name", name(spec.id));
    add(
        "-machine",
        format!("{model},usb=off,vmport=off,smbus=off,sata=off,graphics=off,dump-guest-core=off"),
    );
    add("-accel", accelerator);
    add("-cpu", processor.to_owned());
    add("-smp", spec.limits.vcpu.to_string());
    add("-m", memory.to_string());
    add("-kernel", by_fd(fds.kernel));
    add("-initrd", by_fd(fds.initial));
    add("-append", kernel_line(spec));
    add("-blockdev", disk("base", fds.base, true));
    add("-device", format!("virtio-blk-pci,drive=base,{ERRORS}"));
    add("-blockdev", disk("own", fds.own, false));
    add("-device", format!("virtio-blk-pci,drive=own,{ERRORS}"));
    add("-netdev", format!("tap,id=link,fd={},vhost=off", fds.tap));
    add("-device", format!("virtio-net-pci,netdev=link,romfile=,mac={hardware_address}"));
    add("-chardev", format!("socket,id=agent,fd={},server=on,wait=off", fds.agent));
    add("-device", format!("virtserialport,chardev=agent,name={PORT}"));
    add("-chardev", format!("socket,id=control,fd={},server=on,wait=off", fds.control));
    add("-mon", "chardev=control,mode=control".to_owned());
    if restore {
        words.extend(["-S", "-incoming", "defer"].map(str::to_owned));
    }
    words
}

fn kernel_line(spec: &MachineSpec) -> String {
    format!("console=ttyS0 quiet {} -- {ARGUMENT}", kernel_words(spec))
}

/// What guests are told on their kernel's command line, whatever runs them.
pub(crate) fn kernel_words(spec: &MachineSpec) -> String {
    format!(
        "panic=-1 rdinit=/init {}={} {}={} {}={} {}={}",
        word::ADDRESS,
        spec.link.guest,
        word::GATEWAY,
        spec.link.gateway,
        word::HOSTNAME,
        spec.hostname,
        word::NPROC,
        spec.limits.pids,
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use driver::{Link, MachineLimits, Root};

    use super::*;

    pub(crate) fn spec() -> MachineSpec {
        MachineSpec {
            id: "0b8e6b1e-6a55-4f0e-9d1c-6f0d4f1f2a3b".parse().unwrap(),
            hostname: "sandbox-0b8e6b1e".to_owned(),
            root: Root::Disks { base: "/b".into(), own: "/o".into() },
            run_dir: "/r".into(),
            agent: "/a".into(),
            limits: MachineLimits { vcpu: 2, memory_mib: 512, pids: 4096 },
            link: Link {
                netns: "/n".into(),
                tap: Some("g3".to_owned()),
                guest: [100, 96, 1, 7].into(),
                gateway: [100, 96, 1, 6].into(),
            },
            id_shift: 1_000_000,
        }
    }

    #[test]
    fn a_machine_gets_what_it_was_described_with_and_no_path() {
        let fds = Descriptors { kernel: 10, initial: 11, base: 12, own: 13, tap: 14, agent: 15, control: 16 };
        let words = arguments(&spec(), (Acceleration::Emulated, "pc-q35-7.2"), &fds, false);
        let value = |flag: &str| {
            let at = words.iter().position(|word| word == flag).unwrap();
            words[at + 1].as_str()
        };
        assert_eq!((value("-smp"), value("-m"), value("-cpu")), ("2", "608", "max"));
        assert!(value("-machine").starts_with("pc-q35-7.2,usb=off"));
        assert_eq!(value("-netdev"), "tap,id=link,fd=14,vhost=off");
        assert_eq!(value("-kernel"), "/proc/self/fd/10");
        assert!(value("-append").contains("superserve.address=100.96.1.7 superserve.gateway=100.96.1.6"));
        assert!(value("-append").ends_with("superserve.nproc=4096 -- vm"));
        assert!(words.iter().any(|word| word.contains("mac=02:53:53:00:01:07")));
        let all = words.join(" ");
        for path in ["/b", "/o", "/r", "/a", "/n"] {
            assert!(!all.split([' ', ',', '"', '=']).any(|word| word == path), "{path} in {all}");
        }
        let disks: Vec<_> = words.iter().filter(|word| word.contains("node-name")).collect();
        assert!(disks[0].contains("fd/12") && disks[0].contains("\"read-only\":true"), "{disks:?}");
        assert!(disks[1].contains("fd/13") && disks[1].contains("\"read-only\":false"), "{disks:?}");
        assert_eq!(words.iter().filter(|word| word.ends_with(ERRORS)).count(), 2);
        assert!(!words.contains(&"-incoming".to_owned()));
        assert!(
            arguments(&spec(), (Acceleration::Kvm, "q35"), &fds, true)
                .ends_with(&["-incoming".into(), "defer".into()])
        );
    }
}
