//! The router over a real database, as clients, browsers and attackers see it. The clock is the tests'.

mod asking;
mod consent;
mod registration;
mod tokens;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use domain::Secret;
use http::{HeaderMap, Request, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use store::{KeyRow, Store};
use tower::ServiceExt;

use crate::observe::{Event, Observer};
use crate::{OauthConfig, PublicUrl, Server};

const ORIGIN: &str = "https://mcp.example.com";
const REDIRECT: &str = "https://client.example/cb";
/// The pair of RFC 7636, appendix B.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

#[derive(Debug, Default)]
struct Seen(Mutex<Vec<Event>>);

impl Observer for Seen {
    fn oauth(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

struct Fixture {
    _dir: tempfile::TempDir,
    store: Store,
    server: Server,
    router: Router,
    seen: Arc<Seen>,
    key: Secret,
    row: KeyRow,
}

async fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state.db")).await.unwrap();
    let now = Timestamp::now();
    let team = store.team_ensure("default", now).await.unwrap().id;
    let (key, row) = store.key_create(team, "test", now).await.unwrap();
    let seen = Arc::new(Seen::default());
    let server = server(&store, ORIGIN, &seen);
    let router = server.mounted_over(Router::new().fallback(|| async { "rest" }));
    Fixture { _dir: dir, store, server, router, seen, key, row }
}

/// One more server on the same database, as after a restart with another URL.
fn server(store: &Store, url: &str, seen: &Arc<Seen>) -> Server {
    let config = OauthConfig {
        url: PublicUrl::parse(url).unwrap(),
        listen: "127.0.0.1:8080".parse().unwrap(),
        origins: vec!["https://app.example.com".to_owned()],
        token_key: [7; 32],
    };
    Server::new(config, store.clone(), Arc::clone(seen) as Arc<dyn Observer>).unwrap()
}

#[derive(Debug)]
struct Got {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Got {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Status and code of a refusal.
    #[track_caller]
    fn error(&self) -> (u16, String) {
        let body = self.json();
        assert!(!body["error_description"].as_str().unwrap().is_empty(), "{self:?}");
        (self.status.as_u16(), body["error"].as_str().unwrap().to_owned())
    }

    /// Where it sends the browser, and with which parameters.
    #[track_caller]
    fn location(&self) -> (String, BTreeMap<String, String>) {
        assert_eq!(self.status, StatusCode::SEE_OTHER, "{self:?}");
        let location = self.headers["location"].to_str().unwrap();
        let (uri, query) = location.split_once('?').unwrap();
        (uri.to_owned(), form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    /// The form's sealed request, and the cookie that belongs to it.
    #[track_caller]
    fn form(&self) -> (String, String) {
        assert_eq!(self.status, StatusCode::OK, "{self:?}");
        let sealed = self.text.split("name=\"request\" value=\"").nth(1).unwrap().split('"').next().unwrap();
        let cookie = self.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap();
        (sealed.to_owned(), cookie.to_owned())
    }
}

fn encoded(pairs: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// `pairs` with some of them replaced, or left out where there is no value.
fn changed<'a>(
    pairs: &[(&'a str, &'a str)],
    changes: &[(&'a str, Option<&'a str>)],
) -> Vec<(&'a str, &'a str)> {
    let mut all = pairs.to_vec();
    for (name, value) in changes {
        all.retain(|(known, _)| known != name);
        all.extend(value.map(|value| (*name, value)));
    }
    all
}

impl Fixture {
    async fn send(&self, request: Request<Body>) -> Got {
        self.send_to(&self.router, request, "198.51.100.1").await
    }

    async fn send_to(&self, router: &Router, mut request: Request<Body>, from: &str) -> Got {
        let peer: SocketAddr = (from.parse::<std::net::IpAddr>().unwrap(), 1).into();
        request.extensions_mut().insert(ConnectInfo(peer));
        let (head, body) = router.clone().oneshot(request).await.unwrap().into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let got =
            Got { status: head.status, headers: head.headers, text: String::from_utf8(body.into()).unwrap() };
        assert!(!format!("{got:?}").contains(self.key.expose_secret()), "the key is repeated: {got:?}");
        got
    }

    async fn get(&self, path: &str) -> Got {
        self.send(Request::builder().uri(path).header("host", "mcp.example.com").body(Body::empty()).unwrap())
            .await
    }

    fn posted(path: &str, kind: &str, body: impl Into<Body>) -> Request<Body> {
        let request = Request::builder().method("POST").uri(path).header("host", "mcp.example.com");
        request.header("content-type", kind).body(body.into()).unwrap()
    }

    async fn post(&self, path: &str, pairs: &[(&str, &str)]) -> Got {
        self.send(Self::posted(path, "application/x-www-form-urlencoded", encoded(pairs))).await
    }

    async fn register(&self, metadata: &Value) -> Got {
        self.send(Self::posted("/register", "application/json", metadata.to_string())).await
    }

    /// A client that may be answered at [`REDIRECT`] and on the user's machine.
    async fn client(&self) -> String {
        let uris = json!([REDIRECT, "http://127.0.0.1/cb"]);
        let got = self.register(&json!({"client_name": "Test", "redirect_uris": uris})).await;
        assert_eq!(got.status, StatusCode::CREATED, "{got:?}");
        got.json()["client_id"].as_str().unwrap().to_owned()
    }

    /// A request for the page that is in order.
    fn asked(client: &str) -> Vec<(&str, &str)> {
        vec![
            ("response_type", "code"),
            ("client_id", client),
            ("redirect_uri", REDIRECT),
            ("state", "the state"),
            ("code_challenge", CHALLENGE),
            ("code_challenge_method", "S256"),
            ("resource", "https://mcp.example.com/mcp"),
        ]
    }

    async fn page(&self, pairs: &[(&str, &str)]) -> Got {
        self.get(&format!("/authorize?{}", encoded(pairs))).await
    }

    async fn answer(&self, cookie: &str, pairs: &[(&str, &str)]) -> Got {
        self.answer_with(cookie, pairs, &[]).await
    }

    async fn answer_with(&self, cookie: &str, pairs: &[(&str, &str)], headers: &[(&str, &str)]) -> Got {
        let mut request = Self::posted("/authorize", "application/x-www-form-urlencoded", encoded(pairs));
        let all = [("cookie", cookie)].into_iter().chain(headers.iter().copied());
        for (name, value) in all.filter(|(_, value)| !value.is_empty()) {
            let name = http::HeaderName::try_from(name).unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        self.send(request).await
    }

    /// What the holder of the key agreed to.
    async fn code(&self, client: &str) -> String {
        let (sealed, cookie) = self.page(&Self::asked(client)).await.form();
        let pairs =
            [("request", sealed.as_str()), ("api_key", self.key.expose_secret()), ("decision", "allow")];
        let (uri, answer) = self.answer(&cookie, &pairs).await.location();
        assert_eq!((uri.as_str(), answer["state"].as_str()), (REDIRECT, "the state"));
        assert_eq!(answer["iss"], ORIGIN);
        answer["code"].clone()
    }

    /// A request for tokens that is in order.
    fn redeeming<'a>(client: &'a str, code: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![
            ("grant_type", "authorization_code"),
            ("client_id", client),
            ("code", code),
            ("code_verifier", VERIFIER),
            ("redirect_uri", REDIRECT),
            ("resource", "https://mcp.example.com/mcp"),
        ]
    }

    async fn token(&self, pairs: &[(&str, &str)]) -> Got {
        self.post("/token", pairs).await
    }

    /// Access and refresh token.
    #[track_caller]
    fn pair(got: &Got) -> (String, String) {
        assert_eq!(got.status, StatusCode::OK, "{got:?}");
        let (body, text) = (got.json(), |value: &Value| value.as_str().unwrap().to_owned());
        (text(&body["access_token"]), text(&body["refresh_token"]))
    }

    async fn tokens(&self, client: &str) -> (String, String) {
        let code = self.code(client).await;
        Self::pair(&self.token(&Self::redeeming(client, &code)).await)
    }

    async fn refresh(&self, client: &str, token: &str) -> Got {
        let pairs = [("grant_type", "refresh_token"), ("client_id", client), ("refresh_token", token)];
        self.token(&pairs).await
    }

    /// Whether an access token opens the MCP endpoint, and stands for the key there.
    async fn opens(&self, token: &str) -> bool {
        let Some(credential) = self.server.exchange(&Secret::new(token)).await.unwrap() else { return false };
        assert!(!credential.expose_secret().contains(token));
        let key = self.server.delegation().key(credential.expose_secret()).await.unwrap();
        assert_eq!(key.map(|key| key.id), Some(self.row.id));
        true
    }

    fn later(&self, seconds: i64) {
        self.server.inner.clock.ahead_seconds.fetch_add(seconds, Ordering::Relaxed);
    }

    fn events(&self) -> Vec<&'static str> {
        self.seen.0.lock().unwrap().drain(..).map(|event| event.as_str()).collect()
    }
}

#[tokio::test]
async fn metadata_and_what_holds_for_all_routes() {
    let f = fixture().await;
    let server = f.get("/.well-known/oauth-authorization-server").await.json();
    assert_eq!(server["issuer"], ORIGIN);
    assert_eq!(server["code_challenge_methods_supported"], json!(["S256"]));
    for (path, resource) in [("/mcp", "https://mcp.example.com/mcp"), ("", ORIGIN)] {
        let got = f.get(&format!("/.well-known/oauth-protected-resource{path}")).await;
        assert_eq!(got.json()["resource"], resource);
        assert_eq!(got.json()["authorization_servers"], json!([ORIGIN]));
    }
    assert_eq!(f.get("/elsewhere").await.text, "rest");
    let paths = [
        "/.well-known/oauth-authorization-server",
        "/.well-known/oauth-protected-resource",
        "/authorize",
        "/token",
        "/register",
        "/revoke",
    ];
    for path in paths {
        for (host, allowed) in [
            ("mcp.example.com", true),
            ("MCP.example.com:8443", true),
            ("localhost:8080", true),
            ("127.0.0.1:8080", true),
            ("evil.example", false),
            ("mcp.example.com.evil.example", false),
            ("mcp.example.com:x", false),
            ("a@mcp.example.com", false),
        ] {
            for method in ["GET", "POST"] {
                let request = Request::builder().method(method).uri(path).header("host", host);
                let got = f.send(request.body(Body::empty()).unwrap()).await;
                assert_eq!(got.status != StatusCode::FORBIDDEN, allowed, "{method} {path} at {host}");
                assert_eq!(got.headers["cache-control"], "no-store");
                assert_eq!(got.headers["x-frame-options"], "DENY");
                assert_eq!(got.headers["referrer-policy"], "same-origin");
                assert_eq!(got.headers["strict-transport-security"], "max-age=31536000");
            }
        }
        for method in ["PUT", "DELETE", "OPTIONS"] {
            let request = Request::builder().method(method).uri(path).header("host", "mcp.example.com");
            let got = f.send(request.body(Body::empty()).unwrap()).await;
            assert_eq!(got.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        }
    }
    for path in ["/token", "/register"] {
        let get = f.get(path).await;
        assert_eq!(get.status, StatusCode::METHOD_NOT_ALLOWED, "nothing private belongs into a URL: {path}");
    }
}

#[tokio::test]
async fn pages_may_be_clients_only_where_the_operator_says_so() {
    let f = fixture().await;
    let ask = async |method: &str, path: &str, origin: &'static str| {
        let request = Request::builder().method(method).uri(path).header("host", "mcp.example.com");
        f.send(request.header("origin", origin).body(Body::empty()).unwrap()).await
    };
    let listed = "https://app.example.com";
    for path in ["/.well-known/oauth-authorization-server", "/token", "/register", "/revoke"] {
        let got = ask("OPTIONS", path, listed).await;
        assert_eq!(
            (got.status.as_u16(), &got.headers["access-control-allow-origin"]),
            (204, &listed.parse().unwrap())
        );
        for method in ["GET", "POST"] {
            let got = ask(method, path, listed).await;
            assert_eq!(got.headers["access-control-allow-origin"], listed, "{method} {path}");
            assert!(!got.headers.contains_key("access-control-allow-credentials"));
            assert_eq!(got.headers["vary"], "Origin");
        }
    }
    let others =
        ["https://evil.example", "null", "http://app.example.com", "https://app.example.com.evil.example"];
    for (path, origin) in others.map(|origin| ("/token", origin)).into_iter().chain([("/authorize", listed)])
    {
        for method in ["OPTIONS", "GET", "POST"] {
            let got = ask(method, path, origin).await;
            assert!(!got.headers.contains_key("access-control-allow-origin"), "{method} {path} {origin}");
        }
        assert_eq!(ask("OPTIONS", path, origin).await.status, StatusCode::METHOD_NOT_ALLOWED);
    }
}
