//! Secrets in use: the service sees the value, the sandbox its stand-in, and whatever goes elsewhere is refused.

use std::io::Write;

use serde_json::{Value, json};

use super::{Bed, Guest};

const VALUE: &str = "sk-real-0123456789abcdefghijklmnop";

/// A platform that believes the test internet, and its internet with the usual hosts.
async fn bed() -> Option<Bed> {
    let bed = Bed::trusting().await?;
    for (name, address) in [
        ("api.example", "198.51.100.1"),
        ("other.example", "198.51.100.2"),
        ("evil.example", "198.51.100.66"),
    ] {
        bed.internet.name(name, &[address]);
    }
    Some(bed)
}

async fn secret(bed: &Bed, name: &str, auth: Value) {
    let body = json!({"name": name, "value": VALUE, "auth": auth, "hosts": ["api.example"]});
    let made = bed.platform.rest("POST", "/secrets", Some(body)).await;
    assert_eq!(made.status, 201, "{:?}", made.body);
}

async fn guest(bed: &Bed, secrets: Value) -> Guest {
    let (id, token) = bed.platform.create(json!({"secrets": secrets})).await;
    let guest = Guest { id, token };
    // What other hosts' certificates are signed by; the broker's own is believed without a word.
    bed.upload(&guest, "/home/user/ca.pem", bed.internet.authority().as_bytes().to_vec()).await;
    guest
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_send_stand_ins_and_services_see_values() {
    let Some(bed) = bed().await else { return };
    secret(&bed, "api", json!({"type": "bearer"})).await;
    let guest = guest(&bed, json!({"TOKEN": "api"})).await;
    let stand_in = bed.sh(&guest, "printf %s $TOKEN").await;
    assert!(!stand_in.is_empty() && stand_in != VALUE);
    let header = "-H \"Authorization: Bearer $TOKEN\"";
    for how in ["", "--http1.1"] {
        let said = bed.sh(&guest, &format!("curl -sS -m 20 {how} {header} https://api.example/x")).await;
        assert!(said.contains(&format!("\"authorization\":\"Bearer {VALUE}\"")), "{said}");
        assert_eq!(said.contains("HTTP/2.0"), how.is_empty(), "{said}");
    }
    // Other runtimes, each with its own idea of whom to believe.
    let python = "import os, ssl, urllib.request\n\
        request = urllib.request.Request('https://api.example/x', headers={'Authorization': 'Bearer ' + os.environ['TOKEN']})\n\
        print(urllib.request.urlopen(request, timeout=10).read().decode())\n";
    assert!(bed.python(&guest, python).await.contains(VALUE));
    let node = "const a = await fetch('https://api.example/x', {headers: {authorization: 'Bearer ' + process.env.TOKEN}}); console.log(await a.text())";
    assert!(bed.sh(&guest, &format!("node --input-type=module -e \"{node}\"")).await.contains(VALUE));
    let pip = "python3 -c \"import os; from pip._vendor import requests; print(requests.get('https://api.example/x', headers={'Authorization': 'Bearer ' + os.environ['TOKEN']}, timeout=10).text)\"";
    assert!(bed.sh(&guest, pip).await.contains(VALUE));
    let git = "git -c http.extraHeader=\"Authorization: Bearer $TOKEN\" ls-remote https://api.example/repo.git 2>&1; true";
    assert!(!bed.sh(&guest, git).await.contains("certificate"), "git must believe the broker");
    // Bodies are what they were; streams come at once; many requests at once.
    bed.sh(
        &guest,
        &format!(
            "head -c 5242880 /dev/urandom > /tmp/data && sum=$(sha256sum < /tmp/data | cut -d' ' -f1) && for how in --http2 --http1.1; do \
             curl -sS -m 20 $how {header} --data-binary @/tmp/data https://api.example/hash | grep -q $sum || exit 1; \
             curl -sS -m 20 $how {header} https://api.example/bytes/20000000 | wc -c | grep -qx 20000000 || exit 1; \
             test \"$(timeout 5 curl -sS -N $how {header} https://api.example/events | head -n 1)\" = 'data: 0' || exit 1; done"
        ),
    )
    .await;
    let many = "const auth = {authorization: 'Bearer ' + process.env.TOKEN};\
        const http2 = await import('node:http2');\
        const session = http2.connect('https://api.example', {ca: (await import('node:fs')).readFileSync(process.env.SSL_CERT_FILE)});\
        const one = i => new Promise(done => { const s = session.request({':path': '/' + i, ...auth}); let t = ''; s.on('data', d => t += d); s.on('end', () => done(t)); s.end(); });\
        const all = await Promise.all(Array.from({length: 50}, (_, i) => one(i)));\
        console.log(all.filter((t, i) => t.includes('/' + i + '\\\"') && t.split('VALUE').length === 2).length); session.close();\
        const agent = new (await import('node:https')).Agent({keepAlive: true, maxSockets: 1});\
        const https = await import('node:https');\
        const next = i => new Promise((done, no) => https.get('https://api.example/' + i, {agent, headers: auth}, r => { let t = ''; r.on('data', d => t += d); r.on('end', () => done(t)); }).on('error', no));\
        let ok = 0; for (let i = 0; i < 100; i++) if ((await next(i)).split('VALUE').length === 2) ok++; console.log(ok); agent.destroy();"
        .replace("VALUE", VALUE);
    bed.upload(&guest, "/tmp/many.mjs", many.replace("\\\"", "\"").into_bytes()).await;
    assert_eq!(bed.sh(&guest, "node /tmp/many.mjs").await, "50\n100\n");
    let socket = "const s = new WebSocket('wss://api.example/ws'); await new Promise(d => s.onopen = d); const m = new Promise(d => s.onmessage = e => d(e.data)); s.send('hello'); console.log(await m); s.close()";
    assert_eq!(bed.sh(&guest, &format!("node --input-type=module -e \"{socket}\"")).await, "hello\n");
    // Other hosts are not opened: the certificate is the service's own.
    let other = "curl -sS -m 10 --cacert /home/user/ca.pem -v https://other.example/x 2>&1";
    assert!(bed.sh(&guest, other).await.contains("issuer: CN=test internet"));
    // Recorded, by both logs.
    let rows = bed.log(&guest, "limit=200").await;
    let request = rows.iter().find(|row| row["kind"] == "request" && row["path"] == "/x").unwrap();
    assert_eq!(
        (&request["host"], &request["status"], &request["method"]),
        (&json!("api.example"), &json!(200), &json!("GET"))
    );
    // The value is nowhere in the guest, nor in what the server keeps or says.
    let search = format!(
        "grep -rlsa -- '{VALUE}' /proc/[0-9]*/environ /etc /home /root /run /var 2>/dev/null | grep -v many.mjs; true"
    );
    assert_eq!(bed.sh(&guest, &search).await, "");
    assert!(!bed.platform.log().contains(VALUE) && !bed.platform.log().contains(&stand_in));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_authenticate() {
    let Some(bed) = bed().await else { return };
    secret(&bed, "basic", json!({"type": "basic", "username": "me"})).await;
    secret(&bed, "key", json!({"type": "api-key", "header": "X-Api-Key", "prefix": "Key "})).await;
    secret(&bed, "custom", json!({"type": "custom", "headers": {"X-Signed": "v1={{ value }}"}})).await;
    let guest = guest(&bed, json!({"BASIC": "basic", "KEY": "key", "CUSTOM": "custom"})).await;
    let said = bed
        .sh(&guest, "curl -sS -m 10 -u \"u:$BASIC\" -H \"X-Api-Key: $KEY\" -H \"X-Signed: v1=$CUSTOM\" https://api.example/x")
        .await;
    use_base64(&said, &format!("me:{VALUE}"));
    for header in [format!("\"x-api-key\":\"Key {VALUE}\""), format!("\"x-signed\":\"v1={VALUE}\"")] {
        assert!(said.contains(&header), "{header}: {said}");
    }
}

fn use_base64(said: &str, wanted: &str) {
    let mut encode = std::process::Command::new("base64")
        .arg("-w0")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    encode.stdin.take().unwrap().write_all(wanted.as_bytes()).unwrap();
    let encoded = String::from_utf8(encode.wait_with_output().unwrap().stdout).unwrap();
    assert!(said.contains(&format!("\"authorization\":\"Basic {encoded}\"")), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stand_ins_elsewhere_are_refused() {
    let Some(bed) = bed().await else { return };
    secret(&bed, "api", json!({"type": "bearer"})).await;
    let other = json!({"name": "elsewhere", "value": "other-value", "auth": {"type": "bearer"}, "hosts": ["other.example"]});
    assert_eq!(bed.platform.rest("POST", "/secrets", Some(other)).await.status, 201);
    let (mine, theirs) = (
        guest(&bed, json!({"TOKEN": "api", "OTHER": "elsewhere"})).await,
        guest(&bed, json!({"TOKEN": "api"})).await,
    );
    let stolen = bed.sh(&theirs, "printf %s $TOKEN").await;
    let ask = |header: &str, url: &str| {
        format!("curl -sS -m 10 -D - -o /dev/null -H \"{header}\" {url} | tr -d '\\r'")
    };
    let refused = |said: &str, status: u16, reason: &str| {
        let has = said.contains(&format!(" {status} "))
            && said.to_lowercase().contains(&format!("x-superserve-proxy-reason: {reason}"));
        assert!(has, "{reason}: {said}");
    };
    // To a host of another secret, from another sandbox, and with another Host than the name that was allowed.
    refused(
        &bed.sh(&mine, &ask("Authorization: Bearer $TOKEN", "https://other.example/")).await,
        403,
        "credential_host_mismatch",
    );
    refused(
        &bed.sh(&mine, &ask(&format!("Authorization: Bearer {stolen}"), "https://api.example/")).await,
        403,
        "sandbox_revoked",
    );
    for version in ["", "--http1.1 "] {
        let url = format!("{version}-H 'Host: evil.example' https://api.example/");
        refused(
            &bed.sh(&mine, &ask("Authorization: Bearer $TOKEN", &url)).await,
            403,
            "credential_host_mismatch",
        );
    }
    // After a detach, and after the secret's end; a new one of the same name does not revive it.
    let detached = bed.platform.rest("DELETE", &format!("/sandboxes/{}/secrets/TOKEN", mine.id), None).await;
    assert_eq!(detached.status, 204, "{:?}", detached.body);
    let stand_in = bed.sh(&theirs, "printf %s $TOKEN").await;
    assert_eq!(bed.platform.rest("DELETE", "/secrets/api", None).await.status, 204);
    secret(&bed, "api", json!({"type": "bearer"})).await;
    let said =
        bed.sh(&theirs, &ask(&format!("Authorization: Bearer {stand_in}"), "https://api.example/")).await;
    refused(&said, 503, "credential_revoked");
    // A service that cannot be believed or reached, and rules that do not permit it.
    bed.internet.name("api.example", &["198.51.100.1"]);
    bed.patch(&mine, json!({"allow_out": [], "deny_out": ["198.51.100.0/24"]})).await;
    let resolve = "--resolve other.example:443:198.51.100.2 https://other.example/";
    refused(&bed.sh(&mine, &ask("Authorization: Bearer $OTHER", resolve)).await, 403, "egress_blocked");
    assert!(bed.internet.arrivals().iter().all(|to| to.ip().to_string() != "198.51.100.66"));
    let rows = bed.log(&mine, "limit=200").await;
    let reasons: Vec<&str> = rows
        .iter()
        .filter(|row| row["kind"] == "request")
        .filter_map(|row| row["error_code"].as_str())
        .collect();
    assert!(reasons.contains(&"credential_host_mismatch"), "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secrets_audit_tells_of_each_use_and_each_refusal() {
    let Some(bed) = bed().await else { return };
    secret(&bed, "api", json!({"type": "bearer"})).await;
    let guest = guest(&bed, json!({"TOKEN": "api"})).await;
    let path = format!("/sandboxes/{}", guest.id);
    let get = "curl -sS -m 20 -H \"Authorization: Bearer $TOKEN\" https://api.example/used?query=hidden";
    assert!(bed.sh(&guest, get).await.contains(VALUE));
    // The next request carries the new value, with the same stand-in.
    let rotated = bed.platform.rest("PATCH", "/secrets/api", Some(json!({"value": "sk-second-value"}))).await;
    assert_eq!(rotated.status, 200);
    let said = bed.sh(&guest, get).await;
    assert!(said.contains("Bearer sk-second-value") && !said.contains(VALUE), "{said}");
    // A process that keeps a detached stand-in is refused.
    let kept = bed.sh(&guest, "printf %s $TOKEN").await;
    assert_eq!(bed.platform.rest("DELETE", &format!("{path}/secrets/TOKEN"), None).await.status, 204);
    let refused = format!(
        "curl -s -m 20 -o /dev/null -w '%{{http_code}}' -H 'Authorization: Bearer {kept}' https://api.example/late"
    );
    assert_eq!(bed.sh(&guest, &refused).await, "503");
    let rows = testing::wait_for("the audit", std::time::Duration::from_secs(5), || async {
        let rows = bed.platform.rest("GET", "/secrets/api/audit", None).await.body;
        (rows.as_array().map(Vec::len) == Some(3)).then_some(rows)
    })
    .await;
    let shown: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            format!(
                "{} {}{} {} {}",
                row["method"], row["host"], row["path"], row["status"], row["error_code"]
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            r#""GET" "api.example""/late" 503 "credential_revoked""#,
            r#""GET" "api.example""/used" 200 null"#,
            r#""GET" "api.example""/used" 200 null"#
        ]
    );
    assert_eq!((&rows[0]["sandbox_id"], &rows[0]["sandbox_name"]), (&json!(guest.id), &json!("test")));
    let errors = bed.platform.rest("GET", "/secrets/api/audit?status=errors", None).await.body;
    assert_eq!(errors.as_array().unwrap().len(), 1);
    assert!(bed.platform.rest("GET", "/secrets/api", None).await.body["last_used_at"].is_string());
    // It outlives the sandbox.
    assert_eq!(bed.platform.rest("DELETE", &path, None).await.status, 204);
    let rows = bed.platform.rest("GET", "/secrets/api/audit", None).await.body;
    assert_eq!((rows.as_array().unwrap().len(), &rows[0]["sandbox_name"]), (3, &Value::Null));
}
