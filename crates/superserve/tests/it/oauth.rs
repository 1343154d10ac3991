//! OAuth on the real platform: a grant is its key at `/mcp` and nothing anywhere else, and ends with it. What the
//! authorization server refuses by itself is tested beside it; the flow with real browsers and clients is in `tests/mcp`.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use reqwest::redirect::Policy;
use serde_json::{Value, json};
use testing::{Platform, wait_for};

use crate::{BIN, platform_with};

const URL: &str = "https://mcp.example.com";
const REDIRECT: &str = "http://127.0.0.1/callback";
/// The pair of RFC 7636, appendix B.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
/// Longer than a batch of the activity log takes to be written.
const LOGGED: Duration = Duration::from_secs(5);

struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {}", self.text))
    }
}

/// A client and the browser of its user.
struct User<'a> {
    p: &'a Platform,
    http: reqwest::Client,
    client: String,
}

impl<'a> User<'a> {
    async fn new(p: &'a Platform) -> Self {
        let http = reqwest::Client::builder().no_proxy().redirect(Policy::none());
        let http = http.timeout(Duration::from_secs(60)).build().unwrap();
        let mut user = Self { p, http, client: String::new() };
        let body = json!({"client_name": "A client", "redirect_uris": [REDIRECT]});
        let made = user.register(&body).await;
        assert_eq!(made.status, 201, "{}", made.text);
        user.client = made.json()["client_id"].as_str().unwrap().to_owned();
        user
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.p.base_url())
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let text = |value: &reqwest::header::HeaderValue| value.to_str().unwrap().to_owned();
        let headers =
            response.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        let text = String::from_utf8(response.bytes().await.unwrap().into()).unwrap();
        assert!(!text.contains(self.p.key()), "the key is repeated: {text}");
        Answer { status, headers, text }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(self.http.get(self.url(path))).await
    }

    async fn register(&self, body: &Value) -> Answer {
        let request = self.http.post(self.url("/register")).header("content-type", "application/json");
        self.send(request.body(body.to_string())).await
    }

    async fn form(&self, path: &str, pairs: &[(&str, &str)], cookie: &str) -> Answer {
        // All values here are without characters that would have to be encoded, but those of URIs.
        let body: Vec<String> = pairs
            .iter()
            .map(|(name, value)| format!("{name}={}", value.replace(':', "%3A").replace('/', "%2F")))
            .collect();
        let request = self.http.post(self.url(path)).header("cookie", cookie);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        self.send(request.body(body.join("&"))).await
    }

    /// What becomes of a key typed into the page.
    async fn consent(&self, key: &str) -> Answer {
        let page = self
            .get(&format!(
                "/authorize?response_type=code&client_id={}&redirect_uri={REDIRECT}&state=s&code_challenge={CHALLENGE}\
                 &code_challenge_method=S256",
                self.client
            ))
            .await;
        assert_eq!(page.status, 200, "{}", page.text);
        let sealed = page.text.split("name=\"request\" value=\"").nth(1).unwrap().split('"').next().unwrap();
        let cookie = page.headers["set-cookie"].split(';').next().unwrap();
        self.form("/authorize", &[("request", sealed), ("api_key", key), ("decision", "allow")], cookie).await
    }

    /// Access and refresh token.
    async fn tokens(&self) -> (String, String) {
        let answer = self.consent(self.p.key()).await;
        assert_eq!(answer.status, 303, "{}", answer.text);
        let location = &answer.headers["location"];
        assert!(location.starts_with(&format!("{REDIRECT}?code=")) && location.contains("&state=s&iss="));
        let code = location.split("code=").nth(1).unwrap().split('&').next().unwrap();
        let pairs = [
            ("grant_type", "authorization_code"),
            ("client_id", self.client.as_str()),
            ("code", code),
            ("code_verifier", VERIFIER),
            ("redirect_uri", REDIRECT),
        ];
        let answer = self.form("/token", &pairs, "").await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        pair(&answer)
    }

    async fn refresh(&self, token: &str) -> Answer {
        let pairs = [("grant_type", "refresh_token"), ("client_id", &self.client), ("refresh_token", token)];
        self.form("/token", &pairs, "").await
    }

    async fn mcp(&self, bearer: &str, method: &str, params: Value) -> Answer {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let request = self.http.post(self.url("/mcp")).header("authorization", format!("Bearer {bearer}"));
        let request = request.header("content-type", "application/json");
        self.send(request.header("accept", "application/json, text/event-stream").body(body.to_string()))
            .await
    }

    async fn call(&self, bearer: &str, tool: &str, arguments: Value) -> Value {
        let answer = self.mcp(bearer, "tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let result = answer.json()["result"].clone();
        assert!(result.get("isError").is_none(), "{tool}: {result}");
        result["structuredContent"].clone()
    }

    async fn opens(&self, bearer: &str) -> bool {
        let answer = self.mcp(bearer, "tools/list", json!({})).await;
        if answer.status == 200 {
            return true;
        }
        let challenge = &answer.headers["www-authenticate"];
        assert_eq!(answer.status, 401);
        assert!(challenge.contains(r#"error="invalid_token", resource_metadata=""#), "{challenge}");
        false
    }
}

fn pair(answer: &Answer) -> (String, String) {
    let text = |name: &str| answer.json()[name].as_str().unwrap().to_owned();
    (text("access_token"), text("refresh_token"))
}

fn key_command(p: &Platform, arguments: &[&str]) -> String {
    let done =
        Command::new(BIN).args(["--json", "key", "--state-dir"]).arg(p.state_dir()).args(arguments).output();
    let done = done.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[tokio::test]
async fn off_there_is_no_sign_of_it() {
    let Some(p) = platform_with(&["--oauth-url", URL]).await else { return };
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let user = User { p: &p, http, client: String::new() };
    for path in [
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
        "/.well-known/openid-configuration",
        "/authorize",
    ] {
        let answer = user.get(path).await;
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (404, Some("not_found")),
            "{path}"
        );
    }
    for path in ["/register", "/token", "/revoke"] {
        assert_eq!(user.form(path, &[("a", "b")], "").await.status, 404, "{path}");
    }
    let answer = user.send(user.http.post(user.url("/mcp"))).await;
    assert_eq!(answer.status, 401);
    assert_eq!(answer.headers["www-authenticate"], r#"Bearer realm="superserve-mcp""#);
    let answer = user.mcp("ss_oauth_x", "tools/call", json!({"name": "sandbox_list"})).await;
    assert_eq!(answer.json()["result"]["isError"], true, "a bearer is a key and nothing else");
}

#[tokio::test]
async fn a_grant_is_its_key_at_mcp_and_nothing_anywhere_else() {
    let Some(mut p) = platform_with(&["--oauth", "--oauth-url", URL]).await else { return };
    let (client, access, refresh, foreign);
    {
        let user = User::new(&p).await;
        let challenge = user.send(user.http.post(user.url("/mcp"))).await.headers["www-authenticate"].clone();
        let metadata = challenge.split("resource_metadata=\"").nth(1).unwrap().split('"').next().unwrap();
        let metadata = user.get(metadata.strip_prefix(URL).unwrap()).await.json();
        assert_eq!(metadata["resource"], format!("{URL}/mcp"));

        assert_eq!(user.consent("ss_live_00000000000000000000000000000000").await.status, 403);
        (access, refresh) = user.tokens().await;
        let id = user.call(&access, "sandbox_create", json!({"name": "mine"})).await["id"].clone();
        let ran =
            user.call(&access, "sandbox_exec", json!({"sandbox_id": id, "command": "echo hello"})).await;
        assert_eq!(ran["stdout"], "hello\n");
        let seen = p.rest("GET", &format!("/sandboxes/{}", id.as_str().unwrap()), None).await;
        assert_eq!(seen.status, 200, "the sandbox belongs to the key's team");
        user.call(&access, "sandbox_kill", json!({"sandbox_id": id})).await;

        // The token is for MCP alone, and the others are not even for that.
        for text in [&access, &refresh] {
            for (name, value) in [("x-api-key", text.clone()), ("authorization", format!("Bearer {text}"))] {
                let answer = user.send(user.http.get(user.url("/sandboxes")).header(name, value)).await;
                assert_eq!(
                    (answer.status, answer.json()["error"]["code"].as_str()),
                    (401, Some("auth_failed"))
                );
            }
        }
        assert!(!user.opens(&refresh).await && !user.opens("ss_oauth_").await);
        assert!(user.opens(p.key()).await, "keys open it as before");

        // A client of another server of ours has a token for another audience.
        let Some(other) = platform_with(&["--oauth"]).await else { return };
        foreign = User::new(&other).await.tokens().await.0;
        assert!(!user.opens(&foreign).await);
        client = user.client;
    }

    // Tokens outlive a restart; their way to the key does not have to.
    assert_eq!(p.stop().await, Some(0));
    p.spawn().await;
    let mut user = User::new(&p).await;
    user.client = client;
    assert!(user.opens(&access).await);
    let renewed = user.refresh(&refresh).await;
    assert_eq!(renewed.status, 200, "{}", renewed.text);
    let (access, refresh) = pair(&renewed);
    user.call(&access, "sandbox_list", json!({})).await;

    // One grant is ended by its client, one by the operator, one with the key.
    let pairs = [("token", refresh.as_str()), ("client_id", user.client.as_str())];
    assert_eq!(user.form("/revoke", &pairs, "").await.status, 200);
    assert!(!user.opens(&access).await);
    let (by_operator, _) = user.tokens().await;
    let (with_key, last_refresh) = user.tokens().await;
    let grants: Value = serde_json::from_str(&key_command(&p, &["grants"])).unwrap();
    assert_eq!(grants.as_array().unwrap().len(), 2, "{grants}");
    assert_eq!(grants[0]["client_name"], "A client");
    key_command(&p, &["revoke", grants[0]["id"].as_str().unwrap()]);
    assert!(!user.opens(&by_operator).await && user.opens(&with_key).await);
    key_command(&p, &["create", "--name", "second"]);
    let keys: Value = serde_json::from_str(&key_command(&p, &["list"])).unwrap();
    assert!(keys[0]["last_used_at"].is_string(), "calls of a grant are uses of its key");

    let log = wait_for("the log is written", LOGGED, || async {
        let log = p.rest("GET", "/activity?category=grant&order=asc", None).await.body;
        (log.as_array().unwrap().len() == 6).then_some(log)
    })
    .await;
    let told: Vec<_> = log.as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(told, ["created", "renewed", "revoked", "created", "created", "revoked"]);
    assert_eq!(log[0]["metadata"]["actor_name"], "first");
    assert_eq!(
        (&log[2]["metadata"]["reason"], &log[5]["metadata"]["reason"]),
        (&json!("client"), &json!("operator"))
    );
    let page = user.get("/metrics").await.text;
    assert!(page.contains("superserve_oauth_events_total{event=\"granted\"} 2"), "{page}");

    key_command(&p, &["revoke", keys[0]["id"].as_str().unwrap()]);
    assert!(!user.opens(&with_key).await);
    assert_eq!(user.refresh(&last_refresh).await.json()["error"], "invalid_grant");
    assert_eq!(user.consent(p.key()).await.status, 403, "a revoked key grants nothing");

    let log = p.log();
    for private in [p.key(), "ss_oauth_", VERIFIER, CHALLENGE, REDIRECT, "A client"] {
        assert!(!log.contains(private), "in the log: {private}");
    }
    let database = std::fs::read(p.state_dir().join("superserve.db")).unwrap();
    let wal = std::fs::read(p.state_dir().join("superserve.db-wal")).unwrap_or_default();
    for private in [p.key(), "ss_oauth_", VERIFIER] {
        let within = |bytes: &[u8]| bytes.windows(private.len()).any(|part| part == private.as_bytes());
        assert!(!within(&database) && !within(&wal), "in the database: {private}");
    }
}

#[tokio::test]
async fn floods_are_small() {
    let Some(p) = platform_with(&["--oauth"]).await else { return };
    let user = User::new(&p).await;
    let before = descriptors(&p);
    let body = json!({"redirect_uris": [REDIRECT]});
    let answers = (0..200).map(|_| user.register(&body));
    let answers = futures_util::future::join_all(answers).await;
    let made = answers.iter().filter(|answer| answer.status == 201).count();
    assert!((25..=31).contains(&made), "{made} were registered");
    assert!(answers.iter().all(|answer| matches!(answer.status, 201 | 429)));
    let large = "x".repeat(1 << 20);
    for path in ["/token", "/authorize", "/revoke"] {
        let request =
            user.http.post(user.url(path)).header("content-type", "application/x-www-form-urlencoded");
        // A peer that goes on sending may see the connection end instead.
        if let Ok(answer) = request.body(large.clone()).send().await {
            assert_eq!(answer.status(), 413, "{path}");
        }
    }
    drop(user);
    wait_for("connections are closed", Duration::from_secs(20), || async {
        (descriptors(&p) <= before + 2).then_some(())
    })
    .await;
    // The platform goes on.
    assert_eq!(p.rest("GET", "/sandboxes", None).await.status, 200);
    assert!(platform_answers(&p).await);
}

async fn platform_answers(p: &Platform) -> bool {
    let user = User { p, http: reqwest::Client::new(), client: String::new() };
    user.get("/.well-known/oauth-authorization-server").await.json()["issuer"] == p.base_url()
}

fn descriptors(p: &Platform) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", p.pid())).unwrap().count()
}

#[tokio::test]
async fn a_listener_for_others_needs_an_address_with_tls() {
    let dir = tempfile::tempdir().unwrap();
    for flags in [&["--listen", "0.0.0.0:0"][..], &["--oauth-url", "http://mcp.example.com"]] {
        let done =
            Command::new(BIN).args(["up", "--oauth", "--state-dir"]).arg(dir.path()).args(flags).output();
        let done = done.unwrap();
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(
            !done.status.success() && told.contains("oauth_url") && told.contains("https://HOST"),
            "{told}"
        );
    }
}
