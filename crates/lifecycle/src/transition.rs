//! How a row looks after a step: plain data in, plain data out.

use std::sync::Arc;

use domain::{EgressRules, Metadata, PreviewAccess, SandboxState};
use jiff::Timestamp;
use store::{BindingRow, SandboxRow};
use uuid::Uuid;

use crate::snapshot::Wish;
use crate::table::{Effect, Step};
use crate::{timers, tokens};

/// A change of settings: only what is present changes. A clock set to `Some(None)` is cleared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Patch {
    /// Replaces all tags.
    pub metadata: Option<Metadata>,
    /// Replaces both lists of rules.
    pub network: Option<NetworkPatch>,
    /// Default of ports published later.
    pub preview_access: Option<PreviewAccess>,
    /// Longest active session.
    pub timeout_seconds: Option<Option<u32>>,
    /// Longest pause.
    pub auto_delete_seconds: Option<Option<u32>>,
}

/// What an operation changes besides the state.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// Settings.
    Settings(Patch),
    /// A secret is bound.
    Attach(BindingRow),
    /// The binding under this variable ends.
    Detach(String),
    /// The sandbox is saved.
    Save(Arc<Wish>),
}

/// A change of egress rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkPatch {
    /// The lists as they are to be.
    pub rules: EgressRules,
    /// Strict mode; unchanged when unset, since whoever does not know it must not open anything.
    pub strict: Option<bool>,
}

impl NetworkPatch {
    /// The rules that replace the present ones.
    #[must_use]
    pub fn over(&self, present: &EgressRules) -> EgressRules {
        EgressRules { strict: self.strict.unwrap_or(present.strict), ..self.rules.clone() }
    }
}

/// The row as it is to be written for a step.
pub(crate) fn after(row: &SandboxRow, step: Step, change: Option<&Change>, now: Timestamp) -> SandboxRow {
    let mut row = row.clone();
    row.summary.state = step.to;
    match step.effect {
        // Until the outcome is known, begin of the session, kept memory and deadline stay what they are; a deadline
        // counts, and is shown, only while the sandbox is paused.
        Effect::Freeze | Effect::Continue | Effect::Capture | Effect::Nothing => {}
        Effect::Destroy => {
            row.summary.auto_delete_at = None;
            row.active_since = None;
        }
        Effect::OpenSession => {
            row.active_since = Some(now);
            row.memory_kept = false;
            row.summary.auto_delete_at = None;
            row.token = tokens::next_epoch(row.token, now);
        }
        Effect::RestartClock => row.active_since = Some(now),
        Effect::EnterPaused => {
            row.active_since = None;
            row.memory_kept = true;
            row.summary.checkpoint = Some(Uuid::new_v4());
            arm(&mut row, now);
        }
        Effect::StepBack => {
            if row.summary.auto_delete_at.is_some() {
                arm(&mut row, now);
            }
        }
        Effect::LoseMemory => {
            row.active_since = None;
            row.memory_kept = false;
        }
        Effect::IssueToken => row.token = tokens::reissued(row.token, now),
        Effect::Save | Effect::Apply => {
            if let Some(Change::Settings(patch)) = change {
                apply(&mut row, patch, now);
            }
        }
    }
    row
}

fn arm(row: &mut SandboxRow, now: Timestamp) {
    row.summary.auto_delete_at = row.summary.timeouts.auto_delete_seconds.map(|n| timers::after(now, n));
}

fn apply(row: &mut SandboxRow, patch: &Patch, now: Timestamp) {
    let summary = &mut row.summary;
    if let Some(metadata) = &patch.metadata {
        summary.metadata = metadata.clone();
    }
    if let Some(network) = &patch.network {
        summary.network = network.over(&summary.network);
    }
    if let Some(preview) = patch.preview_access {
        summary.preview_access = preview;
    }
    if let Some(timeout) = patch.timeout_seconds {
        summary.timeouts.timeout_seconds = timeout;
    }
    if let Some(auto_delete) = patch.auto_delete_seconds {
        summary.timeouts.auto_delete_seconds = auto_delete;
        if summary.state == SandboxState::Paused {
            arm(row, now);
        }
    }
}
