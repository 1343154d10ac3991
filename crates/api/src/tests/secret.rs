//! Secrets over REST.

use http::{Request, StatusCode};
use serde_json::{Value, json};

use super::Platform;

const VALUE: &str = "planted-value-4711";

impl Platform {
    async fn secret(&self, body: Value) -> Value {
        let made = self.call("POST", "/secrets", &body.to_string()).await;
        assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
        made.json()
    }

    /// What new processes of the newest sandbox start with.
    fn variables(&self) -> std::collections::BTreeMap<String, String> {
        self.host.specs.lock().unwrap().last().unwrap().guest.env.clone()
    }
}

#[tokio::test]
async fn the_whole_life_of_a_secret() {
    let p = Platform::new().await;
    assert_eq!(p.get("/secrets").await.json(), json!([]));
    let made = p.secret(json!({"name": "prod", "value": VALUE, "provider": "anthropic"})).await;
    let mut shown = made.clone();
    for key in ["id", "created_at", "updated_at"] {
        assert!(shown.as_object_mut().unwrap().remove(key).unwrap().is_string());
    }
    assert_eq!(
        shown,
        json!({"name": "prod", "auth_type": "api-key", "auth_config": {"header": "x-api-key"},
            "hosts": ["api.anthropic.com"], "provider_shortcut": "anthropic"})
    );
    assert_eq!(p.get("/secrets/prod").await.json(), made);
    assert_eq!(p.get("/secrets").await.json(), json!([made]));
    let again = p.call("POST", "/secrets", r#"{"name":"prod","value":"x","provider":"openai"}"#).await;
    assert_eq!((again.status, again.code().as_str()), (StatusCode::CONFLICT, "conflict"));

    let made =
        p.sandbox(r#"{"name":"a","env_vars":{"PLAIN":"1"},"secrets":{"ANTHROPIC_API_KEY":"prod"}}"#).await;
    let path = format!("/sandboxes/{}", made["id"].as_str().unwrap());
    assert_eq!(made["secrets"], json!([{"env_key": "ANTHROPIC_API_KEY", "secret_name": "prod"}]));
    let stand_in = p.variables()["ANTHROPIC_API_KEY"].clone();
    assert!(stand_in.starts_with("sk-ant-api03-") && stand_in.len() == 61, "{stand_in}");
    assert_eq!(p.variables()["PLAIN"], "1");
    assert!(p.get("/sandboxes").await.json()[0].get("secrets").is_none(), "not in the list");
    let used = p.get("/secrets/prod/sandboxes").await.json();
    assert_eq!(
        used,
        json!([{"sandbox_id": made["id"], "sandbox_name": "a", "env_key": "ANTHROPIC_API_KEY", "status": "active"}])
    );

    let attach = r#"{"env_key":"SECOND","secret_name":"prod"}"#;
    let attached = p.call("POST", &format!("{path}/secrets"), attach).await;
    assert_eq!(
        (attached.status, attached.json()),
        (StatusCode::CREATED, serde_json::from_str(attach).unwrap())
    );
    assert_ne!(p.variables()["SECOND"], stand_in);
    assert_eq!(p.call("POST", &format!("{path}/secrets"), attach).await.code(), "conflict");
    let detached = p.call("DELETE", &format!("{path}/secrets/SECOND"), "").await;
    assert_eq!((detached.status, detached.body.len()), (StatusCode::NO_CONTENT, 0));
    assert!(!p.variables().contains_key("SECOND"));
    assert_eq!(p.call("DELETE", &format!("{path}/secrets/SECOND"), "").await.code(), "not_found");

    let rotated = p.call("PATCH", "/secrets/prod", r#"{"value":"another-planted-4711"}"#).await;
    assert_eq!(rotated.status, StatusCode::OK);
    assert_ne!(rotated.json()["updated_at"], rotated.json()["created_at"]);
    let gone = p.call("DELETE", "/secrets/prod", "").await;
    assert_eq!((gone.status, gone.body.len()), (StatusCode::NO_CONTENT, 0));
    assert_eq!(p.get("/secrets/prod").await.code(), "not_found");
    assert_eq!(p.call("DELETE", "/secrets/prod", "").await.code(), "not_found");
    assert_eq!(p.get(&path).await.json()["secrets"][0]["revoked"], true);
    p.secret(json!({"name": "prod", "value": "x", "provider": "anthropic"})).await;
    assert_eq!(p.get(&path).await.json()["secrets"][0]["revoked"], true, "the old binding is not revived");

    let log = p.get("/activity?category=secret&order=asc").await.json();
    let actions: Vec<_> = log.as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(
        actions,
        ["created", "attached", "attached", "detached", "detached", "rotated", "deleted", "created"],
        "refused ones too"
    );
    assert_eq!((&log[1]["secret_name"], &log[1]["sandbox_id"]), (&json!("prod"), &made["id"]));
}

#[tokio::test]
async fn every_auth_type_reads_back_as_it_was_given() {
    let p = Platform::new().await;
    for (auth, kind, config) in [
        (json!({"type": "bearer"}), "bearer", json!({})),
        (json!({"type": "basic"}), "basic", json!({})),
        (json!({"type": "basic", "username": "bot"}), "basic", json!({"username": "bot"})),
        (json!({"type": "api-key", "header": "X-Key"}), "api-key", json!({"header": "X-Key"})),
        (
            json!({"type": "api-key", "header": "Authorization", "prefix": "Token "}),
            "api-key",
            json!({"header": "Authorization", "prefix": "Token "}),
        ),
        (
            json!({"type": "custom", "headers": {"X-A": "a {{ value }}", "X-B": "{{ value }}"}}),
            "custom",
            json!({"headers": {"X-A": "a {{ value }}", "X-B": "{{ value }}"}}),
        ),
        (
            json!({"per_host": [{"hosts": ["a.example.com"], "type": "bearer"}, {"hosts": ["b.test"], "type": "basic", "username": "u"}]}),
            "per_host",
            json!({"per_host": [{"hosts": ["a.example.com"], "type": "bearer"}, {"hosts": ["b.test"], "type": "basic", "username": "u"}]}),
        ),
    ] {
        let body = json!({"name": "s", "value": VALUE, "auth": auth, "hosts": ["*.Example.com", "b.test"]});
        let made = p.secret(body).await;
        assert_eq!((&made["auth_type"], &made["auth_config"]), (&json!(kind), &config));
        assert_eq!(made["hosts"], json!(["*.example.com", "b.test"]));
        assert!(made.get("provider_shortcut").is_none() && made.get("last_used_at").is_none());
        assert_eq!(p.call("DELETE", "/secrets/s", "").await.status, StatusCode::NO_CONTENT);
    }
}

#[tokio::test]
async fn refusals_name_the_field_and_never_the_value() {
    let p = Platform::new().await;
    let bearer = json!({"type": "bearer"});
    let own = |auth: Value| json!({"name": "s", "value": VALUE, "auth": auth, "hosts": ["a.test"]});
    let rules = |rules: Value| own(json!({"per_host": rules}));
    let long = "x".repeat(8_193);
    for (body, told) in [
        (json!({"name": "s"}), "value"),
        (json!({"value": VALUE, "provider": "openai"}), "name"),
        (json!({"name": "s", "value": VALUE}), "give provider"),
        (json!({"name": "9", "value": VALUE, "provider": "openai"}), "name"),
        (json!({"name": "s", "value": "", "provider": "openai"}), "value: 1 to 8192 bytes"),
        (json!({"name": "s", "value": long, "provider": "openai"}), "value: 1 to 8192 bytes"),
        (json!({"name": "s", "value": format!("{VALUE}\r\nX: y"), "provider": "openai"}), "value"),
        (json!({"name": "s", "value": [VALUE], "provider": "openai"}), "value: expected a string"),
        (json!({"name": "s", "value": VALUE, "provider": "acme"}), "provider: accepted are anthropic"),
        (json!({"name": "s", "value": VALUE, "provider": "openai", "hosts": ["a.test"]}), "give either"),
        (json!({"name": "s", "value": VALUE, "auth": bearer}), "hosts: required"),
        (json!({"name": "s", "value": VALUE, "auth": bearer, "hosts": []}), "hosts: 1 to 16"),
        (json!({"name": "s", "value": VALUE, "auth": bearer, "hosts": vec!["a.test"; 17]}), "hosts: 1 to 16"),
        (json!({"name": "s", "value": VALUE, "auth": bearer, "hosts": ["*.com"]}), "hosts"),
        (json!({"name": "s", "value": VALUE, "auth": bearer, "hosts": ["10.0.0.1"]}), "hosts"),
        (json!({"name": "s", "value": VALUE, "auth": bearer, "hosts": ["a.test"], "note": 1}), "note"),
        (own(json!({})), "auth.type"),
        (own(json!({"type": "digest"})), "auth.type"),
        (own(json!({"type": "per_host"})), "auth.type"),
        (own(json!({"type": "bearer", "header": "X"})), "auth.header"),
        (own(json!({"type": "basic", "prefix": "X"})), "auth.prefix"),
        (own(json!({"type": "basic", "username": "a:b"})), "auth.username"),
        (own(json!({"type": "api-key"})), "auth.header"),
        (own(json!({"type": "api-key", "header": "X Y"})), "auth.header"),
        (own(json!({"type": "api-key", "header": "Host"})), "auth.header"),
        (own(json!({"type": "api-key", "header": "transfer-encoding"})), "auth.header"),
        (own(json!({"type": "api-key", "header": "X", "prefix": "a\r\nb"})), "auth.prefix"),
        (own(json!({"type": "custom"})), "auth.headers"),
        (own(json!({"type": "custom", "headers": {"X": "no place"}})), "{{ value }}"),
        (own(json!({"type": "custom", "headers": {"X": "{{ value }}", "x": "{{ value }}"}})), "twice"),
        (own(json!({"type": "bearer", "per_host": []})), "either type or per_host"),
        (own(json!({"type": "bearer", "hosts": ["a.test"]})), "auth.hosts"),
        (rules(json!([])), "1 to 16 rules"),
        (rules(json!([{"type": "bearer"}])), "auth.per_host[0].hosts"),
        (rules(json!([{"hosts": ["b.test"], "type": "bearer"}])), "not among hosts"),
        (
            rules(json!([{"hosts": ["a.test"], "type": "bearer"}, {"hosts": ["A.test"], "type": "basic"}])),
            "two rules",
        ),
        (rules(json!([{"hosts": ["a.test"], "per_host": []}])), "auth.per_host[0].type"),
    ] {
        let answer = p.call("POST", "/secrets", &body.to_string()).await;
        let message = answer.message();
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (StatusCode::BAD_REQUEST, "bad_request"),
            "{body}: {message}"
        );
        assert!(message.contains(told), "{body}: {message}");
        assert!(!message.contains("planted"), "{message}");
    }
    assert_eq!(p.get("/secrets").await.json(), json!([]));
    assert_eq!(p.call("PATCH", "/secrets/nothing", r#"{"value":"x"}"#).await.code(), "not_found");

    p.secret(json!({"name": "prod", "value": VALUE, "provider": "openai"})).await;
    for body in [r#"{"value":""}"#, "{}", r#"{"value":"x","name":"y"}"#] {
        assert_eq!(p.call("PATCH", "/secrets/prod", body).await.status, StatusCode::BAD_REQUEST, "{body}");
    }
    let many: std::collections::BTreeMap<_, _> = (0..33).map(|n| (format!("K{n}"), "prod")).collect();
    for (secrets, env, code, told) in [
        (json!({"A": "nothing"}), json!({}), "secret_not_found", "secret `nothing` not found"),
        (json!({"A-B": "prod"}), json!({}), "bad_request", "a variable name"),
        (json!({"A": "prod"}), json!({"A": "1"}), "bad_request", "also in env_vars"),
        (json!(many), json!({}), "bad_request", "at most 32"),
    ] {
        let body = json!({"name": "x", "secrets": secrets, "env_vars": env}).to_string();
        let answer = p.call("POST", "/sandboxes", &body).await;
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::BAD_REQUEST, code), "{body}");
        assert!(answer.message().contains(told), "{}", answer.message());
    }
    assert_eq!(p.get("/sandboxes").await.json(), json!([]));
    let id = p.sandbox_id().await;
    for (body, code) in [
        (r#"{"env_key":"A","secret_name":"nothing"}"#, "secret_not_found"),
        (r#"{"env_key":"1A","secret_name":"prod"}"#, "bad_request"),
        (r#"{"env_key":"A"}"#, "bad_request"),
    ] {
        assert_eq!(p.call("POST", &format!("/sandboxes/{id}/secrets"), body).await.code(), code, "{body}");
    }
}

#[tokio::test]
async fn providers_are_the_catalogue() {
    let p = Platform::new().await;
    let providers = p.get("/providers").await.json();
    let providers = providers.as_array().unwrap();
    assert_eq!(providers.len(), 19);
    let find = |name: &str| providers.iter().find(|provider| provider["name"] == name).unwrap();
    assert_eq!(
        find("github"),
        &json!({"name": "github", "display": "GitHub", "auth_type": "per_host", "token_shape": "ghp_...",
            "auth_config": {"per_host": [{"hosts": ["api.github.com"], "type": "bearer"},
                {"hosts": ["github.com"], "type": "basic", "username": "x-access-token"}]},
            "hosts": ["api.github.com", "github.com"]})
    );
    assert_eq!((&find("asana")["token_shape"], &find("asana")["auth_config"]), (&json!("..."), &json!({})));
    assert_eq!(find("gemini")["auth_config"], json!({"header": "x-goog-api-key"}));
}

#[tokio::test]
async fn the_audit_pages_and_filters() {
    use domain::{Attempt, NetworkEvent, NetworkSink, RequestAttempt};
    let p = Platform::new().await;
    let made = p.secret(json!({"name": "prod", "value": VALUE, "provider": "openai"})).await;
    let id = p.sandbox_id().await;
    for status in [200, 302, 403, 500] {
        let what = Attempt::Request(RequestAttempt {
            secret: Some(made["id"].as_str().unwrap().parse().unwrap()),
            method: "GET".into(),
            host: "api.openai.com".into(),
            path: "/v1/models".into(),
            status,
            upstream_status: Some(status),
            latency: std::time::Duration::from_millis(5),
            error: None,
        });
        let at = jiff::Timestamp::from_second(1_700_000_000).unwrap();
        p.network.record(NetworkEvent { sandbox: id.parse().unwrap(), at, what });
    }
    let statuses = async |query: &str| {
        let answer = p.get(&format!("/secrets/prod/audit{query}")).await;
        assert_eq!(answer.status, StatusCode::OK, "{query}");
        let rows = answer.json();
        rows.as_array().unwrap().iter().map(|row| row["status"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(statuses("").await, [500, 403, 302, 200]);
    assert_eq!(statuses("?status=errors").await, [500, 403]);
    assert_eq!(statuses("?status=3xx").await, [302]);
    assert_eq!(statuses("?limit=1").await, [500]);
    let rows = p.get("/secrets/prod/audit").await.json();
    assert_eq!(statuses(&format!("?before={}", rows[1]["id"])).await, [302, 200]);
    assert_eq!((&rows[0]["sandbox_id"], &rows[0]["sandbox_name"]), (&json!(id), &json!("test")));
    assert!(p.get("/secrets/prod").await.json()["last_used_at"].is_string());
    p.call("DELETE", &format!("/sandboxes/{id}"), "").await;
    let rows = p.get("/secrets/prod/audit").await.json();
    assert_eq!((rows.as_array().unwrap().len(), &rows[0]["sandbox_name"]), (4, &Value::Null));
    for bad in ["limit=0", "before=x", "before=-1", "status=6xx", "status=200"] {
        assert_eq!(p.get(&format!("/secrets/prod/audit?{bad}")).await.code(), "bad_request", "{bad}");
    }
    assert_eq!(p.get("/secrets/nothing/audit").await.code(), "not_found");
}

#[tokio::test]
async fn another_teams_secret_is_not_there() {
    let p = Platform::new().await;
    p.secret(json!({"name": "prod", "value": VALUE, "provider": "openai"})).await;
    let now = jiff::Timestamp::now();
    let other = p.store.team_ensure("other", now).await.unwrap().id;
    let (key, _) = p.store.key_create(other, "other", now).await.unwrap();
    let call = async |method: &str, path: &str, body: &str| {
        let request = Request::builder().method(method).uri(path).header("x-api-key", key.expose_secret());
        p.send(request.body(axum::body::Body::from(body.to_owned())).unwrap()).await
    };
    for (method, path, body) in [
        ("GET", "/secrets/prod", ""),
        ("GET", "/secrets/prod/audit", ""),
        ("GET", "/secrets/prod/sandboxes", ""),
        ("PATCH", "/secrets/prod", r#"{"value":"x"}"#),
        ("DELETE", "/secrets/prod", ""),
    ] {
        assert_eq!(call(method, path, body).await.code(), "not_found", "{method} {path}");
    }
    assert_eq!(call("GET", "/secrets", "").await.json(), json!([]));
    assert_eq!(
        call("POST", "/sandboxes", r#"{"name":"a","secrets":{"A":"prod"}}"#).await.code(),
        "secret_not_found"
    );
    assert_eq!(p.get("/secrets/prod").await.status, StatusCode::OK);
}
