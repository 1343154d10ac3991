//! A batch of actions, one after the other, by whoever has the turn.

use std::rc::Rc;

use wire::desktop::PointerAction;

use super::check::Plan;
use super::fault::Fault;
use super::hand::PIECE;
use super::link::Display;
use crate::agent::Agent;

/// Carries out a batch up to the first action that fails, and says which one that was.
///
/// # Cancel safety
/// Dropping the future ends the batch after what is being done, with nothing left pressed that the batch would have
/// released.
pub(super) async fn run(agent: &Rc<Agent>, display: Display, plans: Vec<Plan>) -> Result<(), (usize, Fault)> {
    let mut buttons = Buttons { agent, display, down: Vec::new(), plans: &plans, at: 0 };
    for (at, plan) in plans.iter().enumerate() {
        buttons.at = at;
        one(agent, display, plan).await.map_err(|fault| (at, fault))?;
        buttons.done(plan);
    }
    buttons.at = plans.len();
    Ok(())
}

async fn one(agent: &Rc<Agent>, display: Display, plan: &Plan) -> Result<(), Fault> {
    let desktop = &agent.desktop;
    match plan {
        &Plan::Pointer { x, y, button, action } => {
            desktop.input(display, move |hand| hand.pointer(x, y, button, action)).await
        }
        &Plan::Scroll { dx, dy } => desktop.input(display, move |hand| hand.scroll(dx, dy)).await,
        Plan::Key { keysym, modifiers } => loop {
            let (keysym, modifiers) = (*keysym, modifiers.clone());
            let wait = desktop.input(display, move |hand| hand.tap(keysym, &modifiers)).await?;
            desktop.give_back_later(agent, display);
            let Some(wait) = wait else { return Ok(()) };
            tokio::time::sleep(wait).await;
        },
        Plan::Text(keysyms) => {
            let mut rest = keysyms.as_slice();
            while !rest.is_empty() {
                let piece = rest[..rest.len().min(PIECE)].to_vec();
                let typed = desktop.input(display, move |hand| hand.text(&piece)).await?;
                desktop.give_back_later(agent, display);
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
            self.agent.desktop.leave_input(self.display, move |hand| hand.let_go(&buttons));
        }
    }
}
