//! Where a stand-in is worth nothing: other hosts, other sandboxes, and after its binding.

use serde_json::{Value, json};

use super::{Bed, Guest};

const VALUE: &str = "real-value-of-a-secret-that-is-long-enough";
/// Prints status and reason of a request.
const CURL: &str = "curl -sS -m 20 -o /tmp/body -w '%{http_code} %header{x-superserve-proxy-reason}'";

async fn ask(bed: &Bed, guest: &Guest, rest: &str) -> String {
    bed.sh(guest, &format!("{CURL} {rest}")).await
}

async fn bed() -> Option<Bed> {
    let bed = Bed::new().await?;
    bed.names(&["a.example", "b.example", "c.example"]);
    for host in ["a.example", "b.example"] {
        bed.internet.lock(host, "authorization", &format!("Bearer {VALUE}"));
    }
    bed.secret("one", VALUE, json!({"type": "bearer"}), &["a.example"]).await;
    bed.secret("two", "another-value-that-is-long-enough", json!({"type": "bearer"}), &["b.example"]).await;
    Some(bed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stand_in_is_worth_nothing_elsewhere() {
    let Some(bed) = bed().await else { return };
    let guest = bed.guest(json!({"ONE": "one", "TWO": "two"})).await;
    let other = bed.guest(json!({"ONE": "one"})).await;
    let bearer = "-H \"Authorization: Bearer $ONE\"";
    assert_eq!(ask(&bed, &guest, &format!("{bearer} https://a.example/")).await, "200 ");
    for (rest, reason) in [
        // Another secret's host, and this one's with another name inside.
        (format!("{bearer} https://b.example/"), "403 credential_host_mismatch"),
        (format!("{bearer} -H 'Host: c.example' https://a.example/"), "403 credential_host_mismatch"),
        (
            format!("{bearer} --http1.1 -H 'Host: c.example' https://a.example/"),
            "403 credential_host_mismatch",
        ),
        ("-H 'Host: c.example' https://a.example/".to_owned(), "403 host_not_allowed"),
    ] {
        assert_eq!(ask(&bed, &guest, &rest).await, reason, "{rest}");
    }
    let row = bed.row(&guest, "a refusal", |row| row["host"] == "b.example").await;
    assert_eq!(row["error_code"], "credential_host_mismatch");
    assert_eq!((&row["status"], row.get("upstream_status")), (&json!(403), None));
    // Hosts of no secret are not opened: their own certificate arrives.
    let issuer = "curl -sSk -v https://c.example/ 2>&1 | grep -i issuer; true";
    assert!(bed.sh(&guest, issuer).await.contains("test internet"), "not opened");
    let issuer = issuer.replace("c.example", "a.example");
    assert!(bed.sh(&guest, &issuer).await.contains("Superserve"), "opened");
    // The same port 443 is not the only one.
    let stand_in = bed.sh(&guest, "printf %s $ONE").await;
    let theirs = format!("-H 'Authorization: Bearer {stand_in}' https://a.example/");
    assert_eq!(ask(&bed, &other, &theirs).await, "403 sandbox_revoked");
    bed.row(&other, "a stranger's use", |row| row["error_code"] == "sandbox_revoked").await;
    // A rule of the sandbox is said as such.
    let path = format!("/sandboxes/{}", guest.id);
    let closed = json!({"network": {"allow_out": ["1.1.1.1/32", "8.8.8.8/32"], "deny_out": ["0.0.0.0/0"]}});
    bed.rest("PATCH", &path, Some(closed), 204).await;
    assert_eq!(ask(&bed, &guest, &format!("{bearer} https://a.example/")).await, "403 egress_blocked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stand_in_ends_with_its_binding() {
    let Some(bed) = bed().await else { return };
    let guest = bed.guest(json!({})).await;
    // Before there is anything, the service's own certificate arrives, which the guest does not know.
    let (code, _) = bed.run(&guest, "curl -sS -m 20 https://a.example/").await;
    assert_eq!(code, 60);
    let attach = json!({"env_key": "ONE", "secret_name": "one"});
    let path = format!("/sandboxes/{}/secrets", guest.id);
    bed.rest("POST", &path, Some(attach.clone()), 201).await;
    let bearer = "-H \"Authorization: Bearer $ONE\" https://a.example/";
    assert_eq!(ask(&bed, &guest, bearer).await, "200 ");

    let first = bed.sh(&guest, "printf %s $ONE").await;
    let old = format!("-H 'Authorization: Bearer {first}' https://a.example/");
    bed.rest("DELETE", &format!("{path}/ONE"), None, 204).await;
    assert_eq!(bed.sh(&guest, "printf %s \"$ONE\"").await, "");
    assert_eq!(ask(&bed, &guest, &old).await, "503 credential_revoked");
    bed.row(&guest, "a use after the end", |row| row["error_code"] == "credential_revoked").await;

    // Bound again there is another stand-in; deleted, that one ends too, and a new secret of the name changes nothing.
    bed.rest("POST", &path, Some(attach), 201).await;
    assert_ne!(bed.sh(&guest, "printf %s $ONE").await, first);
    assert_eq!(ask(&bed, &guest, bearer).await, "200 ");
    bed.rest("PATCH", "/secrets/one", Some(json!({"value": "rotated-value-that-is-long-enough"})), 200).await;
    assert_eq!(ask(&bed, &guest, bearer).await, "401 ", "the next request carries the new value");
    bed.rest("PATCH", "/secrets/one", Some(json!({"value": VALUE})), 200).await;
    assert_eq!(ask(&bed, &guest, bearer).await, "200 ");
    bed.rest("DELETE", "/secrets/one", None, 204).await;
    assert_eq!(ask(&bed, &guest, bearer).await, "503 credential_revoked");
    bed.secret("one", VALUE, json!({"type": "bearer"}), &["a.example"]).await;
    assert_eq!(ask(&bed, &guest, bearer).await, "503 credential_revoked");
    let errors: Value = bed.rest("GET", "/secrets/one/audit?status=errors", None, 200).await;
    assert_eq!(errors, json!([]), "the new secret has a history of its own");
}
