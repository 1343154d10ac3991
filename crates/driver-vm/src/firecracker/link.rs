//! The tap device of a machine. Firecracker opens it by its name in the network namespace it runs in. Were that the router
//! namespace, a process that the guest has taken over would have the links of all other machines before it, and the gateway
//! besides. So the device visits a namespace that the process has for itself, is opened there, and goes home: what is left to
//! the process is the open device and a namespace without anything.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use driver::Link;
use driver::netlink::Route;

use crate::sys;

/// A device that is away from home.
#[derive(Debug)]
pub(crate) struct Visiting {
    home: File,
    /// Where it is: the process's own namespace.
    pub(crate) netns: OwnedFd,
    name: String,
    gateway: Ipv4Addr,
    away: bool,
}

impl Visiting {
    /// Takes the device into a new namespace.
    pub(crate) fn begin(link: &Link, name: &str) -> io::Result<Self> {
        let home = File::open(&link.netns)?;
        let netns = sys::new_netns()?;
        sys::in_netns(home.as_fd(), || Route::open()?.move_to(name, netns.as_fd()))?;
        Ok(Self { home, netns, name: name.to_owned(), gateway: link.gateway, away: true })
    }

    /// Takes it back, as `node` had made it: its addresses do not travel with it.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.go_home()
    }

    fn go_home(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.away) {
            return Ok(());
        }
        sys::in_netns(self.netns.as_fd(), || Route::open()?.move_to(&self.name, self.home.as_fd()))?;
        sys::in_netns(self.home.as_fd(), || {
            let route = Route::open()?;
            route.add_address(&self.name, self.gateway)?;
            route.set_up(&self.name)
        })
    }
}

impl Drop for Visiting {
    fn drop(&mut self) {
        // Of a failed start: whoever removes the machine removes the device, by its name and at home.
        if let Err(error) = self.go_home() {
            tracing::warn!(link = self.name, %error, "cannot take back a link");
        }
    }
}
