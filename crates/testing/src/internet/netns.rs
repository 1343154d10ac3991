//! Two network namespaces of a test's own, joined by one link: where a gateway's connections start, and the internet they
//! reach. Nothing of it is on the machine: both end with the test's process, however that ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// The gateway's side of the link.
pub(super) const UPLINK: &str = "198.19.255.1";
const INTERNET: &str = "198.19.255.2";
/// Every address in these answers, the ones that nobody may reach included: what gets there is seen there.
const EVERYWHERE: &[&str] = &[
    "198.51.100.0/24",
    "198.18.0.0/16",
    "1.1.1.1/32",
    "8.8.8.8/32",
    "9.9.9.9/32",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "192.0.0.0/24",
    "168.63.129.16/32",
];

#[derive(Debug)]
pub(super) struct Namespaces {
    pub(super) uplink: File,
    pub(super) internet: File,
}

impl Namespaces {
    pub(super) fn new() -> Self {
        let made = on_thread(|| {
            let uplink = own_namespace()?;
            let internet = own_namespace()?;
            // Its path names it for programs, as long as this process lives.
            let there = path_of(&uplink);
            ip(&format!("link add net0 type veth peer name up0 netns {there}"))?;
            ip("link set lo up")?;
            ip(&format!("addr add {INTERNET}/30 dev net0"))?;
            ip("link set net0 up")?;
            for range in EVERYWHERE {
                ip(&format!("route add local {range} dev lo"))?;
            }
            enter(&uplink)?;
            ip("link set lo up")?;
            ip(&format!("addr add {UPLINK}/30 dev up0"))?;
            ip("link set up0 up")?;
            ip(&format!("route add default via {INTERNET}"))?;
            Ok(Self { uplink, internet })
        });
        made.expect("a namespace for a test internet can be made (iproute2 is needed)")
    }

    /// Runs `work` on a thread of its own inside one of them.
    pub(super) fn inside<T: Send>(
        namespace: &File,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        on_thread(|| {
            enter(namespace)?;
            work()
        })
    }
}

/// How other programs find a namespace that this process holds open.
pub(super) fn path_of(namespace: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(work).join().expect("a network thread does not panic"))
}

fn own_namespace() -> io::Result<File> {
    #[expect(unsafe_code, reason = "leaving a namespace can be unsafe with other flags")]
    // SAFETY: only the flag for file tables is dangerous, and it is not given.
    unsafe {
        rustix::thread::unshare_unsafe(UnshareFlags::NEWNET)?;
    }
    // What the kernel says by itself over IPv6 would be seen as something that leaves.
    for part in ["all", "default"] {
        let setting = format!("/proc/sys/net/ipv6/conf/{part}/disable_ipv6");
        let _absent_without_ipv6 = std::fs::write(setting, "1");
    }
    File::open("/proc/thread-self/ns/net")
}

fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn ip(arguments: &str) -> io::Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr))))
}
