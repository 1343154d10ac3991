//! `GET /sandboxes/{id}/network`, and network rules on the wire.

use std::time::Duration;

use domain::{
    Attempt, ConnectionAttempt, DnsAttempt, MatchRule, NetworkEvent, NetworkSink, NetworkVerdict,
    PacketAttempt, RequestAttempt, SandboxId,
};
use expect_test::expect;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Platform;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn connection(second: i64, verdict: NetworkVerdict) -> (i64, Attempt) {
    let connection = ConnectionAttempt {
        host: (verdict != NetworkVerdict::Failed).then(|| "a.example".to_owned()),
        to: "198.51.100.7:443".parse().unwrap(),
        verdict,
        rule: if verdict == NetworkVerdict::Blocked { MatchRule::Cidr } else { MatchRule::Default },
        sent: if verdict == NetworkVerdict::Allowed { 517 } else { 0 },
        received: 0,
        took: Duration::from_millis(5),
        error: (verdict == NetworkVerdict::Failed).then(|| "refused".to_owned()),
    };
    (second, Attempt::Connection(connection))
}

fn record(p: &Platform, id: &str, events: impl IntoIterator<Item = (i64, Attempt)>) {
    let sandbox: SandboxId = id.parse().unwrap();
    for (second, what) in events {
        p.network.record(NetworkEvent { sandbox, at: at(second), what });
    }
}

async fn page(p: &Platform, id: &str, query: &str) -> Value {
    let answer = p.get(&format!("/sandboxes/{id}/network{query}")).await;
    assert_eq!(answer.status, StatusCode::OK, "{query}: {:?}", answer.body);
    answer.json()
}

#[tokio::test]
async fn every_kind_of_row_looks_as_published() {
    let p = Platform::new().await;
    let id = p.sandbox_id().await;
    assert_eq!(page(&p, &id, "").await, json!({"data": [], "next_cursor": null, "has_more": false}));
    let request = Attempt::Request(RequestAttempt {
        secret: None,
        method: "POST".to_owned(),
        host: "api.example.com".to_owned(),
        path: "/v1/messages".to_owned(),
        status: 200,
        upstream_status: Some(200),
        latency: Duration::from_millis(80),
        error: None,
    });
    let dns = Attempt::Dns(DnsAttempt {
        name: "evil.test".to_owned(),
        record: "TXT".to_owned(),
        to: "1.1.1.1:53".parse().unwrap(),
        verdict: NetworkVerdict::Blocked,
        rule: MatchRule::ImplicitDeny,
        error: None,
    });
    let packet = Attempt::Packet(PacketAttempt {
        protocol: "udp".to_owned(),
        to: Some("198.51.100.9".parse().unwrap()),
        port: Some(123),
        count: 3,
        rule: MatchRule::Protocol,
    });
    record(
        &p,
        &id,
        [
            connection(0, NetworkVerdict::Allowed),
            connection(1, NetworkVerdict::Blocked),
            connection(2, NetworkVerdict::Failed),
            (3, request),
            (4, dns),
            (5, packet),
        ],
    );
    let lines = |page: &Value| {
        let rows = page["data"].as_array().unwrap();
        rows.iter().map(|row| format!("{row}\n")).collect::<String>()
    };
    expect![[r#"
        {"host":"api.example.com","id":4,"kind":"request","latency_ms":80,"method":"POST","path":"/v1/messages","status":200,"ts":"2023-11-14T22:13:23.000000Z","upstream_status":200}
        {"dst_ip":"198.51.100.7","dst_port":443,"duration_ms":5,"error_code":"refused","id":3,"kind":"connection","match_rule":"default","ts":"2023-11-14T22:13:22.000000Z","verdict":"failed"}
        {"dst_ip":"198.51.100.7","dst_port":443,"duration_ms":5,"host":"a.example","id":2,"kind":"connection","match_rule":"cidr","ts":"2023-11-14T22:13:21.000000Z","verdict":"blocked"}
        {"bytes_sent":517,"dst_ip":"198.51.100.7","dst_port":443,"duration_ms":5,"host":"a.example","id":1,"kind":"connection","match_rule":"default","ts":"2023-11-14T22:13:20.000000Z","verdict":"allowed"}
    "#]].assert_eq(&lines(&page(&p, &id, "").await));
    expect![[r#"
        {"dst_ip":"198.51.100.9","dst_port":123,"id":6,"kind":"packet","match_rule":"protocol","packets":3,"protocol":"udp","ts":"2023-11-14T22:13:25.000000Z","verdict":"blocked"}
        {"dst_ip":"1.1.1.1","dst_port":53,"host":"evil.test","id":5,"kind":"dns","match_rule":"implicit-deny","protocol":"TXT","ts":"2023-11-14T22:13:24.000000Z","verdict":"blocked"}
    "#]].assert_eq(&lines(&page(&p, &id, "?kinds=dns,packet").await));
    // Its log is there as long as it is, whatever its state, and reading it wakes nobody.
    p.post(&format!("/sandboxes/{id}/pause")).await;
    assert_eq!(page(&p, &id, "?kinds=all").await["data"].as_array().unwrap().len(), 6);
    assert_eq!(p.get(&format!("/sandboxes/{id}")).await.json()["status"], "paused");
    p.call("DELETE", &format!("/sandboxes/{id}"), "").await;
    assert_eq!(p.get(&format!("/sandboxes/{id}/network")).await.code(), "not_found");
}

#[tokio::test]
async fn pages_and_filters() {
    let p = Platform::new().await;
    let id = p.sandbox_id().await;
    let verdicts = [NetworkVerdict::Allowed, NetworkVerdict::Blocked, NetworkVerdict::Failed];
    record(&p, &id, (0..230).map(|n| connection(n, verdicts[usize::try_from(n % 3).unwrap()])));
    let count = async |query: &str| page(&p, &id, query).await["data"].as_array().unwrap().len();
    assert_eq!(count("").await, 50);
    assert_eq!(count("?limit=200").await, 200);
    assert_eq!(count("?limit=100000").await, 200, "clamped");
    assert_eq!(count("?verdict=failed&limit=200").await, 76);
    // Walking through all of it meets each row once, newest first, while more come.
    let (mut seen, mut before) = (Vec::new(), String::new());
    loop {
        let page = page(&p, &id, &format!("?limit=40{before}")).await;
        seen.extend(page["data"].as_array().unwrap().iter().map(|row| row["id"].as_i64().unwrap()));
        record(&p, &id, [connection(999, NetworkVerdict::Allowed)]);
        match page["next_cursor"].as_str() {
            Some(cursor) if page["has_more"] == true => before = format!("&before={cursor}"),
            other => break assert_eq!((other, &page["has_more"]), (None, &false.into())),
        }
    }
    assert_eq!(seen, (1..=230).rev().collect::<Vec<_>>());
    let time = |second| domain::format_timestamp(at(second)).replace('+', "%2B");
    assert_eq!(count(&format!("?before={}&limit=200", time(100))).await, 100, "strictly older");
    assert_eq!(count(&format!("?since={}&limit=200", time(200))).await, 30 + 6, "inclusive");
    assert_eq!(count(&format!("?since={}&before={}", time(10), time(12))).await, 2);
    for bad in [
        "limit=0",
        "limit=x",
        "verdict=maybe",
        "verdict=",
        "before=7",
        "before=row-x",
        "before=",
        "since=yesterday",
        "kinds=udp",
        "kinds=",
        "limit=1&limit=2",
    ] {
        let answer = p.get(&format!("/sandboxes/{id}/network?{bad}")).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (StatusCode::BAD_REQUEST, "bad_request"),
            "{bad}"
        );
    }
}

#[tokio::test]
async fn rules_read_back_normalised_and_strict_mode_is_an_addition() {
    let p = Platform::new().await;
    let made = p
        .sandbox(r#"{"name":"a","network":{"allow_out":["*.Example.com","1.1.1.1","10.1.2.3/8"],"deny_out":["0.0.0.0/0"],"strict":true}}"#)
        .await;
    let path = format!("/sandboxes/{}", made["id"].as_str().unwrap());
    let rules = async || p.get(&path).await.json()["network"].clone();
    let allow = json!(["1.1.1.1/32", "10.0.0.0/8", "*.example.com"]);
    assert_eq!(rules().await, json!({"allow_out": allow, "deny_out": ["0.0.0.0/0"], "strict": true}));
    // As the Python SDK sends it: what is unset is null, and strict mode is not known.
    let sdk = r#"{"network":{"allow_out":["b.example"],"deny_out":null}}"#;
    assert_eq!(p.call("PATCH", &path, sdk).await.status, StatusCode::NO_CONTENT);
    assert_eq!(rules().await, json!({"allow_out": ["b.example"], "strict": true}));
    assert_eq!(
        p.call("PATCH", &path, r#"{"network":{"strict":false}}"#).await.status,
        StatusCode::NO_CONTENT
    );
    assert_eq!(rules().await, Value::Null);
    for (bad, told) in [
        (r#"{"network":{"allow_out":["http://a.b"]}}"#, "network.allow_out"),
        (r#"{"network":{"allow_out":["*"]}}"#, "network.allow_out"),
        (r#"{"network":{"allow_out":[""]}}"#, "network.allow_out"),
        (r#"{"network":{"allow_out":["a.b:80"]}}"#, "network.allow_out"),
        (r#"{"network":{"allow_out":["2001:db8::1"]}}"#, "IPv6 is not supported"),
        (r#"{"network":{"deny_out":["::/0"]}}"#, "IPv6 is not supported"),
        (r#"{"network":{"deny_out":["*.example.com"]}}"#, "domains are not accepted"),
        (r#"{"network":{"strict":"yes"}}"#, "network.strict"),
    ] {
        let answer = p.call("PATCH", &path, bad).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{bad}");
        assert!(answer.message().contains(told), "{bad}: {}", answer.message());
    }
    p.post(&format!("{path}/pause")).await;
    let paused = p.call("PATCH", &path, sdk).await;
    assert_eq!((paused.status, paused.code().as_str()), (StatusCode::CONFLICT, "conflict"));
}
