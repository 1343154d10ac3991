//! What may follow what (`spec/rest-api.md` §4). Pure: no clock, no database, no machine.
//!
//! ```text
//! (create) ─▶ Starting ─Ready─▶ Active ──Pause/SessionOver──▶ Pausing ──Frozen──▶ Paused
//!                │                ▲ ▲                            │                  │  ▲
//!             NotReady            │ ╰───────── NotFrozen ────────╯            Resume│  │NotContinued
//!                ▼                │                                                 ▼  │
//!             Deleted             ╰──────────────── Continued ──────────────────── Resuming
//!
//! Exited, Lost: the machine is gone, the disk is not: Paused, and the next resume boots it.
//! Nothing left, or nothing usable, after a restart: Failed, until it is deleted. Delete: from every settled state to Deleted.
//! ```

#![warn(clippy::wildcard_enum_match_arm)]

use domain::{Code, SandboxState};
use node::Found;

/// A caller's wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Keep the state, free the compute.
    Pause,
    /// Continue a paused one.
    Resume,
    /// Make it active, whatever it takes, with a fresh token.
    Activate,
    /// Remove it for good.
    Delete,
    /// Change tags, clocks or the preview default.
    PatchSettings,
    /// Change egress rules (perhaps with the rest).
    PatchNetwork,
    /// Bind a secret, or end a binding.
    Bind,
    /// Save it as it is.
    Snapshot,
}

impl Operation {
    /// Every operation.
    pub const ALL: &'static [Self] = &[
        Self::Pause,
        Self::Resume,
        Self::Activate,
        Self::Delete,
        Self::PatchSettings,
        Self::PatchNetwork,
        Self::Bind,
        Self::Snapshot,
    ];
}

/// A fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The machine started and commands can run.
    Ready,
    /// It did not start.
    NotReady,
    /// All processes stand still.
    Frozen,
    /// They could not be stopped and run on.
    NotFrozen,
    /// It runs again.
    Continued,
    /// It could not be made to run; what was kept is still kept.
    NotContinued,
    /// Neither forward nor back worked: the machine must be taken for gone.
    Lost,
    /// The machine ended by itself.
    Exited,
    /// The active session lasted as long as it may.
    SessionOver,
    /// It was paused as long as it may be.
    RetentionOver,
    /// Nobody can say any more which rules are in force on the host, or whether it runs: it must not go on like that.
    OutOfHand,
}

impl Event {
    /// Every event.
    pub const ALL: &'static [Self] = &[
        Self::Ready,
        Self::NotReady,
        Self::Frozen,
        Self::NotFrozen,
        Self::Continued,
        Self::NotContinued,
        Self::Lost,
        Self::Exited,
        Self::SessionOver,
        Self::RetentionOver,
        Self::OutOfHand,
    ];
}

/// What the table is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// A wish.
    Ask(Operation),
    /// A fact.
    Told(Event),
}

/// What to do on the way to the next state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Stop the machine's processes; answers `Frozen`, `NotFrozen` or `Lost`.
    Freeze,
    /// Thaw the machine, or boot it when only its disk is there; answers `Continued`, `NotContinued` or `Lost`.
    Continue,
    /// Remove everything of it from the host.
    Destroy,
    /// A session begins: clock from zero, new token epoch.
    OpenSession,
    /// The session goes on; its clock starts again, so that a pause that cannot work is not tried without end.
    RestartClock,
    /// Paused with its memory; the auto-delete window begins.
    EnterPaused,
    /// Paused as it was before the attempt; an auto-delete window that was running begins anew.
    StepBack,
    /// Paused with its disk only. No window begins: nobody asked for a pause.
    LoseMemory,
    /// A new token; older ones of this epoch stay for their hour.
    IssueToken,
    /// Keep the changed settings.
    Save,
    /// Keep the changed settings and put them in force on the host; if that fails, take them back.
    Apply,
    /// Make a layer of what it has written; the state stays. Until that is done, [`while_saved`] says what may be asked.
    Capture,
    /// Only the state changes.
    Nothing,
}

/// A decision to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The state to write before anything is done.
    pub to: SandboxState,
    /// What to do then.
    pub effect: Effect,
}

/// The table's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Write the state, then act.
    Go(Step),
    /// Wait for what is in progress; then this is answered by its outcome (a pause by a pause) or asked again.
    Join,
    /// Not in this state.
    Refuse(Code),
    /// A fact that changes nothing here.
    Ignore,
}

const fn go(to: SandboxState, effect: Effect) -> Verdict {
    Verdict::Go(Step { to, effect })
}

/// What follows from an input in a state.
#[must_use]
pub fn next(state: SandboxState, input: Input) -> Verdict {
    match state {
        SandboxState::Starting => starting(input),
        SandboxState::Active => active(input),
        SandboxState::Pausing => pausing(input),
        SandboxState::Paused => paused(input),
        SandboxState::Resuming => resuming(input),
        SandboxState::Failed => failed(input),
        SandboxState::Deleted => deleted(input),
    }
}

/// What follows from a wish while a sandbox is being saved. What is saved is what it was when the snapshot was asked for,
/// so rules and secrets stay; what concerns the machine waits.
#[must_use]
pub fn while_saved(state: SandboxState, operation: Operation) -> Verdict {
    match (next(state, Input::Ask(operation)), operation) {
        (Verdict::Go(_), Operation::PatchNetwork | Operation::Bind) => {
            Verdict::Refuse(Code::SnapshotInProgress)
        }
        (Verdict::Go(step), _) if matches!(step.effect, Effect::Save | Effect::IssueToken) => {
            Verdict::Go(step)
        }
        (Verdict::Go(_), _) => Verdict::Join,
        (verdict, _) => verdict,
    }
}

const REFUSED: Verdict = Verdict::Refuse(Code::Conflict);

fn starting(input: Input) -> Verdict {
    match input {
        Input::Ask(
            Operation::Pause
            | Operation::Resume
            | Operation::PatchNetwork
            | Operation::Bind
            | Operation::Snapshot,
        ) => REFUSED,
        Input::Ask(Operation::Activate | Operation::Delete) => Verdict::Join,
        Input::Ask(Operation::PatchSettings) => go(SandboxState::Starting, Effect::Save),
        Input::Told(Event::Ready) => go(SandboxState::Active, Effect::OpenSession),
        Input::Told(Event::NotReady | Event::Lost) => go(SandboxState::Deleted, Effect::Destroy),
        Input::Told(Event::Exited) => Verdict::Join,
        Input::Told(
            Event::Frozen
            | Event::NotFrozen
            | Event::Continued
            | Event::NotContinued
            | Event::SessionOver
            | Event::RetentionOver
            | Event::OutOfHand,
        ) => Verdict::Ignore,
    }
}

fn active(input: Input) -> Verdict {
    match input {
        Input::Ask(Operation::Pause) => go(SandboxState::Pausing, Effect::Freeze),
        Input::Ask(Operation::Resume) => REFUSED,
        Input::Ask(Operation::Activate) => go(SandboxState::Active, Effect::IssueToken),
        Input::Ask(Operation::Delete) => go(SandboxState::Deleted, Effect::Destroy),
        Input::Ask(Operation::PatchSettings) => go(SandboxState::Active, Effect::Save),
        Input::Ask(Operation::PatchNetwork | Operation::Bind) => go(SandboxState::Active, Effect::Apply),
        Input::Ask(Operation::Snapshot) => go(SandboxState::Active, Effect::Capture),
        Input::Told(Event::SessionOver | Event::OutOfHand) => go(SandboxState::Pausing, Effect::Freeze),
        Input::Told(Event::Exited | Event::Lost) => go(SandboxState::Paused, Effect::LoseMemory),
        Input::Told(
            Event::Ready
            | Event::NotReady
            | Event::Frozen
            | Event::NotFrozen
            | Event::Continued
            | Event::NotContinued
            | Event::RetentionOver,
        ) => Verdict::Ignore,
    }
}

fn pausing(input: Input) -> Verdict {
    match input {
        Input::Ask(Operation::Pause | Operation::Activate | Operation::Delete) => Verdict::Join,
        Input::Ask(Operation::Resume | Operation::PatchNetwork | Operation::Bind | Operation::Snapshot) => {
            REFUSED
        }
        Input::Ask(Operation::PatchSettings) => go(SandboxState::Pausing, Effect::Save),
        Input::Told(Event::Frozen) => go(SandboxState::Paused, Effect::EnterPaused),
        Input::Told(Event::NotFrozen) => go(SandboxState::Active, Effect::RestartClock),
        Input::Told(Event::Lost) => go(SandboxState::Paused, Effect::LoseMemory),
        Input::Told(Event::Exited) => Verdict::Join,
        Input::Told(
            Event::Ready
            | Event::NotReady
            | Event::Continued
            | Event::NotContinued
            | Event::SessionOver
            | Event::RetentionOver
            | Event::OutOfHand,
        ) => Verdict::Ignore,
    }
}

fn paused(input: Input) -> Verdict {
    match input {
        Input::Ask(Operation::Pause | Operation::PatchNetwork) => REFUSED,
        Input::Ask(Operation::Resume | Operation::Activate) => go(SandboxState::Resuming, Effect::Continue),
        Input::Ask(Operation::Delete) => go(SandboxState::Deleted, Effect::Destroy),
        Input::Ask(Operation::PatchSettings | Operation::Bind) => go(SandboxState::Paused, Effect::Save),
        Input::Ask(Operation::Snapshot) => go(SandboxState::Paused, Effect::Capture),
        Input::Told(Event::RetentionOver) => go(SandboxState::Deleted, Effect::Destroy),
        Input::Told(Event::Exited | Event::Lost) => go(SandboxState::Paused, Effect::LoseMemory),
        Input::Told(
            Event::Ready
            | Event::NotReady
            | Event::Frozen
            | Event::NotFrozen
            | Event::Continued
            | Event::NotContinued
            | Event::SessionOver
            | Event::OutOfHand,
        ) => Verdict::Ignore,
    }
}

fn resuming(input: Input) -> Verdict {
    match input {
        Input::Ask(
            Operation::Pause
            | Operation::Resume
            | Operation::PatchNetwork
            | Operation::Bind
            | Operation::Snapshot,
        ) => REFUSED,
        Input::Ask(Operation::Activate | Operation::Delete) => Verdict::Join,
        Input::Ask(Operation::PatchSettings) => go(SandboxState::Resuming, Effect::Save),
        Input::Told(Event::Continued) => go(SandboxState::Active, Effect::OpenSession),
        Input::Told(Event::NotContinued) => go(SandboxState::Paused, Effect::StepBack),
        Input::Told(Event::Lost) => go(SandboxState::Paused, Effect::LoseMemory),
        Input::Told(Event::Exited) => Verdict::Join,
        Input::Told(
            Event::Ready
            | Event::NotReady
            | Event::Frozen
            | Event::NotFrozen
            | Event::SessionOver
            | Event::RetentionOver
            | Event::OutOfHand,
        ) => Verdict::Ignore,
    }
}

fn failed(input: Input) -> Verdict {
    match input {
        Input::Ask(
            Operation::Pause
            | Operation::Resume
            | Operation::Activate
            | Operation::PatchNetwork
            | Operation::Bind
            | Operation::Snapshot,
        ) => REFUSED,
        Input::Ask(Operation::Delete) => go(SandboxState::Deleted, Effect::Destroy),
        Input::Ask(Operation::PatchSettings) => go(SandboxState::Failed, Effect::Save),
        Input::Told(_) => Verdict::Ignore,
    }
}

fn deleted(input: Input) -> Verdict {
    match input {
        Input::Ask(_) => Verdict::Refuse(Code::NotFound),
        Input::Told(_) => Verdict::Ignore,
    }
}

/// After a restart: what follows from what the database says and what is there. The intent was written before the act,
/// so the recorded state says what was going on.
#[must_use]
pub fn recover(recorded: SandboxState, found: Found) -> Verdict {
    match (recorded, found) {
        // Nobody was told of it: half a creation is none.
        (
            SandboxState::Starting,
            Found::Running | Found::Frozen | Found::Disk | Found::Nothing | Found::Broken,
        ) => go(SandboxState::Deleted, Effect::Destroy),
        (SandboxState::Active, Found::Running) => Verdict::Ignore,
        (SandboxState::Active | SandboxState::Resuming, Found::Frozen)
        | (SandboxState::Resuming, Found::Running) => go(SandboxState::Resuming, Effect::Continue),
        // The machine died with the host: the disk is kept, and the next resume boots it.
        (SandboxState::Active | SandboxState::Paused, Found::Disk) => {
            go(SandboxState::Paused, Effect::LoseMemory)
        }
        (SandboxState::Resuming, Found::Disk) => go(SandboxState::Paused, Effect::LoseMemory),
        // Also the recorded pause of a machine that somebody thawed.
        (SandboxState::Pausing | SandboxState::Paused, Found::Running) => {
            go(SandboxState::Pausing, Effect::Freeze)
        }
        (SandboxState::Pausing, Found::Frozen) => go(SandboxState::Paused, Effect::EnterPaused),
        (SandboxState::Pausing, Found::Disk) => go(SandboxState::Paused, Effect::LoseMemory),
        (SandboxState::Paused, Found::Frozen) => Verdict::Ignore,
        (
            SandboxState::Active | SandboxState::Pausing | SandboxState::Paused | SandboxState::Resuming,
            Found::Nothing | Found::Broken,
        ) => go(SandboxState::Failed, Effect::Nothing),
        (
            SandboxState::Failed,
            Found::Running | Found::Frozen | Found::Disk | Found::Nothing | Found::Broken,
        ) => Verdict::Ignore,
        (
            SandboxState::Deleted,
            Found::Running | Found::Frozen | Found::Disk | Found::Nothing | Found::Broken,
        ) => go(SandboxState::Deleted, Effect::Destroy),
    }
}
