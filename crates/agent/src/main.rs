//! The guest agent: PID 1 of a sandbox. It serves the data plane (`/exec`, `/exec/stream`, `/exec/connect`, `/terminal`,
//! `/files`, the desktop's calls) and the private protocol below `/_agent/` over one inherited Unix socket.
//!
//! It must never die of what its guest does: it runs on one thread plus a few made at start-up, so a process limit in
//! the sandbox cannot stop it, and every size, count and time a caller or the guest controls has a bound. It never
//! logs commands, bodies or values of variables.
//!
//! ```text
//! socket ─ serve ─ route ┬ exec ─ sys::child: agent ─fork─ supervisor ─fork─ leader ─ … the command's tree
//!                        ├ session ─ the same, with a client that may leave and return
//!                        ├ files ─ pool (threads that act as the sandbox's user)
//!                        ├ desktop ─ two threads, each with a connection to the guest's X server
//!                        └ dial ─ TCP port of the guest
//! reaper: the only waitpid of the agent, also for orphans of the whole sandbox
//! ```

mod agent;
mod boot;
mod desktop;
mod dial;
mod exec;
mod files;
mod init;
mod pool;
mod proc;
mod pty;
mod reaper;
mod reply;
mod route;
mod serve;
mod session;
mod settle;
mod sys;
mod tree;
mod trust;
mod users;
mod vm;
mod ws;

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let role = std::env::args_os().nth(1);
    let started = match role.as_deref().and_then(std::ffi::OsStr::to_str) {
        Some("guest") => start(),
        Some(wire::agent::vm::ARGUMENT) => vm::run(),
        Some(vm::identity::ROLE) => vm::identity::run_names(),
        _ => {
            log(format_args!("usage: superserve-agent guest (started by the platform inside a sandbox)"));
            return ExitCode::from(2);
        }
    };
    match started {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

fn start() -> std::io::Result<()> {
    // The first process of a sandbox; elsewhere (tests) there is no wall to build.
    if rustix::process::getpid().is_init() {
        if boot::on_a_sentry() { init::enter_sentry()? } else { init::enter()? }
    }
    // Before any thread exists: descriptors become private and the process takes over its duties as a parent.
    let (boot, entrance) = boot::enter()?;
    let agent = agent::Agent::new(boot)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, serve::run(agent, entrance))
}

/// Writes a line to standard error, if that still leads anywhere. The usual macro panics when it does not, and the first
/// process of a sandbox outlives whoever reads its log.
fn log(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "superserve-agent: {line}");
}
