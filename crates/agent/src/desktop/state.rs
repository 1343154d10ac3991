//! What all calls share: one connection for input and one for pictures, each used by a thread of its own, so that a picture
//! never waits for input and the other way round.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::fault::{Fault, XError};
use super::hand::Hand;
use super::link::Display;
use super::screen::Camera;
use crate::agent::Agent;
use crate::pool::Pool;
use crate::route::configured;

/// The connection for pictures and the memory that goes with it are given up after so long without a picture.
const CAMERA_IDLE: Duration = Duration::from_secs(20);
/// Calls with a body above [`SMALL_BODY`] that are read at a time.
const LARGE_BODIES: usize = 4;
/// See [`LARGE_BODIES`].
pub(super) const SMALL_BODY: u64 = 1024 * 1024;

/// The desktop as this program sees it.
#[derive(Debug)]
pub(crate) struct Desktop {
    input: Pool,
    pictures: Pool,
    hand: Arc<Mutex<Held<Hand>>>,
    camera: Arc<Mutex<Held<Camera>>>,
    /// Taken by a batch of input for as long as it runs.
    pub(super) turn: Rc<tokio::sync::Mutex<()>>,
    pub(super) large_bodies: Semaphore,
    /// Pictures asked for and not answered yet.
    pub(super) captures: Cell<usize>,
    /// Streams being sent.
    pub(super) streams: Cell<usize>,
    /// A task will give back keys.
    giving_back: Cell<bool>,
    /// When the last picture was taken, while a task waits to close its connection.
    last_picture: RefCell<Option<Instant>>,
}

/// A connection, if there is one.
#[derive(Debug)]
struct Held<T> {
    open: Option<(Display, T)>,
    /// Keys that a lost connection may have left pressed.
    down: Vec<u8>,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self { open: None, down: Vec::new() }
    }
}

impl Desktop {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            input: Pool::new("input", 1, 0)?,
            pictures: Pool::new("pictures", 1, 0)?,
            hand: Arc::default(),
            camera: Arc::default(),
            turn: Rc::default(),
            large_bodies: Semaphore::new(LARGE_BODIES),
            captures: Cell::default(),
            streams: Cell::default(),
            giving_back: Cell::default(),
            last_picture: RefCell::default(),
        })
    }

    /// Runs a job of input. It runs to its end, also when nobody waits for it any more.
    pub(super) async fn input<T: Send + 'static>(
        &self,
        display: Display,
        job: impl FnOnce(&mut Hand) -> Result<T, XError> + Send + 'static,
    ) -> Result<T, Fault> {
        let hand = Arc::clone(&self.hand);
        let done = self.input.run(move || Ok(with_hand(&hand, display, job))).await;
        done.unwrap_or_else(|error| Err(Fault::internal(format!("the input was not delivered: {error}"))))
    }

    /// The same for somebody who is gone.
    pub(super) fn leave_input(
        &self,
        display: Display,
        job: impl FnOnce(&mut Hand) -> Result<(), XError> + Send + 'static,
    ) {
        let hand = Arc::clone(&self.hand);
        self.input.leave(None, move || {
            // Nobody is there to be told.
            let _ = with_hand(&hand, display, job);
        });
    }

    /// Runs a job of pictures.
    pub(super) async fn picture<T: Send + 'static>(
        &self,
        agent: &Rc<Agent>,
        display: Display,
        job: impl FnOnce(&mut Camera) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let camera = Arc::clone(&self.camera);
        let done = self.pictures.run(move || Ok(with_camera(&camera, display, job))).await;
        if self.last_picture.replace(Some(Instant::now())).is_none() {
            let agent_then = Rc::clone(agent);
            agent.spawn(async move { agent_then.desktop.close_camera().await });
        }
        done.unwrap_or_else(|error| Err(Fault::internal(format!("no picture was taken: {error}"))))
    }

    async fn close_camera(&self) {
        loop {
            let last = self.last_picture.borrow().unwrap_or_else(Instant::now);
            tokio::time::sleep_until(last + CAMERA_IDLE).await;
            if self.last_picture.borrow().is_none_or(|last| last.elapsed() >= CAMERA_IDLE) {
                break;
            }
        }
        *self.last_picture.borrow_mut() = None;
        let camera = Arc::clone(&self.camera);
        self.pictures.leave(None, move || camera.lock().unwrap_or_else(PoisonError::into_inner).open = None);
    }

    /// Sees to it that keys which were given a meaning lose it again.
    pub(super) fn give_back_later(&self, agent: &Rc<Agent>, display: Display) {
        if self.giving_back.replace(true) {
            return;
        }
        let agent_then = Rc::clone(agent);
        agent.spawn(async move {
            let desktop = &agent_then.desktop;
            loop {
                let turn = desktop.turn.lock().await;
                let left = desktop.input(display, |hand| match hand.due() {
                    Some(due) if due.is_zero() => hand.give_back().map(|()| None),
                    due => Ok(due),
                });
                let left = left.await;
                drop(turn);
                match left {
                    Ok(Some(left)) => tokio::time::sleep(left).await,
                    Ok(None) | Err(_) => break,
                }
            }
            desktop.giving_back.set(false);
        });
    }
}

/// The display of this sandbox.
pub(super) fn display(agent: &Agent) -> Result<Display, Fault> {
    let config = configured(agent).map_err(|refusal| Fault::internal(refusal.message))?;
    let value = config.env.get("DISPLAY").or_else(|| config.template_env.get("DISPLAY"));
    let value = value.ok_or_else(|| {
        Fault::no_display("this sandbox has no display; create one from the template superserve/desktop")
    })?;
    Display::parse(value)
        .ok_or_else(|| Fault::no_display("the variable DISPLAY names no display of this sandbox, such as :1"))
}

fn no_server(display: Display, error: &XError) -> Fault {
    match error {
        XError::Lost(why) => Fault::no_display(format!(
            "no X server answers on the display {display} ({why}); see whether it is starting or has ended"
        )),
        XError::Refused(why) => {
            Fault::no_display(format!("the X server of {display} is of no use here: {why}"))
        }
    }
}

fn with_hand<T>(
    held: &Mutex<Held<Hand>>,
    display: Display,
    job: impl FnOnce(&mut Hand) -> Result<T, XError>,
) -> Result<T, Fault> {
    let held = &mut *held.lock().unwrap_or_else(PoisonError::into_inner);
    let usable = held.open.take_if(|(of, hand)| *of != display || !hand.is_well());
    if let Some((_, lost)) = usable {
        held.down = lost.left_down();
    }
    if held.open.is_none() {
        let hand = Hand::open(display, std::mem::take(&mut held.down));
        held.open = Some((display, hand.map_err(|error| no_server(display, &error))?));
    }
    let Some((_, hand)) = &mut held.open else { return Err(Fault::internal("no connection")) };
    job(hand).map_err(|error| {
        if matches!(error, XError::Lost(_)) {
            held.down = held.open.take().map(|(_, lost)| lost.left_down()).unwrap_or_default();
            return Fault::x("the input was cut off", error);
        }
        Fault::internal(format!("the X server refuses it: {error}"))
    })
}

fn with_camera<T>(
    held: &Mutex<Held<Camera>>,
    display: Display,
    job: impl FnOnce(&mut Camera) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let held = &mut *held.lock().unwrap_or_else(PoisonError::into_inner);
    if held.open.as_ref().is_some_and(|(of, camera)| *of != display || !camera.is_well()) {
        held.open = None;
    }
    if held.open.is_none() {
        let camera = Camera::open(display).map_err(|error| no_server(display, &error))?;
        held.open = Some((display, camera));
    }
    let Some((_, camera)) = &mut held.open else { return Err(Fault::internal("no connection")) };
    let done = job(camera);
    if done.is_err() {
        // Costs a new connection, which is cheap, and leaves nothing half-done behind.
        held.open = None;
    }
    done
}
