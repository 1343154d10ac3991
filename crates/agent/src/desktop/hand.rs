//! Input: the pointer, the keyboard and the wheel, through the X server's own test extension. Every job ends with all keys
//! released that it pressed, and with the server having processed everything.

use std::time::{Duration, Instant};

use wire::desktop::PointerAction;
use x11rb::connection::RequestConnection as _;
use x11rb::protocol::xproto::{
    BUTTON_PRESS_EVENT, BUTTON_RELEASE_EVENT, ConnectionExt as _, EventMask, GrabMode, GrabStatus,
    KEY_PRESS_EVENT, KEY_RELEASE_EVENT, MOTION_NOTIFY_EVENT,
};
use x11rb::protocol::xtest::{self, ConnectionExt as _};
use x11rb::{CURRENT_TIME, NONE};

use super::fault::XError;
use super::keyboard::{Borrowed, Keymap, Keys, Stroke};
use super::link::{Display, Link};

/// Characters typed in one job: short enough that a caller who goes away stops the rest soon.
pub(super) const PIECE: usize = 128;
/// Window managers look at clicks before they hand them on; who has the pointer for longer than this is a menu, or a button is held.
const HELD_BACK: Duration = Duration::from_millis(300);
/// Between two looks whether they did.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// A program that does not say that it is past a change of the keymap is by then.
const KNOWN_AFTER: Duration = Duration::from_millis(200);
/// The first button that is a direction of the wheel.
const WHEEL: u8 = 4;
/// Between presses of a button, in the clock of the server, which counts milliseconds.
const APART_MS: u32 = 4;
/// Events between two questions whether the server keeps up.
const BURST: usize = 64;

/// A connection that gives input.
#[derive(Debug)]
pub(super) struct Hand {
    pub(super) link: Link,
    left: Left,
    /// There were clicks that may not have reached their window yet.
    clicked: bool,
    /// Where the pointer was sent last.
    at: (u16, u16),
}

/// What has to be taken back: when the job ends, or when there is a connection again.
#[derive(Debug, Clone, Default)]
pub(super) struct Left {
    borrowed: Borrowed,
    /// Pressed keys, in this order.
    down: Vec<u8>,
    /// Pressed buttons that nobody wants to stay pressed.
    buttons: Vec<u8>,
}

impl Left {
    /// Buttons that are to be let go.
    pub(super) fn add_buttons(&mut self, buttons: &[u8]) {
        for button in buttons {
            if !self.buttons.contains(button) {
                self.buttons.push(*button);
            }
        }
    }
}

/// How far a text got.
#[derive(Debug, Clone, Copy)]
pub(super) struct Typed {
    pub(super) count: usize,
    /// Then there are keys for more of the rest.
    pub(super) wait: Option<Duration>,
}

impl Hand {
    /// Connects; `left` is what an earlier connection left behind.
    pub(super) fn open(display: Display, left: Left) -> Result<Self, XError> {
        let link = Link::open(display)?;
        if link.x.extension_information(xtest::X11_EXTENSION_NAME)?.is_none() {
            return Err(XError::Refused("it lacks the XTEST extension".to_owned()));
        }
        link.x.xtest_get_version(2, 2)?.reply()?;
        let mut hand = Self { link, left, clicked: false, at: (0, 0) };
        hand.release()?;
        hand.link.sync()?;
        Ok(hand)
    }

    pub(super) fn is_well(&self) -> bool {
        self.link.begin();
        self.link.sync().is_ok()
    }

    /// What a connection that is given up leaves behind.
    pub(super) fn left(self) -> Left {
        self.left
    }

    pub(super) fn pointer(
        &mut self,
        x: u16,
        y: u16,
        button: u8,
        action: PointerAction,
    ) -> Result<(), XError> {
        self.link.begin();
        if self.at != (x, y) {
            self.handed_on()?;
        }
        self.at = (x, y);
        // The server keeps it on the screen; a coordinate has 15 bits for it.
        let bounded = |value: u16| i16::try_from(value).unwrap_or(i16::MAX);
        self.fake(MOTION_NOTIFY_EVENT, 0, bounded(x), bounded(y))?;
        let clicks = match action {
            PointerAction::Move => 0,
            PointerAction::Down => {
                self.fake(BUTTON_PRESS_EVENT, button, 0, 0)?;
                0
            }
            PointerAction::Up => {
                self.fake(BUTTON_RELEASE_EVENT, button, 0, 0)?;
                0
            }
            PointerAction::Click => 1,
            PointerAction::DoubleClick => 2,
        };
        self.clicks(button, clicks)?;
        self.clicked |= clicks > 0;
        self.link.sync()
    }

    pub(super) fn scroll(&mut self, dx: i16, dy: i16) -> Result<(), XError> {
        self.link.begin();
        let buttons = [if dy < 0 { 4 } else { 5 }, if dx < 0 { 6 } else { 7 }];
        for (button, count) in buttons.into_iter().zip([dy, dx]) {
            self.clicks(button, count.unsigned_abs().into())?;
        }
        self.link.sync()
    }

    /// Lets buttons go that a batch which cannot end would leave down.
    pub(super) fn let_go(&mut self, buttons: &[u8]) -> Result<(), XError> {
        self.link.begin();
        self.left.add_buttons(buttons);
        self.release()?;
        self.link.sync()
    }

    /// Taps a key with modifiers. A duration says that there is no key for it before.
    pub(super) fn tap(&mut self, keysym: u32, modifiers: &[u32]) -> Result<Option<Duration>, XError> {
        self.link.begin();
        self.handed_on()?;
        let mut keymap = Keymap::read(&self.link)?;
        let wanted: Vec<u32> = modifiers.iter().copied().chain([keysym]).collect();
        let Keys { mut strokes, wait, relent } =
            self.left.borrowed.keys(&self.link, &mut keymap, &wanted, false)?;
        if let Some(wait) = wait {
            return self.wait_for_keys(wait).map(Some);
        }
        self.let_it_be_known(relent)?;
        let Some(key) = strokes.pop() else { return Ok(None) };
        let used = strokes.iter().chain([&key]).copied().collect::<Vec<_>>();
        let pressed = strokes.iter().try_for_each(|modifier| self.press(modifier.code));
        let pressed = pressed.and_then(|()| self.stroke(&keymap, key));
        // Whatever happened, nothing stays down.
        let released = self.release();
        self.left.borrowed.pressed(&used);
        pressed.and(released)?;
        self.link.sync()?;
        Ok(None)
    }

    /// Waits until clicks have reached their windows. A window manager that holds them back holds the pointer, and nobody else can
    /// have it meanwhile. Keys would overtake the clicks and go to the window that had the focus before, and where the pointer goes
    /// next would become where the button was let go.
    fn handed_on(&mut self) -> Result<(), XError> {
        if !std::mem::take(&mut self.clicked) {
            return Ok(());
        }
        let until = Instant::now() + HELD_BACK;
        loop {
            let (x, root, mode) = (&self.link.x, self.link.root, GrabMode::ASYNC);
            let grab = x
                .grab_pointer(true, root, EventMask::NO_EVENT, mode, mode, NONE, NONE, CURRENT_TIME)?
                .reply()?;
            match grab.status {
                GrabStatus::SUCCESS => {
                    x.ungrab_pointer(CURRENT_TIME)?.ignore_error();
                    return self.link.sync();
                }
                GrabStatus::ALREADY_GRABBED | GrabStatus::FROZEN if Instant::now() < until => {
                    std::thread::sleep(LOOK_AGAIN);
                }
                // Somebody means to keep it.
                _ => return Ok(()),
            }
        }
    }

    /// Types the beginning of a text.
    pub(super) fn text(&mut self, keysyms: &[u32]) -> Result<Typed, XError> {
        self.link.begin();
        self.handed_on()?;
        let mut keymap = Keymap::read(&self.link)?;
        let piece = &keysyms[..keysyms.len().min(PIECE)];
        let Keys { strokes, wait, relent } = self.left.borrowed.keys(&self.link, &mut keymap, piece, true)?;
        self.let_it_be_known(relent)?;
        let typed = self.strokes(&keymap, &strokes);
        let released = self.release();
        self.left.borrowed.pressed(&strokes);
        typed.and(released)?;
        self.link.sync()?;
        let wait = match wait {
            Some(wait) => Some(self.wait_for_keys(wait)?),
            None => None,
        };
        Ok(Typed { count: strokes.len(), wait })
    }

    /// Waits until keys can be given another meaning, and says how long that takes if nobody tells.
    fn wait_for_keys(&mut self, otherwise: Duration) -> Result<Duration, XError> {
        if self.link.front_is_past_events()? {
            self.left.borrowed.read_by_all();
            return Ok(Duration::ZERO);
        }
        Ok(otherwise)
    }

    /// Waits until the program in front has other meanings of its keys than it had. Asked twice: it comes to what else it
    /// reads between two turns.
    fn let_it_be_known(&self, relent: bool) -> Result<(), XError> {
        if relent && !(self.link.front_is_past_events()? && self.link.front_is_past_events()?) {
            std::thread::sleep(KNOWN_AFTER);
        }
        Ok(())
    }

    fn strokes(&mut self, keymap: &Keymap, strokes: &[Stroke]) -> Result<(), XError> {
        // Capitals are asked for one by one.
        let caps_lock = keymap.caps_lock();
        if let Some(code) = caps_lock {
            self.press_and_release(code)?;
        }
        for burst in strokes.chunks(BURST) {
            burst.iter().try_for_each(|stroke| self.stroke(keymap, *stroke))?;
            self.link.begin();
            self.link.sync()?;
        }
        caps_lock.map_or(Ok(()), |code| self.press_and_release(code))
    }

    fn stroke(&mut self, keymap: &Keymap, stroke: Stroke) -> Result<(), XError> {
        let shift = keymap.shift().filter(|code| stroke.shift && !self.left.down.contains(code));
        if let Some(shift) = shift {
            self.press(shift)?;
        }
        self.press_and_release(stroke.code)?;
        shift.map_or(Ok(()), |shift| self.lift(shift))
    }

    fn press_and_release(&mut self, code: u8) -> Result<(), XError> {
        self.press(code)?;
        self.lift(code)
    }

    fn press(&mut self, code: u8) -> Result<(), XError> {
        self.left.down.push(code);
        self.fake(KEY_PRESS_EVENT, code, 0, 0)
    }

    fn lift(&mut self, code: u8) -> Result<(), XError> {
        self.fake(KEY_RELEASE_EVENT, code, 0, 0)?;
        self.left.down.retain(|down| *down != code);
        Ok(())
    }

    fn release(&mut self) -> Result<(), XError> {
        while let Some(code) = self.left.down.last().copied() {
            self.lift(code)?;
        }
        while let Some(button) = self.left.buttons.last().copied() {
            self.fake(BUTTON_RELEASE_EVENT, button, 0, 0)?;
            self.left.buttons.pop();
        }
        Ok(())
    }

    fn clicks(&mut self, button: u8, count: usize) -> Result<(), XError> {
        for click in 1..=count {
            self.left.add_buttons(&[button]);
            self.fake(BUTTON_PRESS_EVENT, button, 0, 0)?;
            self.release()?;
            if click % BURST == 0 {
                self.link.begin();
                self.link.sync()?;
            }
        }
        Ok(())
    }

    fn fake(&self, kind: u8, detail: u8, x: i16, y: i16) -> Result<(), XError> {
        const NOW: u32 = 0;
        const ANY_DEVICE: u8 = 0;
        // Programs take two presses of one millisecond for one; the server waits in its place.
        let button = kind == BUTTON_PRESS_EVENT && detail < WHEEL;
        let after = if button { APART_MS } else { NOW };
        self.link.x.xtest_fake_input(kind, detail, after, self.link.root, x, y, ANY_DEVICE)?.ignore_error();
        Ok(())
    }

    /// How long keys keep their borrowed meanings.
    pub(super) fn due(&self) -> Option<Duration> {
        self.left.borrowed.due()
    }

    pub(super) fn give_back(&mut self) -> Result<(), XError> {
        self.link.begin();
        self.left.borrowed.give_back(&self.link)?;
        self.link.sync()
    }
}
