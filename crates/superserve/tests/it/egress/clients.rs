//! Real clients in a sandbox, through the gateway by name: under deny-all with the one name allowed.

use std::path::Path;
use std::process::Command;

use super::{Bed, Guest};

/// A sandbox that may reach these names and nothing else, and trusts the test internet's authority in a file.
async fn guest_for(bed: &Bed, names: &[&str]) -> Guest {
    for (number, name) in names.iter().enumerate() {
        bed.internet.name(name, &[&format!("198.51.100.{}", 10 + number)]);
    }
    let allow: Vec<&str> = names.iter().copied().chain(["1.1.1.1/32", "8.8.8.8/32"]).collect();
    let guest = bed.guest(&allow, &["0.0.0.0/0"]).await;
    bed.upload(&guest, "/home/user/ca.pem", bed.internet.authority().as_bytes().to_vec()).await;
    guest
}

#[tokio::test(flavor = "multi_thread")]
async fn curl() {
    let Some(bed) = Bed::new().await else { return };
    let guest = guest_for(&bed, &["a.example"]).await;
    let curl = "curl -sS -m 20 --cacert /home/user/ca.pem";
    for (url, has) in [
        ("http://a.example/x", "\"host\":\"a.example\""),
        ("https://a.example/x", "\"sni\":\"a.example\""),
        ("https://a.example/x", "HTTP/2.0"),
        ("--http1.1 https://a.example/x", "HTTP/1.1"),
        ("http://A.Example./x", "198.51.100.10:80"),
    ] {
        let said = bed.sh(&guest, &format!("{curl} {url}")).await;
        assert!(said.contains(has), "{url}: {said}");
    }
    // Large bodies, both ways, byte for byte; with and without a length.
    bed.sh(
        &guest,
        "head -c 20000000 /dev/urandom > /tmp/data; sha256sum < /tmp/data | cut -d' ' -f1 > /tmp/sum",
    )
    .await;
    for url in ["http://a.example/hash", "https://a.example/hash", "--http1.1 https://a.example/hash"] {
        for chunked in ["", "-H 'Transfer-Encoding: chunked'"] {
            let up = format!("{curl} {chunked} --data-binary @/tmp/data {url} | grep -q $(cat /tmp/sum)");
            bed.sh(&guest, &up).await;
        }
    }
    let down = format!(
        "{curl} http://a.example/bytes/50000000 | wc -c; {curl} https://a.example/bytes/50000000 | wc -c"
    );
    assert_eq!(bed.sh(&guest, &down).await, "50000000\n50000000\n");
    // The first event comes at once, though the last one takes a second more.
    for scheme in ["http", "https"] {
        let first =
            format!("timeout 5 {curl} -N {scheme}://a.example/events | head -n 1; echo ${{PIPESTATUS[*]}}");
        let begun = std::time::Instant::now();
        assert!(bed.sh(&guest, &format!("bash -c '{first}'")).await.starts_with("data: 0\n"));
        assert!(begun.elapsed() < std::time::Duration::from_secs(3), "{:?}", begun.elapsed());
    }
    // 100-continue, many requests over one connection, and HTTP/1.0.
    bed.sh(&guest, &format!("{curl} -H 'Expect: 100-continue' --data-binary @/tmp/data http://a.example/hash | grep -q $(cat /tmp/sum)")).await;
    let many = format!("{curl} -v http://a.example/1 http://a.example/2 http://a.example/3 2>&1");
    let said = bed.sh(&guest, &many).await;
    assert!(said.contains("Re-using existing connection") || said.contains("Re-using existing"), "{said}");
    assert!(bed.sh(&guest, &format!("{curl} --http1.0 http://a.example/x")).await.contains("a.example"));
}

#[tokio::test(flavor = "multi_thread")]
async fn python_and_node() {
    let Some(bed) = Bed::new().await else { return };
    let guest = guest_for(&bed, &["a.example"]).await;
    let python = "import urllib.request, ssl\n\
        tls = ssl.create_default_context(cafile='/home/user/ca.pem')\n\
        for url in ('http://a.example/x', 'https://a.example/x'):\n\
        \x20   print(urllib.request.urlopen(url, context=tls if 's' in url[:5] else None, timeout=10).read().decode())\n";
    let said = bed.python(&guest, python).await;
    assert_eq!(said.matches("\"to\":\"198.51.100.10:").count(), 2, "{said}");
    let node = "for (const url of ['http://a.example/x', 'https://a.example/x']) {\
          const answer = await (await fetch(url)).json(); console.log(answer.host);\
        }\
        for (const url of ['ws://a.example/ws', 'wss://a.example/ws']) {\
          const socket = new WebSocket(url);\
          await new Promise(done => socket.onopen = done);\
          const said = new Promise(done => socket.onmessage = event => done(event.data));\
          socket.send('hello ' + url); console.log(await said); socket.close();\
        }";
    let run = format!("NODE_EXTRA_CA_CERTS=/home/user/ca.pem node --input-type=module -e \"{node}\"");
    let said = bed.sh(&guest, &run).await;
    assert_eq!(said, "a.example\na.example\nhello ws://a.example/ws\nhello wss://a.example/ws\n");
}

fn host(program: &str, arguments: &[&str], dir: &Path) {
    let output = Command::new(program).args(arguments).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

fn publish(bed: &Bed, name: &str, below: &str, dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = format!("{below}/{}", entry.file_name().to_str().unwrap());
        if entry.path().is_dir() {
            publish(bed, name, &path, &entry.path());
        } else {
            bed.internet.file(name, &path, std::fs::read(entry.path()).unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn git_apt_and_pip() {
    let Some(bed) = Bed::new().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();

    // A repository as plain files.
    let commit = "git init -q work && cd work && git config user.email a@b && git config user.name t && \
        echo content > file && git add . && git commit -qm first && git clone -q --bare . ../repo.git && \
        cd ../repo.git && git update-server-info";
    host("sh", &["-c", commit], dir);
    publish(&bed, "git.example", "/repo.git", &dir.join("repo.git"));

    // A package, and the one index an archive needs.
    let control =
        "Package: from-afar\\nVersion: 1.0\\nArchitecture: all\\nMaintainer: t <a@b>\\nDescription: test\\n";
    let package = format!(
        "mkdir -p deb/DEBIAN deb/usr/share/from-afar && printf '{control}' > deb/DEBIAN/control && \
         echo here > deb/usr/share/from-afar/file && dpkg-deb --root-owner-group -b deb from-afar.deb && \
         (dpkg-deb -f from-afar.deb; echo \"Filename: flat/from-afar.deb\"; \
          echo \"Size: $(stat -c %s from-afar.deb)\"; echo \"SHA256: $(sha256sum from-afar.deb | cut -d' ' -f1)\") > Packages"
    );
    host("sh", &["-c", &package], dir);
    for file in ["from-afar.deb", "Packages"] {
        bed.internet.file("deb.example", &format!("/flat/{file}"), std::fs::read(dir.join(file)).unwrap());
    }

    // A wheel and its index page.
    let wheel = "import zipfile\n\
        with zipfile.ZipFile('from_afar-1.0-py3-none-any.whl', 'w') as wheel:\n\
        \x20   info = 'from_afar-1.0.dist-info/'\n\
        \x20   wheel.writestr('from_afar.py', 'WORD = 42')\n\
        \x20   wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: from-afar\\nVersion: 1.0\\n')\n\
        \x20   wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
        \x20   wheel.writestr(info + 'RECORD', '')\n";
    host("python3", &["-c", wheel], dir);
    let file = "from_afar-1.0-py3-none-any.whl";
    bed.internet.file(
        "pypi.example",
        &format!("/simple/from-afar/{file}"),
        std::fs::read(dir.join(file)).unwrap(),
    );
    bed.internet.file("pypi.example", "/simple/from-afar/", format!("<a href=\"{file}\">{file}</a>"));

    let guest = guest_for(&bed, &["git.example", "deb.example", "pypi.example"]).await;
    bed.sh(&guest, "cd /tmp && git clone -q http://git.example/repo.git && grep -q content repo/file").await;
    let apt = "echo 'deb [trusted=yes] http://deb.example/ flat/' > /tmp/list && \
        apt=\"apt-get -qq -o Dir::Etc::sourcelist=/tmp/list -o Dir::Etc::sourceparts=- -o Acquire::Retries=0\" && \
        sudo $apt update && sudo $apt install -y from-afar && grep -q here /usr/share/from-afar/file";
    bed.sh(&guest, apt).await;
    bed.sh(
        &guest,
        "pip install -q --disable-pip-version-check --index-url http://pypi.example/simple --trusted-host pypi.example \
         from-afar && python -c 'import from_afar; assert from_afar.WORD == 42'",
    )
    .await;
}
