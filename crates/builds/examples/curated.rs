//! Makes the layer of a curated template out of Debian packages by hand, for tests to find it: `cargo run -p builds --example
//! curated -- <dir> desktop`.

use std::process::ExitCode;

use builds::make_curated_layer;
use templates::{Bar, LayerStore};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(dir), Some(name)) = (args.next(), args.next()) else {
        eprintln!("usage: curated <layer directory> <name without superserve/>");
        return ExitCode::from(2);
    };
    let made = async {
        let store = LayerStore::open(dir)?;
        let bar = Bar::new(&format!("superserve/{name}"));
        make_curated_layer(&store, &name, move |phase| bar.update(phase)).await
    };
    match made.await {
        Ok(layer) => {
            eprintln!("superserve/{name} is layer {} ({} MB)", layer.digest, layer.size_bytes / 1_000_000)
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
