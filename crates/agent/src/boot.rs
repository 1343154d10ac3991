//! Start-up: reads what the engine handed over (`wire::agent::boot`), makes every inherited descriptor private, and
//! takes on the duties of a parent. Runs once, before any other thread exists.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit};
use wire::agent::boot::{CGROUP_FDS, LISTEN_FD, NPROC, PORT};

use crate::sys;

/// What the engine decided about this sandbox, for the agent's whole life.
#[derive(Debug)]
pub(crate) struct Boot {
    /// `cgroup.procs` files that each child enters.
    pub(crate) cgroups: Vec<OwnedFd>,
    /// Most processes a child may have.
    pub(crate) nproc: Option<u64>,
    /// The limit of open files that children get back; the agent's own is raised.
    pub(crate) nofile: Rlimit,
    /// Standard input of every child.
    pub(crate) null: OwnedFd,
}

/// Where streams come from.
#[derive(Debug)]
pub(crate) enum Entrance {
    Socket(UnixListener),
    /// The port's two directions.
    Port {
        input: File,
        output: File,
    },
}

/// Whether the kernel is gVisor's: the engine says so.
pub(crate) fn on_a_sentry() -> bool {
    std::env::var_os(PORT).is_some()
}

pub(crate) fn enter() -> io::Result<(Boot, Entrance)> {
    let null = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NOCTTY,
        Mode::empty(),
    )?;
    // Whatever the engine left closed of 0 to 2 must not become a descriptor of ours.
    let mut lowest = null.as_raw_fd();
    while lowest <= 2 {
        lowest = sys::fill_lowest(&null)?;
    }
    let null = rustix::io::fcntl_dupfd_cloexec(&null, 3)?;
    sys::make_all_private();

    crate::proc::hold()?;
    crate::pty::hold();
    let entrance = if on_a_sentry() { port(&null)? } else { socket()? };
    let mut cgroups = Vec::new();
    for text in variable(CGROUP_FDS)?.unwrap_or_default().split(',').filter(|text| !text.is_empty()) {
        cgroups.push(sys::adopt(text.trim().parse().map_err(|_| malformed(CGROUP_FDS))?)?);
    }
    // Raising a hard limit would need a right that sandboxes do not have.
    let most = rustix::process::getrlimit(Resource::Nproc).maximum.unwrap_or(u64::MAX);
    let nproc = number::<u64>(NPROC)?.map(|nproc| nproc.min(most));

    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    if !rustix::process::getpid().is_init() {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    }
    let nofile = rustix::process::getrlimit(Resource::Nofile);
    // Best effort: with the lower limit the agent refuses work earlier.
    let _ = rustix::process::setrlimit(
        Resource::Nofile,
        Rlimit { current: nofile.maximum, maximum: nofile.maximum },
    );
    sys::keep_memory_small();
    Ok((Boot { cgroups, nproc, nofile, null }, entrance))
}

fn socket() -> io::Result<Entrance> {
    let listen: RawFd = number(LISTEN_FD)?
        .ok_or_else(|| io::Error::other(format!("{LISTEN_FD} must name the inherited listening socket")))?;
    let listener = UnixListener::from(sys::adopt(listen)?);
    listener.set_nonblocking(true)?;
    Ok(Entrance::Socket(listener))
}

/// Takes the port from standard input and output, so that nobody inherits it.
fn port(null: &OwnedFd) -> io::Result<Entrance> {
    let (stdin, stdout) = (io::stdin(), io::stdout());
    let take = |fd: std::os::fd::BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 3).map(File::from);
    let entrance = Entrance::Port { input: take(stdin.as_fd())?, output: take(stdout.as_fd())? };
    sys::replace(null, stdin.as_fd())?;
    sys::replace(null, stdout.as_fd())?;
    Ok(entrance)
}

fn variable(name: &str) -> io::Result<Option<String>> {
    std::env::var_os(name).map(|value| value.into_string().map_err(|_| malformed(name))).transpose()
}

fn number<T: std::str::FromStr>(name: &str) -> io::Result<Option<T>> {
    variable(name)?
        .filter(|text| !text.is_empty())
        .map(|text| text.parse().map_err(|_| malformed(name)))
        .transpose()
}

fn malformed(name: &str) -> io::Error {
    io::Error::other(format!("{name} is malformed"))
}
