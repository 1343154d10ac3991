//! Secrets over pauses, restarts of the server, and boots of a disk; and what the guest may do to its own trust.

use std::time::Duration;

use serde_json::json;

use super::Bed;

const VALUE: &str = "real-value-of-a-secret-that-is-long-enough";

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_survives_pauses_and_restarts() {
    let Some(mut bed) = Bed::new().await else { return };
    bed.names(&["a.example"]);
    bed.internet.lock("a.example", "authorization", &format!("Bearer {VALUE}"));
    bed.secret("one", VALUE, json!({"type": "bearer"}), &["a.example"]).await;
    let mut guest = bed.guest(json!({"ONE": "one"})).await;
    let use_it = "curl -sS -m 20 -H \"Authorization: Bearer $ONE\" https://a.example/ && printf ' %s' $ONE";
    let first = bed.sh(&guest, use_it).await;
    assert!(first.starts_with("welcome"), "{first}");
    let marks = "grep -c 'Superserve: the authority' /etc/ssl/certs/ca-certificates.crt; find /etc/ssl/certs | grep -c 8f1b30f9; \
        printenv SSL_CERT_FILE NODE_EXTRA_CA_CERTS";
    let entered = bed.sh(&guest, marks).await;
    assert_eq!(
        entered,
        "1\n1\n/etc/ssl/certs/ca-certificates.crt\n/usr/local/share/ca-certificates/superserve.crt\n"
    );

    let path = format!("/sandboxes/{}", guest.id);
    bed.rest("POST", &format!("{path}/pause"), None, 204).await;
    guest.token = bed.rest("POST", &format!("{path}/resume"), None, 200).await["access_token"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(bed.sh(&guest, use_it).await, first);

    // A server that was killed finds everything again.
    bed.platform.kill_hard();
    bed.platform.spawn().await;
    bed.platform.wait_state(&guest.id, "active", Duration::from_secs(20)).await;
    assert_eq!(bed.sh(&guest, use_it).await, first);
    assert_eq!(bed.sh(&guest, marks).await, entered, "entered once, however often");

    // What a guest does to its own trust is its own business, and mends itself with the next start or binding.
    bed.sh(&guest, "rm /etc/ssl/certs/8f1b30f9.0; mkfifo /tmp/p; mv /tmp/p /usr/local/share/ca-certificates/superserve.crt").await;
    let attach = json!({"env_key": "TWO", "secret_name": "one"});
    bed.rest("POST", &format!("{path}/secrets"), Some(attach), 201).await;
    assert_eq!(bed.sh(&guest, marks).await, entered);
    assert!(bed.sh(&guest, use_it).await.starts_with("welcome"));
}
