//! Makes layers out of the host's own Debian (or Ubuntu) archive: `superserve/base`, with Node from PyPI, and whatever else is
//! described by a [`Recipe`].
//!
//! `mmdebstrap` builds the system and streams it as a tar archive straight into the layer store. It runs in namespaces of
//! its own, whose first process dies with the program that was started: stopping it at any point ends all of apt, dpkg
//! and pip and takes their mounts along. All blocking work is in one thread that always runs to its own clean-up.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sha2::{Digest, Sha256};

use crate::error::TemplateError;
use crate::progress::Phase;
use crate::store::{Layer, LayerStore, lock_file};

/// Longest bootstrap. Measured: 45 s on two cores with a near mirror; a slow line has to carry about 250 MB.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// How often a waiting bootstrap looks whether the other one has ended; locks cannot be waited for and given up.
const LOCK_PERIOD: Duration = Duration::from_millis(200);
/// Lines of output kept for the error message, and the longest piece of one.
const KEPT_LINES: usize = 5;
const KEPT_LINE_BYTES: u64 = 400;

/// Run on the host, with the root file system as argument: what only the base has, and what every image needs.
const NODE: &str = include_str!("base/node.sh");
const FINISH: &str = include_str!("base/finish.sh");

/// What an image is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Names it among the layers: lower-case letters, digits, `-` and `.`.
    pub name: String,
    /// Packages beyond Debian's smallest set, without what they recommend.
    pub packages: Vec<String>,
    /// Run by the image's own shell, as its root, when the packages are installed.
    pub script: Option<String>,
}

/// What `superserve/base` has beyond Debian's smallest set; Node comes with the script.
const PACKAGES: &str = "bash,build-essential,ca-certificates,curl,findutils,fuse3,git,iproute2,less,\
    libnss-myhostname,procps,python3,python3-pip,python3-venv,sudo,unzip,xz-utils";

/// Kept in the image as dpkg's settings: no documentation but licences, and no marker that forbids pip.
const DPKG_OPTIONS: &[&str] = &[
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/lib/python3*/EXTERNALLY-MANAGED",
];

/// Programs that have to be on the host, with the package that brings each.
const PROGRAMS: &[(&str, &str)] =
    &[("mmdebstrap", "mmdebstrap"), ("apt-get", "apt"), ("unshare", "util-linux"), ("setpriv", "util-linux")];

/// What the bootstrap is told of a recipe.
#[derive(Debug)]
struct Plan {
    name: String,
    packages: String,
    hook: String,
}

impl Plan {
    fn base() -> Self {
        Self { name: "base".to_owned(), packages: PACKAGES.to_owned(), hook: [NODE, FINISH].concat() }
    }

    fn of(recipe: &Recipe) -> Result<Self, TemplateError> {
        let plain = |text: &String, others: &[u8]| {
            let known =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || others.contains(&byte);
            !text.is_empty() && !text.starts_with(['-', '.']) && text.bytes().all(known)
        };
        let script = recipe.script.as_deref().unwrap_or_default();
        let sound = plain(&recipe.name, b"-.")
            && recipe.packages.iter().all(|package| plain(package, b"-.+:"))
            && !script.lines().any(|line| line == END_OF_SCRIPT);
        if !sound {
            return Err(TemplateError::Unsupported {
                reason: format!("the recipe {:?} is malformed", recipe.name),
            });
        }
        let inside = "env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let hook = format!(
            "#!/bin/sh\nset -eu\nroot=$1\n{inside} chroot \"$root\" /bin/sh -s <<'{END_OF_SCRIPT}' >&2\n{script}\n\
             {END_OF_SCRIPT}\n{FINISH}"
        );
        Ok(Self { name: recipe.name.clone(), packages: recipe.packages.join(","), hook })
    }

    /// Names what goes into the image: another recipe means another layer.
    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(&self.packages);
        hash.update(&self.hook);
        for option in DPKG_OPTIONS {
            hash.update(option);
        }
        hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The file beside the layers that says which of them it is.
    fn record(&self, layers_dir: &Path) -> PathBuf {
        layers_dir.join(format!("{}-{}", self.name, self.digest()))
    }
}

const END_OF_SCRIPT: &str = "END-OF-RECIPE";

/// Makes the layer of `superserve/base`, or finds the one made before; otherwise as [`bootstrap`].
///
/// # Errors
/// As [`bootstrap`].
pub async fn bootstrap_base(
    store: &LayerStore,
    progress: impl Fn(Phase) + Send + Sync + 'static,
) -> Result<Layer, TemplateError> {
    run(store, Plan::base(), progress).await
}

/// Makes the layer, or finds the one made before by the same recipe.
///
/// # Errors
/// `Unsupported` when the host lacks something, `Bootstrap` with the last lines printed when a step failed.
///
/// # Cancel safety
/// Dropping the future ends all processes; the thread that owns them then removes its temporary directory.
pub async fn bootstrap(
    store: &LayerStore,
    recipe: &Recipe,
    progress: impl Fn(Phase) + Send + Sync + 'static,
) -> Result<Layer, TemplateError> {
    run(store, Plan::of(recipe)?, progress).await
}

async fn run(
    store: &LayerStore,
    plan: Plan,
    progress: impl Fn(Phase) + Send + Sync + 'static,
) -> Result<Layer, TemplateError> {
    let stop = Arc::new(Stop::default());
    let _guard = StopOnDrop(Arc::clone(&stop));
    let mut work = {
        let (store, stop) = (store.clone(), Arc::clone(&stop));
        tokio::task::spawn_blocking(move || make_or_find(&store, &plan, &progress, &stop))
    };
    let (joined, late) = match tokio::time::timeout(LIMIT, &mut work).await {
        Ok(joined) => (joined, false),
        Err(_) => {
            stop.stop();
            (work.await, true)
        }
    };
    match joined {
        Ok(Err(TemplateError::Stopped)) if late => Err(TemplateError::Timeout(LIMIT)),
        Ok(result) => result,
        Err(error) => Err(TemplateError::Bootstrap { phase: "starting", detail: error.to_string() }),
    }
}

fn make_or_find(
    store: &LayerStore,
    plan: &Plan,
    progress: &dyn Fn(Phase),
    stop: &Stop,
) -> Result<Layer, TemplateError> {
    let record = plan.record(store.dir());
    if let Some(layer) = kept(store, &record)? {
        return Ok(layer);
    }
    let lock = lock_file(&store.dir().join(".bootstrap-lock"))?;
    while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        progress(Phase::Waiting);
        stop.check()?;
        std::thread::sleep(LOCK_PERIOD);
    }
    if let Some(layer) = kept(store, &record)? {
        return Ok(layer);
    }
    let layer = make(store, plan, progress, stop)?;
    let line = format!("{} {}\n", layer.digest, layer.size_bytes);
    let work = store.work_dir()?;
    let fresh = work.path().join("record");
    let written = fs::write(&fresh, line).and_then(|()| fs::rename(&fresh, &record));
    written.map_err(TemplateError::io("cannot record the layer"))?;
    progress(Phase::Done);
    Ok(layer)
}

/// The recorded layer, noted as of use.
fn kept(store: &LayerStore, record: &Path) -> Result<Option<Layer>, TemplateError> {
    let Some(layer) = recorded(record) else { return Ok(None) };
    Ok(store.keep(&layer.digest)?.then_some(layer))
}

/// The layer that was made by this recipe before, if it is there.
#[must_use]
pub fn bootstrapped(layers_dir: &Path, recipe: &Recipe) -> Option<Layer> {
    recorded(&Plan::of(recipe).ok()?.record(layers_dir))
}

/// Whether [`bootstrap_base`] would find the layer of this recipe in a layer directory. Changes nothing.
#[must_use]
pub fn base_is_made(layers_dir: &Path) -> bool {
    recorded(&base_record(layers_dir)).is_some()
}

/// The file beside the layers that says which of them is the base.
pub(crate) fn base_record(layers_dir: &Path) -> PathBuf {
    Plan::base().record(layers_dir)
}

fn recorded(record: &Path) -> Option<Layer> {
    let line = fs::read_to_string(record).ok()?;
    let (digest, size) = line.trim_end().split_once(' ')?;
    record.with_file_name(digest).is_dir().then_some(())?;
    Some(Layer { digest: digest.to_owned(), size_bytes: size.parse().ok()? })
}

fn make(
    store: &LayerStore,
    plan: &Plan,
    progress: &dyn Fn(Phase),
    stop: &Stop,
) -> Result<Layer, TemplateError> {
    let suite = suite(&fs::read_to_string("/etc/os-release").unwrap_or_default())?;
    for (program, package) in PROGRAMS {
        if find_program(program).is_none() {
            let reason = format!("`{program}` is missing (apt-get install {package})");
            return Err(TemplateError::Unsupported { reason });
        }
    }
    let work = store.work_dir()?;
    let hook = work.path().join("customize.sh");
    let written = fs::write(&hook, &plan.hook)
        .and_then(|()| fs::set_permissions(&hook, fs::Permissions::from_mode(0o700)));
    written.map_err(TemplateError::io("cannot write the bootstrap script"))?;

    progress(Phase::Lists);
    let mut running = stop.spawn(command(work.path(), &hook, &suite, &plan.packages))?;
    let messages = Mutex::new(Messages::default());
    let (stdout, stderr) = (running.child.stdout.take(), running.child.stderr.take());
    let (staged, exit) = std::thread::scope(|scope| {
        scope.spawn(|| stderr.map(|stderr| follow(stderr, &messages)));
        // The archive arrives at the very end; the phases before are read off the messages.
        let stdout = Announced { inner: stdout, messages: &messages, progress, last: None };
        let staged = store.unpack(stdout, &|bytes| progress(Phase::Writing(bytes)));
        (staged, running.child.wait())
    });
    stop.check()?;
    let exit = exit.map_err(TemplateError::io("cannot wait for the bootstrap"))?;
    match staged {
        Err(error @ TemplateError::Io { .. }) => Err(error),
        // A failed bootstrap sends a short archive or none: its own words say why.
        _ if !exit.success() => {
            let messages = messages.into_inner().unwrap_or_else(PoisonError::into_inner);
            Err(TemplateError::Bootstrap { phase: messages.phase.label(), detail: messages.tail() })
        }
        staged => staged?.commit(),
    }
}

/// The release to build: the host's own, because its mirror and keys are known to work.
fn suite(os_release: &str) -> Result<String, TemplateError> {
    let field = |name: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(line.trim_matches('"').to_owned())
    };
    let debian_like = matches!(field("ID").as_deref(), Some("debian" | "ubuntu"));
    let plain = |name: &String| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    match field("VERSION_CODENAME").filter(plain) {
        Some(codename) if debian_like && !codename.is_empty() => Ok(codename),
        _ => Err(TemplateError::Unsupported {
            reason: "the host is neither a Debian nor an Ubuntu release".to_owned(),
        }),
    }
}

/// The host's own package sources; third-party ones have no business in the image.
fn sources() -> Vec<PathBuf> {
    [
        "/etc/apt/sources.list",
        "/etc/apt/sources.list.d/debian.sources",
        "/etc/apt/sources.list.d/ubuntu.sources",
    ]
    .iter()
    .map(PathBuf::from)
    .filter(|path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| line.starts_with("deb ") || line.starts_with("URIs:"))
    })
    .collect()
}

fn find_program(name: &str) -> Option<PathBuf> {
    let from_path = std::env::var_os("PATH").unwrap_or_default();
    let system =
        ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&from_path).chain(system).map(|dir| dir.join(name)).find(|path| path.is_file())
}

fn command(work: &Path, hook: &Path, suite: &str, packages: &str) -> Command {
    // setpriv: the kernel ends `unshare` when this process dies. unshare: its child is the first process of a PID
    // namespace and is ended with it, which ends everything inside.
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig=KILL",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    command.args(["mmdebstrap", "--mode=root", "--variant=minbase", "--format=tar", "--skip=check/empty"]);
    command.arg(format!("--include={packages}"));
    // apt would drop to a user that a sandbox's user namespace may not let it become.
    command.arg("--aptopt=APT::Sandbox::User \"root\"");
    command.args(DPKG_OPTIONS.iter().map(|option| format!("--dpkgopt={option}")));
    command.arg(format!("--customize-hook={}", hook.display()));
    command.args([suite, "-"]).args(sources());
    // Private values of the platform are nothing that maintainer scripts should see.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_none_or(|name| name.starts_with("SUPERSERVE")) {
            command.env_remove(name);
        }
    }
    command.env("TMPDIR", work).env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What the bootstrap has printed.
#[derive(Debug)]
struct Messages {
    phase: Phase,
    tail: VecDeque<String>,
}

impl Default for Messages {
    fn default() -> Self {
        Self { phase: Phase::Lists, tail: VecDeque::new() }
    }
}

impl Messages {
    fn hear(&mut self, line: &str) {
        let phase = [
            ("I: running apt-get update", Phase::Lists),
            ("I: downloading packages", Phase::Downloading),
            ("I: extracting archives", Phase::Extracting),
            ("I: installing ", Phase::Installing),
            ("I: adding node", Phase::Node),
            ("I: creating tarball", Phase::Writing(0)),
        ];
        if let Some((_, phase)) = phase.iter().find(|(start, _)| line.starts_with(start)) {
            self.phase = *phase;
        }
        if !line.starts_with("I: ") && !line.trim().is_empty() {
            self.tail.push_back(line.trim_end().to_owned());
            if self.tail.len() > KEPT_LINES {
                self.tail.pop_front();
            }
        }
    }

    fn tail(&self) -> String {
        if self.tail.is_empty() { "no message".to_owned() } else { Vec::from(self.tail.clone()).join(" | ") }
    }
}

fn follow(stderr: impl Read, messages: &Mutex<Messages>) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    // A longer line counts as several; nothing is kept but the last ones.
    while matches!((&mut reader).take(KEPT_LINE_BYTES).read_until(b'\n', &mut line), Ok(1..)) {
        messages.lock().unwrap_or_else(PoisonError::into_inner).hear(&String::from_utf8_lossy(&line));
        line.clear();
    }
}

/// The archive stream. Before its first byte arrives it reports the phases.
struct Announced<'a, R> {
    inner: Option<R>,
    messages: &'a Mutex<Messages>,
    progress: &'a dyn Fn(Phase),
    last: Option<Phase>,
}

impl<R: Read + AsFd> Read for Announced<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let Some(inner) = &mut self.inner else { return Ok(0) };
        while !matches!(self.last, Some(Phase::Writing(_))) {
            let fd = rustix::event::PollFd::new(inner, rustix::event::PollFlags::IN);
            let period = rustix::event::Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            let ready = rustix::event::poll(&mut [fd], Some(&period))? > 0;
            let phase = self.messages.lock().unwrap_or_else(PoisonError::into_inner).phase;
            if self.last != Some(phase) {
                (self.progress)(phase);
            }
            self.last = Some(if ready { Phase::Writing(0) } else { phase });
        }
        inner.read(buf)
    }
}

/// Lets the waiting side end the work of the blocking thread.
#[derive(Debug, Default)]
struct Stop {
    stopped: AtomicBool,
    child: Mutex<Option<OwnedFd>>,
}

impl Stop {
    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(fd) = &*self.child.lock().unwrap_or_else(PoisonError::into_inner) {
            // It has ended by itself when this fails.
            let _ = pidfd_send_signal(fd, Signal::KILL);
        }
    }

    fn check(&self) -> Result<(), TemplateError> {
        if self.stopped.load(Ordering::SeqCst) { Err(TemplateError::Stopped) } else { Ok(()) }
    }

    fn spawn(&self, mut command: Command) -> Result<Running<'_>, TemplateError> {
        let mut slot = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        let child = command.spawn().map_err(TemplateError::io("cannot start the bootstrap"))?;
        let running = Running { stop: self, child };
        let pid = Pid::from_child(&running.child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => *slot = Some(fd),
            Err(error) => {
                drop(slot);
                return Err(TemplateError::io("cannot watch the bootstrap")(error));
            }
        }
        drop(slot);
        Ok(running)
    }
}

/// The running bootstrap; ended and reaped when dropped.
struct Running<'a> {
    stop: &'a Stop,
    child: Child,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.stop.child.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // Both fail when it was waited for before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct StopOnDrop(Arc<Stop>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}
