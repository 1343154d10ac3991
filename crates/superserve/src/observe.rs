//! Who is told of everything that was answered: counts it, and puts what happened in sandboxes into the activity log.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use activity::{Action, Actor, Caller, Entry, NetworkLog, Recorder};
use domain::{Code, PreviewPort, SandboxId, format_timestamp};
use edge::{Event, Kind, Outcome, Traffic};
use lifecycle::Lifecycle;
use node::Node;
use wire::rest::{PreviewRequest, PreviewTraffic};

use crate::metrics::{Metrics, Now};

/// Refused tokens of one sandbox are one entry per minute, with the number of those in between: whoever guesses must
/// not be able to push everything else out of the log.
const REFUSAL_WINDOW: Duration = Duration::from_secs(60);
/// Sandboxes whose refusals are remembered at once; beyond that they are only counted.
const MAX_REFUSALS: usize = 1_024;

/// The observer of both planes.
#[derive(Debug)]
pub(crate) struct Observers {
    metrics: Metrics,
    lifecycle: Arc<Lifecycle>,
    node: Arc<Node>,
    activity: Recorder,
    network: NetworkLog,
    refusals: Mutex<HashMap<SandboxId, Refusals>>,
    traffic: Traffic,
}

#[derive(Debug)]
struct Refusals {
    told: Instant,
    since: u64,
}

impl Observers {
    pub(crate) fn new(
        lifecycle: Arc<Lifecycle>,
        node: Arc<Node>,
        activity: Recorder,
        network: NetworkLog,
        traffic: Traffic,
    ) -> Result<Self, prometheus::Error> {
        let (metrics, refusals) = (Metrics::new()?, Mutex::default());
        Ok(Self { metrics, lifecycle, node, activity, network, refusals, traffic })
    }

    /// How many refusals to tell of now, this one included; `None` for none.
    fn refusals(&self, id: SandboxId, now: Instant) -> Option<u64> {
        let mut known = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(refusals) = known.get_mut(&id) {
            refusals.since += 1;
            if now.duration_since(refusals.told) < REFUSAL_WINDOW {
                return None;
            }
            refusals.told = now;
            return Some(std::mem::take(&mut refusals.since));
        }
        if known.len() >= MAX_REFUSALS {
            known.retain(|_, refusals| now.duration_since(refusals.told) < REFUSAL_WINDOW);
        }
        if known.len() < MAX_REFUSALS {
            known.insert(id, Refusals { told: now, since: 0 });
            return Some(1);
        }
        None
    }

    fn record(&self, event: &Event) {
        // Visitors of previews are counted, and listed with their port; here they would push everything else out.
        let Some(id) = event.sandbox.filter(|_| event.kind != Kind::Preview) else { return };
        let (action, actor, count) = match (event.outcome, action(event.kind)) {
            (Outcome::Refused, _) if !event.admitted && event.status == Code::AuthFailed.status() => {
                let Some(count) = self.refusals(id, Instant::now()) else { return };
                (Action::TokenRefused, Actor::Stranger, Some(count))
            }
            // Nothing happened in the sandbox; clients that wait for one to run come often.
            (Outcome::Refused, _) | (_, None) => return,
            (_, Some(action)) => (action, Actor::Token, None),
        };
        let Some(row) = self.lifecycle.row(id) else { return };
        let facts = match count {
            Some(count) => vec![("refusals", count.into())],
            None => vec![
                ("status", event.status.into()),
                ("bytes_in", event.bytes_in.into()),
                ("bytes_out", event.bytes_out.into()),
            ],
        };
        self.activity.record(Entry {
            sandbox: Some((id, row.summary.name.clone())),
            template: row.template,
            error: error(event),
            took: count.is_none().then_some(event.took),
            facts,
            ..Entry::new(action, Caller { team: row.team, actor, request: Some(event.request) })
        });
    }
}

fn action(kind: Kind) -> Option<Action> {
    match kind {
        Kind::Exec => Some(Action::ExecRun),
        Kind::ExecStream => Some(Action::ExecStreamed),
        Kind::FileRead => Some(Action::FileRead),
        Kind::FileWrite => Some(Action::FileWritten),
        Kind::Session => Some(Action::Session),
        Kind::SessionControl => Some(Action::SessionManaged),
        Kind::DesktopView => Some(Action::DesktopViewed),
        Kind::DesktopInput => Some(Action::DesktopUsed),
        Kind::Preview | Kind::Other => None,
    }
}

/// The code of what went wrong. The edge does not look into answers: a command that ran and failed is no error.
fn error(event: &Event) -> Option<&'static str> {
    let of_status =
        |status: u16| Code::ALL.iter().find(|code| code.status() == status).map(|code| code.as_str());
    match (event.outcome, event.status) {
        (Outcome::AgentFailed, _) => Some("agent_failed"),
        (Outcome::Cut, _) => Some("cut"),
        (_, ..400) => None,
        (_, status @ 400..500) => Some(of_status(status).unwrap_or(Code::BadRequest.as_str())),
        (_, status) => Some(of_status(status).unwrap_or(Code::Internal.as_str())),
    }
}

impl edge::Observer for Observers {
    fn data_plane(&self, event: Event) {
        self.metrics.data_plane(&event);
        self.record(&event);
    }
}

impl oauth::Observer for Observers {
    fn oauth(&self, event: oauth::Event) {
        self.metrics.oauth(&event);
        let (action, subject, reason) = match event {
            oauth::Event::Granted(subject) => (Action::GrantCreated, subject, None),
            oauth::Event::Refreshed(subject) => (Action::GrantRenewed, subject, None),
            oauth::Event::Ended(subject, reason) => (Action::GrantRevoked, subject, Some(reason)),
            // Anybody can make these happen, as often as they like.
            oauth::Event::Registered
            | oauth::Event::Limited
            | oauth::Event::WrongKey
            | oauth::Event::Denied
            | oauth::Event::TokenRefused => return,
        };
        let actor = Actor::Key { id: subject.key, name: subject.key_name };
        // What the client calls itself is a stranger's text.
        let mut facts = vec![
            ("client_id", subject.client.to_string().into()),
            ("grant_id", subject.grant.to_string().into()),
        ];
        if let Some(reason) = reason {
            facts.push(("reason", reason.as_str().into()));
        }
        let by = Caller { team: subject.team, actor, request: None };
        self.activity.record(Entry { facts, ..Entry::new(action, by) });
    }
}

impl api::Observer for Observers {
    fn answered(&self, answered: api::Answered<'_>) {
        self.metrics.control_plane(answered);
    }

    fn page(&self) -> String {
        self.metrics.page(&Now {
            sandboxes: self.lifecycle.count().into_iter().collect(),
            requests_waiting: self.lifecycle.queued(),
            activity: self.activity.stats(),
            network: self.network.stats(),
            egress: self.node.egress(),
        })
    }

    fn preview_traffic(&self, id: SandboxId, port: PreviewPort) -> PreviewTraffic {
        let traffic = self.traffic.of(id, port);
        PreviewTraffic {
            requests: traffic.requests,
            refused: traffic.refused,
            open: traffic.open,
            bytes_in: traffic.bytes_in,
            bytes_out: traffic.bytes_out,
            last_request_at: traffic.last.map(format_timestamp),
        }
    }

    fn preview_requests(&self, id: SandboxId, port: PreviewPort) -> Vec<PreviewRequest> {
        let visits = self.traffic.visits(id, port).into_iter().map(|visit| PreviewRequest {
            id: visit.request.to_string(),
            ended_at: format_timestamp(visit.at),
            method: visit.method,
            path: visit.path,
            status: visit.status,
            outcome: visit.outcome.as_str().to_owned(),
            bytes_in: visit.bytes_in,
            bytes_out: visit.bytes_out,
            duration_ms: u64::try_from(visit.took.as_millis()).unwrap_or(u64::MAX),
            client: visit.client.to_string(),
        });
        visits.collect()
    }
}
