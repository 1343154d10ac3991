//! Against a real registry.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::serve::Real;
use super::*;
use crate::oci::manifest::ARCHITECTURE;
use crate::oci::{base_from_image, recorded_base};
use crate::progress::Phase;
use crate::tests::place;

fn base() -> (Blob, String) {
    Blob::layer(
        Archive::default().directory("./").file("etc/kept", "1").file("etc/gone", "1").file("srv/old", "1"),
    )
}

fn above() -> (Blob, String) {
    Blob::layer(Archive::default().file("etc/.wh.gone", "").file("srv/.wh..wh..opq", "").file("srv/new", "2"))
}

#[tokio::test]
async fn an_image_becomes_layers_and_defaults() {
    let Some(registry) = Real::start().await else { return };
    let place = place();
    let process = json!({"Env": ["PATH=/bin:/usr/bin", "A=b=c"], "WorkingDir": "/srv", "User": "7:8"});
    let (low, high) = (base(), above());
    let ids = [low.1.clone(), high.1.clone()];
    registry.push("team/app", "1", &image(vec![low, high], ARCHITECTURE, process)).await;
    let phases = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&phases);
    let reference = registry.reference("team/app:1");
    let access = Access::default().trusting(&reference);
    let hear = move |phase| heard.lock().unwrap().push(phase);
    let made = base_from_image(&place.store, &reference, &access, GIB, hear).await.unwrap();
    let digests: Vec<_> = made.layers.iter().map(|layer| format!("sha256:{}", layer.digest)).collect();
    assert_eq!(digests, ids);
    assert_eq!((made.size_bytes(), made.layers[1].size_bytes), (4, 1));
    assert_eq!(made.defaults.env["A"], "b=c");
    assert_eq!(made.defaults.workdir.as_deref(), Some("/srv"));
    assert_eq!(made.defaults.user.as_deref(), Some("7:8"));
    let phases = std::mem::take(&mut *phases.lock().unwrap());
    assert!(phases.windows(2).all(|w| w[0].per_mille() <= w[1].per_mille()), "{phases:?}");
    assert_eq!(phases.last(), Some(&Phase::Done));

    // Found again without the registry, as long as the layers are there; another name is another image.
    drop(registry);
    let again = base_from_image(&place.store, &reference, &access, GIB, |_| {}).await.unwrap();
    assert_eq!(again, made);
    let layers = place.dir.path().join("layers");
    assert!(recorded_base(&layers, &reference.replace(":1", ":2")).is_none());
    place.store.remove(&made.layers[1].digest).unwrap();
    assert!(recorded_base(&layers, &reference).is_none());
    let gone = base_from_image(&place.store, &reference, &access, GIB, |_| {}).await.unwrap_err();
    assert!(matches!(gone, TemplateError::Registry { .. }), "{gone}");
    // Nothing half-made is left: the layer, the record.
    assert_eq!(place.names().len(), 2, "{:?}", place.names());
}

#[tokio::test]
async fn the_part_of_an_index_for_this_machine_is_taken() {
    let Some(registry) = Real::start().await else { return };
    let place = place();
    let foreign = image(vec![Blob::layer(Archive::default().file("foreign", ""))], "s390x", json!({}));
    let own = image(vec![base()], ARCHITECTURE, json!({}));
    registry.push("x", "foreign", &foreign).await;
    registry.push("x", "own", &own).await;
    let inner = index(&[(&foreign.manifest, Some("s390x")), (&own.manifest, Some(ARCHITECTURE))]);
    registry.push_manifest("x", "inner", &inner).await;
    let outer = index(&[(&foreign.manifest, Some("s390x")), (&inner, None)]);
    registry.push_manifest("x", "outer", &outer).await;
    let only = index(&[(&foreign.manifest, Some("s390x")), (&foreign.manifest, None)]);
    registry.push_manifest("x", "only", &only).await;

    let wanted = &base().1["sha256:".len()..];
    for version in ["x:inner", "x:outer", "x:own", &format!("x@{}", digest(&outer.bytes))] {
        let made = pull(&place, &registry.reference(version)).await.unwrap();
        assert_eq!(made.layers.len(), 1);
        assert_eq!(made.layers[0].digest, wanted, "{version}");
    }
    for version in ["x:foreign", "x:only"] {
        let error = pull(&place, &registry.reference(version)).await.unwrap_err();
        assert!(matches!(error, TemplateError::UnsupportedPlatform { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("linux/s390x") && text.contains(ARCHITECTURE), "{text}");
    }
    let error = pull(&place, &registry.reference("x:none")).await.unwrap_err().to_string();
    assert!(error.contains("does not have it"), "{error}");
}

#[tokio::test]
async fn layers_may_repeat_be_empty_or_hide_all_below() {
    let Some(registry) = Real::start().await else { return };
    let place = place();
    let zstd = {
        let plain = Archive::default().file("packed", "zstd").bytes();
        let bytes =
            ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
        (Blob { kind: "application/vnd.oci.image.layer.v1.tar+zstd", bytes }, digest(&plain))
    };
    let plain = {
        let bytes = Archive::default().file("plain", "x").bytes();
        (Blob { kind: "application/vnd.oci.image.layer.v1.tar", bytes: bytes.clone() }, digest(&bytes))
    };
    let empty = Blob::layer(Archive::default());
    let hex = |layer: &(Blob, String)| layer.1["sha256:".len()..].to_owned();
    let layers = vec![base(), zstd.clone(), empty.clone(), base(), plain.clone(), empty];
    registry.push("x", "1", &image(layers, ARCHITECTURE, json!({}))).await;
    let made = pull(&place, &registry.reference("x:1")).await.unwrap();
    let digests: Vec<_> = made.layers.into_iter().map(|layer| layer.digest).collect();
    assert_eq!(digests, [hex(&zstd), hex(&base()), hex(&plain)]);

    let opaque = Blob::layer(Archive::default().file(".wh..wh..opq", "").file("new", "2"));
    let layers = vec![base(), opaque.clone(), plain.clone()];
    registry.push("x", "2", &image(layers, ARCHITECTURE, json!({}))).await;
    let made = pull(&place, &registry.reference("x:2")).await.unwrap();
    let digests: Vec<_> = made.layers.into_iter().map(|layer| layer.digest).collect();
    assert_eq!(digests, [hex(&opaque), hex(&plain)]);

    let nothing = image(vec![Blob::layer(Archive::default())], ARCHITECTURE, json!({}));
    registry.push("x", "3", &nothing).await;
    let error = pull(&place, &registry.reference("x:3")).await.unwrap_err().to_string();
    assert!(error.contains("no content"), "{error}");
}

#[tokio::test]
async fn hostile_layers_are_refused_and_leave_nothing() {
    let Some(registry) = Real::start().await else { return };
    let place = place();
    let victim = place.dir.path().join("victim");
    std::fs::write(&victim, "intact").unwrap();
    let away = place.dir.path().to_str().unwrap();
    let cases = [
        ("absolute name", Archive::default().file(victim.to_str().unwrap(), "x")),
        ("..", Archive::default().file("../../../../victim", "x")),
        ("symbolic link", Archive::default().symlink("out", away).file("out/victim", "x")),
        ("symbolic link", Archive::default().symlink("out", away).file("out/.wh.victim", "")),
        ("whiteout", Archive::default().file("a/.wh...", "")),
        (
            "cannot be read",
            Archive::default().entry(tar::EntryType::Regular, b"a", b"", b"x", |h| h.set_size(9000)),
        ),
    ];
    for (number, (expected, archive)) in cases.into_iter().enumerate() {
        let tag = number.to_string();
        registry.push("x", &tag, &image(vec![Blob::layer(archive)], ARCHITECTURE, json!({}))).await;
        let error = pull(&place, &registry.reference(&format!("x:{tag}"))).await.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("cannot use the image"), "{expected}: {error}");
        assert!(place.names().is_empty(), "{expected}: {:?}", place.names());
    }
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "intact");

    // Device nodes are left out, as of every archive.
    let node = |h: &mut tar::Header| {
        h.set_device_major(8).unwrap();
        h.set_device_minor(0).unwrap();
    };
    let archive = Archive::default().entry(tar::EntryType::Block, b"dev/sda", b"", b"", node).file("a", "");
    registry.push("x", "dev", &image(vec![Blob::layer(archive)], ARCHITECTURE, json!({}))).await;
    let made = pull(&place, &registry.reference("x:dev")).await.unwrap();
    assert!(!place.store.path(&made.layers[0].digest).unwrap().join("dev").exists());
}

#[tokio::test]
async fn content_must_fit_the_disk() {
    let Some(registry) = Real::start().await else { return };
    let place = place();
    // Packed these are a few hundred bytes.
    let bomb = |name: &str| Blob::layer(Archive::default().file(name, &"x".repeat(700_000)));
    registry.push("x", "1", &image(vec![bomb("a"), bomb("b")], ARCHITECTURE, json!({}))).await;
    let reference = registry.reference("x:1");
    let fit = |limit: u64| {
        let (store, reference) = (place.store.clone(), reference.clone());
        async move {
            let access = Access::default().trusting(&reference);
            pull_image(&store, &reference, &access, limit, |_| {}).await
        }
    };
    for limit in [500_000, 1 << 20] {
        let error = fit(limit).await.unwrap_err();
        assert!(matches!(error, TemplateError::ImageTooLarge { .. }), "{error}");
    }
    assert_eq!(fit(2 << 20).await.unwrap().size_bytes(), 1_400_000);
    // What is there already counts as well.
    assert!(matches!(fit(1 << 20).await, Err(TemplateError::ImageTooLarge { .. })));
}

#[tokio::test]
async fn images_of_the_usual_tools_are_understood() {
    if !["umoci", "skopeo"].iter().all(|name| Path::new("/usr/bin").join(name).exists()) {
        eprintln!("SKIPPED: umoci or skopeo is not installed; scripts/install-deps.sh tests installs them");
        return;
    }
    let Some(registry) = Real::start().await else { return };
    let place = place();
    let dir = place.dir.path();
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(dir).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    std::fs::write(dir.join("base.tar"), Archive::default().file("bin/tool", "1").file("old", "1").bytes())
        .unwrap();
    run("umoci", &["init", "--layout", "L"]);
    run("umoci", &["new", "--image", "L:1"]);
    run("umoci", &["raw", "add-layer", "--image", "L:1", "base.tar"]);
    run("umoci", &["unpack", "--image", "L:1", "bundle"]);
    std::fs::remove_file(dir.join("bundle/rootfs/old")).unwrap();
    std::fs::write(dir.join("bundle/rootfs/new"), "2").unwrap();
    run("umoci", &["repack", "--image", "L:1", "bundle"]);
    let config = ["--config.env=K=v", "--config.workingdir=/bin", "--config.user=1000"];
    run("umoci", &[&["config", "--image", "L:1"][..], &config].concat());
    for (format, tag) in [("oci", "oci"), ("v2s2", "docker")] {
        let target = format!("docker://{}", registry.reference(&format!("made/{tag}:1")));
        let policy = ["--insecure-policy", "copy", "--dest-tls-verify=false", "--format", format];
        run("skopeo", &[&policy[..], &["oci:L:1", &target]].concat());
        let made = pull(&place, &registry.reference(&format!("made/{tag}:1"))).await.unwrap();
        assert_eq!(made.layers.len(), 2, "{format}");
        assert_eq!(made.defaults.env["K"], "v");
        assert_eq!(made.defaults.user.as_deref(), Some("1000"));
        let top = place.store.path(&made.layers[1].digest).unwrap();
        assert_eq!(std::fs::read_to_string(top.join("new")).unwrap(), "2");
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        let gone = std::fs::symlink_metadata(top.join("old")).unwrap();
        assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    }
}

/// A root file system entry by entry: kind, mode, owner, and of what is no directory also size, links and time.
fn listing(output: &std::process::Output, shift: u32) -> Vec<String> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let entry = |line: &str| {
        let mut fields: Vec<String> = line.split('\t').map(str::to_owned).collect();
        for field in &mut fields[3..5] {
            *field = (field.parse::<u32>().unwrap() - shift).to_string();
        }
        fields.join(" ")
    };
    let mut entries: Vec<String> = text.lines().map(entry).collect();
    entries.sort();
    entries
}

const FIND: &str = "find . -mindepth 1 -type d -printf '%P\\t%y\\t%m\\t%U\\t%G\\n' -o -mindepth 1 \
     -printf '%P\\t%y\\t%m\\t%U\\t%G\\t%s\\t%n\\t%l\\t%T@\\n'";

#[tokio::test]
async fn trees_are_those_that_umoci_makes() {
    let Some(registry) = Real::start().await else { return };
    let place = place();
    let long = "l".repeat(150);
    let low = Archive::default()
        .directory("./")
        .directory("etc/")
        .file("etc/kept", "1")
        .file("etc/gone", "1")
        .directory("srv/")
        .file("srv/old", "1")
        .directory("srv/sub/")
        .file("srv/sub/old", "1")
        .entry(tar::EntryType::Regular, b"su", b"", b"suid", |h| h.set_mode(0o4755))
        .hard_link("su2", "su")
        .directory("becomes-file/")
        .file("becomes-file/x", "1")
        .file("becomes-dir", "1")
        .symlink("link", "/etc/kept")
        .symlink("becomes-real", "etc")
        .entry(tar::EntryType::Fifo, b"fifo", b"", b"", |_| {})
        .pax(&[("path", long.as_bytes())])
        .file("short", "long name")
        .entry(tar::EntryType::Directory, b"sticky/", b"", b"", |h| h.set_mode(0o1777));
    let high = Archive::default()
        .directory("etc/")
        .file("etc/.wh.gone", "")
        .file("etc/new", "2")
        .directory("srv/")
        .file("srv/.wh..wh..opq", "")
        .file("srv/new", "2")
        .file("becomes-file", "2")
        .directory("becomes-dir/")
        .file("becomes-dir/y", "2")
        .directory("becomes-real/")
        .file("becomes-real/z", "2")
        .file(".wh.su", "")
        .file("su2", "replaced");
    let layers = vec![Blob::layer(low), Blob::layer(high)];
    registry.push("tree", "1", &image(layers, ARCHITECTURE, json!({}))).await;
    let reference = registry.reference("tree:1");
    let made = pull(&place, &reference).await.unwrap();

    let dir = place.dir.path();
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(dir).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let from = format!("docker://{reference}");
    run("skopeo", &["--insecure-policy", "copy", "--quiet", "--src-tls-verify=false", &from, "oci:L:1"]);
    run("umoci", &["raw", "unpack", "--image", "L:1", "umoci"]);
    let theirs = Command::new("sh").args(["-c", FIND]).current_dir(dir.join("umoci")).output().unwrap();
    let lower: Vec<_> = made.layers.iter().rev().map(|layer| format!("layers/{}", layer.digest)).collect();
    std::fs::create_dir(dir.join("root")).unwrap();
    let mount = format!("mount -t overlay x root -o lowerdir={} && cd root && {FIND}", lower.join(":"));
    let ours =
        Command::new("unshare").args(["--mount", "sh", "-c", &mount]).current_dir(dir).output().unwrap();
    assert_eq!(listing(&ours, crate::ID_SHIFT), listing(&theirs, 0));
}
