//! Downloads over lines that break: a proxy of the test in front of a real registry cuts connections, knows nothing of ranges,
//! or has no time.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::serve::Real;
use super::*;
use crate::oci::manifest::ARCHITECTURE;
use crate::progress::Phase;
use crate::tests::place;

/// What the proxy does to one request.
#[derive(Clone, Copy)]
enum Does {
    Nothing,
    /// Cuts the connection after so many bytes of the answer.
    Cut(usize),
    /// The same, and the registry is not told which part is wanted.
    CutWhole(usize),
    /// Answers 429 with this `Retry-After`.
    Busy(&'static str),
}

/// Passes requests on, one a connection.
struct Proxy {
    address: SocketAddr,
    /// Of each request for the large blob: the part that was asked for.
    ranges: Arc<Mutex<Vec<String>>>,
    server: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// What happens to the n-th request whose path contains `to`.
    async fn start(
        registry: &Real,
        to: String,
        script: impl Fn(usize) -> Does + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ranges = Arc::<Mutex<Vec<String>>>::default();
        let (heard, script, upstream) = (Arc::clone(&ranges), Arc::new(script), registry.address());
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (heard, script, to) = (Arc::clone(&heard), Arc::clone(&script), to.clone());
                tokio::spawn(async move {
                    let head = head(stream).await?;
                    let does = if head.1.lines().next().unwrap().contains(&to) {
                        let range = head.1.lines().find_map(|line| line.strip_prefix("range: "));
                        let mut heard = heard.lock().unwrap();
                        heard.push(range.unwrap_or("all").to_owned());
                        script(heard.len() - 1)
                    } else {
                        Does::Nothing
                    };
                    pass(head, does, upstream).await
                });
            }
        });
        Self { address, ranges, server }
    }

    fn ranges(&self) -> Vec<String> {
        std::mem::take(&mut *self.ranges.lock().unwrap())
    }

    fn reference(&self) -> String {
        format!("{}/x:1", self.address)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn head(mut stream: TcpStream) -> std::io::Result<(TcpStream, String)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok((stream, String::from_utf8(head).unwrap()))
}

async fn pass(
    (mut client, head): (TcpStream, String),
    does: Does,
    upstream: SocketAddr,
) -> std::io::Result<()> {
    if let Does::Busy(after) = does {
        let text = format!(
            "HTTP/1.1 429 x\r\nretry-after: {after}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        );
        return client.write_all(text.as_bytes()).await;
    }
    let whole = matches!(does, Does::CutWhole(_));
    let lines = head.trim_end().split("\r\n").filter(|line| !(whole && line.starts_with("range: ")));
    let request = format!("{}\r\nconnection: close\r\n\r\n", lines.collect::<Vec<_>>().join("\r\n"));
    let mut server = TcpStream::connect(upstream).await?;
    server.write_all(request.as_bytes()).await?;
    let most = match does {
        Does::Cut(most) | Does::CutWhole(most) => most as u64,
        Does::Nothing | Does::Busy(_) => u64::MAX,
    };
    tokio::io::copy(&mut (&mut server).take(most), &mut client).await?;
    client.shutdown().await
}

const SIZE: usize = 3 << 20;

/// An image whose one layer does not get smaller, and the path of its blob.
async fn pushed() -> Option<(Real, String)> {
    let registry = Real::start().await?;
    let mut state = 1_u32;
    let noise: Vec<u8> = (0..SIZE)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        })
        .collect();
    let large = Archive::default().entry(tar::EntryType::Regular, b"large", b"", &noise, |_| {});
    let image = image(vec![Blob::layer(large)], ARCHITECTURE, json!({}));
    registry.push("x", "1", &image).await;
    let path = format!("/v2/x/blobs/{}", digest(&image.blobs[0].bytes));
    Some((registry, path))
}

fn forget(place: &Place) {
    place.store.list().unwrap().iter().for_each(|layer| place.store.remove(layer).unwrap());
}

#[tokio::test]
async fn a_cut_download_goes_on_where_it_stopped() {
    let Some((registry, blob)) = pushed().await else { return };
    let place = place();
    let proxy = Proxy::start(&registry, blob, |_| Does::Cut(700_000)).await;
    let phases = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&phases);
    let access = Access::default().trusting(&proxy.reference());
    let hear = move |phase| heard.lock().unwrap().push(phase);
    let made = pull_image(&place.store, &proxy.reference(), &access, GIB, hear).await.unwrap();
    assert_eq!(made.size_bytes(), SIZE as u64);
    // Each part begins where the one before ended, and little came twice.
    let ranges = proxy.ranges();
    let begins: Vec<u64> = ranges[1..]
        .iter()
        .map(|range| range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse().unwrap())
        .collect();
    assert!(ranges[0] == "all" && begins.len() >= 4 && begins.len() < 8, "{ranges:?}");
    assert!(begins.windows(2).all(|w| w[0] < w[1] && w[1] - w[0] <= 700_000), "{begins:?}");
    let phases = std::mem::take(&mut *phases.lock().unwrap());
    assert_eq!(phases.iter().filter(|phase| matches!(phase, Phase::Again { .. })).count(), begins.len());
    assert!(phases.windows(2).all(|w| w[0].per_mille() <= w[1].per_mille()), "{phases:?}");
}

#[tokio::test]
async fn a_registry_without_ranges_sends_all_of_it_again() {
    let Some((registry, blob)) = pushed().await else { return };
    let place = place();
    let once = |number| Does::CutWhole(if number == 0 { 1_000_000 } else { usize::MAX });
    let proxy = Proxy::start(&registry, blob.clone(), once).await;
    let made = pull(&place, &proxy.reference()).await.unwrap();
    assert_eq!(made.size_bytes(), SIZE as u64);
    assert_eq!(proxy.ranges().len(), 2);
    forget(&place);
    // One that never gets to the end is given up, and nothing of it stays.
    let proxy = Proxy::start(&registry, blob, |_| Does::CutWhole(100_000)).await;
    let error = pull(&place, &proxy.reference()).await.unwrap_err();
    assert!(matches!(error, TemplateError::Registry { .. }), "{error}");
    assert_eq!(proxy.ranges().len(), 5);
    assert!(place.names().is_empty(), "{:?}", place.names());
}

#[tokio::test]
async fn a_busy_registry_is_waited_for_within_a_bound() {
    let Some((registry, blob)) = pushed().await else { return };
    let place = place();
    for what in ["/v2/x/manifests/1".to_owned(), blob] {
        let once = |number| if number == 0 { Does::Busy("1") } else { Does::Nothing };
        let proxy = Proxy::start(&registry, what.clone(), once).await;
        let begun = Instant::now();
        pull(&place, &proxy.reference()).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(1), "{what}");
        assert_eq!(proxy.ranges().len(), 2);
        forget(&place);
        let proxy = Proxy::start(&registry, what.clone(), |_| Does::Busy("3600")).await;
        let error = pull(&place, &proxy.reference()).await.unwrap_err();
        assert!(matches!(error, TemplateError::Registry { .. }), "{error}");
        assert!(error.to_string().contains("429") && error.to_string().contains("3600 s"), "{error}");
        assert_eq!(proxy.ranges().len(), 1, "{what}");
    }
}

#[tokio::test]
async fn the_reserve_of_the_disk_is_kept() {
    let Some((registry, _)) = pushed().await else { return };
    let place = place();
    let of = rustix::fs::statvfs(place.dir.path()).unwrap();
    let free = of.f_bavail * of.f_frsize;
    let reference = registry.reference("x:1");
    let access = Access::default().trusting(&reference);
    let with =
        |reserve| place.store.clone().with_limits(crate::Limits { reserve, ..crate::Limits::default() });
    let error = pull_image(&with(free * 2), &reference, &access, GIB, |_| {}).await.unwrap_err();
    assert!(matches!(error, TemplateError::DiskFull), "{error}");
    assert!(place.names().is_empty(), "{:?}", place.names());
    let archive = Archive::default().file("a", "1").bytes();
    let error = with(free * 2).import_tar(&archive[..], &|_| {}).unwrap_err();
    assert!(matches!(error, TemplateError::DiskFull), "{error}");
    pull_image(&with(0), &reference, &access, GIB, |_| {}).await.unwrap();
}
