//! The guest's end of its link: as the host sets up a container's, except that here the kernel is the guest's own.

use std::io::{self, Write};
use std::net::Ipv4Addr;

use wire::agent::vm::hardware_address;

use super::boot::Given;
use crate::sys;

const LINK: &str = "eth0";

pub(super) fn configure(given: &Given) -> io::Result<()> {
    // IPv6 leads nowhere but to the guest itself, where servers that mean `localhost` often take ::1.
    set("ipv6/conf/all/disable_ipv6", "1")?;
    set("ipv6/conf/default/disable_ipv6", "1")?;
    set("ipv6/conf/lo/disable_ipv6", "0")?;
    // The workload's root has no capability here, yet may listen on port 80 and ping.
    set("ipv4/ip_unprivileged_port_start", "0")?;
    set("ipv4/ping_group_range", "0 2147483647")?;
    let links = sys::vm::Links::open()?;
    links.set_up("lo")?;
    links.set_address(LINK, given.address)?;
    links.set_up(LINK)?;
    links.set_default_route(given.gateway)
}

/// Gives the link the addresses of another machine. What leads over the former ones, and what is known of the neighbour, goes
/// with the link when it is down.
pub(super) fn readdress(address: Ipv4Addr, gateway: Ipv4Addr) -> io::Result<()> {
    let links = sys::vm::Links::open()?;
    links.set_down(LINK)?;
    links.set_hardware_address(LINK, hardware_address(address))?;
    links.set_address(LINK, address)?;
    links.set_up(LINK)?;
    links.set_default_route(gateway)
}

/// Writes a setting; one that this kernel lacks is left out.
fn set(name: &str, value: &str) -> io::Result<()> {
    match std::fs::OpenOptions::new().write(true).open(format!("/proc/sys/net/{name}")) {
        Ok(mut file) => file.write_all(value.as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
