//! Templates that are built in virtual machines: the guest packs what the host must not read. What comes of it is the same as
//! what containers make of the same steps, and serves both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use serde_json::{Value, json};

use crate::templates::{Bed, text_of};
use crate::vm::flags;

/// All that a layer can say, and a command as somebody else.
fn spec() -> Value {
    let much = "mkdir -p /d/sub/deep && echo one > /d/one && ln /d/one /d/two && ln -s /etc /d/link && chmod 4755 /d/one \
         && chown 7:8 /d/sub && chmod 1777 /d/sub/deep && mkfifo /d/fifo && rm -rf /srv/gone && mkdir /srv/gone \
         && echo new > /srv/gone/new && echo kept > /srv/old/kept && mv /srv/old /srv/moved && rm /bin/yes /bin/adduser \
         && dd if=/dev/zero of=/d/sparse bs=1 count=1 seek=5000000 2>/dev/null && seq 100000 > /d/long && touch '/d/a name'";
    json!({
        "from": "small",
        "steps": [
            {"run": much},
            {"user": {"name": "app", "sudo": true}},
            {"workdir": "/srv/app"},
            {"env": {"key": "GREETING", "value": "hello from build"}},
            {"run": "id -un > who; pwd >> who; echo $GREETING | tee -a who; ls /d >> who"},
        ],
        "start_cmd": "echo up > up; sleep 100000",
        "ready_cmd": "test -f up",
    })
}

/// One file of a layer, but for its times.
fn described(path: &Path, of: &Metadata) -> String {
    let kind = of.file_type();
    let content = match () {
        () if kind.is_file() => format!("{:x}", md5(&std::fs::read(path).unwrap())),
        () if kind.is_symlink() => std::fs::read_link(path).unwrap().display().to_string(),
        () if kind.is_char_device() => format!("device {}", of.rdev()),
        () => String::new(),
    };
    let mut attributes = vec![0; 4_096];
    let length = rustix::fs::llistxattr(path, &mut attributes).unwrap();
    let attributes = String::from_utf8_lossy(&attributes[..length]).into_owned();
    let links = if kind.is_dir() { 0 } else { of.nlink() };
    format!("{:o} {}:{} {links} {content} {attributes:?}", of.mode(), of.uid(), of.gid())
}

/// Enough to see a difference, without a dependency for it.
fn md5(content: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

fn tree(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let of = entry.metadata().unwrap();
            let name = entry.path().strip_prefix(root).unwrap().display().to_string();
            found.insert(name, described(&entry.path(), &of));
            if of.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    found.insert(".".to_owned(), described(root, &root.metadata().unwrap()));
    found
}

/// The layers that were made here, by what is in them.
fn made(bed: &Bed, but: &[String]) -> Vec<BTreeMap<String, String>> {
    let layers = bed.p.state_dir().join("layers");
    let made = bed.layers().into_iter().filter(|digest| !but.contains(digest));
    let mut trees: Vec<_> = made.map(|digest| tree(&layers.join(digest))).collect();
    trees.sort();
    trees
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_virtual_machine_builds_is_what_a_container_builds() {
    let Some(own) = flags() else { return };
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let Some(mut bed) = Bed::with_small(&own).await else { return };
    let p = &bed.p;
    let (template, build) = bed.ready("my/app", spec()).await;
    let log = bed.log(&template, &build).await;
    assert_eq!(text_of(&log, "stdout"), "hello from build\n");
    let (id, token) = p.create(json!({"name": "user", "from_template": "my/app"})).await;
    let seen = p
        .run(&id, &token, "id -un; pwd; echo $GREETING; cat who; cat /srv/moved/kept; cat up; ls /srv/gone")
        .await;
    let expected = "app\n/srv/app\nhello from build\napp\n/srv/app\nhello from build\na name\nfifo\nlink\nlong\none\nsparse\nsub\ntwo\nkept\nup\nnew\n";
    assert_eq!(seen, expected);
    assert_eq!(p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);

    // A step that fails says so, in the guest's words, and a name that layers cannot hold is refused by the guest.
    let run = |command: &str| json!({"from": "small", "steps": [{"run": command}]});
    let why = bed.failed("step", run("echo told >&2; exit 7")).await;
    assert!(why.ends_with("exit code 7: told"), "{why}");
    let why = bed.failed("reserved", run("touch /srv/.wh.etc")).await;
    assert!(why.starts_with("snapshot_failed: ") && why.contains("`srv/.wh.etc`"), "{why}");
    bed.nothing_runs();

    // It serves containers as well.
    assert_eq!(bed.p.stop().await, Some(0));
    let (layers, mirror) = (bed.p.state_dir().join("layers"), bed.registry.address.to_string());
    let layers = layers.to_str().unwrap();
    bed.p.set_flags(&["--layers-dir", layers, "--registry-mirrors", &mirror, "--isolation", "container"]);
    bed.p.spawn().await;
    let (id, token) = bed.p.create(json!({"name": "contained", "from_template": "my/app"})).await;
    let seen = bed.p.run(&id, &token, "cat who; cat up; stat -c %a:%h /d/two; ls /srv").await;
    assert!(seen.contains("hello from build") && seen.ends_with("up\n4755:2\napp\ngone\nmoved\n"), "{seen}");
    assert_eq!(bed.p.rest("DELETE", &format!("/sandboxes/{id}"), None).await.status, 204);

    let Some(other) = Bed::with_small(&["--isolation", "container"]).await else { return };
    other.ready("my/app", spec()).await;
    let (ours, theirs) = (bed.layers(), other.layers());
    let (ours, theirs) = (made(&bed, &theirs), made(&other, &ours));
    assert_eq!(ours.len(), 3, "the image, and two groups of steps");
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
        let both = names.iter().map(|name| (name, ours.get(*name), theirs.get(*name)));
        let different: Vec<_> = both.filter(|(_, ours, theirs)| ours != theirs).collect();
        assert!(different.is_empty(), "{different:#?}");
    }
    assert_eq!(ours.len(), theirs.len());
}
