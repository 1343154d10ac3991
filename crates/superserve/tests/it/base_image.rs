//! `superserve/base` and other templates out of a registry, up to what a sandbox sees of them. The registry is Debian's own,
//! on a free port; the image has two layers, of which the upper one takes away and replaces parts of the lower one.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::json;
use testing::Platform;

use crate::registry::Registry;
use crate::{BIN, platform_with};

/// Makes the image and pushes it; returns its reference.
fn push_image(registry: &Registry) -> String {
    let dir = registry.dir();
    registry.run("umoci", &["init", "--layout", "L"]);
    registry.run("umoci", &["new", "--image", "L:1"]);
    registry.run("umoci", &["unpack", "--image", "L:1", "bundle"]);
    let root = dir.join("bundle/rootfs");
    let write = |name: &str, text: &str| {
        std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        std::fs::write(root.join(name), text).unwrap();
    };
    std::fs::create_dir(root.join("bin")).unwrap();
    std::fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for name in ["sh", "ls", "cat", "id", "env", "pwd", "stat", "rm", "mkdir", "mv", "find", "sort", "touch"]
    {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    std::fs::create_dir(root.join("tmp")).unwrap();
    std::fs::set_permissions(root.join("tmp"), std::fs::Permissions::from_mode(0o1777)).unwrap();
    write("etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/srv/app:/bin/sh\n");
    write("etc/group", "root:x:0:\napp:x:1000:\n");
    for name in ["gone/file", "data/gone", "data/kept", "again/old", "now-file/old", "srv/app/old"] {
        write(name, "lower");
    }
    std::os::unix::fs::chown(root.join("srv/app"), Some(1000), Some(1000)).unwrap();
    registry.run("umoci", &["repack", "--image", "L:1", "bundle"]);

    std::fs::remove_dir_all(root.join("gone")).unwrap();
    std::fs::remove_file(root.join("data/gone")).unwrap();
    std::fs::remove_dir_all(root.join("now-file")).unwrap();
    write("now-file", "upper");
    write("tmp/left", "upper");
    registry.run("umoci", &["repack", "--refresh-bundle", "--image", "L:1", "bundle"]);

    // Written by hand, as not every tool uses opaque directories: the third layer, without entries for parents.
    let third = dir.join("third");
    std::fs::create_dir_all(third.join("again")).unwrap();
    std::fs::write(third.join("again/.wh..wh..opq"), "").unwrap();
    std::fs::write(third.join("again/new"), "third").unwrap();
    std::fs::create_dir_all(third.join("tmp")).unwrap();
    std::fs::write(third.join("tmp/.wh.left"), "").unwrap();
    let names = ["-C", "third", "again/.wh..wh..opq", "again/new", "tmp/.wh.left"];
    registry.run("tar", &[&["-cf", "third.tar", "--owner=0", "--group=0"][..], &names].concat());
    registry.run("umoci", &["raw", "add-layer", "--image", "L:1", "third.tar"]);
    let config = ["--config.env=PATH=/bin", "--config.env=GREETING=from the image"];
    let config = [&config[..], &["--config.workingdir=/srv/app", "--config.user=app"]].concat();
    registry.run("umoci", &[&["config", "--image", "L:1"][..], &config].concat());
    push(registry, "1")
}

/// Pushes the same image with another variable.
fn push_changed(registry: &Registry) -> String {
    let config = ["--config.env=PATH=/bin", "--config.env=GREETING=changed"];
    registry.run("umoci", &[&["config", "--image", "L:1"][..], &config].concat());
    push(registry, "2")
}

fn push(registry: &Registry, tag: &str) -> String {
    let reference = format!("{}/base:{tag}", registry.address);
    let copy = ["--insecure-policy", "copy", "--dest-tls-verify=false", "oci:L:1"];
    registry.run("skopeo", &[&copy[..], &[&format!("docker://{reference}")]].concat());
    reference
}

/// What a sandbox must see of the image.
async fn check(p: &Platform, body: serde_json::Value) {
    let (id, token) = p.create(body).await;
    let run = async |command: &str| p.run(&id, &token, command).await;
    assert_eq!(run("pwd; id -u; echo $GREETING").await, "/srv/app\n1000\nfrom the image\n");
    assert_eq!(
        run("ls /data /again; cat /again/new /now-file; echo; cat /data/kept")
            .await
            .lines()
            .collect::<Vec<_>>(),
        ["/again:", "new", "", "/data:", "kept", "thirdupper", "lower"]
    );
    let gone = p.exec(&id, &token, "cat /gone/file").await;
    assert_eq!(gone.body["exit_code"], 1, "{:?}", gone.body);
    let listed = run("ls -A /; ls -A /tmp").await;
    assert!(!listed.contains("gone") && !listed.contains("left") && !listed.contains(".wh."), "{listed}");
    // Owners as in the image, and a directory that the upper layers only imply keeps its mode.
    assert_eq!(run("stat -c '%u %a' . /tmp /again").await, "1000 755\n0 1777\n0 755\n");
    assert_eq!(run("touch mine /tmp/mine; stat -c %u mine").await, "1000\n");
}

#[tokio::test]
async fn the_base_comes_from_a_registry_and_is_kept() {
    let layers = tempfile::tempdir().unwrap();
    let Some(registry) = Registry::start().await else { return };
    let reference = push_image(&registry);
    let layers_dir = layers.path().to_str().unwrap();
    let file = layers.path().join("superserve.toml");
    let configure = |image: &str| std::fs::write(&file, format!("base_image = {image:?}")).unwrap();
    configure(&reference);
    let flags = ["--layers-dir", layers_dir, "--config", file.to_str().unwrap()];
    let Some(mut p) = platform_with(&flags).await else { return };
    check(&p, json!({"name": "first"})).await;
    assert!(p.log().contains("downloading layers"), "{}", p.log());

    // As another template, from the same layers.
    let state = p.state_dir().to_str().unwrap();
    let import = |reference: &str| {
        let args = ["template", "--state-dir", state, "import", "--name", "my/image", "--image", reference];
        let mut command = Command::new(BIN);
        command.args(args).env("SUPERSERVE_LAYERS_DIR", layers_dir).env_remove("SUPERSERVE_API_KEY");
        command.output().unwrap()
    };
    let made = import(&reference);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    check(&p, json!({"name": "second", "from_template": "my/image"})).await;
    let missing = import(&format!("{}/base:2", registry.address));
    let text = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(1) && text.contains("does not have it"), "{text}");

    // The next start fetches nothing, as long as the same image is named.
    let pulls = |p: &Platform| p.log().matches("looking up the image").count();
    assert_eq!(pulls(&p), 1);
    restart(&mut p).await;
    assert_eq!(pulls(&p), 1);
    check(&p, json!({"name": "third"})).await;

    // Another name means another image; what exists keeps its own.
    let (old, _) = p.create(json!({"name": "old"})).await;
    assert_eq!(p.rest("POST", &format!("/sandboxes/{old}/pause"), None).await.status, 204);
    let other = push_changed(&registry);
    configure(&other);
    restart(&mut p).await;
    assert_eq!(pulls(&p), 2);
    let (id, token) = p.create(json!({})).await;
    assert_eq!(p.run(&id, &token, "echo $GREETING; cat /data/kept").await, "changed\nlower");
    let woken = p.rest("POST", &format!("/sandboxes/{old}/activate"), None).await;
    let token = woken.body["access_token"].as_str().unwrap();
    assert_eq!(p.run(&old, token, "echo $GREETING").await, "from the image\n");

    // A third one cannot be had: the one that is there stays.
    let third = other.replace(":2", ":3");
    drop(registry);
    configure(&third);
    restart(&mut p).await;
    assert!(p.log().contains("the base made before"), "{}", p.log());
    let (id, token) = p.create(json!({})).await;
    assert_eq!(p.run(&id, &token, "echo $GREETING").await, "changed\n");
}

async fn restart(p: &mut Platform) {
    assert_eq!(p.stop().await, Some(0));
    p.spawn().await;
}

#[tokio::test]
async fn without_a_registry_the_base_is_made_as_before() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let reference = format!("{closed}/base:1");
    let Some(p) = platform_with(&["--base-image", &reference]).await else { return };
    let log = p.log();
    assert!(log.contains("cannot pull the base image") && log.contains("does not answer"), "{log}");
    assert!(log.contains("Debian packages"), "{log}");
    let (id, token) = p.create(json!({})).await;
    assert!(p.run(&id, &token, "python --version").await.starts_with("Python 3"));
}
