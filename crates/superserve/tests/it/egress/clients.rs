//! Real clients in a sandbox.

use super::Bed;

#[tokio::test(flavor = "multi_thread")]
async fn curl_by_name_and_address() {
    let Some(bed) = Bed::new().await else { return };
    bed.internet.name("a.example", &["198.51.100.1"]);
    let guest = bed.guest(&[], &[]).await;
    assert!(bed.sh(&guest, "curl -sS -m 10 http://198.51.100.1/x").await.contains("198.51.100.1:80"));
    assert!(bed.sh(&guest, "curl -sS -m 10 http://a.example/x").await.contains("\"host\":\"a.example\""));
    let guest = bed.guest(&["a.example"], &["0.0.0.0/0"]).await;
    let refused = bed.sh(&guest, "curl -sS -m 10 http://198.51.100.1/x").await;
    assert!(refused.contains("Superserve refused"), "{refused}");
    let by_name = "curl -sS -m 10 --resolve a.example:80:198.51.100.9 http://a.example/x";
    assert!(bed.sh(&guest, by_name).await.contains("198.51.100.1:80"));
}
