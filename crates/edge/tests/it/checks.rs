//! The order of checks and the exact answers (`spec/data-plane.md` §1.2, §2, §6.3, §10).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::{SandboxId, SandboxState};
use http::Response;

use crate::support::{HOST, World, body, request};

#[tokio::test]
async fn only_the_right_token_opens_a_sandbox() {
    let world = World::start().await;
    let reached = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reached);
    let sandbox = world.sandbox(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Response::new(body("in")) }
    });
    let other = world.sandbox(|_| async { Response::new(body("other")) });
    let with = |header: &str| {
        format!(
            "GET /files?path=/x HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nX-Superserve-Sandbox-Id: {}\r\n{header}\r\n",
            sandbox.id
        )
    };
    let check = async |header: String, status: u16, text: &str| {
        let answer = world.raw(with(&header)).await;
        assert_eq!((answer.status, answer.body.as_str()), (status, text), "{header}");
        assert!(answer.has("referrer-policy: no-referrer"), "{answer:?}");
    };
    let wrong = "invalid access token";
    let missing = "missing X-Access-Token header";
    check(String::new(), 401, missing).await;
    check("X-Access-Token:\r\n".into(), 401, missing).await;
    check("X-Access-Token: nonsense\r\n".into(), 401, wrong).await;
    check(format!("X-Access-Token: {}\r\n", other.token), 401, wrong).await;
    check(format!("X-Access-Token: {0}\r\nX-Access-Token: {0}\r\n", sandbox.token), 401, wrong).await;
    check(format!("X-Access-Token: {}\r\n", "a".repeat(600)), 401, wrong).await;
    check("X-Access-Token: \u{e9}\r\n".into(), 401, wrong).await;
    check(format!("Authorization: Bearer {}\r\n", sandbox.token), 401, missing).await;
    check(format!("Cookie: X-Access-Token={}\r\n", sandbox.token), 401, missing).await;
    // A subprotocol is a carrier for WebSockets only.
    check(format!("Sec-WebSocket-Protocol: token.{}\r\n", sandbox.token), 401, missing).await;
    let query =
        with("").replace("path=/x", &format!("path=/x&access_token={0}&X-Access-Token={0}", sandbox.token));
    assert_eq!(world.raw(query).await.status, 401);
    assert_eq!(reached.load(Ordering::Relaxed), 0, "a refused request reached the guest");
    check(format!("X-Access-Token: {}\r\n", sandbox.token), 200, "in").await;
}

#[tokio::test]
async fn hosts_name_the_sandbox() {
    let world = World::start().await;
    let sandbox = world.sandbox(|_| async { Response::new(body("in")) });
    let check = async |line: &str, host: &str, headers: &str, status: u16, text: &str| {
        let fill = |s: &str| s.replace("ID", &sandbox.id.to_string());
        let answer = world
            .raw(format!(
                "{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nX-Access-Token: {}\r\n{}\r\n",
                fill(line),
                fill(host),
                sandbox.token,
                fill(headers)
            ))
            .await;
        assert_eq!(answer.status, status, "{line} {host} {headers}: {answer:?}");
        assert!(answer.body.contains(text), "{line} {host} {headers}: {answer:?}");
    };
    let get = "GET /files?path=/x";
    let header = "X-Superserve-Sandbox-Id: ID\r\n";
    for host in
        [HOST, "USW-Sandbox.superserve.AI:443", "127.0.0.1:8443", "localhost", "[::1]:1", "sandbox.localhost"]
    {
        check(get, host, header, 200, "in").await;
        check(get, host, "", 400, "missing X-Superserve-Sandbox-Id").await;
    }
    check(get, HOST, "X-Superserve-Sandbox-Id: sb-use-ID\r\n", 200, "in").await;
    check(get, HOST, "X-Superserve-Sandbox-Id: nobody\r\n", 404, "sandbox_route_stale").await;
    check(get, HOST, &format!("{header}{header}"), 400, "more than one").await;
    check(get, "boxd-ID.sandbox.superserve.ai", "", 200, "in").await;
    check(get, "BOXD-sb-usw-ID.SANDBOX.localhost:8443", "", 200, "in").await;
    // The label wins over the header.
    check(get, "boxd-ID.sandbox.superserve.ai", "X-Superserve-Sandbox-Id: nobody\r\n", 200, "in").await;
    check(get, &format!("boxd-{}.{HOST}", SandboxId::new()), header, 404, "sandbox_route_stale").await;
    // The absolute form beats the Host header.
    check("GET http://boxd-ID.sandbox.superserve.ai/files?path=/x", "evil.example", "", 200, "in").await;
    check("GET http://evil.example/files", HOST, header, 421, "NO_PROXY").await;
    check(get, "evil.example", header, 421, "unknown host").await;
    check(get, "sandbox.superserve.ai.evil.example", header, 421, "unknown host").await;
    check(get, "x.superserve.ai", header, 421, "unknown host").await;
    check(get, &format!("{HOST}\r\nHost: {HOST}"), header, 400, "Host").await;
    check(get, "3000-ID.sandbox.superserve.ai", "", 404, "not published").await;
    check(get, &format!("3000-{}.{HOST}", SandboxId::new()), "", 404, "sandbox not found").await;
    check(get, "49983-ID.sandbox.superserve.ai", "", 400, "reserved").await;
    check(get, "80-ID.sandbox.superserve.ai", "", 403, "1024").await;
    check(get, "x-ID.sandbox.superserve.ai", "", 400, "malformed").await;
}

#[tokio::test]
async fn checks_come_in_their_order() {
    let world = World::start().await;
    let sandbox = world.sandbox(|_| async { Response::new(body("in")) });
    // The path is checked before the token.
    for path in [
        "/",
        "/_agent/config",
        "/_agent/dial?port=22",
        "/files/",
        "/files/../exec",
        "/EXEC",
        "//exec",
        "/exec%2fstream",
        "/health",
    ] {
        let answer = world.send(&sandbox, "GET", path, "X-Access-Token: wrong\r\n").await;
        assert_eq!((answer.status, answer.body.as_str()), (404, "not found"), "{path}");
    }
    for (state, text) in [
        (SandboxState::Paused, "sandbox is paused"),
        (SandboxState::Pausing, "sandbox is pausing"),
        (SandboxState::Resuming, "sandbox is resuming"),
        (SandboxState::Failed, "sandbox is failed"),
    ] {
        sandbox.state.send_replace(state);
        // The token is checked before the state.
        let denied = request(&sandbox, "POST", "/exec", "").replace("token-of-", "not-token-of-");
        assert_eq!(world.raw(denied).await.status, 401);
        let answer = world.send(&sandbox, "POST", "/exec", "").await;
        assert_eq!(answer.status, 503);
        assert!(answer.has("content-type: application/json"), "{answer:?}");
        assert_eq!(
            answer.body,
            format!(r#"{{"error":{{"code":"sandbox_unavailable","message":"{text}"}}}}"#)
        );
    }
    sandbox.state.send_replace(SandboxState::Deleted);
    let answer = world.send(&sandbox, "POST", "/exec", "").await;
    assert_eq!(answer.body, r#"{"error":{"code":"sandbox_route_stale","message":"sandbox not found"}}"#);
    assert_eq!(answer.status, 404);
}

#[tokio::test]
async fn files_answer_pages_of_configured_origins() {
    let world = World::start().await;
    let sandbox = world.sandbox(|_| async { Response::new(body("in")) });
    let preflight = async |path: &str, origin: &str| {
        world
            .raw(format!(
                "OPTIONS {path} HTTP/1.1\r\nHost: boxd-{}.{HOST}\r\nConnection: close\r\nOrigin: {origin}\r\n\
                 Access-Control-Request-Method: POST\r\n\r\n",
                sandbox.id
            ))
            .await
    };
    let answer = preflight("/files?path=/x", "https://console.example").await;
    assert_eq!(answer.status, 204);
    assert!(answer.has("access-control-allow-origin: https://console.example"), "{answer:?}");
    assert!(answer.head.to_lowercase().contains("x-access-token"), "{answer:?}");
    assert_eq!(preflight("/files?path=/x", "https://console.example.evil").await.status, 401);
    assert_eq!(preflight("/exec", "https://console.example").await.status, 401);
    let answer = world.send(&sandbox, "GET", "/files?path=/x", "Origin: https://console.example\r\n").await;
    assert_eq!(answer.status, 200);
    assert!(answer.has("access-control-expose-headers: content-disposition"), "{answer:?}");
    let answer = world.send(&sandbox, "GET", "/files?path=/x", "Origin: https://evil.example\r\n").await;
    assert!(!answer.head.to_lowercase().contains("access-control"), "{answer:?}");
}

#[tokio::test]
async fn paths_of_sessions_are_let_through_and_terminals_only_to_known_pages() {
    let world = World::start().await;
    let sandbox = world.sandbox(|_| async {
        let mut response = Response::new(body("in"));
        response.headers_mut().insert("x-superserve-session-id", "5e55".parse().unwrap());
        response
    });
    for (method, path, status) in [
        ("GET", "/exec/sessions", 200),
        ("DELETE", "/exec/sessions/0a1b", 200),
        ("DELETE", "/exec/sessions/0a1b?signal=TERM", 200),
        ("GET", "/exec/sessions/0a1b/attach?offset=5", 200),
        ("GET", "/exec/sessions/", 404),
        ("GET", "/exec/sessions/0a1b/other", 404),
        ("GET", "/exec/sessions/../sessions", 404),
        ("GET", "/exec/sessions/%2e%2e", 404),
        ("GET", "/terminal/x", 404),
    ] {
        let answer = world.send(&sandbox, method, path, "").await;
        assert_eq!(answer.status, status, "{method} {path}");
        assert_eq!(answer.has("x-superserve-session-id: 5e55"), status == 200, "{answer:?}");
    }
    for (origin, status) in [
        ("", 200),
        ("Origin: https://console.example\r\n", 200),
        ("Origin: https://evil.example\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Origin: https://console.example\r\nOrigin: https://evil.example\r\n", 403),
    ] {
        assert_eq!(world.send(&sandbox, "GET", "/terminal", origin).await.status, status, "{origin}");
        assert_eq!(world.send(&sandbox, "GET", "/exec/connect", origin).await.status, 200, "{origin}");
    }
}
