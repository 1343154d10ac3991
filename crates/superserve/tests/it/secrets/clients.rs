//! Real clients in a sandbox, each with a stand-in, at services that let in whoever has the value.

use std::process::Command;

use serde_json::json;

use super::search;
use super::{Bed, Guest};

/// Long enough to be unique wherever it is looked for, with characters that are escaped in URLs, JSON and base64.
fn value(purpose: &str) -> String {
    let mut random = [0; 12];
    getrandom::fill(&mut random).unwrap();
    let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("real/{purpose}+{hex}=x")
}

const HOSTS: [&str; 6] =
    ["api.example", "key.example", "custom.example", "git.example", "pypi.example", "registry.example"];

/// A repository, a wheel and an npm package, as plain files.
fn publish(bed: &Bed) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let make = "set -e; git init -q work; cd work; git config user.email a@b; git config user.name t; \
        echo content > file; git add .; git commit -qm first; git clone -q --bare . ../repo.git; \
        cd ../repo.git; git update-server-info; cd ..; \
        mkdir package; printf '{\"name\":\"from-afar\",\"version\":\"1.0.0\",\"main\":\"x.js\"}' > package/package.json; \
        echo 'module.exports = 42' > package/x.js; tar czf from-afar.tgz package";
    host("sh", &["-c", make], dir);
    let wheel = "import zipfile\n\
        with zipfile.ZipFile('from_afar-1.0-py3-none-any.whl', 'w') as wheel:\n\
        \x20   info = 'from_afar-1.0.dist-info/'\n\
        \x20   wheel.writestr('from_afar.py', 'WORD = 42')\n\
        \x20   wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: from-afar\\nVersion: 1.0\\n')\n\
        \x20   wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
        \x20   wheel.writestr(info + 'RECORD', '')\n";
    host("python3", &["-c", wheel], dir);
    all_below(bed, "git.example", "/repo.git", &dir.join("repo.git"));
    let file = "from_afar-1.0-py3-none-any.whl";
    bed.internet.file(
        "pypi.example",
        &format!("/simple/from-afar/{file}"),
        std::fs::read(dir.join(file)).unwrap(),
    );
    bed.internet.file("pypi.example", "/simple/from-afar/", format!("<a href=\"{file}\">{file}</a>"));
    let about = json!({"name": "from-afar", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {
        "name": "from-afar", "version": "1.0.0", "dist": {"tarball": "https://registry.example/from-afar.tgz"}}}});
    bed.internet.file("registry.example", "/from-afar", about.to_string());
    bed.internet.file(
        "registry.example",
        "/from-afar.tgz",
        std::fs::read(dir.join("from-afar.tgz")).unwrap(),
    );
}

fn host(program: &str, arguments: &[&str], dir: &std::path::Path) {
    let output = Command::new(program).args(arguments).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

fn all_below(bed: &Bed, name: &str, below: &str, dir: &std::path::Path) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = format!("{below}/{}", entry.file_name().to_str().unwrap());
        if entry.path().is_dir() {
            all_below(bed, name, &path, &entry.path());
        } else {
            bed.internet.file(name, &path, std::fs::read(entry.path()).unwrap());
        }
    }
}

fn basic(user: &str, password: &str) -> String {
    use base64::Engine;
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_use_what_is_nowhere_in_their_sandbox() {
    let Some(bed) = Bed::new().await else { return };
    bed.names(&HOSTS);
    publish(&bed);
    let names = ["api", "key", "custom", "git", "pip", "npm"];
    let values = names.map(value);
    let [api, key, custom, git, pip, npm] = &values;
    bed.secret("api", api, json!({"type": "bearer"}), &["api.example"]).await;
    bed.secret(
        "key",
        key,
        json!({"type": "api-key", "header": "X-Api-Key", "prefix": "v1 "}),
        &["key.example"],
    )
    .await;
    let headers = json!({"type": "custom", "headers": {"X-Sign": "a={{ value }};b"}});
    bed.secret("custom", custom, headers, &["custom.example"]).await;
    bed.secret("git", git, json!({"type": "basic", "username": "x-access-token"}), &["git.example"]).await;
    bed.secret("pip", pip, json!({"type": "basic"}), &["pypi.example"]).await;
    bed.secret("npm", npm, json!({"type": "bearer"}), &["registry.example"]).await;
    bed.internet.lock("api.example", "authorization", &format!("Bearer {api}"));
    bed.internet.lock("key.example", "x-api-key", &format!("v1 {key}"));
    bed.internet.lock("custom.example", "x-sign", &format!("a={custom};b"));
    bed.internet.lock("git.example", "authorization", &basic("x-access-token", git));
    bed.internet.lock("pypi.example", "authorization", &basic("me", pip));
    bed.internet.lock("registry.example", "authorization", &format!("Bearer {npm}"));

    let guest = bed
        .guest(json!({"API": "api", "KEY": "key", "CUSTOM": "custom", "GIT": "git", "PIP_TOKEN": "pip", "NPM_TOKEN": "npm"}))
        .await;
    let shown = bed.sh(&guest, "printf %s \"$API\"").await;
    assert!(shown.starts_with("ssrv_proxy_") && shown.len() == 54, "{shown}");
    curl(&bed, &guest).await;
    languages(&bed, &guest).await;
    httpx(&bed, &guest).await;
    package_managers(&bed, &guest).await;
    late_and_elsewhere(&bed, &guest).await;

    // One request without the stand-in shows that the services do look.
    let refused = bed.sh(&guest, "curl -sS -o /dev/null -w '%{http_code}' https://api.example/").await;
    assert_eq!(refused, "401");
    let row = bed.row(&guest, "a request row", |row| row["path"] == "/x").await;
    assert_eq!((&row["status"], &row["upstream_status"]), (&json!(200), &json!(200)), "{row}");
    assert!(row["secret_id"].is_string() && row["latency_ms"].is_number(), "{row}");
    let audit = bed.rest("GET", "/secrets/api/audit", None, 200).await;
    assert!(audit.as_array().is_some_and(|rows| rows.len() >= 5), "{audit}");

    nowhere(&bed, &guest, &values).await;
}

async fn curl(bed: &Bed, guest: &Guest) {
    for (command, has) in [
        ("curl -sS -m 20 -H \"Authorization: Bearer $API\" https://api.example/x", "welcome HTTP/2.0"),
        (
            "curl -sS -m 20 --http1.1 -H \"authorization: bearer $API\" https://api.example/x",
            "welcome HTTP/1.1",
        ),
        ("curl -sS -m 20 -H \"X-Api-Key: $KEY\" https://key.example/x", "welcome"),
        ("curl -sS -m 20 -H \"X-Sign: a=$CUSTOM;b\" https://custom.example/x", "welcome"),
        // The system's own store, without a variable of ours.
        (
            "env -i API=$API /bin/sh -c 'curl -sS -m 20 -H \"Authorization: Bearer $API\" https://api.example/x'",
            "welcome",
        ),
    ] {
        let said = bed.sh(guest, command).await;
        assert!(said.contains(has), "{command}: {said}");
    }
    // Bodies both ways, and events.
    let upload = "head -c 5242880 /dev/urandom > /tmp/data; \
        for version in --http1.1 --http2; do for chunked in 'X-A: 1' 'Transfer-Encoding: chunked'; do \
        curl -sS -m 60 $version -H \"$chunked\" -H \"Authorization: Bearer $API\" --data-binary @/tmp/data https://api.example/hash \
        | grep -q $(sha256sum < /tmp/data | cut -d' ' -f1) || exit 1; \
        curl -sS -m 60 $version -H \"Authorization: Bearer $API\" https://api.example/bytes/5000000 | wc -c | grep -q 5000000 || exit 1; \
        done; done";
    bed.sh(guest, upload).await;
    let begun = std::time::Instant::now();
    let first =
        "timeout 5 curl -sS -N -H \"Authorization: Bearer $API\" https://api.example/events | head -n 1";
    assert!(bed.sh(guest, first).await.starts_with("data: 0\n"));
    assert!(begun.elapsed() < std::time::Duration::from_secs(3), "{:?}", begun.elapsed());
}

async fn languages(bed: &Bed, guest: &Guest) {
    let python = r#"
import os, urllib.request
from pip._vendor import requests
headers = {'Authorization': 'Bearer ' + os.environ['API']}
print(urllib.request.urlopen(urllib.request.Request('https://api.example/', headers=headers), timeout=20).read().decode())
print(requests.get('https://api.example/', headers=headers, timeout=20).text)
with requests.Session() as session:
    for n in range(20):
        assert session.get('https://api.example/', headers=headers, timeout=20).status_code == 200, n
"#;
    bed.upload(guest, "/tmp/program.py", python).await;
    assert_eq!(bed.sh(guest, "python3 /tmp/program.py").await.matches("welcome").count(), 2);
    // Python finds the authority in the system's directory by its hash.
    let plain = "env -i API=$API /usr/bin/python3 -c \"import os, urllib.request as u; print(u.urlopen(u.Request(\
        'https://api.example/', headers={'Authorization': 'Bearer ' + os.environ['API']})).read())\"";
    assert!(bed.sh(guest, plain).await.contains("welcome"));
    let node = "const headers = {authorization: 'Bearer ' + process.env.API};\
        const all = await Promise.all(Array.from({length: 20}, () => fetch('https://api.example/', {headers})));\
        console.log(all.every(answer => answer.status === 200), await all[0].text());\
        const socket = await import('node:https').then(https => new Promise((done, fail) => https.request('https://api.example/ws',\
        {headers: {...headers, connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': 13, 'sec-websocket-key': 'AAAAAAAAAAAAAAAAAAAAAA=='}})\
        .on('upgrade', response => done(response.statusCode)).on('error', fail).end()));\
        console.log(socket); process.exit(0);";
    bed.upload(guest, "/tmp/program.mjs", node).await;
    assert_eq!(bed.sh(guest, "node /tmp/program.mjs").await, "true welcome HTTP/1.1\n101\n");
}

/// The library of the official SDK, with the copy that the client tests installed: pure Python, and nothing of it is in the
/// base template.
async fn httpx(bed: &Bed, guest: &Guest) {
    const PARTS: [&str; 7] = ["httpx", "httpcore", "h11", "anyio", "certifi", "idna", "typing_extensions.py"];
    let venv = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/clients/venv/lib");
    let versions = std::fs::read_dir(venv).into_iter().flatten().flatten();
    let installed =
        versions.map(|version| version.path().join("site-packages")).find(|dir| dir.join("httpx").is_dir());
    let Some(installed) = installed else {
        eprintln!(
            "SKIPPED: httpx in a sandbox: scripts/install-test-deps.sh has not installed the client tests"
        );
        return;
    };
    let archive = Command::new("tar").arg("cC").arg(&installed).args(PARTS).output().unwrap();
    assert!(archive.status.success(), "{}", String::from_utf8_lossy(&archive.stderr));
    let put =
        bed.platform.data("POST", "/files?path=/tmp/httpx.tar", &guest.id, &guest.token, archive.stdout);
    assert_eq!(put.await.status, 200);
    let program = r#"
import os, httpx
headers = {'Authorization': 'Bearer ' + os.environ['API']}
with httpx.Client(timeout=20, headers=headers) as client:
    answers = [client.get('https://api.example/') for _ in range(20)]
print({answer.status_code for answer in answers}, answers[0].text)
"#;
    bed.upload(guest, "/tmp/with_httpx.py", program).await;
    let run = "mkdir /tmp/httpx && tar xf /tmp/httpx.tar -C /tmp/httpx && PYTHONPATH=/tmp/httpx python3 /tmp/with_httpx.py";
    assert!(bed.sh(guest, run).await.starts_with("{200} welcome"));
}

async fn package_managers(bed: &Bed, guest: &Guest) {
    bed.sh(
        guest,
        "cd /tmp && git clone -q https://me:$GIT@git.example/repo.git && grep -q content repo/file",
    )
    .await;
    let pip = "pip install -q --disable-pip-version-check --no-cache-dir --index-url https://me:$PIP_TOKEN@pypi.example/simple \
        from-afar && python3 -c 'import from_afar; assert from_afar.WORD == 42'";
    bed.sh(guest, pip).await;
    let npm = "mkdir -p /tmp/npm && cd /tmp/npm && printf '//registry.example/:_authToken=${NPM_TOKEN}\\n' > .npmrc && \
        npm install --silent --no-audit --no-fund --no-update-notifier --registry https://registry.example/ from-afar && \
        node -e 'if (require(\"from-afar\") !== 42) process.exit(1)'";
    bed.sh(guest, npm).await;
}

/// A client that takes its time between connecting and speaking, and a port that is not 443.
async fn late_and_elsewhere(bed: &Bed, guest: &Guest) {
    let late = r#"
import os, socket, ssl, time
plain = socket.create_connection(('api.example', 443), 10)
time.sleep(1)
tls = ssl.create_default_context().wrap_socket(plain, server_hostname='api.example')
tls.sendall(b'GET / HTTP/1.1\r\nHost: api.example\r\nAuthorization: Bearer %s\r\n\r\n' % os.environ['API'].encode())
print(tls.recv(4096).decode())
"#;
    bed.upload(guest, "/tmp/late.py", late).await;
    assert!(bed.sh(guest, "python3 /tmp/late.py").await.contains("welcome"));
    // What is there does not speak TLS, so that the answer can only be the broker's.
    let other = "curl -sS -m 20 -o /dev/null -w '%{http_code}' -H \"Authorization: Bearer $API\" https://api.example:7000/";
    assert_eq!(bed.sh(guest, other).await, "502");
}

/// Searches for the values in the sandbox and in what the platform keeps.
async fn nowhere(bed: &Bed, guest: &Guest, values: &[String]) {
    let forms: Vec<String> = values.iter().flat_map(|value| search::forms(value)).collect();
    // A process that has all variables and has read everything it was given.
    bed.sh(guest, "printenv > /home/user/env; sleep 300 > /dev/null 2>&1 & sync").await;
    let init = bed.platform.remains().init_of(&guest.id).unwrap();
    let processes = search::tree(init.as_raw_nonzero().get());
    // A guest with a kernel of its own is one process here, with all its memory.
    let own_kernel = testing::isolation() != "container";
    assert!(own_kernel || processes.len() >= 2, "{processes:?}");
    let stand_in = [bed.sh(guest, "printf %s $API").await];
    assert!(processes.iter().any(|pid| search::in_process(*pid, &stand_in).0), "what is there is found");
    let mut looked = 0;
    for pid in processes {
        let (found, bytes) = search::in_process(pid, &forms);
        assert!(!found, "process {pid}");
        looked += bytes;
    }
    assert!(looked > 1024 * 1024, "only {looked} bytes of memory");
    // Database, disks of sandboxes, logs, keys, whatever else lies there.
    let state = bed.platform.state_dir();
    assert_eq!(search::in_files(state, &forms), Vec::<std::path::PathBuf>::new());
    assert!(!search::in_files(&state.join("disks"), &stand_in).is_empty(), "what is there is found");
    assert!(!search::in_text(&bed.platform.log(), &forms));
    for path in [
        "/secrets",
        "/secrets/api",
        "/secrets/api/audit",
        "/sandboxes",
        "/activity",
        "/metrics",
        "/providers",
    ] {
        let answer = bed.platform.rest("GET", path, None).await;
        assert!(!search::in_text(&answer.body.to_string(), &forms), "{path}");
    }
    let network = bed.rest("GET", &format!("/sandboxes/{}/network?limit=200", guest.id), None, 200).await;
    assert!(!search::in_text(&network.to_string(), &forms));
}
