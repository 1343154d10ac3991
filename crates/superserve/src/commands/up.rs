//! `superserve up`.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, PlatformArgs};
use crate::doctor::{self, Outcome as Found};
use crate::logging;
use crate::output::{Failure, Outcome, print};
use crate::platform::{self, Platform, Ready};
use crate::proof;
use crate::state_dir::{StateDir, api_key_path};

/// A boot that was begun comes to its end first; a second signal ends all.
const PROOF_END: Duration = Duration::from_secs(60);

pub(crate) fn run(args: PlatformArgs) -> Outcome {
    let mut config = args.load()?;
    // Before the directory is touched: without root nothing below could work, and the files would have a wrong owner.
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("superserve up needs root to make namespaces, mounts and links")
            .hint("run it with sudo; what runs in a sandbox is never root on this machine"));
    }
    let state = StateDir::open(&config.state_dir)?;
    config = config.in_state_dir(state.root().to_path_buf());
    let checks = doctor::examine(&config, platform::base_layer_exists(&config), false);
    if let Some(missing) = checks.iter().find(|check| check.outcome == Found::Missing) {
        let failure = Failure::new(format!("{}: {}", missing.what, missing.found));
        return Err(match &missing.mend {
            Some(mend) => failure.hint(mend),
            None => failure,
        });
    }
    logging::start(config.log_format);
    super::mcp::raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(&config, state))
}

async fn serve(config: &Config, state: StateDir) -> Outcome {
    let stop = stop_signals()?;
    let told = stop.clone();
    let mut prepare = std::pin::pin!(Platform::prepare(config, state, &told));
    let prepared = tokio::select! {
        prepared = &mut prepare => prepared,
        () = stop.cancelled() => {
            // Its machines would outlive this process.
            if proof::is_there(config) {
                tracing::info!("ending the machines with which isolation engines are tried");
                let _what_stays_the_next_start_removes = tokio::time::timeout(PROOF_END, &mut prepare).await;
            }
            return Err(Failure::new("stopped before the platform was ready"));
        }
    };
    let (platform, ready) = prepared?;
    welcome(config, &ready);
    platform.serve(&ready, stop).await?;
    Ok(ExitCode::SUCCESS)
}

/// Cancelled by SIGTERM or SIGINT; a second one ends the process at once.
pub(crate) fn stop_signals() -> Result<CancellationToken, Failure> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        };
        next().await;
        told.cancel();
        next().await;
        // The sandboxes survive this as they survive a crash.
        let _the_process_ends_here =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    });
    Ok(stop)
}

/// What to paste where, on stdout; that it is ready, in one line on stderr.
fn welcome(config: &Config, ready: &Ready) {
    let program =
        std::env::current_exe().map_or_else(|_| "superserve".to_owned(), |path| path.display().to_string());
    let key_file = api_key_path(&config.state_dir);
    let info = &ready.info;
    let mut text = format!(
        "Superserve {version} ({engine} isolation)\n  control plane  {base}\n  MCP            {base}/mcp, and superserve mcp\n  data plane     https and http on {edge}\n  API key        in {key}\n",
        version = env!("CARGO_PKG_VERSION"),
        engine = ready.engine,
        base = info.base_url,
        edge = info.edge,
        key = key_file.display(),
    );
    if let Some(former) = ready.weaker_than {
        text.push_str(&format!(
            "  WEAKER         sandboxes had {former} isolation before; superserve doctor says why not now\n"
        ));
    }
    if let Some(url) = &ready.oauth {
        text.push_str(&format!("  OAuth          MCP clients connect at {url}/mcp\n"));
    }
    if let Some(key) = &ready.new_key {
        let snippet = serde_json::json!({"mcpServers": {"superserve": {
            "command": program,
            "args": ["mcp"],
            "env": {"SUPERSERVE_API_KEY": key.expose_secret(), "SUPERSERVE_BASE_URL": info.base_url},
        }}});
        text.push_str("\nLet `superserve mcp install` write this into your MCP client, or paste it (shown once; the key stays in the file above):\n\n");
        text.push_str(&format!("{snippet:#}\n"));
    }
    print(text);
    let mut err = std::io::stderr().lock();
    let _nobody_may_be_listening = writeln!(err, "superserve is ready on {}", info.base_url);
}
