//! Makes `superserve/base` in a layer directory by hand: `cargo run -p templates --example bootstrap -- <dir>`.

use std::process::ExitCode;

use templates::{Bar, LayerStore, bootstrap_base};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1) else {
        eprintln!("usage: bootstrap <layer directory>");
        return ExitCode::from(2);
    };
    let made = async {
        let store = LayerStore::open(dir)?;
        let bar = Bar::new("superserve/base");
        bootstrap_base(&store, move |phase| bar.update(phase)).await
    };
    match made.await {
        Ok(layer) => {
            eprintln!("superserve/base is layer {} ({} MB)", layer.digest, layer.size_bytes / 1_000_000)
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
