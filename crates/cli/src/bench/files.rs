//! Throughput of files through the platform, beside the same client against a plain HTTP server on loopback.

use std::time::Instant;

use bytes::Bytes;
use client::{Client, ClientConfig, ClientError, UploadBody};
use domain::Secret;

use super::loopback::{self, Loopback};
use super::report::Row;

/// Transfers each way; the middle one counts.
const ROUNDS: usize = 3;
const PATH: &str = "/tmp/superserve-bench";

pub(crate) async fn rows(client: &Client, id: &str, mib: u32) -> Vec<Row> {
    let bytes = mib as usize * 1024 * 1024;
    let plain = match Loopback::start(bytes).await {
        Ok(server) => {
            let url = format!("http://{}", server.address);
            let config =
                ClientConfig { data_plane: Some(url.clone()), ..ClientConfig::new(url, Secret::new("none")) };
            match Client::new(config) {
                Ok(yardstick) => both_ways(&yardstick, loopback::ID, bytes).await,
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(ClientError::Local(format!("cannot listen on loopback: {error}"))),
    };
    let ours = both_ways(client, id, bytes).await;
    let mut rows = Vec::new();
    for (way, pick) in [("upload", 0), ("download", 1)] {
        let row = |name: String, speeds: &Result<[Vec<f64>; 2], ClientError>| match speeds {
            Ok(speeds) => Row::samples(name, "MB/s", speeds[pick].clone()),
            Err(error) => Row::absent(name, "MB/s", super::reason(error)),
        };
        let ours = row(format!("{way} of {mib} MiB"), &ours);
        let plain = row(format!("{way}, plain loopback server"), &plain);
        let share = format!("{way}, share of plain loopback");
        let share = match (ours.p50(), plain.p50()) {
            (Some(ours), Some(plain)) if plain > 0.0 => Row::samples(share, "%", vec![100.0 * ours / plain]),
            _ => Row::absent(share, "%", "one side was not measured"),
        };
        rows.extend([ours, plain, share.budget("≥ 80")]);
    }
    rows
}

/// MB/s of each upload and of each download.
async fn both_ways(client: &Client, id: &str, bytes: usize) -> Result<[Vec<f64>; 2], ClientError> {
    let content = Bytes::from(vec![0x5a; bytes]);
    let (mut up, mut down) = (Vec::new(), Vec::new());
    let speed = |started: Instant| bytes as f64 / 1e6 / started.elapsed().as_secs_f64();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        client.write_file(id, PATH, UploadBody::Bytes(content.clone())).await?;
        up.push(speed(started));
        let started = Instant::now();
        let mut file = client.read_file(id, PATH, bytes as u64).await?;
        let mut seen = 0;
        while let Some(chunk) = file.chunk().await? {
            seen += chunk.len();
        }
        down.push(speed(started));
        if seen != bytes {
            return Err(ClientError::Local(format!("{seen} of {bytes} bytes came back")));
        }
    }
    Ok([up, down])
}
