//! What both transports do with their process: panics and log to stderr, which never holds anything private.

use std::io::Write;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::STDERR_PREFIX;

/// One line on stderr; a closed stderr is no reason to stop.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{STDERR_PREFIX} {text}");
}

/// Panics go to stderr, without the payload's formatting being able to fail the process twice.
pub fn set_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        say(&format!("internal error at {place}: {}", client::quote(&payload(info))));
    }));
}

fn payload(info: &std::panic::PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}

/// Our own crates only: `rmcp` logs whole requests, which hold file contents and commands. Nothing happens when the process has
/// a log already.
pub fn set_log(level: LevelFilter) {
    let targets = Targets::new()
        .with_target("mcp", level)
        .with_target("client", level)
        .with_target("superserve", level);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .without_time();
    let _ = tracing_subscriber::registry().with(targets).with(layer).try_init();
}
