//! The proof of an engine: a real machine of `superserve/base` that comes up, answers, and is what sandboxes promise to be. It
//! happens in a node of its own beside the platform's, with nobody let out, so that nothing of a running platform is touched;
//! what is left of one that was cut off is removed by the next, by `up` and by `reset`.
//!
//! ```text
//! <state_dir>/proof/         the node's state, removed at the end
//! <state_dir>/proof.lock     held by whoever proves or removes
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use domain::{EgressRules, Engine, NextStep, Problem, SandboxId, Shape};
use futures_util::future::join_all;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use node::{Engines, Host, Node, SandboxSpec};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wire::data_plane::{ExecRequest, ExecResponse};

use crate::config::Config;
use crate::engine::{self, chain};
use crate::platform::{NoLog, instance, open_node};
use crate::verdict::Against;

/// An engine's own limit for a boot is below, and it leaves nothing when that is over.
const BOOT: Duration = Duration::from_secs(40);
/// The checks take a second on a slow host.
const CHECKS: Duration = Duration::from_secs(30);
/// Ending a machine that does not answer.
const END: Duration = Duration::from_secs(30);
/// Whoever proves at the same time is done by then.
const TURN: Duration = Duration::from_secs(120);
const TURN_POLL: Duration = Duration::from_millis(100);
/// The checks print a line each.
const MAX_ANSWER: usize = 64 * 1024;
/// The smallest that all engines run.
const SHAPE: Shape = Shape { vcpu: 1, memory_mib: 256, disk_mib: 1024 };
/// The last numbers of the range, of which sandboxes have none.
const LINKS: u32 = 32_768 - 4;

/// What sandboxes promise besides running commands (`spec/semantics.md` §5.1), where the image has what it takes to try.
/// The first check that fails is printed, and nothing else.
const CHECKS_SCRIPT: &str = r#"
fail() { echo "$1"; exit 0; }
d=/home/user/.proof
[ "$(id -u)" = 0 ] || fail "commands do not run as root"
for dir in /tmp /home/user /mnt /dev/shm; do
  { mkdir -p $dir && echo x > $dir/.proof && rm $dir/.proof; } 2>/dev/null || fail "$dir cannot be written"
done
mkdir -p $d/fuse && cd $d || fail "directories cannot be made"
# What unpacks packages does all of this.
{ echo x > a && chown 1000:1000 a && ln a b && ln -s a c && mkfifo e && mv b a2 && chmod 4755 a; } 2>/dev/null ||
  fail "packages cannot be unpacked: owners, links or modes are refused"
if command -v su >/dev/null && id nobody >/dev/null 2>&1; then
  [ "$(su -s /bin/sh nobody -c 'id -un' 2>/dev/null)" = nobody ] || fail "a command cannot become another user"
  cp "$(command -v id)" root-id && chmod 4755 root-id && chmod 755 /home/user $d
  [ "$(su -s /bin/sh nobody -c "$d/root-id -u" 2>/dev/null)" = 0 ] || fail "sudo cannot work: set-user-id programs are not heeded"
fi
if command -v ls >/dev/null; then
  ls -l / >/dev/null 2>&1 || fail "files cannot be listed"
fi
if command -v mount >/dev/null; then
  exec 3<>/dev/fuse || fail "root cannot open /dev/fuse"
  mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0,allow_other proof $d/fuse 2>/dev/null ||
    fail "root cannot mount a FUSE file system"
  umount -l $d/fuse 2>/dev/null
fi
cd / && rm -rf $d
echo "all is well"
"#;
const PASSED: &str = "all is well";

/// How a proof ended.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) took: Duration,
    pub(crate) outcome: Result<(), Against>,
}

/// Proves engines, side by side.
///
/// # Errors
/// Nothing can be proved here, or it was stopped; says why.
pub(crate) async fn prove(
    _turn: &Turn,
    config: &Config,
    engines: &[Engine],
    layers: &[String],
    stop: &CancellationToken,
) -> Result<Vec<Proof>, String> {
    let stopped = || if stop.is_cancelled() { Err("it was stopped".to_owned()) } else { Ok(()) };
    stopped()?;
    let bench = Bench::open(config).await?;
    let proofs = engines.iter().map(|engine| bench.prove(*engine, layers, stop));
    let proofs = join_all(proofs).await;
    // What was shown was shown.
    if let Err(why) = bench.close().await {
        tracing::warn!(why, "what is left of a proof of isolation engines stays until the next start");
    }
    stopped()?;
    Ok(proofs)
}

/// Whether anything of a proof is there.
pub(crate) fn is_there(config: &Config) -> bool {
    dir(&config.state_dir).exists()
}

/// Removes what a proof left that was cut off, unless one is under way.
pub(crate) async fn clean_up(config: &Config) -> Result<(), String> {
    if !is_there(config) {
        return Ok(());
    }
    match Turn::try_take(&config.state_dir)? {
        Some(_turn) => Bench::open(config).await?.close().await,
        None => Ok(()),
    }
}

fn dir(state_dir: &Path) -> PathBuf {
    state_dir.join("proof")
}

/// One proof at a time, and one writer of what came of it.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "held, and let go by being dropped")] File);

impl Turn {
    fn try_take(state_dir: &Path) -> Result<Option<Self>, String> {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(state_dir.join("proof.lock"));
        let file = file.map_err(|error| format!("the state directory cannot be used: {error}"))?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(format!("the state directory cannot be used: {error}")),
        }
    }

    pub(crate) async fn wait(state_dir: &Path) -> Result<Self, String> {
        let until = Instant::now() + TURN;
        // The lock is another process's, which no event tells of.
        while Instant::now() < until {
            if let Some(turn) = Self::try_take(state_dir)? {
                return Ok(turn);
            }
            tokio::time::sleep(TURN_POLL).await;
        }
        Err("another process has been proving engines for too long".to_owned())
    }
}

/// The node in which engines prove themselves.
struct Bench {
    node: Arc<Node>,
    dir: PathBuf,
}

impl Bench {
    /// Empty, whatever was left in it.
    async fn open(config: &Config) -> Result<Self, String> {
        let dir = dir(&config.state_dir);
        std::fs::create_dir_all(&dir)
            .map_err(|error| format!("{} cannot be made: {error}", dir.display()))?;
        let everywhere = "0.0.0.0/0".parse().map_err(|_| "the rules cannot be made".to_owned())?;
        // What was set up for engines is in the platform's own directory, what they make is here.
        let engines = Config { engines_dir: dir.clone(), ..config.clone() };
        let engines: Engines = engine::open(&engines, &instance(&dir));
        let config = Config {
            state_dir: dir.clone(),
            // A boot is what is to be shown.
            template_snapshots: 0,
            egress: egress::GatewayConfig { blocked: vec![everywhere], ..egress::GatewayConfig::default() },
            ..config.clone()
        };
        let node = open_node(&config, engines, Arc::new(NoLog), None)
            .await
            .map_err(|failure| failure.message().to_owned())?;
        let bench = Self { node, dir };
        bench.empty().await?;
        Ok(bench)
    }

    async fn empty(&self) -> Result<(), String> {
        self.node.adopt(Vec::new(), BTreeSet::new()).await.map(drop).map_err(told)
    }

    /// Takes away everything of it. As long as something cannot be, the directory stays, by which it is found again.
    async fn close(self) -> Result<(), String> {
        let emptied = self.empty().await;
        let left = self.node.present().await.map_err(told);
        self.node.close().await.map_err(told)?;
        emptied?;
        let left = left?;
        if !left.is_empty() {
            return Err(format!("{} machines of it cannot be removed: {}", left.len(), named(&left)));
        }
        // Nothing is mounted in it: mounts are below the run directory, and gone.
        std::fs::remove_dir_all(&self.dir)
            .map_err(|error| format!("{} cannot be removed: {error}", self.dir.display()))
    }

    async fn prove(&self, engine: Engine, layers: &[String], stop: &CancellationToken) -> Proof {
        let begun = Instant::now();
        let number = Engine::ALL.iter().position(|one| *one == engine).unwrap_or_default();
        let spec = SandboxSpec {
            id: SandboxId::new(),
            engine,
            shape: SHAPE,
            layers: layers.to_vec(),
            link: LINKS + u32::try_from(number).unwrap_or_default(),
            network: EgressRules::default(),
            guest: wire::agent::AgentConfig::default(),
        };
        let outcome = tokio::select! {
            outcome = self.try_one(&spec) => outcome,
            () = stop.cancelled() => Err(Against { why: "it was stopped".to_owned(), late: true }),
        };
        let took = begun.elapsed();
        // Waits for a start that goes on; what it cannot end is removed with the bench.
        if let Ok(Err(problem)) = tokio::time::timeout(END, self.node.destroy(spec.id)).await {
            tracing::warn!(%engine, cause = problem.chain(), "the machine of a proof stays behind");
        }
        Proof { took, outcome }
    }

    async fn try_one(&self, spec: &SandboxSpec) -> Result<(), Against> {
        let late = |why| Against { why, late: true };
        match tokio::time::timeout(BOOT, self.node.create(spec)).await {
            Ok(Ok(())) => match tokio::time::timeout(CHECKS, self.check(spec.id)).await {
                Ok(checked) => checked.map_err(|why| Against { why, late: false }),
                Err(_) => Err(late(format!("it did not answer within {} s", CHECKS.as_secs()))),
            },
            Ok(Err(problem)) => {
                // What may be otherwise in a moment: the engine's own limits.
                let late = matches!(problem.next, NextStep::Retry { .. });
                Err(Against { why: told(problem), late })
            }
            Err(_) => Err(late(format!("it did not come up within {} s", BOOT.as_secs()))),
        }
    }

    async fn check(&self, id: SandboxId) -> Result<(), String> {
        let said = exec(&self.node, id, CHECKS_SCRIPT).await?;
        match said.stdout.lines().last() {
            Some(PASSED) => Ok(()),
            Some(failed) => Err(failed.to_owned()),
            None => Err(format!("its checks ended with {}: {}", said.exit_code, said.stderr.trim())),
        }
    }
}

/// Sandboxes that stay, and why.
pub(crate) fn named(left: &BTreeMap<SandboxId, Option<String>>) -> String {
    const MOST: usize = 20;
    let one = |(id, why): (&SandboxId, &Option<String>)| match why {
        Some(why) => format!("{id} ({why})"),
        None => id.to_string(),
    };
    let mut named: Vec<String> = left.iter().take(MOST).map(one).collect();
    if left.len() > MOST {
        named.push("…".to_owned());
    }
    named.join(", ")
}

/// The cause alone: callers are told of a sandbox and of an operator, and here is neither.
fn told(problem: Problem) -> String {
    match problem.source {
        Some(source) => chain(source.as_ref()),
        None => problem.message,
    }
}

/// Runs a command in a machine.
async fn exec(node: &Node, id: SandboxId, command: &str) -> Result<ExecResponse, String> {
    let broken = |error: hyper::Error| format!("it does not answer: {error}");
    let stream = node.agent(id).await.map_err(told)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Ends with this call.
    let mut driving = JoinSet::new();
    driving.spawn(connection);
    let body = ExecRequest { command: command.to_owned(), timeout_s: Some(20), ..ExecRequest::default() };
    let body = serde_json::to_vec(&body).map_err(|error| error.to_string())?;
    let request = hyper::Request::post("/exec")
        .header(HOST, "agent")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(broken)?;
    let status = answer.status();
    if !status.is_success() {
        return Err(format!("it answered {status} to a command"));
    }
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    let body = body.map_err(|error| format!("it does not answer: {error}"))?.to_bytes();
    serde_json::from_slice(&body).map_err(|_| "its answer cannot be read".to_owned())
}
