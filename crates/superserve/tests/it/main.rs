//! The one integration-test binary: every test starts the real program on a state directory of its own, with real
//! machines. Root and the base layer are needed; `make test` provides both. Without root each test says that it is
//! skipped.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod activity;
mod architecture;
mod attack;
mod auto;
mod base_image;
mod big_files;
mod build_limits;
mod cli;
mod cycles;
mod data_plane;
mod desktop;
mod egress;
mod exec_contract;
mod faults;
mod gvisor;
mod image_attacks;
mod limits;
mod load;
mod mcp_http;
mod network_log;
mod oauth;
mod parallel;
mod preview;
mod registry;
mod rest;
mod restart;
mod secret;
mod secrets;
mod sessions;
mod shared_kernel;
mod shell;
mod snapshot;
mod stuck;
mod templates;
mod tokens;
mod up;
mod vm;
mod vm_builds;
mod vm_fork;

use testing::Platform;

/// The program under test.
const BIN: &str = env!("CARGO_BIN_EXE_superserve");

/// A platform, or `None` with a loud reason where none can run.
async fn platform() -> Option<Platform> {
    platform_with(&[]).await
}

async fn platform_with(flags: &[&str]) -> Option<Platform> {
    platform_with_env(flags, &[]).await
}

async fn platform_with_env(flags: &[&str], env: &[(&str, &str)]) -> Option<Platform> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: sandboxes need root");
        return None;
    }
    Some(Platform::start_with_env(BIN, flags, env).await)
}
