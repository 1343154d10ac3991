//! A registry of Debian's, on a free port of this machine, for images that tests make.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What the small image has.
const SMALL_TOOLS: &str = "sh ls cat id env pwd stat rm mkdir mv ln find sort touch echo chown chgrp chmod grep cut sleep true \
     false dd head tail wc printf test adduser nc readlink seq setfattr kill mkfifo tee tar gzip base64 yes";

/// A registry that ends with the test.
pub(crate) struct Registry {
    child: Child,
    pub(crate) address: SocketAddr,
    dir: tempfile::TempDir,
}

impl Registry {
    /// `None`, loudly, where something is missing.
    pub(crate) async fn start() -> Option<Self> {
        let tools = ["/usr/bin/docker-registry", "/usr/bin/skopeo", "/usr/bin/umoci", "/bin/busybox"];
        if let Some(missing) = tools.iter().find(|path| !Path::new(path).exists()) {
            eprintln!("SKIPPED: {missing} is not installed; scripts/install-deps.sh tests installs it");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let data = dir.path().join("data");
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"{address}\"}}\n",
            data.display()
        );
        std::fs::write(dir.path().join("config.yml"), config).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(dir.path().join("config.yml"));
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let registry = Self { child: quiet.spawn().unwrap(), address, dir };
        testing::wait_for("the registry", std::time::Duration::from_secs(20), || async {
            tokio::net::TcpStream::connect(address).await.ok()
        })
        .await;
        Some(registry)
    }

    /// Runs a program that must succeed, in the registry's directory.
    pub(crate) fn run(&self, program: &str, args: &[&str]) {
        let output = Command::new(program).args(args).current_dir(self.dir.path()).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A directory for images, which goes with the registry.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Makes `python:3.11` of Debian packages and serves it as the default registry would; `false`, loudly, where the
    /// base layer has another Python.
    pub(crate) fn push_python(&self) -> bool {
        let base = base_layer();
        if !base.join("usr/bin/python3.11").exists() {
            eprintln!("SKIPPED: the base layer has no Python 3.11 to make the image python:3.11 of");
            return false;
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/images/python.sh");
        let (base, address) = (base.display().to_string(), self.address.to_string());
        self.run(script, &[&base, &address, "library/python:3.11"]);
        true
    }
}

impl Registry {
    /// Makes an image of busybox and serves it as the default registry would.
    pub(crate) fn push_small(&self, name: &str) {
        small_root(&self.dir().join("small"));
        self.run("tar", &["-C", "small", "-cf", "small.tar", "--owner=0", "--group=0", "."]);
        self.push_tar(name, "small.tar", &["--config.env=PATH=/bin"]);
    }

    /// Makes an image of one archive in the registry's directory and pushes it.
    pub(crate) fn push_tar(&self, name: &str, archive: &str, config: &[&str]) {
        let image = format!("image-{}", name.replace(['/', ':'], "-"));
        let tag = format!("{image}:1");
        self.run("umoci", &["init", "--layout", &image]);
        self.run("umoci", &["new", "--image", &tag]);
        self.run("umoci", &["raw", "add-layer", "--image", &tag, archive]);
        if !config.is_empty() {
            self.run("umoci", &[&["config", "--image", &tag][..], config].concat());
        }
        let to = format!("docker://{}/{name}", self.address);
        let copy = ["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"];
        self.run("skopeo", &[&copy[..], &[&format!("oci:{tag}"), &to]].concat());
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// A root file system of busybox.
pub(crate) fn small_root(root: &Path) {
    for dir in ["bin", "etc", "tmp", "srv/old", "srv/gone"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    std::fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for tool in SMALL_TOOLS.split(' ') {
        let link = root.join("bin").join(tool);
        if !link.is_symlink() {
            std::os::unix::fs::symlink("busybox", link).unwrap();
        }
    }
    std::fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
    std::fs::write(root.join("etc/group"), "root:x:0:\n").unwrap();
    for file in ["srv/old/a", "srv/old/b", "srv/gone/file"] {
        std::fs::write(root.join(file), file).unwrap();
    }
}

/// Where the layers of all tests lie.
fn shared_layers() -> PathBuf {
    std::env::var_os("SUPERSERVE_LAYERS_DIR").expect("SUPERSERVE_LAYERS_DIR names the base layers").into()
}

/// The layer of `superserve/base`: beside the layers, a file for each recipe names the layer it made. Those of former
/// recipes may still be there.
pub(crate) fn base_layer() -> PathBuf {
    let layers = shared_layers();
    let recipe = std::fs::read_dir(&layers)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("base-"))
        .max_by_key(|entry| entry.metadata().unwrap().modified().unwrap())
        .expect("a base layer");
    let text = std::fs::read_to_string(recipe.path()).unwrap();
    layers.join(text.split_whitespace().next().expect("a digest"))
}

/// A directory of layers of its own, with the base in it: nobody writes into the shared one.
pub(crate) fn own_layers(into: &Path) {
    std::fs::create_dir_all(into).unwrap();
    for entry in std::fs::read_dir(shared_layers()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        if path.is_dir() {
            std::os::unix::fs::symlink(&path, into.join(name)).unwrap();
        } else {
            std::fs::copy(&path, into.join(name)).unwrap();
        }
    }
}
