//! The tap device of a machine. Firecracker opens it by its name in the network namespace it runs in. Were that the router
//! namespace, a process that the guest has taken over would have the links of all other machines before it, and the gateway
//! besides. So the device visits a namespace that the process has for itself, is opened there, and goes home: what is left to
//! the process is the open device and a namespace without anything.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use driver::netlink::Route;
use driver::{DriverError, Link};

use crate::sys;

/// Whether the device of a machine that runs is at home. One that was on its way when its server ended is made there what it was.
pub(crate) fn is_home(link: &Link) -> Result<bool, DriverError> {
    let Some(name) = &link.tap else { return Ok(true) };
    let look = || {
        let home = File::open(&link.netns)?;
        sys::in_netns(home.as_fd(), || {
            let route = Route::open()?;
            match route.add_address(name, link.gateway) {
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(false),
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => route.set_up(name)?,
            }
            Ok(true)
        })
    };
    look().map_err(DriverError::io("look for the machine's link"))
}

/// A device that is away from home.
#[derive(Debug)]
pub(crate) struct Visiting {
    home: File,
    /// Where it is: the process's own namespace.
    netns: OwnedFd,
    name: String,
    gateway: Ipv4Addr,
    away: bool,
}

impl Visiting {
    /// Takes the device into the process's namespace. The kernel takes its time for a move (10 to 20 ms), in which others work.
    pub(crate) async fn begin(link: &Link, name: &str, netns: OwnedFd) -> io::Result<Self> {
        let (link, name) = (link.clone(), name.to_owned());
        let moving = tokio::task::spawn_blocking(move || {
            let home = File::open(&link.netns)?;
            sys::in_netns(home.as_fd(), || Route::open()?.move_to(&name, netns.as_fd()))?;
            Ok(Self { home, netns, name, gateway: link.gateway, away: true })
        });
        moving.await.map_err(io::Error::other)?
    }

    /// Takes it back, as `node` had made it: its addresses do not travel with it.
    pub(crate) async fn end(mut self) -> io::Result<()> {
        tokio::task::spawn_blocking(move || self.go_home()).await.map_err(io::Error::other)?
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_device_that_is_not_at_home_is_missed() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: network namespaces are made by root alone");
            return;
        }
        let home = sys::new_netns().unwrap();
        let link = Link {
            netns: format!("/proc/self/fd/{}", home.as_raw_fd()).into(),
            tap: Some("tap0".to_owned()),
            guest: Ipv4Addr::new(100, 96, 0, 1),
            gateway: Ipv4Addr::new(100, 96, 0, 0),
        };
        assert!(!is_home(&link).unwrap());
        let other = sys::new_netns().unwrap();
        sys::in_netns(home.as_fd(), || Route::open()?.add_veth("tap0", "peer", other.as_fd())).unwrap();
        // It has no address yet, then it has one.
        for _ in 0..2 {
            assert!(is_home(&link).unwrap());
        }
        sys::in_netns(home.as_fd(), || Route::open()?.move_to("tap0", other.as_fd())).unwrap();
        assert!(!is_home(&link).unwrap());
    }
}
