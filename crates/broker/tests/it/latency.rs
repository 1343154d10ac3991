//! What the broker adds, measured against the same service without it, in one run.

use std::time::{Duration, Instant};

use hyper::client::conn::http1;

use crate::kit::{Bench, Body, HOST, VALUE, full, get, handshake, one, text};

const ROUNDS: usize = 200;
/// Far above what it takes, also in a build that is not optimised and on a machine that is busy.
const MOST: Duration = Duration::from_millis(50);

async fn requests(guest: &mut http1::SendRequest<Body>, authorization: &str) -> Duration {
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        guest.ready().await.unwrap();
        let mut request = get("/told").body(full("")).unwrap();
        request.headers_mut().insert("authorization", authorization.parse().unwrap());
        let begun = Instant::now();
        assert_eq!(text(guest.send_request(request).await.unwrap()).await, "1 true");
        all.push(begun.elapsed());
    }
    all.sort();
    all[ROUNDS / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn little_is_added() {
    let bench = Bench::start(&["http/1.1"]).await;
    let direct = async || {
        let tcp = tokio::net::TcpStream::connect(bench.service.address).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        handshake(tcp, bench.service.roots.clone(), HOST, &["http/1.1"]).await.unwrap()
    };
    let (mut connects, mut brokered) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let begun = Instant::now();
        drop(direct().await);
        connects.push(begun.elapsed());
        let begun = Instant::now();
        drop(bench.tls(&["http/1.1"]).await);
        brokered.push(begun.elapsed());
    }
    connects.sort();
    brokered.sort();
    let mut plain = one(direct().await).await;
    let mut through = bench.http1().await;
    let without = requests(&mut plain, &format!("Bearer {VALUE}")).await;
    let stand_in = get("/").body(()).unwrap().headers()["authorization"].to_str().unwrap().to_owned();
    let with = requests(&mut through, &stand_in).await;
    println!(
        "request: direct {without:?}, brokered {with:?}; connection: direct {:?}, brokered {:?} (medians)",
        connects[10], brokered[10]
    );
    assert!(with.saturating_sub(without) < MOST && brokered[10].saturating_sub(connects[10]) < MOST);
}
