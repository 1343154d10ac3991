//! `/files`.

use std::io::{Cursor, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use serde_json::json;

use crate::harness::{Agent, Answer, Setup, agent, exists, wait_for};

fn names(agent: &Agent, name: &str) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(agent.path(name))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_written_is_read() {
    let agent = agent();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at * 7 % 251) as u8).collect();
    let target = agent.files("new/dir/file%20%C3%BC.bin");
    let answer = agent.send("POST", &target, &bytes);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json(), json!({"path": agent.path("new/dir/file ü.bin"), "size": bytes.len()}));
    let answer = agent.get(&target);
    assert_eq!((answer.status, answer.body == bytes), (200, true));
    assert_eq!(answer.headers["content-length"], bytes.len().to_string());
    assert_eq!(
        answer.headers["content-disposition"],
        "inline; filename=\"file _.bin\"; filename*=UTF-8''file%20%C3%BC%2Ebin"
    );
    assert_eq!(answer.headers["content-type"], "application/octet-stream");
    let mode = |name: &str| std::fs::metadata(agent.path(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("new"), mode("new/dir"), mode("new/dir/file ü.bin")), (0o755, 0o755, 0o644));
    assert_eq!(names(&agent, "new/dir"), ["file ü.bin"]);
}

#[test]
fn empty_and_chunked_uploads() {
    let agent = agent();
    assert_eq!(agent.send("POST", &agent.files("empty"), b"").json()["size"], 0);
    assert_eq!(agent.get(&agent.files("empty")).body, b"");
    let chunks = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let connection = agent.open("POST", &agent.files("chunked"), &[("transfer-encoding", "chunked")], chunks);
    assert_eq!(Answer::read(connection, "POST").json()["size"], 5);
    assert_eq!(std::fs::read(agent.path("chunked")).unwrap(), b"abcde");
}

#[test]
fn overwriting_keeps_mode_and_follows_links() {
    let agent = agent();
    std::fs::write(agent.path("script"), "old and longer").unwrap();
    std::fs::set_permissions(agent.path("script"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(agent.path("script"), Some(7), Some(8)).unwrap();
    symlink("script", agent.path("link")).unwrap();
    symlink(agent.path("later"), agent.path("dangling")).unwrap();
    symlink("circle", agent.path("circle")).unwrap();
    assert_eq!(agent.send("POST", &agent.files("link"), b"new").status, 200);
    let found = std::fs::symlink_metadata(agent.path("script")).unwrap();
    assert_eq!((found.mode() & 0o7777, found.uid(), found.gid(), found.len()), (0o755, 7, 8, 3));
    assert!(std::fs::symlink_metadata(agent.path("link")).unwrap().is_symlink());
    assert_eq!(agent.send("POST", &agent.files("dangling"), b"x").status, 200);
    assert_eq!(std::fs::read(agent.path("later")).unwrap(), b"x");
    assert_eq!(agent.send("POST", &agent.files("circle"), b"x").status, 400);
}

#[test]
fn a_file_that_is_a_mount_point_is_overwritten() {
    let before =
        "echo old > $TEST_DIR/source; touch $TEST_DIR/bound; mount --bind $TEST_DIR/source $TEST_DIR/bound";
    let agent = Agent::start(Setup { before: Some(before), ..Setup::default() });
    assert_eq!(agent.send("POST", &agent.files("bound"), b"new").status, 200);
    assert_eq!(agent.run("cat bound source; ls -A").stdout, "newnewbound\nsocket\nsource\n");
}

#[test]
fn ranges() {
    let agent = agent();
    agent.send("POST", &agent.files("digits"), b"0123456789");
    let check = |range: &str, status: u16, body: &str, content_range: Option<&str>| {
        let answer = agent.get_with(&agent.files("digits"), &[("range", range)]);
        assert_eq!(answer.status, status, "{range}");
        assert_eq!(answer.headers.get("content-range").map(String::as_str), content_range, "{range}");
        if status < 400 {
            assert_eq!(answer.text(), body, "{range}");
        }
    };
    check("bytes=2-4", 206, "234", Some("bytes 2-4/10"));
    check("bytes=-3", 206, "789", Some("bytes 7-9/10"));
    check("bytes=8-100", 206, "89", Some("bytes 8-9/10"));
    check("bytes=10-", 416, "", Some("bytes */10"));
    check("bytes=0-1,3-4", 200, "0123456789", None);
    let answer = agent.send("HEAD", &agent.files("digits"), b"");
    assert_eq!((answer.status, answer.headers["content-length"].as_str(), answer.body.len()), (200, "10", 0));
    let answer = agent.send("HEAD", &agent.files("missing"), b"");
    assert_eq!((answer.status, answer.body.len()), (404, 0));
    for format in ["zip", "json", "tar"] {
        assert_eq!(agent.get(&format!("{}&format={format}", agent.files("digits"))).text(), "0123456789");
    }
}

#[test]
fn refused_paths() {
    let agent = agent();
    std::fs::create_dir(agent.path("dir")).unwrap();
    symlink("dir", agent.path("dirlink")).unwrap();
    symlink("/proc", agent.path("proc")).unwrap();
    symlink("/proc/self/environ", agent.path("environ")).unwrap();
    let fifo = agent.path("fifo");
    agent.run("mkfifo fifo");
    let check = |method: &str, target: &str, status: u16| {
        let answer = agent.send(method, target, b"x");
        assert_eq!(answer.refusal().0, status, "{method} {target}: {}", answer.text());
    };
    for method in ["GET", "POST"] {
        for target in
            ["/files", "/files?path=", "/files?path=a/b", "/files?path=/a/../b", "/files?path=/a%00b"]
        {
            check(method, target, 400);
        }
        for target in ["/", "/proc/self/environ", "/sys/x", "/dev/null", "/dev", &agent.path("dir"), &fifo] {
            check(method, &format!("/files?path={target}"), 400);
        }
        check(method, &format!("/files?path=/{}", "a".repeat(300)), 400);
    }
    check("POST", &agent.files("dirlink"), 400);
    check("POST", &agent.files("proc/sys/kernel/hostname"), 400);
    check("GET", &agent.files("proc/self/environ"), 400);
    check("GET", &agent.files("environ"), 400);
    check("GET", &format!("{}&format=zip", agent.files("dirlink")), 400);
    check("GET", &format!("{}&format=tar", agent.files("dir")), 400);
    check("GET", &agent.files("missing"), 404);
    std::fs::write(agent.path("file"), "").unwrap();
    check("GET", &agent.files("file/below"), 404);
    check("POST", &agent.files("file/below"), 404);
    check("DELETE", &agent.files("file"), 405);
}

#[test]
fn an_upload_that_fails_leaves_nothing_behind() {
    let agent = agent();
    std::fs::create_dir(agent.path("dir")).unwrap();
    std::fs::write(agent.path("dir/kept"), "old").unwrap();
    for name in ["dir/kept", "dir/new"] {
        let mut connection = agent.open("POST", &agent.files(name), &[("content-length", "1000000")], b"");
        connection.write_all(&[b'x'; 400_000]).unwrap();
        wait_for(|| (names(&agent, "dir").len() == 2).then_some(()));
        drop(connection);
        wait_for(|| (names(&agent, "dir") == ["kept"]).then_some(()));
    }
    assert_eq!(std::fs::read(agent.path("dir/kept")).unwrap(), b"old");
    let length = (4 * 1024 * 1024 * 1024u64 + 1).to_string();
    let connection = agent.open("POST", &agent.files("dir/huge"), &[("content-length", &length)], b"");
    assert_eq!(Answer::read(connection, "POST").refusal().0, 413);
    assert_eq!(names(&agent, "dir"), ["kept"]);
}

#[test]
fn deep_paths() {
    let agent = agent();
    let root = agent.path("");
    let deep = "a/".repeat((4000 - root.len()) / 2);
    let target = format!("/files?path={root}/{deep}file");
    assert_eq!(agent.send("POST", &target, b"deep").status, 200);
    assert_eq!(agent.get(&target).text(), "deep");
    let answer = agent.get(&format!("{}&format=zip", agent.files("a")));
    assert!(answer.complete);
    assert!(zip::ZipArchive::new(Cursor::new(answer.body)).unwrap().len() > 1900);
    assert_eq!(agent.run("rm -r a").exit_code, 0);
}

#[test]
fn a_refused_upload_is_answered_after_it_was_sent() {
    let agent = agent();
    std::fs::create_dir(agent.path("dir")).unwrap();
    let body = vec![1; 5_000_000];
    assert_eq!(agent.send("POST", &agent.files("dir"), &body).refusal().0, 400);
    assert_eq!(agent.send("POST", "/files", &body).refusal().0, 400);
    assert_eq!(agent.send("POST", "/files?path=/.superserve/agent", &body).refusal().0, 400);
    // Who waits for leave gets the answer instead.
    let headers = [("expect", "100-continue"), ("content-length", "5000000")];
    let answer = Answer::read(agent.open("POST", &agent.files("dir"), &headers, b""), "POST");
    assert_eq!(answer.refusal().0, 400);
}

#[test]
fn a_full_disk_is_507() {
    let before = "mkdir $TEST_DIR/small; mount -t tmpfs -o size=1m tmpfs $TEST_DIR/small";
    let agent = Agent::start(Setup { before: Some(before), ..Setup::default() });
    let answer = agent.send("POST", &agent.files("small/big"), &vec![1; 3_000_000]);
    assert_eq!(answer.refusal(), (507, "sandbox_storage_full".to_owned()));
    assert_eq!(agent.run("ls -A small").stdout, "");
    assert_eq!(agent.send("POST", &agent.files("small/fits"), &vec![1; 500_000]).status, 200);
}

#[test]
fn other_failures_say_where() {
    let before = "mkdir $TEST_DIR/fixed; mount -t tmpfs -o ro tmpfs $TEST_DIR/fixed";
    let agent = Agent::start(Setup { before: Some(before), ..Setup::default() });
    let answer = agent.send("POST", &agent.files("fixed/file"), b"x");
    assert_eq!(answer.refusal(), (500, "sandbox_filesystem_error".to_owned()));
    let error = &answer.json()["error"];
    assert_eq!(error["errno"], 30);
    assert_eq!(error["path"], agent.path("fixed/file"));
    assert_eq!(error["mount"], json!({"mountpoint": agent.path("fixed"), "fstype": "tmpfs"}));
}

#[test]
fn the_default_users_rights_hold() {
    let config = json!({"user": "54321", "workdir": "/tmp"});
    let agent = Agent::start(Setup { config: Some(config), ..Setup::default() });
    std::fs::write(agent.path("secret"), "x").unwrap();
    std::fs::set_permissions(agent.path("secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::create_dir(agent.path("own")).unwrap();
    std::os::unix::fs::chown(agent.path("own"), Some(54321), Some(54321)).unwrap();
    assert_eq!(agent.get(&agent.files("secret")).refusal(), (403, "forbidden".to_owned()));
    assert_eq!(agent.send("POST", &agent.files("secret"), b"y").refusal().0, 403);
    assert_eq!(agent.send("POST", &agent.files("new"), b"y").refusal().0, 403);
    assert_eq!(agent.send("POST", &agent.files("own/a/b"), b"y").status, 200);
    for name in ["own/a", "own/a/b"] {
        let found = std::fs::metadata(agent.path(name)).unwrap();
        assert_eq!((found.uid(), found.gid()), (54321, 54321), "{name}");
    }
    // Overwriting needs the file's permission, not the directory's alone.
    std::fs::write(agent.path("own/foreign"), "x").unwrap();
    assert_eq!(agent.send("POST", &agent.files("own/foreign"), b"y").refusal().0, 403);
    // And the thread is root's again when root is the user.
    assert_eq!(agent.send("PUT", "/_agent/config", b"{}").status, 204);
    assert_eq!(agent.get(&agent.files("secret")).text(), "x");
}

#[test]
fn archives() {
    let agent = agent();
    agent.run(
        "mkdir -p 'pro ject/sub/empty'; cd 'pro ject'; echo hi > a.txt; chmod 755 a.txt; echo ü > 'sub/ü ñ'; \
         ln -s /etc/passwd link; ln -s /etc etc; mkfifo pipe; head -c 300000 /dev/urandom > sub/random; touch \"$(printf 'b\\377d')\"",
    );
    let answer = agent.get(&format!("{}&format=zip", agent.files("pro%20ject")));
    assert_eq!((answer.status, answer.complete), (200, true));
    assert_eq!(answer.headers["content-type"], "application/zip");
    assert_eq!(answer.headers["content-disposition"], "attachment; filename=\"pro ject.zip\"");
    assert_eq!(answer.headers["transfer-encoding"], "chunked");
    let mut zip = zip::ZipArchive::new(Cursor::new(answer.body)).unwrap();
    let mut names: Vec<String> = zip.file_names().map(str::to_owned).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "pro ject/",
            "pro ject/a.txt",
            "pro ject/b\u{fffd}d",
            "pro ject/sub/",
            "pro ject/sub/empty/",
            "pro ject/sub/random",
            "pro ject/sub/ü ñ"
        ]
        .map(str::to_owned)
    );
    let mut random = Vec::new();
    zip.by_name("pro ject/sub/random").unwrap().read_to_end(&mut random).unwrap();
    assert_eq!(random, std::fs::read(agent.path("pro ject/sub/random")).unwrap());
    assert_eq!(zip.by_name("pro ject/a.txt").unwrap().unix_mode().unwrap() & 0o777, 0o755);
}

#[test]
fn an_archive_nobody_reads_ends() {
    let agent = agent();
    agent.run("mkdir big; head -c 50000000 /dev/urandom > big/a");
    let target = format!("{}&format=zip", agent.files("big"));
    for _ in 0..8 {
        let mut connection = agent.open("GET", &target, &[], b"");
        connection.read_exact(&mut [0; 100]).unwrap();
        drop(connection);
        // At most four at a time: each must have ended before the fifth.
        wait_for(|| (agent.send("HEAD", &target, b"").status == 200).then_some(()));
    }
}

#[test]
fn listings() {
    let agent = agent();
    agent.run("mkdir -p l/sub; printf abc > l/file; ln -s /etc l/link; touch -d @1000000000 l/file");
    let answer = agent.get(&format!("{}&format=json", agent.files("l")));
    let listing = answer.json();
    assert_eq!(listing["truncated"], false);
    let entries = listing["entries"].as_array().unwrap();
    let file = json!({"name": "file", "is_dir": false, "size": 3, "modified_unix": 1_000_000_000});
    assert_eq!((entries.len(), &entries[0]), (3, &file));
    assert_eq!((&entries[1]["is_dir"], &entries[2]["is_dir"]), (&json!(false), &json!(true)));
    agent.run("mkdir many; cd many; seq 10001 | xargs touch");
    let listing = agent.get(&format!("{}&format=json", agent.files("many"))).json();
    assert_eq!((listing["entries"].as_array().unwrap().len(), &listing["truncated"]), (10_000, &json!(true)));
    assert!(!exists(agent.path("x")));
}
