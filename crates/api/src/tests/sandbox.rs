//! The calls of §4.5 and §4.6.

use std::collections::BTreeMap;

use axum::body::Body;
use domain::TemplateStatus;
use expect_test::expect;
use http::{Request, StatusCode};

use super::{Platform, template};

const UNKNOWN: &str = "11111111-2222-4333-8444-555555555555";

#[tokio::test]
async fn the_whole_life() {
    let p = Platform::new().await;
    let made = p
        .sandbox(
            r#"{"name":"full","from_template":"superserve/base","timeout_seconds":3600,"auto_delete_seconds":600,
            "metadata":{"env":"prod"},"env_vars":{"TOKEN":"hunter2"},"preview_access":"private","secrets":{},
            "network":{"allow_out":["*.example.com","1.1.1.1"],"deny_out":null}}"#,
        )
        .await;
    let id = made["id"].as_str().unwrap();
    let token = made["access_token"].as_str().unwrap();
    let shown = made.to_string().replace(id, "ID").replace(token, "TOKEN");
    let shown = shown.replace(made["created_at"].as_str().unwrap(), "TIME");
    expect![[r#"{"access_token":"TOKEN","auto_delete_seconds":600,"created_at":"TIME","id":"ID","isolation":"container","memory_mib":1024,"metadata":{"env":"prod"},"name":"full","network":{"allow_out":["1.1.1.1/32","*.example.com"]},"preview_access":"private","status":"active","timeout_seconds":3600,"vcpu_count":1}"#]].assert_eq(&shown);
    assert_eq!(
        p.host.specs.lock().unwrap()[0].guest.env,
        BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())])
    );

    let got = p.get(&format!("/sandboxes/{id}")).await;
    assert_eq!(got.json(), made);
    for other in [format!("sb-usw-{id}"), id.to_uppercase()] {
        assert_eq!(p.get(&format!("/sandboxes/{other}")).await.json(), made);
    }
    let paused = p.post(&format!("/sandboxes/{id}/pause")).await;
    assert_eq!((paused.status, paused.body.len()), (StatusCode::NO_CONTENT, 0));
    let got = p.get(&format!("/sandboxes/{id}")).await.json();
    assert_eq!(got["status"], "paused");
    assert!(got["snapshot_id"].is_string() && got["auto_delete_at"].is_string());
    assert_eq!(p.post(&format!("/sandboxes/{id}/pause")).await.status, StatusCode::CONFLICT);

    let resumed = p.post(&format!("/sandboxes/{id}/resume")).await;
    assert_eq!(resumed.status, StatusCode::OK);
    let resumed = resumed.json();
    assert_eq!((resumed["id"].as_str(), resumed["status"].as_str()), (Some(id), Some("active")));
    assert_ne!(resumed["access_token"], made["access_token"]);
    assert_eq!(p.post(&format!("/sandboxes/{id}/resume")).await.code(), "conflict");

    let active = p.post(&format!("/sandboxes/{id}/activate")).await;
    assert_eq!((active.status, active.json()["status"].as_str()), (StatusCode::OK, Some("active")));
    assert!(active.json().get("auto_delete_at").is_none());
    let deleted = p.call("DELETE", &format!("/sandboxes/{id}"), "").await;
    assert_eq!((deleted.status, deleted.body.len()), (StatusCode::NO_CONTENT, 0));
    assert_eq!(p.call("DELETE", &format!("/sandboxes/{id}"), "").await.code(), "not_found");
    assert_eq!(p.get(&format!("/sandboxes/{id}")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn creates_that_are_refused() {
    let p = Platform::new().await;
    p.store.template_put(&template("unfinished", p.team, TemplateStatus::Building)).await.unwrap();
    let long = format!(r#"{{"name":"{}"}}"#, "n".repeat(65));
    let unknown_snapshot = format!(r#"{{"name":"a","from_snapshot":"{UNKNOWN}"}}"#);
    let both = format!(r#"{{"name":"a","from_snapshot":"{UNKNOWN}","from_template":"x"}}"#);
    for (body, status, code, told) in [
        ("", 400, "bad_request", "a JSON object is required"),
        ("{}", 400, "bad_request", "name"),
        (r#"{"name":""}"#, 400, "bad_request", "name: 1 to 64 bytes"),
        (&long, 400, "bad_request", "name: 1 to 64 bytes"),
        (r#"{"name":"a","vcpu_count":4}"#, 400, "bad_request", "vcpu_count"),
        (r#"{"name":"a"} {}"#, 400, "bad_request", "nothing may follow"),
        (r#"{"name":"a","timeout_seconds":0}"#, 400, "bad_request", "timeout_seconds: 1 to 604800"),
        (r#"{"name":"a","timeout_seconds":604801}"#, 400, "bad_request", "timeout_seconds"),
        (r#"{"name":"a","auto_delete_seconds":-1}"#, 400, "bad_request", "auto_delete_seconds: 0 to 2592000"),
        (r#"{"name":"a","metadata":{"superserve.x":"1"}}"#, 400, "bad_request", "metadata"),
        (r#"{"name":"a","metadata":{"x":1}}"#, 400, "bad_request", "metadata.x: expected a string"),
        (r#"{"name":"a","env_vars":{"A=B":"1"}}"#, 400, "bad_request", "env_vars"),
        (r#"{"name":"a","network":{"allow_out":["::1"]}}"#, 400, "bad_request", "IPv6 is not supported"),
        (r#"{"name":"a","network":{"deny_out":["example.com"]}}"#, 400, "bad_request", "network.deny_out"),
        (r#"{"name":"a","preview_access":"legacy_public"}"#, 400, "bad_request", "preview_access"),
        (r#"{"name":"a","secrets":{"1A":"x"}}"#, 400, "bad_request", "secrets"),
        (
            r#"{"name":"a","secrets":{"A":"x"},"env_vars":{"A":"1"}}"#,
            400,
            "bad_request",
            "`A` is also in env_vars",
        ),
        (r#"{"name":"a","secrets":{"A":"openai"}}"#, 400, "secret_not_found", "secret `openai` not found"),
        (&both, 400, "bad_request", "either from_template or from_snapshot"),
        (r#"{"name":"a","from_snapshot":"x"}"#, 400, "bad_request", "a UUID is expected"),
        (&unknown_snapshot, 404, "not_found", "snapshot"),
        (r#"{"name":"a","from_template":"nope"}"#, 404, "not_found", "template `nope` not found"),
        (r#"{"name":"a","from_template":"unfinished"}"#, 409, "conflict", "is building, not ready"),
    ] {
        let answer = p.call("POST", "/sandboxes", body).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (status, code), "{body}");
        assert!(answer.message().contains(told), "{body}: {}", answer.message());
    }
    assert_eq!(p.get("/sandboxes").await.headers["x-total-count"], "0");
    // The ends of the ranges, and `null` for whatever is optional.
    p.sandbox(r#"{"name":"a","timeout_seconds":604800,"auto_delete_seconds":0}"#).await;
    p.sandbox(
        r#"{"name":"a","timeout_seconds":1,"auto_delete_seconds":2592000,"network":null,"metadata":null}"#,
    )
    .await;
}

#[tokio::test]
async fn patches() {
    let p = Platform::new().await;
    let id = p.sandbox_id().await;
    let path = format!("/sandboxes/{id}");
    for bad in [
        "",
        "{}",
        r#"{"name":"x"}"#,
        r#"{"timeout_seconds":0}"#,
        r#"{"metadata":null}"#,
        r#"{"preview_access":"x"}"#,
        "[]",
    ] {
        assert_eq!(p.call("PATCH", &path, bad).await.code(), "bad_request", "{bad}");
    }
    let all = r#"{"network":{"allow_out":["1.1.1.1"],"deny_out":["0.0.0.0/0"]},"metadata":{"a":"b"},
        "timeout_seconds":60,"auto_delete_seconds":5,"preview_access":"private"}"#;
    let answer = p.call("PATCH", &path, all).await;
    assert_eq!((answer.status, answer.body.len()), (StatusCode::NO_CONTENT, 0));
    let got = p.get(&path).await.json();
    assert_eq!(got["network"], serde_json::json!({"allow_out": ["1.1.1.1/32"], "deny_out": ["0.0.0.0/0"]}));
    assert_eq!((got["timeout_seconds"].as_u64(), got["auto_delete_seconds"].as_u64()), (Some(60), Some(5)));
    let clear = r#"{"network":{"allow_out":[],"deny_out":[]},"timeout_seconds":null,"auto_delete_seconds":null,"metadata":{}}"#;
    assert_eq!(p.call("PATCH", &path, clear).await.status, StatusCode::NO_CONTENT);
    let got = p.get(&path).await.json();
    for absent in ["network", "timeout_seconds", "auto_delete_seconds"] {
        assert!(got.get(absent).is_none(), "{absent}");
    }
    assert_eq!(got["metadata"], serde_json::json!({}));
    p.post(&format!("{path}/pause")).await;
    let network = r#"{"network":{}}"#;
    assert_eq!(p.call("PATCH", &path, network).await.code(), "conflict");
    assert_eq!(p.call("PATCH", &path, r#"{"metadata":{"x":"y"}}"#).await.status, StatusCode::NO_CONTENT);
    assert_eq!(p.get(&path).await.json()["status"], "paused", "a patch never resumes");
}

#[tokio::test]
async fn pauses_that_take_long() {
    let p = Platform::new().await;
    let id = p.sandbox_id().await;
    p.host.may_freeze.send_replace(false);
    let pause = |prefer: &'static str| {
        let request = Request::post(format!("/sandboxes/{id}/pause")).header("x-api-key", &p.key);
        p.send(request.header("prefer", prefer).body(Body::empty()).unwrap())
    };
    for prefer in ["respond-async", "wait=10, Respond-Async; x=1"] {
        let answer = pause(prefer).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{prefer}");
        assert_eq!(answer.json(), serde_json::json!({"status": "pausing"}));
        assert_eq!(answer.headers["retry-after"], "1");
    }
    assert_eq!(p.get(&format!("/sandboxes/{id}")).await.json()["status"], "pausing");
    p.host.may_freeze.send_replace(true);
    let activated = p.post(&format!("/sandboxes/{id}/activate")).await;
    assert_eq!(activated.status, StatusCode::OK, "waits for the pause, then resumes");
    assert_eq!(pause("respond-async").await.status, StatusCode::NO_CONTENT, "within the grace");
}

#[tokio::test]
async fn malformed_and_unknown_ids() {
    let p = Platform::new().await;
    for (method, tail) in [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("POST", "/activate"),
        ("GET", "/files"),
    ] {
        for bad in ["missing-id", "sb-usw-x", "%ff", &UNKNOWN.replace('-', "")] {
            let answer = p.call(method, &format!("/sandboxes/{bad}{tail}"), "").await;
            assert_eq!(answer.code(), "bad_request", "{method} {bad}{tail}");
        }
        let answer = p.call(method, &format!("/sandboxes/{UNKNOWN}{tail}"), "").await;
        assert_eq!(answer.code(), "not_found", "{method} {tail}");
    }
    assert_eq!(
        p.call("PATCH", &format!("/sandboxes/{UNKNOWN}"), r#"{"metadata":{}}"#).await.code(),
        "not_found"
    );
}

#[tokio::test]
async fn the_quota_is_exact() {
    let p = Platform::with_quota(5).await;
    let calls = (0..12).map(|n| async move { n });
    let answers = futures_util::future::join_all(calls.map(|call| async {
        let n = call.await;
        p.call("POST", "/sandboxes", &format!(r#"{{"name":"s{n}"}}"#)).await
    }))
    .await;
    let (made, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|a| a.status == StatusCode::CREATED);
    assert_eq!((made.len(), refused.len()), (5, 7));
    for answer in refused {
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (429, "too_many_sandboxes"));
        assert!(answer.headers.contains_key("retry-after"));
    }
}

#[tokio::test]
async fn two_activates_at_once_both_succeed() {
    let p = Platform::new().await;
    let id = p.sandbox_id().await;
    p.post(&format!("/sandboxes/{id}/pause")).await;
    let path = format!("/sandboxes/{id}/activate");
    let (one, two) = futures_util::future::join(p.post(&path), p.post(&path)).await;
    assert_eq!((one.status, two.status), (StatusCode::OK, StatusCode::OK));
    for answer in [one, two] {
        let token = answer.json()["access_token"].as_str().unwrap().to_owned();
        assert!(p.lifecycle.admit(id.parse().unwrap(), &token));
    }
}

#[tokio::test]
async fn what_it_runs_on_is_asked_for_and_shown() {
    let p = Platform::new().await;
    let made = p.sandbox(r#"{"name":"strong","isolation":"qemu"}"#).await;
    assert_eq!(made["isolation"], "qemu");
    assert_eq!(p.host.specs.lock().unwrap()[0].engine, domain::Engine::Qemu);
    // The server offers containers and QEMU.
    for (wanted, accepted) in
        [("gvisor", "container, qemu; left out: container"), ("auto", "container, gvisor, qemu, firecracker")]
    {
        let body = format!(r#"{{"name":"a","isolation":"{wanted}"}}"#);
        let refused = p.call("POST", "/sandboxes", &body).await;
        assert_eq!((refused.status, refused.code().as_str()), (StatusCode::BAD_REQUEST, "bad_request"));
        assert!(
            refused.message().contains("isolation") && refused.message().contains(accepted),
            "{}",
            refused.message()
        );
    }
    // A template's choice is its sandboxes', unless they have their own.
    let own = store::TemplateRow {
        engine: Some(domain::Engine::Qemu),
        ..template("own", p.team, TemplateStatus::Ready)
    };
    p.store.template_put(&own).await.unwrap();
    assert_eq!(p.get("/templates/own").await.json()["isolation"], "qemu");
    assert!(p.get("/templates/superserve/base").await.json().get("isolation").is_none());
    assert_eq!(p.sandbox(r#"{"name":"a","from_template":"own"}"#).await["isolation"], "qemu");
    let other = p.sandbox(r#"{"name":"a","from_template":"own","isolation":"container"}"#).await;
    assert_eq!(other["isolation"], "container");
    let listed = p.get("/sandboxes").await.json();
    assert!(listed.as_array().unwrap().iter().all(|row| row["isolation"].is_string()), "{listed}");
}
