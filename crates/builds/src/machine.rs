//! A machine of a build: started over layers, told who runs commands where, given commands, and made a layer of. Whoever
//! starts one ends it; a build that is dropped half-way leaves its machines in [`Machines`], to be ended from there.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use domain::{Code, EgressRules, Engine, NextStep, Problem, SandboxId, Shape};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use node::{CapturedLayer, Host, SandboxSpec};
use tokio::task::JoinSet;
use wire::agent::AgentConfig;
use wire::data_plane::{ExecRequest, StreamEvent};
use wire::rest::LogSource;

/// A start includes making the disk; for a virtual machine also an image of the layers, which may be gigabytes, and the boot of
/// a kernel.
const START: Duration = Duration::from_secs(180);
/// Handing over a configuration.
const CONTROL: Duration = Duration::from_secs(30);
/// Reading everything that was written on a slow disk.
const CAPTURE: Duration = Duration::from_secs(30 * 60);
/// Killing, unmounting, and removing the files of a full disk.
const END: Duration = Duration::from_secs(60);
/// The agent says something every 15 s.
const SILENCE: Duration = Duration::from_secs(60);
/// Opening a stream to an agent on the same host, and its first answer.
const ANSWER: Duration = Duration::from_secs(30);
/// One event: a piece of 32 KiB, each byte escaped, and braces.
const MAX_EVENT: usize = 512 * 1024;
/// Written by the agent at each start; they are about the machine, not about the template.
const NOT_TEMPLATE: [&str; 3] = ["etc/hostname", "etc/hosts", "etc/resolv.conf"];

/// The machines of a build that have not been ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Machines(Arc<Mutex<Vec<SandboxId>>>);

impl Machines {
    fn add(&self, id: SandboxId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }

    fn remove(&self, id: SandboxId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| *known != id);
    }

    /// Ends whatever is left.
    pub(crate) async fn end_all(&self, host: &dyn Host) {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for id in left {
            end(host, id).await;
            self.remove(id);
        }
    }
}

/// What the start of one machine needs.
#[derive(Debug, Clone)]
pub(crate) struct Blueprint {
    pub(crate) engine: Engine,
    pub(crate) shape: Shape,
    pub(crate) layers: Vec<String>,
    pub(crate) link: u32,
}

#[derive(Debug)]
pub(crate) struct Machine {
    host: Arc<dyn Host>,
    machines: Machines,
    spec: SandboxSpec,
}

/// Why no exit code came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecError {
    /// The agent says why, for the template's author.
    #[error("{0}")]
    Refused(String),
    /// The machine or the way to it is at fault.
    #[error("the machine did not run the command")]
    Machine(#[source] Problem),
}

impl Machine {
    pub(crate) async fn start(
        host: &Arc<dyn Host>,
        machines: &Machines,
        blueprint: &Blueprint,
        guest: AgentConfig,
    ) -> Result<Self, Problem> {
        let spec = SandboxSpec {
            id: SandboxId::new(),
            engine: blueprint.engine,
            shape: blueprint.shape,
            layers: blueprint.layers.clone(),
            link: blueprint.link,
            // Steps fetch packages from anywhere, as commands of a sandbox without rules do.
            network: EgressRules::default(),
            guest,
        };
        machines.add(spec.id);
        let machine = Self { host: Arc::clone(host), machines: machines.clone(), spec };
        match within(START, "starting a machine", host.create(&machine.spec)).await {
            Ok(()) => Ok(machine),
            Err(problem) => {
                machine.end().await;
                Err(problem)
            }
        }
    }

    /// Says how commands run from now on.
    pub(crate) async fn configure(&mut self, guest: AgentConfig) -> Result<(), Problem> {
        if self.spec.guest != guest {
            self.spec.guest = guest;
            within(CONTROL, "configuring a machine", self.host.thaw(&self.spec)).await?;
        }
        Ok(())
    }

    /// Runs a command and gives its exit code. `heard` gets what it prints.
    pub(crate) async fn exec(
        &self,
        request: &ExecRequest,
        heard: &mut (dyn FnMut(LogSource, String) + Send),
    ) -> Result<i32, ExecError> {
        let stream = within(ANSWER, "reaching a machine", self.host.agent(self.spec.id));
        let stream = stream.await.map_err(ExecError::Machine)?;
        let broken =
            |error: hyper::Error| ExecError::Machine(Problem::internal("the machine broke off", error));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // Ends with this call.
        let mut driving = JoinSet::new();
        driving.spawn(connection);
        let body = serde_json::to_vec(request)
            .map_err(|error| ExecError::Machine(Problem::internal("the command cannot be sent", error)))?;
        let request = hyper::Request::post("/exec/stream")
            .header(HOST, "agent")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| ExecError::Machine(Problem::internal("the command cannot be sent", error)))?;
        let answer = tokio::time::timeout(ANSWER, sender.send_request(request)).await;
        let answer = answer.map_err(|_| ExecError::Machine(silent()))?.map_err(broken)?;
        if !answer.status().is_success() {
            return Err(ExecError::Refused(format!("the machine answered {}", answer.status())));
        }
        let mut events = Events { body: answer.into_body(), buffer: BytesMut::new() };
        loop {
            let event = events.next().await?;
            for (stream, text) in [(LogSource::Stdout, event.stdout), (LogSource::Stderr, event.stderr)] {
                if let Some(text) = text {
                    heard(stream, text);
                }
            }
            if let Some(error) = event.error {
                return Err(ExecError::Refused(error.chars().take(500).collect()));
            }
            if event.finished {
                let lost = || ExecError::Refused("the command ended without an exit code".to_owned());
                return event.exit_code.ok_or_else(lost);
            }
        }
    }

    /// Stops everything in it and makes a layer of what was written.
    pub(crate) async fn capture(&self) -> Result<Option<CapturedLayer>, Problem> {
        let except = NOT_TEMPLATE.map(str::to_owned).to_vec();
        let max_bytes = u64::from(self.spec.shape.disk_mib) * 1024 * 1024;
        let capture = self.host.capture(self.spec.id, except, max_bytes);
        within(CAPTURE, "reading what was written", capture).await
    }

    /// Removes everything of it.
    pub(crate) async fn end(self) {
        end(&*self.host, self.spec.id).await;
        self.machines.remove(self.spec.id);
    }
}

async fn end(host: &dyn Host, id: SandboxId) {
    if let Err(problem) = within(END, "removing a machine", host.destroy(id)).await {
        // It has no row, so the next start of the server removes it.
        tracing::error!(machine = %id, cause = problem.chain(), "a machine of a build stays behind");
    }
}

async fn within<T>(
    limit: Duration,
    what: &str,
    call: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let late = || {
        let message = format!("{what} did not finish within {} s", limit.as_secs());
        Problem::new(Code::ServiceUnavailable, message, NextStep::Retry { after: Duration::from_secs(5) })
    };
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(late()))
}

fn silent() -> Problem {
    let next = NextStep::Retry { after: Duration::from_secs(5) };
    Problem::new(Code::ServiceUnavailable, "the machine fell silent", next)
}

/// The events of a command, out of a body that a guest writes.
struct Events {
    body: Incoming,
    buffer: BytesMut,
}

impl Events {
    async fn next(&mut self) -> Result<StreamEvent, ExecError> {
        let refused = |why: &str| ExecError::Refused(why.to_owned());
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let record = self.buffer.split_to(end);
                self.buffer.advance(2);
                if let Some(json) = record.strip_prefix(b"data: ") {
                    return serde_json::from_slice(json)
                        .map_err(|_| refused("the machine sent an event that cannot be read"));
                }
                continue;
            }
            if self.buffer.len() > MAX_EVENT {
                return Err(refused("the machine sent an event that is too long"));
            }
            // Signs of life are no events, and count as much.
            let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
            let frame = frame.map_err(|_| ExecError::Machine(silent()))?;
            let frame = frame.ok_or_else(|| refused("the machine ended"))?;
            let frame = frame
                .map_err(|error| ExecError::Machine(Problem::internal("the machine broke off", error)))?;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}
