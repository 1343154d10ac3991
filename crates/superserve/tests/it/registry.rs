//! A registry of Debian's, on a free port of this machine, for images that tests make.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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

impl Drop for Registry {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// Where the layers of all tests lie.
fn shared_layers() -> PathBuf {
    std::env::var_os("SUPERSERVE_LAYERS_DIR").expect("SUPERSERVE_LAYERS_DIR names the base layers").into()
}

/// The layer of `superserve/base`.
pub(crate) fn base_layer() -> PathBuf {
    let layers = std::fs::read_dir(shared_layers()).unwrap().map(|entry| entry.unwrap().path());
    layers.filter(|path| path.file_name().is_some_and(|name| name.len() == 64)).min().expect("a base layer")
}

/// A directory of layers of its own, with the base in it: nobody writes into the shared one.
pub(crate) fn own_layers(into: &Path) {
    std::fs::create_dir_all(into).unwrap();
    for entry in std::fs::read_dir(shared_layers()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if path.is_dir() {
            std::os::unix::fs::symlink(&path, into.join(name)).unwrap();
        } else if !name.to_string_lossy().ends_with("lock") {
            std::fs::copy(&path, into.join(name)).unwrap();
        }
    }
}
