//! Who gets in, and in which order it is found out (`spec/data-plane.md` §9).

use std::sync::atomic::Ordering;

use domain::PreviewAccess::{Private, Public};
use domain::{SandboxId, SandboxState};

use super::{PORT, mirror, private_mirror, public_mirror, request, send};
use crate::support::{Answer, HOST, World, exchange};

fn says(answer: &Answer, status: u16, text: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(answer.body.contains(text), "{answer:?}");
    assert!(answer.has("referrer-policy: no-referrer"), "{answer:?}");
}

#[tokio::test]
async fn a_port_that_is_not_published_is_not_there() {
    let world = World::start().await;
    let sandbox = mirror(&world);
    let token = sandbox.preview_token(PORT, 1, "never");
    for state in [SandboxState::Active, SandboxState::Paused, SandboxState::Failed] {
        sandbox.state.send_replace(state);
        for rest in [
            String::new(),
            format!("X-Superserve-Preview-Token: {token}\r\n"),
            format!("X-Access-Token: {}\r\n", sandbox.token),
            "Origin: https://console.example\r\nAccess-Control-Request-Method: GET\r\n".to_owned(),
        ] {
            for method in ["GET", "POST", "OPTIONS"] {
                says(&send(&world, &sandbox, method, "/", &rest).await, 404, "not published");
            }
        }
    }
    let nobody =
        format!("GET / HTTP/1.1\r\nHost: 3000-{}.{HOST}\r\nConnection: close\r\n\r\n", SandboxId::new());
    assert_eq!(world.raw(nobody).await.body, "sandbox not found");
    assert_eq!(sandbox.opened.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_private_port_asks_for_a_token_before_it_says_anything_of_the_sandbox() {
    let world = World::start().await;
    let (sandbox, token) = private_mirror(&world);
    sandbox.state.send_replace(SandboxState::Paused);
    says(&send(&world, &sandbox, "GET", "/", "").await, 401, "private");
    let header = format!("X-Superserve-Preview-Token: {token}\r\n");
    let paused = send(&world, &sandbox, "GET", "/", &header).await;
    says(&paused, 503, "sandbox is paused");
    assert!(paused.has("retry-after: 5") && paused.has("cache-control: no-store"), "{paused:?}");
    sandbox.publish(PORT, Some(Public), 2);
    says(&send(&world, &sandbox, "GET", "/", "").await, 503, "paused");
    assert_eq!(sandbox.opened.load(Ordering::Relaxed), 0, "nothing wakes it");
    assert_eq!(*sandbox.state.borrow(), SandboxState::Paused);
}

#[tokio::test]
async fn tokens_open_their_own_port_and_generation_only() {
    let world = World::start().await;
    let (sandbox, token) = private_mirror(&world);
    let (other, other_token) = private_mirror(&world);
    sandbox.publish(3001, Some(Private), 1);
    let with = async |token: &str| {
        send(&world, &sandbox, "GET", "/", &format!("X-Superserve-Preview-Token: {token}\r\n")).await
    };
    assert_eq!(with(&token).await.status, 200);
    for wrong in [
        other_token.as_str(),
        &sandbox.preview_token(3001, 1, "never"),
        &sandbox.preview_token(PORT, 2, "never"),
        &sandbox.token,
        "",
        "\u{e9}",
        &"a".repeat(5000),
    ] {
        says(&with(wrong).await, 401, "private");
    }
    says(&with(&sandbox.preview_token(PORT, 1, "expired")).await, 401, "expired");
    // The other way round: a preview token is none for the data plane.
    let data = format!(
        "GET /files?path=/x HTTP/1.1\r\nHost: boxd-{}.{HOST}\r\nConnection: close\r\nX-Access-Token: {token}\r\n\r\n",
        sandbox.id
    );
    assert_eq!(world.raw(data).await.body, "invalid access token");
    sandbox.publish(PORT, Some(Private), 2);
    says(&with(&token).await, 401, "private");
    sandbox.publish(PORT, None, 2);
    says(&with(&token).await, 404, "not published");
    assert_eq!(other.opened.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn any_carrier_is_enough_and_none_reaches_the_guest() {
    let world = World::start().await;
    let (sandbox, token) = private_mirror(&world);
    let cookie = format!("a=1; __Host-superserve_preview_token={token}; b=2");
    let query = format!("/x?q=1&superserve_preview_token={token}&q=2");
    for (method, target, rest) in [
        ("GET", "/x?q=1&q=2", format!("X-Superserve-Preview-Token: {token}\r\n")),
        ("GET", "/x?q=1&q=2", format!("Cookie: {cookie}\r\n")),
        ("HEAD", &query, String::new()),
        ("POST", &query, "Content-Length: 0\r\n".to_owned()),
        ("DELETE", &query, format!("Cookie: {cookie}\r\nX-Superserve-Preview-Token: rubbish\r\n")),
        // A stale link in the address bar, and a good cookie.
        ("GET", "/x?q=1&superserve_preview_token=rubbish&q=2", format!("Cookie: {cookie}\r\n")),
    ] {
        let answer = send(&world, &sandbox, method, target, &rest).await;
        assert_eq!(answer.status, 200, "{method} {target} {rest}: {answer:?}");
        if method == "HEAD" {
            continue;
        }
        let seen = answer.body.to_ascii_lowercase();
        assert!(seen.starts_with(&format!("{} /x?q=1&q=2 http/1.1\r\n", method.to_lowercase())), "{seen}");
        assert!(!seen.contains("preview") || !seen.contains(&token), "{seen}");
        assert!(!seen.contains("superserve_preview_token") && !seen.contains("x-superserve"), "{seen}");
        assert_eq!(seen.contains("cookie: a=1; b=2\r\n"), rest.contains("a=1"), "{seen}");
    }
    // Without TLS the cookie without prefix counts on this machine only.
    let plain = format!("Cookie: superserve_preview_token={token}\r\n");
    assert_eq!(send(&world, &sandbox, "GET", "/", &plain).await.status, 401);
    let local = request(&sandbox, "GET", "/", &plain).replace(HOST, "sandbox.localhost:8443");
    assert_eq!(world.raw(local).await.status, 200);
}

#[tokio::test]
async fn a_public_port_needs_nothing_and_still_hides_tokens() {
    let world = World::start().await;
    let sandbox = public_mirror(&world);
    let target = "/?superserve_preview_token=t&a=%2F";
    let answer = send(&world, &sandbox, "GET", target, "X-Superserve-Preview-Token: t\r\n").await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.starts_with("GET /?a=%2F HTTP/1.1\r\n"), "{answer:?}");
    assert!(!answer.body.to_lowercase().contains("preview-token"), "{answer:?}");
}

#[tokio::test]
async fn a_link_becomes_a_cookie_and_leaves_the_address_bar() {
    let world = World::start().await;
    let (sandbox, _) = private_mirror(&world);
    let now = jiff::Timestamp::now().as_second();
    let token = sandbox.preview_token(PORT, 1, &(now + 600).to_string());
    let target = format!("/a%2Fb?x=1&superserve_preview_token={token}&x=%26&superserve_preview_token=2");
    let host = sandbox.preview_host(PORT);
    let request = request(&sandbox, "GET", &target, "Accept: text/html\r\n");
    let answer = exchange(world.tls(&host).await, request.clone()).await;
    assert_eq!(answer.status, 302, "{answer:?}");
    assert!(answer.has("location: /a%2Fb?x=1&x=%26"), "{answer:?}");
    assert!(
        answer.has("cache-control: no-store") && answer.has("referrer-policy: no-referrer"),
        "{answer:?}"
    );
    let cookie = answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    let (pair, rest) = cookie.split_once("; ").unwrap();
    assert_eq!(pair, format!("__Host-superserve_preview_token={token}"));
    let (attributes, age) = rest.rsplit_once("; Max-Age=").unwrap();
    assert_eq!(attributes, "Path=/; Secure; HttpOnly; SameSite=None; Partitioned");
    assert!((590..=600).contains(&age.parse::<i64>().unwrap()), "{cookie}");
    assert_eq!(sandbox.opened.load(Ordering::Relaxed), 0, "the guest sees nothing of it");

    // Without TLS on this machine: a cookie that browsers take there.
    let answer = world.raw(request.replace(HOST, "sandbox.LOCALHOST:1")).await;
    let cookie = answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(
        cookie.starts_with("superserve_preview_token=")
            && cookie.contains("; Path=/; HttpOnly; SameSite=Lax")
    );
    assert!(!cookie.contains("Domain") && !cookie.contains("Secure"), "{cookie}");

    // A path that looks like a host does not become one; no end, no age.
    let forever = sandbox.preview_token(PORT, 1, "never");
    let target = format!("//evil.example/x?superserve_preview_token={forever}");
    let answer = send(&world, &sandbox, "GET", &target, "").await;
    assert!(answer.has("location: /.//evil.example/x"), "{answer:?}");
    assert!(!answer.head.contains("Max-Age"), "{answer:?}");
    // A fresh token behind one that has ended, and what must not get into a header.
    let expired = sandbox.preview_token(PORT, 1, "expired");
    for first in [expired.as_str(), "x%3B%20Max-Age=9%0D%0ASet-Cookie:%20a"] {
        let target = format!("/?superserve_preview_token={first}&superserve_preview_token={token}");
        let answer = send(&world, &sandbox, "GET", &target, "").await;
        let cookie = answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
        assert!(
            answer.status == 302 && cookie.contains(&token) && !cookie.contains("Max-Age=9;"),
            "{answer:?}"
        );
    }
    // A bad link is no link.
    let answer = send(&world, &sandbox, "GET", "/?superserve_preview_token=x", "").await;
    assert!(answer.status == 401 && !answer.head.contains("set-cookie"), "{answer:?}");
}

#[tokio::test]
async fn browsers_get_pages() {
    let world = World::start().await;
    let (sandbox, token) = private_mirror(&world);
    let html = "Accept: text/html,*/*\r\n";
    let page = async |target: &str, rest: &str| {
        send(&world, &sandbox, "GET", target, &format!("{html}{rest}")).await
    };
    let expired = format!("/?superserve_preview_token={}", sandbox.preview_token(PORT, 1, "expired"));
    let answer = page(&expired, "").await;
    says(&answer, 401, "<h1>This link has expired</h1>");
    assert!(answer.has("content-type: text/html; charset=utf-8"), "{answer:?}");
    assert!(
        answer.has("content-security-policy: default-src 'none'; style-src 'unsafe-inline'"),
        "{answer:?}"
    );
    assert!(!answer.body.contains("spv1"), "nothing is echoed: {answer:?}");
    says(&page("/", "").await, 401, "<h1>This preview is private</h1>");
    sandbox.publish(3009, Some(Public), 1);
    let nothing = request(&sandbox, "GET", "/", html).replace("3000-", "3009-");
    let answer = world.raw(nothing).await;
    says(&answer, 502, "listens on port 3009");
    assert!(
        answer.body.contains("python3 -m http.server 3009") && answer.body.contains("refresh"),
        "{answer:?}"
    );
    sandbox.state.send_replace(SandboxState::Paused);
    let good = format!("X-Superserve-Preview-Token: {token}\r\n");
    says(&page("/", &good).await, 503, "superserve sandbox resume");
    sandbox.publish(PORT, None, 1);
    says(&page("/", "").await, 404, "sandbox_preview_url");
}

#[tokio::test]
async fn preflights_of_permitted_origins_are_answered_for_private_ports() {
    let world = World::start().await;
    let (sandbox, _) = private_mirror(&world);
    let ask = async |origin: &str, headers: &str| {
        let rest = format!(
            "Origin: {origin}\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: {headers}\r\n"
        );
        send(&world, &sandbox, "OPTIONS", "/files", &rest).await
    };
    let answer = ask("https://console.example", "x-superserve-preview-token, content-type").await;
    assert_eq!(answer.status, 204, "{answer:?}");
    assert!(answer.has("access-control-allow-origin: https://console.example"), "{answer:?}");
    assert!(
        answer.has("access-control-allow-headers: x-superserve-preview-token, content-type"),
        "{answer:?}"
    );
    assert!(answer.has("access-control-allow-credentials: true") && answer.has("vary: Origin"), "{answer:?}");
    let answer = ask("https://console.example", "<script>").await;
    assert!(answer.status == 204 && !answer.head.contains("script"), "{answer:?}");
    assert_eq!(ask("https://evil.example", "x").await.status, 401);
    // A public port's guest answers for itself.
    sandbox.publish(PORT, Some(Public), 2);
    let answer = ask("https://evil.example", "x").await;
    assert!(answer.status == 200 && answer.body.starts_with("OPTIONS /files"), "{answer:?}");
    assert!(!answer.head.contains("access-control"), "{answer:?}");
}

#[tokio::test]
async fn hosts_in_every_form_and_ports_that_are_not_for_visitors() {
    let world = World::start().await;
    let sandbox = public_mirror(&world);
    let id = sandbox.id.to_string();
    for host in [
        format!("3000-{}.SandBox.Superserve.AI:443", id.to_uppercase()),
        format!("3000-sb-use-{id}.usw-sandbox.superserve.ai"),
        format!("3000-{id}.sandbox.localhost:8443"),
        format!("3000-{id}.localhost."),
    ] {
        let answer = world.raw(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).await;
        assert_eq!(answer.status, 200, "{host}: {answer:?}");
        assert!(answer.body.contains(&format!("host: {host}\r\n")), "the guest sees it as it is: {answer:?}");
        let absolute =
            format!("GET http://{host}/x?y HTTP/1.1\r\nHost: lies.example\r\nConnection: close\r\n\r\n");
        let answer = world.raw(absolute).await;
        assert!(
            answer.body.starts_with("GET /x?y ") && answer.body.contains(&format!("host: {host}")),
            "{answer:?}"
        );
    }
    for (port, status) in
        [("49983", 400), ("1023", 403), ("80", 403), ("0", 400), ("65536", 400), ("03000", 400)]
    {
        let host = format!("{port}-{id}.{HOST}");
        let answer = world.raw(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).await;
        assert_eq!(answer.status, status, "{host}: {answer:?}");
    }
}
