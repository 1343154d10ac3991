//! Connections that become something else.

use http::Request;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::{Bench, HOST, STAND_IN, full, get};

fn socket(protocol: &str) -> http::request::Builder {
    get("/socket").header("connection", "Upgrade").header("upgrade", protocol)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_carries_the_credential_in_its_request_and_bytes_after_it() {
    let bench = Bench::start(&["http/1.1"]).await;
    let mut guest = bench.http1().await;
    let mut response = guest.send_request(socket("websocket").body(full("")).unwrap()).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["x-told"]), (101, &"true".parse().unwrap()));
    assert_eq!(response.headers()["upgrade"], "websocket");
    let mut io = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    for size in [1, 1000, 300_000] {
        let sent = vec![7; size];
        let (mut read, mut write) = tokio::io::split(&mut io);
        let mut got = vec![0; size];
        tokio::try_join!(write.write_all(&sent), read.read_exact(&mut got)).unwrap();
        assert_eq!(got, sent);
    }
    assert_eq!(bench.rows()[0].status, 101);
    drop(io);
    let ended = async {
        while bench.tasks.lock().unwrap().try_join_next().is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(crate::kit::LONG, ended).await.expect("the tunnel ends with the guest");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_switches_to_http2_in_the_clear() {
    let bench = Bench::start(&["http/1.1"]).await;
    let mut guest = bench.http1().await;
    let request = Request::builder()
        .uri("/echo")
        .header("host", HOST)
        .header("authorization", format!("Bearer {STAND_IN}"))
        .header("connection", "Upgrade, HTTP2-Settings")
        .header("upgrade", "h2c")
        .header("http2-settings", "AAMAAABkAAQAAP__");
    let answer = crate::kit::text(guest.send_request(request.body(full("")).unwrap()).await.unwrap()).await;
    assert!(!answer.contains("h2c") && !answer.contains("http2-settings"), "{answer}");
}
