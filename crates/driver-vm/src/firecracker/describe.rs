//! What a machine looks like to Firecracker: a pure function from our description to the requests that make it. Paths are
//! those of the jail.

use driver::MachineSpec;
use serde_json::{Value, json};
use wire::agent::vm::{ARGUMENT, VSOCK_PORT, word};

use super::jail::{BASE, INITIAL, KERNEL, MEMORY_IN, OWN, STATE_IN};
use super::{AGENT_SOCKET, MEMORY_OUT, STATE_OUT};
use crate::command::{card, kernel_words, memory_mib};

/// Of all machines: each has a host of its own at the other end, so that nobody else is on this network.
const GUEST_CID: u32 = 3;
/// One machine must leave others something of the disk they share, and of the link to the world; bytes and operations a
/// second, and so much at once after a quiet time.
const DISK_BYTES: u64 = 512 * 1024 * 1024;
const DISK_OPERATIONS: u64 = 20_000;
const LINK_BYTES: u64 = 125_000_000;
/// The host's random numbers cost it time; a guest needs a few bytes.
const ENTROPY_BYTES: u64 = 64 * 1024;
/// What is silent about the console, as QEMU's guests are.
pub(crate) const QUIET: &str = "console=ttyS0 quiet";

/// One request: where to, and what.
pub(crate) type Request = (&'static str, Value);

/// The requests that describe a new machine, in order: the guest names its disks by it.
pub(crate) fn machine(spec: &MachineSpec, tap: &str, console: &str) -> Vec<Request> {
    let disk = |name: &str, path: &str, read_only: bool| {
        json!({
            "drive_id": name, "path_on_host": path, "is_root_device": false, "is_read_only": read_only,
            // What the guest flushes is flushed.
            "cache_type": "Writeback",
            "rate_limiter": { "bandwidth": bucket(DISK_BYTES), "ops": bucket(DISK_OPERATIONS) },
        })
    };
    vec![
        (
            "/machine-config",
            json!({
                "vcpu_count": spec.limits.vcpu, "mem_size_mib": memory_mib(spec),
                "smt": false, "track_dirty_pages": false,
            }),
        ),
        (
            "/boot-source",
            json!({
                "kernel_image_path": KERNEL, "initrd_path": INITIAL, "boot_args": kernel_line(spec, console),
            }),
        ),
        ("/drives/base", disk("base", BASE, true)),
        ("/drives/own", disk("own", OWN, false)),
        (
            "/network-interfaces/link",
            json!({
                "iface_id": "link", "host_dev_name": tap, "guest_mac": card(spec),
                "rx_rate_limiter": { "bandwidth": bucket(LINK_BYTES) },
                "tx_rate_limiter": { "bandwidth": bucket(LINK_BYTES) },
            }),
        ),
        ("/vsock", json!({ "guest_cid": GUEST_CID, "uds_path": AGENT_SOCKET })),
        // Takes nothing by itself: the guest reports pages that it has freed, and the host has them back.
        (
            "/balloon",
            json!({
                "amount_mib": 0, "deflate_on_oom": true, "stats_polling_interval_s": 0, "free_page_reporting": true,
            }),
        ),
        ("/entropy", json!({ "rate_limiter": { "bandwidth": bucket(ENTROPY_BYTES) } })),
    ]
}

/// Begins what was described.
pub(crate) fn start() -> Request {
    ("/actions", json!({ "action_type": "InstanceStart" }))
}

/// Writes memory and devices of a paused machine.
pub(crate) fn save() -> Request {
    (
        "/snapshot/create",
        json!({ "snapshot_type": "Full", "snapshot_path": STATE_OUT, "mem_file_path": MEMORY_OUT }),
    )
}

/// Takes them into a process that has nothing yet. The memory is read as the guest touches it. The link may have another
/// name than it had.
pub(crate) fn load(tap: &str) -> Request {
    (
        "/snapshot/load",
        json!({
            "snapshot_path": STATE_IN,
            "mem_backend": { "backend_type": "File", "backend_path": MEMORY_IN },
            "network_overrides": [{ "iface_id": "link", "host_dev_name": tap }],
            "track_dirty_pages": false, "resume_vm": false,
        }),
    )
}

/// What is filled once a second.
fn bucket(each_second: u64) -> Value {
    json!({ "size": each_second, "refill_time": 1_000 })
}

fn kernel_line(spec: &MachineSpec, console: &str) -> String {
    // The keyboard's controller is how the guest's kernel ends the machine; there is no mouse and no keyboard to look for.
    let devices = "reboot=k i8042.noaux i8042.nomux i8042.dumbkbd 8250.nr_uarts=1";
    let words = kernel_words(spec);
    format!("{console} {devices} {words} {}={VSOCK_PORT} -- {ARGUMENT}", word::VSOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::tests::spec;

    #[test]
    fn a_machine_gets_what_it_was_described_with_and_no_path_of_the_host() {
        let requests = machine(&spec(), "g3", QUIET);
        let body = |path: &str| &requests.iter().find(|(at, _)| *at == path).unwrap().1;
        assert_eq!(
            (&body("/machine-config")["vcpu_count"], &body("/machine-config")["mem_size_mib"]),
            (&json!(2), &json!(608))
        );
        let line = body("/boot-source")["boot_args"].as_str().unwrap();
        assert!(line.contains("superserve.address=100.96.1.7 superserve.gateway=100.96.1.6"), "{line}");
        assert!(line.ends_with(&format!("superserve.vsock={VSOCK_PORT} -- vm")), "{line}");
        // Firecracker takes no more, and adds some words of its own.
        assert!(line.len() < 1_500, "{line}");
        assert_eq!(body("/drives/base")["is_read_only"], true);
        assert_eq!(body("/drives/own")["is_read_only"], false);
        assert_eq!(body("/network-interfaces/link")["guest_mac"], "02:53:53:00:01:07");
        let drives: Vec<_> = requests.iter().filter(|(path, _)| path.starts_with("/drives")).collect();
        assert_eq!(
            (drives[0].0, drives.len()),
            ("/drives/base", 2),
            "the guest's first disk is the template"
        );
        let all = format!("{requests:?} {:?} {:?}", load("g3"), save());
        for path in ["/b", "/o", "/r", "/a", "/n"] {
            assert!(!all.split('"').any(|word| word == path), "{path} in {all}");
        }
        assert_eq!(load("g4").1["network_overrides"][0]["host_dev_name"], "g4");
    }
}
