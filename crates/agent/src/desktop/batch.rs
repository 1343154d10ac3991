//! A batch of actions, one after the other, by whoever has the turn.

use std::rc::Rc;

use wire::desktop::PointerAction;

use super::check::Plan;
use super::fault::{Fault, Kind};
use super::hand::PIECE;
use super::link::Display;
use crate::agent::Agent;

/// Times a key is asked for keys to press, or a text without getting on: more than a keyboard in use needs, which gets keys
/// free within a second.
const ROUNDS: usize = 10;

/// Carries out a batch up to the first action that fails, and says which one that was.
///
/// # Cancel safety
/// Dropping the future ends the batch after what is being done, with nothing left pressed that the batch would have
/// released.
pub(super) async fn run(agent: &Rc<Agent>, display: Display, plans: Vec<Plan>) -> Result<(), (usize, Fault)> {
    let mut delivered = false;
    let mut buttons = Buttons { agent, display, down: Vec::new(), plans: &plans, at: 0 };
    for (at, plan) in plans.iter().enumerate() {
        buttons.at = at;
        one(agent, display, plan, &mut delivered).await.map_err(|fault| (at, honest(fault, delivered)))?;
        delivered = true;
        buttons.done(plan);
    }
    buttons.at = plans.len();
    Ok(())
}

/// That there is no display any more is no refusal of the whole batch once something of it was delivered.
fn honest(fault: Fault, delivered: bool) -> Fault {
    if !delivered || fault.kind != Kind::FailedPrecondition {
        return fault;
    }
    Fault::internal(format!("the input was cut off, some of it was delivered: {}", fault.message))
}

fn no_keys() -> Fault {
    Fault::internal("all keys of the keymap stay in use; input that needs no other characters may still work")
}

/// `delivered` becomes true with the first part of a text.
async fn one(agent: &Rc<Agent>, display: Display, plan: &Plan, delivered: &mut bool) -> Result<(), Fault> {
    let desktop = &agent.desktop;
    match plan {
        &Plan::Pointer { x, y, button, action } => {
            desktop.input(display, move |hand| hand.pointer(x, y, button, action)).await
        }
        &Plan::Scroll { dx, dy } => desktop.input(display, move |hand| hand.scroll(dx, dy)).await,
        Plan::Key { keysym, modifiers } => {
            for _ in 0..ROUNDS {
                let (keysym, modifiers) = (*keysym, modifiers.clone());
                let wait = desktop.input(display, move |hand| hand.tap(keysym, &modifiers)).await;
                desktop.give_back_later(agent, display);
                let Some(wait) = wait? else { return Ok(()) };
                tokio::time::sleep(wait).await;
            }
            Err(no_keys())
        }
        Plan::Text(keysyms) => {
            let mut rest = keysyms.as_slice();
            let mut rounds = 0;
            while !rest.is_empty() {
                let piece = rest[..rest.len().min(PIECE)].to_vec();
                let typed = desktop.input(display, move |hand| hand.text(&piece)).await;
                desktop.give_back_later(agent, display);
                let typed = typed?;
                *delivered |= typed.count > 0;
                rounds = if typed.count > 0 { 0 } else { rounds + 1 };
                if rounds == ROUNDS {
                    return Err(no_keys());
                }
                rest = &rest[typed.count.min(rest.len())..];
                if let Some(wait) = typed.wait {
                    tokio::time::sleep(wait).await;
                }
            }
            Ok(())
        }
    }
}

/// Lets buttons go that a later action of an unfinished batch would have released. One that the batch leaves down stays down.
struct Buttons<'a> {
    agent: &'a Agent,
    display: Display,
    down: Vec<u8>,
    plans: &'a [Plan],
    at: usize,
}

impl Buttons<'_> {
    fn done(&mut self, plan: &Plan) {
        let &Plan::Pointer { button, action, .. } = plan else { return };
        self.down.retain(|down| *down != button);
        if action == PointerAction::Down {
            self.down.push(button);
        }
    }
}

impl Drop for Buttons<'_> {
    fn drop(&mut self) {
        let released = |wanted: &u8| {
            self.plans[self.at..].iter().any(|plan| {
                matches!(plan, Plan::Pointer { button, action, .. } if button == wanted && *action != PointerAction::Down)
            })
        };
        // The action that was cut off may be a press itself.
        if let Some(Plan::Pointer { button, action: PointerAction::Down, .. }) = self.plans.get(self.at) {
            self.down.push(*button);
        }
        let buttons: Vec<u8> = self.down.iter().copied().filter(released).collect();
        if !buttons.is_empty() {
            self.agent.desktop.let_go(self.display, buttons);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_display_is_no_refusal_after_input() {
        assert_eq!(honest(Fault::no_display("gone"), false), Fault::no_display("gone"));
        let cut = honest(Fault::no_display("gone"), true);
        assert_eq!(cut.kind, Kind::Internal);
        assert!(cut.message.contains("some of it was delivered: gone"), "{}", cut.message);
        assert_eq!(honest(Fault::invalid("x"), true), Fault::invalid("x"));
    }
}
