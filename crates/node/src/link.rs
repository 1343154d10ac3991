//! Links and the router namespace. Each sandbox has one network namespace with one link in it, whose other end is in the
//! router namespace; nothing else connects either of them to anything.
//!
//! All namespaces belong to the host's user namespace, so a guest's root holds no capability over its own network: it
//! cannot change addresses, routes or rules, nor sniff.

use std::fs::File;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;

use domain::{Cidr, SandboxId};
use driver::netlink::Route;

use crate::error::NodeError;
use crate::place::{Place, remove_file, unmount};
use crate::sys;

/// Name of the link inside the guest.
const GUEST_LINK: &str = "eth0";
/// The rules of the router namespace.
const RULES: &str = include_str!("router.nft");
/// `statfs` of a network namespace that is mounted on a file (linux/magic.h).
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// A pair of addresses by link number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    number: u32,
    pub(crate) gateway: Ipv4Addr,
    pub(crate) guest: Ipv4Addr,
}

impl Pair {
    /// The pair of a link; `None` past the end of the range, 100.96.0.0/16 by default.
    pub(crate) fn new(range: Ipv4Addr, number: u32) -> Option<Self> {
        /// Pairs in a /16.
        const PAIRS: u32 = 1 << 15;
        let base = u32::from(range) & 0xffff_0000;
        (number < PAIRS).then(|| Self {
            number,
            gateway: Ipv4Addr::from(base + 2 * number),
            guest: Ipv4Addr::from(base + 2 * number + 1),
        })
    }

    /// Name of the router's end.
    pub(crate) fn router_link(self) -> String {
        format!("g{}", self.number)
    }
}

/// The network all pairs are in.
pub(crate) fn range(first: Ipv4Addr) -> Cidr {
    format!("{first}/16").parse().expect("an address and a length are a network")
}

/// Makes the namespace and the link; what a cancelled attempt left is replaced.
pub(crate) fn create(place: &Place, id: SandboxId, pair: Pair) -> Result<(), NodeError> {
    whole(place, id, try_create(place, id, pair))
}

/// Leaves nothing of a link that could not be made.
fn whole(place: &Place, id: SandboxId, made: io::Result<()>) -> Result<(), NodeError> {
    if made.is_err()
        && let Err(error) = destroy(place, id)
    {
        tracing::warn!(sandbox = %id, %error, "cannot remove a failed link");
    }
    made.map_err(NodeError::io("make the link"))
}

fn try_create(place: &Place, id: SandboxId, pair: Pair) -> io::Result<()> {
    let router = File::open(place.router())?;
    let netns = place.netns(id);
    let name = pair.router_link();
    sys::in_new_netns(|| {
        settle_guest()?;
        let guest = Route::open()?;
        guest.set_up("lo")?;
        match guest.add_veth(GUEST_LINK, &name, router.as_fd()) {
            // The former link of this number is still being taken down by the kernel.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                sys::in_netns(router.as_fd(), || Route::open()?.delete(&name))?;
                guest.add_veth(GUEST_LINK, &name, router.as_fd())?;
            }
            other => other?,
        }
        guest.add_address(GUEST_LINK, pair.guest)?;
        guest.add_default_route(GUEST_LINK, pair.gateway)?;
        keep_netns(&netns)?;
        sys::enter_netns(router.as_fd())?;
        let router = Route::open()?;
        router.add_address(&name, pair.gateway)?;
        router.set_up(&name)
    })
}

/// Makes the link of a guest with a kernel of its own: a tap device whose one end is in the router namespace, as a veth's
/// would be. The other end is whoever opens the device.
pub(crate) fn create_tap(place: &Place, id: SandboxId, pair: Pair) -> Result<(), NodeError> {
    whole(place, id, try_create_tap(place, id, pair))
}

fn try_create_tap(place: &Place, id: SandboxId, pair: Pair) -> io::Result<()> {
    let name = pair.router_link();
    // Before the device, so that whoever cleans up knows of it.
    std::fs::write(place.netns(id), &name)?;
    sys::in_netns(File::open(place.router())?.as_fd(), || {
        let router = Route::open()?;
        // One that is still being taken down belongs to a process that may still write to it.
        router.delete(&name)?;
        sys::make_tap(&name)?;
        // The same each time: a guest that is resumed remembers it, and would ask the old one for seconds.
        let [_, _, c, d] = pair.gateway.octets();
        router.set_hardware_address(&name, [0x02, 0x53, 0x53, 0x01, c, d])?;
        router.add_address(&name, pair.gateway)?;
        router.set_up(&name)
    })
}

/// The tap device that a file names, if it does.
fn named_tap(path: &Path) -> Option<String> {
    if !std::fs::symlink_metadata(path).ok()?.is_file() || is_netns(path) {
        return None;
    }
    let name = std::fs::read_to_string(path).ok()?;
    name.strip_prefix('g')?.parse::<u32>().ok()?;
    Some(name)
}

fn is_netns(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == NSFS_MAGIC)
}

/// Keeps the current thread's network namespace in a file.
fn keep_netns(path: &Path) -> io::Result<()> {
    File::create(path)?;
    Ok(rustix::mount::mount_bind("/proc/thread-self/ns/net", path)?)
}

/// Settings of a guest's namespace, which the guest itself can only read.
fn settle_guest() -> io::Result<()> {
    set("ipv6/conf/all/disable_ipv6", "1")?;
    set("ipv6/conf/default/disable_ipv6", "1")?;
    // Servers that mean `localhost` often take ::1; it leads nowhere but to the guest itself.
    set("ipv6/conf/lo/disable_ipv6", "0")?;
    // The guest's root has no capability here, yet may listen on port 80 and ping.
    set("ipv4/ip_unprivileged_port_start", "0")?;
    set("ipv4/ping_group_range", "0 2147483647")
}

/// Writes a setting of the current thread's network namespace; one that this kernel lacks (no IPv6) is left out.
fn set(name: &str, value: &str) -> io::Result<()> {
    match std::fs::OpenOptions::new().write(true).open(format!("/proc/sys/net/{name}")) {
        Ok(mut file) => file.write_all(value.as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io::Error::new(error.kind(), format!("set net/{name}: {error}"))),
    }
}

/// Lets go of the namespace; the link ends with it.
pub(crate) fn destroy(place: &Place, id: SandboxId) -> Result<(), NodeError> {
    let path = place.netns(id);
    let remove = || {
        if let Some(name) = named_tap(&path) {
            sys::in_netns(File::open(place.router())?.as_fd(), || Route::open()?.delete(&name))?;
        }
        unmount(&path)?;
        remove_file(&path)
    };
    remove().map_err(NodeError::io("remove the link"))
}

/// Makes the router namespace, or takes over the one that an earlier server left with links in it.
pub(crate) fn open_router(place: &Place) -> Result<(), NodeError> {
    let path = place.router();
    if !is_netns(&path) {
        remove_file(&path)
            .and_then(|()| {
                sys::in_new_netns(|| {
                    settle_router()?;
                    Route::open()?.set_up("lo")?;
                    keep_netns(&path)
                })
            })
            .map_err(NodeError::io("make the router namespace"))?;
    }
    let router = File::open(&path).map_err(NodeError::io("open the router namespace"))?;
    let output = sys::in_netns(router.as_fd(), load_rules).map_err(NodeError::command("nft"))?;
    if output.status.success() {
        return sys::in_netns(router.as_fd(), settle_tracking)
            .map_err(NodeError::io("settle connection tracking"));
    }
    let detail = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NodeError::Command { program: "nft", detail })
}

fn settle_router() -> io::Result<()> {
    set("ipv4/ip_forward", "0")?;
    set("ipv6/conf/all/disable_ipv6", "1")?;
    set("ipv6/conf/default/disable_ipv6", "1")?;
    // Answers only for the address of the link it is asked on.
    set("ipv4/conf/all/arp_ignore", "2")?;
    set("ipv4/conf/all/send_redirects", "0")?;
    set("ipv4/conf/all/accept_redirects", "0")?;
    // Every refused packet gets its answer: a guest that waits for one would hang.
    set("ipv4/icmp_ratelimit", "0")?;
    set("ipv4/icmp_ratemask", "0")?;
    set("ipv4/icmp_msgs_per_sec", "1000000")
}

/// What is over is forgotten at once: one guest must not fill the table that all share. After the rules, which load
/// connection tracking: before, a kernel that has it as a module lacks these settings.
fn settle_tracking() -> io::Result<()> {
    set("netfilter/nf_conntrack_tcp_timeout_time_wait", "1")?;
    set("netfilter/nf_conntrack_tcp_timeout_close", "1")?;
    // Longer than a question to a resolver may take.
    set("netfilter/nf_conntrack_udp_timeout", "10")?;
    set("netfilter/nf_conntrack_udp_timeout_stream", "10")
}

fn load_rules() -> io::Result<std::process::Output> {
    let mut child = std::process::Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(RULES.as_bytes())?;
    }
    child.wait_with_output()
}

/// Lets go of the router namespace.
pub(crate) fn close_router(place: &Place) -> Result<(), NodeError> {
    let path = place.router();
    unmount(&path).and_then(|()| remove_file(&path)).map_err(NodeError::io("remove the router namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_lead_to_the_gateways_doors() {
        let lead = |port: u16| RULES.contains(&format!("redirect to :{port}\n"));
        assert!(RULES.contains(&format!("log group {} ", egress::PACKET_LOG)));
        assert!(lead(egress::TCP_PORT) && egress::DNS_PORTS.into_iter().all(lead));
    }

    #[test]
    fn pairs_fill_the_range_and_end() {
        let range = Ipv4Addr::new(100, 96, 0, 0);
        let first = Pair::new(range, 0).unwrap();
        assert_eq!(
            (first.gateway, first.guest),
            ("100.96.0.0".parse().unwrap(), "100.96.0.1".parse().unwrap())
        );
        let last = Pair::new(range, 32_767).unwrap();
        assert_eq!(last.guest, Ipv4Addr::new(100, 96, 255, 255));
        assert_eq!(last.router_link(), "g32767");
        assert_eq!(Pair::new(range, 32_768), None);
        assert_eq!(Pair::new(range, u32::MAX), None);
    }
}
