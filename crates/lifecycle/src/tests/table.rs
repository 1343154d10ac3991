//! The table, without any I/O.

use domain::SandboxState;
use expect_test::expect;
use node::Found;
use proptest::prelude::*;

use crate::table::{Effect, Event, Input, Operation, Step, Verdict, next, recover, while_saved};

fn shown(verdict: Verdict) -> String {
    match verdict {
        Verdict::Go(Step { to, effect }) => format!("{to} {effect:?}"),
        Verdict::Join => "join".to_owned(),
        Verdict::Refuse(code) => format!("refuse {code}"),
        Verdict::Ignore => "-".to_owned(),
    }
}

fn lines(inputs: &[Input]) -> String {
    let mut text = String::new();
    for input in inputs {
        let name = match input {
            Input::Ask(operation) => format!("{operation:?}"),
            Input::Told(event) => format!("{event:?}"),
        };
        text.push_str(&format!("{name}\n"));
        for state in SandboxState::ALL {
            text.push_str(&format!("  {:9} {}\n", state.as_str(), shown(next(*state, *input))));
        }
    }
    text
}

/// `spec/rest-api.md` §4.3.
#[test]
fn operations() {
    let asked: Vec<Input> = Operation::ALL.iter().map(|operation| Input::Ask(*operation)).collect();
    expect![[r#"
        Pause
          starting  refuse conflict
          active    pausing Freeze
          pausing   join
          paused    refuse conflict
          resuming  refuse conflict
          failed    refuse conflict
          deleted   refuse not_found
        Resume
          starting  refuse conflict
          active    refuse conflict
          pausing   refuse conflict
          paused    resuming Continue
          resuming  refuse conflict
          failed    refuse conflict
          deleted   refuse not_found
        Activate
          starting  join
          active    active IssueToken
          pausing   join
          paused    resuming Continue
          resuming  join
          failed    refuse conflict
          deleted   refuse not_found
        Delete
          starting  join
          active    deleted Destroy
          pausing   join
          paused    deleted Destroy
          resuming  join
          failed    deleted Destroy
          deleted   refuse not_found
        PatchSettings
          starting  starting Save
          active    active Save
          pausing   pausing Save
          paused    paused Save
          resuming  resuming Save
          failed    failed Save
          deleted   refuse not_found
        PatchNetwork
          starting  refuse conflict
          active    active Apply
          pausing   refuse conflict
          paused    refuse conflict
          resuming  refuse conflict
          failed    refuse conflict
          deleted   refuse not_found
        Bind
          starting  refuse conflict
          active    active Apply
          pausing   refuse conflict
          paused    paused Save
          resuming  refuse conflict
          failed    refuse conflict
          deleted   refuse not_found
        Snapshot
          starting  refuse conflict
          active    active Capture
          pausing   refuse conflict
          paused    paused Capture
          resuming  refuse conflict
          failed    refuse conflict
          deleted   refuse not_found
    "#]]
    .assert_eq(&lines(&asked));
}

/// Only these two states can be saved.
#[test]
fn operations_while_it_is_saved() {
    let mut text = String::new();
    for operation in Operation::ALL {
        let [active, paused] =
            [SandboxState::Active, SandboxState::Paused].map(|state| shown(while_saved(state, *operation)));
        text.push_str(&format!("{:13} {active:28} {paused}\n", format!("{operation:?}")));
    }
    expect![[r#"
        Pause         join                         refuse conflict
        Resume        refuse conflict              join
        Activate      active IssueToken            join
        Delete        join                         join
        PatchSettings active Save                  paused Save
        PatchNetwork  refuse snapshot_in_progress  refuse conflict
        Bind          refuse snapshot_in_progress  refuse snapshot_in_progress
        Snapshot      join                         join
    "#]]
    .assert_eq(&text);
}

#[test]
fn events() {
    let told: Vec<Input> = Event::ALL.iter().map(|event| Input::Told(*event)).collect();
    expect![[r#"
        Ready
          starting  active OpenSession
          active    -
          pausing   -
          paused    -
          resuming  -
          failed    -
          deleted   -
        NotReady
          starting  deleted Destroy
          active    -
          pausing   -
          paused    -
          resuming  -
          failed    -
          deleted   -
        Frozen
          starting  -
          active    -
          pausing   paused EnterPaused
          paused    -
          resuming  -
          failed    -
          deleted   -
        NotFrozen
          starting  -
          active    -
          pausing   active RestartClock
          paused    -
          resuming  -
          failed    -
          deleted   -
        Continued
          starting  -
          active    -
          pausing   -
          paused    -
          resuming  active OpenSession
          failed    -
          deleted   -
        NotContinued
          starting  -
          active    -
          pausing   -
          paused    -
          resuming  paused StepBack
          failed    -
          deleted   -
        Lost
          starting  deleted Destroy
          active    paused LoseMemory
          pausing   paused LoseMemory
          paused    paused LoseMemory
          resuming  paused LoseMemory
          failed    -
          deleted   -
        Exited
          starting  join
          active    paused LoseMemory
          pausing   join
          paused    paused LoseMemory
          resuming  join
          failed    -
          deleted   -
        SessionOver
          starting  -
          active    pausing Freeze
          pausing   -
          paused    -
          resuming  -
          failed    -
          deleted   -
        RetentionOver
          starting  -
          active    -
          pausing   -
          paused    deleted Destroy
          resuming  -
          failed    -
          deleted   -
        OutOfHand
          starting  -
          active    pausing Freeze
          pausing   -
          paused    -
          resuming  -
          failed    -
          deleted   -
    "#]]
    .assert_eq(&lines(&told));
}

#[test]
fn after_a_restart() {
    let mut text = String::new();
    for state in SandboxState::ALL {
        for found in [Found::Running, Found::Frozen, Found::Disk, Found::Nothing, Found::Broken] {
            text.push_str(&format!("{:9} {found:8?} {}\n", state.as_str(), shown(recover(*state, found))));
        }
    }
    expect![[r#"
        starting  Running deleted Destroy
        starting  Frozen deleted Destroy
        starting  Disk deleted Destroy
        starting  Nothing deleted Destroy
        starting  Broken deleted Destroy
        active    Running -
        active    Frozen resuming Continue
        active    Disk paused LoseMemory
        active    Nothing failed Nothing
        active    Broken failed Nothing
        pausing   Running pausing Freeze
        pausing   Frozen paused EnterPaused
        pausing   Disk paused LoseMemory
        pausing   Nothing failed Nothing
        pausing   Broken failed Nothing
        paused    Running pausing Freeze
        paused    Frozen -
        paused    Disk paused LoseMemory
        paused    Nothing failed Nothing
        paused    Broken failed Nothing
        resuming  Running resuming Continue
        resuming  Frozen resuming Continue
        resuming  Disk paused LoseMemory
        resuming  Nothing failed Nothing
        resuming  Broken failed Nothing
        failed    Running -
        failed    Frozen -
        failed    Disk -
        failed    Nothing -
        failed    Broken -
        deleted   Running deleted Destroy
        deleted   Frozen deleted Destroy
        deleted   Disk deleted Destroy
        deleted   Nothing deleted Destroy
        deleted   Broken deleted Destroy
    "#]]
    .assert_eq(&text);
}

/// What a host call may answer; the owner tells nothing else.
fn outcomes(state: SandboxState) -> &'static [Event] {
    match state {
        SandboxState::Starting => &[Event::Ready, Event::NotReady],
        SandboxState::Pausing => &[Event::Frozen, Event::NotFrozen, Event::Lost],
        SandboxState::Resuming => &[Event::Continued, Event::NotContinued, Event::Lost],
        SandboxState::Active | SandboxState::Paused | SandboxState::Failed | SandboxState::Deleted => &[],
    }
}

fn any_state() -> impl Strategy<Value = SandboxState> {
    proptest::sample::select(SandboxState::ALL)
}

fn any_input() -> impl Strategy<Value = Input> {
    prop_oneof![
        proptest::sample::select(Operation::ALL).prop_map(Input::Ask),
        proptest::sample::select(Event::ALL).prop_map(Input::Told),
    ]
}

fn apply(state: SandboxState, input: Input) -> SandboxState {
    match next(state, input) {
        Verdict::Go(step) => step.to,
        Verdict::Join | Verdict::Refuse(_) | Verdict::Ignore => state,
    }
}

proptest! {
    /// Whatever has happened, and whatever the host answers, a delete that waits for what is in progress ends it.
    #[test]
    fn delete_always_ends_in_deleted(state in any_state(), past in proptest::collection::vec(any_input(), 0..20), answer in 0usize..3) {
        let state = past.into_iter().fold(state, apply);
        let settled = match outcomes(state) {
            [] => state,
            outcomes => apply(state, Input::Told(outcomes[answer % outcomes.len()])),
        };
        prop_assert!(outcomes(settled).is_empty(), "{settled} follows {state} without an end in sight");
        prop_assert_eq!(apply(settled, Input::Ask(Operation::Delete)), SandboxState::Deleted);
    }

    /// Every outcome of every host call leads on, so that no state is without a way out.
    #[test]
    fn every_outcome_leads_on(state in any_state()) {
        for event in outcomes(state) {
            prop_assert_ne!(apply(state, Input::Told(*event)), state, "{:?} in {}", event, state);
        }
    }

    /// Nothing comes back from the dead.
    #[test]
    fn deleted_is_the_end(past in proptest::collection::vec(any_input(), 0..50)) {
        prop_assert_eq!(past.into_iter().fold(SandboxState::Deleted, apply), SandboxState::Deleted);
    }

    /// A step into a state in transition starts a host call (or is one going on), else nobody would end it.
    #[test]
    fn transitions_are_somebodys_work(state in any_state(), input in any_input()) {
        if let Verdict::Go(Step { to, effect }) = next(state, input)
            && to != state && !outcomes(to).is_empty()
        {
            prop_assert!(matches!(effect, Effect::Freeze | Effect::Continue), "{effect:?}");
        }
    }

    /// Recovery is idempotent: what it leads to needs no further recovery once its host call has answered.
    #[test]
    fn recovery_settles(state in any_state(), found in proptest::sample::select(vec![Found::Running, Found::Frozen, Found::Disk, Found::Nothing])) {
        if let Verdict::Go(step) = recover(state, found) {
            let (to, found) = match step.effect {
                Effect::Continue => (apply(step.to, Input::Told(Event::Continued)), Found::Running),
                Effect::Freeze => (apply(step.to, Input::Told(Event::Frozen)), Found::Frozen),
                Effect::Destroy => return Ok(()),
                Effect::LoseMemory => (step.to, Found::Disk),
                _ => (step.to, found),
            };
            match recover(to, found) {
                Verdict::Ignore => {}
                Verdict::Go(again) => prop_assert_eq!(again.to, to),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
