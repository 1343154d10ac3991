//! What a fork has of its source, and what of the source is worth nothing in it.

use serde_json::{Value, json};
use testing::{Internet, Platform};

use super::{delete, fork, id_of, save};

const VALUE: &str = "real-value-of-a-secret-that-is-long-enough";
/// Prints status and reason of a request.
const CURL: &str = "curl -sS -m 20 -o /tmp/body -w '%{http_code} %header{x-superserve-proxy-reason}'";

async fn bed() -> Option<(Platform, Internet)> {
    let internet = Internet::start()?;
    let flags = internet.trusted_flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Some((super::platform(&flags).await?, internet))
}

/// Variables of a new process.
async fn variables(p: &Platform, id: &str, token: &str) -> Value {
    let code = "python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'";
    serde_json::from_str(&p.run(id, token, code).await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_has_what_its_source_had_with_stand_ins_of_its_own() {
    let Some((p, internet)) = bed().await else { return };
    for (number, name) in ["a.example", "b.example"].iter().enumerate() {
        internet.name(name, &[&format!("198.51.100.{}", 100 + number)]);
    }
    internet.lock("a.example", "authorization", &format!("Bearer {VALUE}"));
    for (name, host) in [("one", "a.example"), ("two", "b.example"), ("gone", "a.example")] {
        let body = json!({"name": name, "value": VALUE, "auth": {"type": "bearer"}, "hosts": [host]});
        assert_eq!(p.rest("POST", "/secrets", Some(body)).await.status, 201);
    }
    let rules = json!({"allow_out": ["1.1.1.1/32", "8.8.8.8/32", "a.example"], "deny_out": ["0.0.0.0/0"]});
    let (source, token) = p
        .create(json!({
            "name": "source", "metadata": {"of": "source"}, "timeout_seconds": 600, "auto_delete_seconds": 60,
            "env_vars": {"A": "1", "B": "1"}, "secrets": {"ONE": "one", "TWO": "two", "GONE": "gone"},
            "network": rules,
        }))
        .await;
    let publish = json!({"port": 8000});
    assert_eq!(
        p.rest("POST", &format!("/sandboxes/{source}/preview-ports"), Some(publish)).await.status,
        200
    );
    let id = "0123456789abcdef0123456789abcdef";
    let write = format!(
        "printf %s \"$ONE\" > /srv/stand-in; echo {id} > /etc/machine-id; echo 10.0.0.7 db >> /etc/hosts"
    );
    p.run(&source, &token, &write).await;
    let snapshot = id_of(&save(&p, &source, json!({})).await);
    // What was deleted afterwards does not come back, and a new one of its name is another one.
    delete(&p, "/secrets/gone").await;
    let body = json!({"name": "gone", "value": VALUE, "auth": {"type": "bearer"}, "hosts": ["a.example"]});
    assert_eq!(p.rest("POST", "/secrets", Some(body)).await.status, 201);

    let (plain, token, made) = fork(&p, &snapshot, json!({})).await;
    assert_eq!(
        made["secrets"],
        json!([
            {"env_key": "ONE", "secret_name": "one"}, {"env_key": "TWO", "secret_name": "two"}
        ])
    );
    assert_eq!((&made["timeout_seconds"], made.get("auto_delete_seconds")), (&json!(600), None));
    assert_eq!((&made["metadata"], &made["name"]), (&json!({}), &json!("fork")));
    assert_eq!(made["network"]["allow_out"], json!(["1.1.1.1/32", "8.8.8.8/32", "a.example"]));
    let ports = p.rest("GET", &format!("/sandboxes/{plain}/preview-ports"), None).await;
    assert_eq!(ports.body["ports"], json!([]));
    let env = variables(&p, &plain, &token).await;
    assert_eq!((&env["A"], &env["B"], env.get("GONE")), (&json!("1"), &json!("1"), None));
    let old = p.run(&plain, &token, "cat /srv/stand-in").await;
    assert!(env["ONE"].as_str().unwrap().starts_with("ssrv_proxy_") && env["ONE"] != old.as_str());
    let own = format!("{CURL} -H \"Authorization: Bearer $ONE\" https://a.example/");
    assert_eq!(p.run(&plain, &token, &own).await, "200 ");
    let copied = format!("{CURL} -H \"Authorization: Bearer $(cat /srv/stand-in)\" https://a.example/");
    assert_eq!(
        p.run(&plain, &token, &copied).await,
        "403 sandbox_revoked",
        "the source's works in the source alone"
    );
    let closed = format!("{CURL} -H \"Authorization: Bearer $TWO\" https://b.example/");
    assert_eq!(p.run(&plain, &token, &closed).await, "403 egress_blocked");
    assert_eq!(
        p.run(&plain, &token, "cat /etc/machine-id; tail -1 /etc/hosts; grep -c 127.0.1.1 /etc/hosts").await,
        format!("{}{}\n10.0.0.7 db\n1\n", &plain[..8], &id[8..])
    );

    let more = json!({
        "env_vars": {"TWO": "plain", "B": "2"}, "secrets": {"A": "one"}, "timeout_seconds": 60,
        "network": {"allow_out": [], "deny_out": []}, "metadata": {"of": "fork"},
    });
    let (other, token, made) = fork(&p, &snapshot, more).await;
    assert_eq!(
        made["secrets"],
        json!([
            {"env_key": "A", "secret_name": "one"}, {"env_key": "ONE", "secret_name": "one"}
        ])
    );
    assert_eq!((&made["timeout_seconds"], made.get("network")), (&json!(60), None));
    let env = variables(&p, &other, &token).await;
    assert_eq!((&env["TWO"], &env["B"]), (&json!("plain"), &json!("2")));
    assert!(env["A"].as_str().unwrap().starts_with("ssrv_proxy_") && env["A"] != env["ONE"]);
    assert_eq!(p.run(&other, &token, &format!("{CURL} https://b.example/ -k")).await, "200 ", "no rules");
}
