//! Pictures for callers, and the step: actions, a wait, a picture.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use wire::desktop::{
    DEFAULT_CHANGE_WAIT_MS, FrameFormat, MAX_CAPTURES, ScreenshotResponse, StepRequest, StepResponse,
};

use super::check::Plan;
use super::fault::Fault;
use super::link::Display;
use super::screen::{self, Picture};
use super::{batch, encode};
use crate::agent::Agent;
use crate::pool::ANSWER_LIMIT;

/// Between two looks whether the screen has changed; longer where a look takes long.
const LOOK_EVERY: Duration = Duration::from_millis(15);
/// Looks take at most this part of the time.
const LOOK_SHARE: u32 = 4;

/// A place among those who may have pictures taken.
pub(super) fn place(agent: &Agent) -> Result<OwnedSemaphorePermit, Fault> {
    Arc::clone(&agent.desktop.captures).try_acquire_owned().map_err(|_| busy())
}

fn busy() -> Fault {
    Fault::exhausted(format!("{MAX_CAPTURES} screenshots are being taken; wait for one of them"))
}

/// Waits for a place. Whoever has one keeps it for no longer than a job may take.
async fn wait_for(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Fault> {
    let place = timeout(ANSWER_LIMIT, Arc::clone(places).acquire_owned()).await;
    place.ok().and_then(Result::ok).ok_or_else(busy)
}

/// A picture with the pointer on it. The place is taken until the job has ended, whoever waits for it.
pub(super) async fn screenshot(
    agent: &Rc<Agent>,
    display: Display,
    format: FrameFormat,
    place: OwnedSemaphorePermit,
) -> Result<ScreenshotResponse, Fault> {
    let taken = agent.desktop.picture(agent, display, move |camera| {
        let picture = camera.take(true).map_err(|error| screen::failed(&error))?;
        let answer = encode::answer(&picture, format);
        drop(place);
        answer
    });
    taken.await
}

/// What the screen was like before and at the last look.
struct Watch {
    before: Option<Picture>,
    last: Option<Picture>,
    _place: OwnedSemaphorePermit,
}

/// What a look has found.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// It differs from the screen before the actions.
    changed: bool,
    /// It differs from the last look.
    moved: bool,
}

async fn look(agent: &Rc<Agent>, display: Display, watch: &Arc<Mutex<Watch>>) -> Result<Seen, Fault> {
    let watch = Arc::clone(watch);
    let looked = agent.desktop.picture(agent, display, move |camera| {
        // Without the pointer, which moves with every action.
        let now = camera.take(false).map_err(|error| screen::failed(&error))?;
        let watch = &mut *watch.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = |then: &Option<Picture>| then.as_ref().is_some_and(|then| !then.shows(&now));
        let moved = differs(if watch.last.is_some() { &watch.last } else { &watch.before });
        let changed = differs(&watch.before);
        if watch.before.is_none() {
            watch.before = Some(now);
        } else if moved {
            watch.last = Some(now);
        }
        Ok(Seen { changed, moved })
    });
    looked.await
}

/// Actions, a wait, a picture. What fails in between is part of the answer.
pub(super) async fn step(
    agent: &Rc<Agent>,
    display: Display,
    request: &StepRequest,
    plans: Vec<Plan>,
) -> Result<StepResponse, Fault> {
    let mut answer = StepResponse::default();
    let watches = request.wait_for_change || request.quiet_ms > 0;

    let begun = Instant::now();
    let turn = agent.desktop.turn.lock().await;
    answer.queue_ms = milliseconds(begun);
    let mut watch = None;
    if watches {
        // Before anything happens, so that a refused caller may try again.
        let _place = wait_for(&agent.desktop.watches).await?;
        let watched = Arc::new(Mutex::new(Watch { before: None, last: None, _place }));
        // A screen that cannot be seen now is told by the picture that fails as well.
        watch = look(agent, display, &watched).await.is_ok().then_some(watched);
    }
    let begun = Instant::now();
    let count = plans.len();
    answer.executed = match batch::run(agent, display, plans).await {
        Ok(()) => count,
        Err((at, fault)) => {
            answer.action_error = Some(format!("action {at} of {count}: {}", fault.message));
            at
        }
    }
    .try_into()
    .unwrap_or(i64::MAX);
    answer.actions_ms = milliseconds(begun);
    drop(turn);

    let begun = Instant::now();
    let settle = match request.settle_ms {
        0 if request.wait_for_change => DEFAULT_CHANGE_WAIT_MS,
        settle => settle,
    };
    let until = begun + Duration::from_millis(settle.unsigned_abs());
    // After a failure there is nothing to wait for.
    if answer.action_error.is_none() {
        if let Some(watch) = &watch {
            answer.changed = settled(agent, display, request, watch, until).await;
        } else {
            tokio::time::sleep_until(until).await;
        }
    }
    answer.settle_ms = milliseconds(begun);
    drop(watch);

    let begun = Instant::now();
    let taken = match wait_for(&agent.desktop.captures).await {
        Ok(place) => screenshot(agent, display, request.format, place).await,
        Err(fault) => Err(fault),
    };
    match taken {
        Ok(screenshot) => answer.screenshot = Some(screenshot),
        Err(fault) => answer.capture_error = Some(fault.message),
    }
    answer.capture_ms = milliseconds(begun);
    Ok(answer)
}

/// Waits for a change, for quiet, or for both, and says whether the screen became another.
async fn settled(
    agent: &Rc<Agent>,
    display: Display,
    request: &StepRequest,
    watch: &Arc<Mutex<Watch>>,
    until: Instant,
) -> bool {
    let quiet = Duration::from_millis(request.quiet_ms.unsigned_abs());
    let mut quiet_since = Instant::now();
    let mut changed = false;
    loop {
        let begun = Instant::now();
        let Ok(seen) = look(agent, display, watch).await else { return changed };
        changed = seen.changed;
        let now = Instant::now();
        if seen.moved {
            quiet_since = now;
        }
        let waited = changed || !request.wait_for_change;
        if (waited && now - quiet_since >= quiet) || now >= until {
            return changed;
        }
        let pause = LOOK_EVERY.max((now - begun) * LOOK_SHARE);
        let quiet_at = if waited { quiet_since + quiet } else { until };
        tokio::time::sleep_until((now + pause).min(until).min(quiet_at.max(now + LOOK_EVERY))).await;
    }
}

fn milliseconds(since: Instant) -> i64 {
    i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX)
}
