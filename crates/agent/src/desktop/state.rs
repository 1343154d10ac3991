//! What all calls share: one connection for input and one for pictures, each used by a thread of its own, so that a picture
//! never waits for input and the other way round.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use wire::desktop::MAX_CAPTURES;

use super::fault::{Fault, XError};
use super::hand::{Hand, Left};
use super::link::Display;
use super::screen::Camera;
use crate::agent::Agent;
use crate::pool::{ANSWER_LIMIT, Pool};
use crate::route::configured;

/// The connection for pictures and the memory that goes with it are given up after so long without a picture.
const CAMERA_IDLE: Duration = Duration::from_secs(20);
/// Calls with a body above [`SMALL_BODY`] that are read at a time.
const LARGE_BODIES: usize = 4;
/// Steps that keep pictures to compare with.
const MAX_WATCHES: usize = 4;
/// Tries to give back keys while the connection fails.
const GIVE_BACK_TRIES: usize = 3;
/// Between two of them.
const GIVE_BACK_RETRY: Duration = Duration::from_secs(1);
/// See [`LARGE_BODIES`].
pub(super) const SMALL_BODY: u64 = 1024 * 1024;

/// The desktop as this program sees it.
#[derive(Debug)]
pub(crate) struct Desktop {
    input: Pool,
    pictures: Pool,
    hand: Arc<Mutex<Held>>,
    camera: Arc<Mutex<Option<(Display, Camera)>>>,
    /// Taken by a batch of input for as long as it runs.
    pub(super) turn: Rc<tokio::sync::Mutex<()>>,
    pub(super) large_bodies: Semaphore,
    /// Taken by a picture that is asked for, until its job has ended or was dropped.
    pub(super) captures: Arc<Semaphore>,
    /// Taken by a step for as long as it keeps pictures.
    pub(super) watches: Arc<Semaphore>,
    /// Streams being sent.
    pub(super) streams: Cell<usize>,
    /// A task will give back keys.
    giving_back: Cell<bool>,
    /// When the last picture was taken, while a task waits to close its connection.
    last_picture: RefCell<Option<Instant>>,
}

/// The connection for input, if there is one.
#[derive(Debug, Default)]
struct Held {
    open: Option<(Display, Hand)>,
    /// What a lost one may have left behind.
    left: Left,
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
            captures: Arc::new(Semaphore::new(MAX_CAPTURES)),
            watches: Arc::new(Semaphore::new(MAX_WATCHES)),
            streams: Cell::default(),
            giving_back: Cell::default(),
            last_picture: RefCell::default(),
        })
    }

    /// Runs a job of input. Once begun it runs to its end, also when nobody waits for it any more.
    pub(super) async fn input<T: Send + 'static>(
        &self,
        display: Display,
        job: impl FnOnce(&mut Hand) -> Result<T, XError> + Send + 'static,
    ) -> Result<T, Fault> {
        let hand = Arc::clone(&self.hand);
        let done = self.input.run_wanted(move || Ok(with_hand(&hand, display, job))).await;
        done.unwrap_or_else(|error| {
            Err(Fault::internal(match error.kind() {
                io::ErrorKind::TimedOut => format!(
                    "no answer within {} s; it may have been delivered, take a screenshot first",
                    ANSWER_LIMIT.as_secs()
                ),
                _ => format!("the input was not delivered: {error}"),
            }))
        })
    }

    /// Lets buttons go for somebody who is gone.
    pub(super) fn let_go(&self, display: Display, buttons: Vec<u8>) {
        let hand = Arc::clone(&self.hand);
        self.input.leave(None, move || {
            if with_hand(&hand, display, |hand| hand.let_go(&buttons)).is_err() {
                // Nobody is there to be told, but the next connection is to do it.
                hand.lock().unwrap_or_else(PoisonError::into_inner).left.add_buttons(&buttons);
            }
        });
    }

    /// Runs a job of pictures, unless nobody waits for it any more when it has its turn.
    pub(super) async fn picture<T: Send + 'static>(
        &self,
        agent: &Rc<Agent>,
        display: Display,
        job: impl FnOnce(&mut Camera) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let camera = Arc::clone(&self.camera);
        // Before as well, since the caller may go away in between.
        self.note_picture(agent);
        let done = self.pictures.run_wanted(move || Ok(with_camera(&camera, display, job))).await;
        self.note_picture(agent);
        done.unwrap_or_else(|error| Err(Fault::internal(format!("no picture was taken: {error}"))))
    }

    fn note_picture(&self, agent: &Rc<Agent>) {
        if self.last_picture.replace(Some(Instant::now())).is_none() {
            let agent_then = Rc::clone(agent);
            agent.spawn(async move { agent_then.desktop.close_camera().await });
        }
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
        self.pictures.leave(None, move || drop(camera.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }

    /// Sees to it that keys which were given a meaning lose it again.
    pub(super) fn give_back_later(&self, agent: &Rc<Agent>, display: Display) {
        if self.giving_back.replace(true) {
            return;
        }
        let agent_then = Rc::clone(agent);
        agent.spawn(async move {
            let desktop = &agent_then.desktop;
            let mut tries = GIVE_BACK_TRIES;
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
                    Err(_) if tries > 1 => {
                        tries -= 1;
                        tokio::time::sleep(GIVE_BACK_RETRY).await;
                    }
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
    held: &Mutex<Held>,
    display: Display,
    job: impl FnOnce(&mut Hand) -> Result<T, XError>,
) -> Result<T, Fault> {
    let held = &mut *held.lock().unwrap_or_else(PoisonError::into_inner);
    let useless = held.open.take_if(|(of, hand)| *of != display || !hand.is_well());
    if let Some((_, lost)) = useless {
        held.left = lost.left();
    }
    if held.open.is_none() {
        let hand = Hand::open(display, held.left.clone()).map_err(|error| no_server(display, &error))?;
        held.open = Some((display, hand));
        // The connection has it all now.
        held.left = Left::default();
    }
    let Some((_, hand)) = &mut held.open else { return Err(Fault::internal("no connection")) };
    job(hand).map_err(|error| {
        if matches!(error, XError::Lost(_)) {
            held.left = held.open.take().map(|(_, lost)| lost.left()).unwrap_or_default();
            return Fault::x("the input was cut off", error);
        }
        Fault::internal(format!("the X server refuses it: {error}"))
    })
}

fn with_camera<T>(
    held: &Mutex<Option<(Display, Camera)>>,
    display: Display,
    job: impl FnOnce(&mut Camera) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let held = &mut *held.lock().unwrap_or_else(PoisonError::into_inner);
    if held.as_ref().is_some_and(|(of, camera)| *of != display || !camera.is_well()) {
        *held = None;
    }
    if held.is_none() {
        let camera = Camera::open(display).map_err(|error| no_server(display, &error))?;
        *held = Some((display, camera));
    }
    let Some((_, camera)) = held else { return Err(Fault::internal("no connection")) };
    let done = job(camera);
    if done.is_err() {
        // Costs a new connection, which is cheap, and leaves nothing half-done behind.
        *held = None;
    }
    done
}
