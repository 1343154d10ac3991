//! Makes `superserve/base` in a layer directory by hand: `cargo run -p templates --example bootstrap -- <dir>`.

use std::sync::Arc;

use templates::{Bar, LayerStore, bootstrap_base};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: bootstrap <layer directory>")?;
    let store = LayerStore::open(dir)?;
    let bar = Arc::new(Bar::new("superserve/base"));
    let layer = bootstrap_base(&store, move |phase| bar.update(phase)).await?;
    eprintln!("{} ({} MB)", layer.digest, layer.size_bytes / 1_000_000);
    Ok(())
}
