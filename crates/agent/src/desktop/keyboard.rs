//! Which keys type what. The keymap is asked for each time, since anybody may change it; characters it has not are put on
//! keys that have no meaning, for a while.
//!
//! Programs learn of a changed keymap by an event and then ask for the keymap there is by then, which may be a later one. So a
//! key that was given a character is given another only when the program in front has said that it is past its events, or, if
//! it is none that would say so, after a time. What a program has a second connection for, as an input method, may still know
//! the former meaning when the press is there: so the press waits until the program in front is past the change.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::ConnectionExt as _;

use super::fault::XError;
use super::link::Link;
use super::names;

/// Keys keep a borrowed meaning for so long after they were last pressed: a program has read their events by then, also on a
/// machine with ten times the work it can do.
const KEPT: Duration = Duration::from_millis(1_000);
/// The lock modifier and the number of the active group in the state of the keyboard.
const LOCK: u16 = 1 << 1;
const GROUP: u16 = 0b11 << 13;
/// Keysyms of the numeric keypad mean other things with Num Lock.
const KEYPAD: std::ops::RangeInclusive<u32> = 0xff80..=0xffbd;
/// A key has groups of at most this many levels in the core keymap; more is nonsense.
const MAX_LEVELS: u8 = 64;

/// Keys that were given a meaning.
#[derive(Debug, Clone, Default)]
pub(super) struct Borrowed(Vec<Loan>);

#[derive(Debug, Clone)]
struct Loan {
    stroke: Stroke,
    keysym: u32,
    /// `None` once the program in front is past it.
    last: Option<Instant>,
}

impl Loan {
    /// How long it has to be kept.
    fn kept(&self, now: Instant) -> Duration {
        self.last.map_or(Duration::ZERO, |last| (last + KEPT).saturating_duration_since(now))
    }
}

/// A key to press, alone or with Shift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stroke {
    pub(super) code: u8,
    pub(super) shift: bool,
}

/// What keys mean, alone and with Shift.
type Meanings = BTreeMap<u8, [u32; 2]>;

/// What the keyboard is like now.
#[derive(Debug)]
pub(super) struct Keymap {
    first: u8,
    levels: usize,
    keysyms: Vec<u32>,
    /// Keys that act as modifiers whatever they mean.
    modifiers: Vec<u8>,
    state: u16,
}

/// Keys for as many of the wanted keysyms as there can be at once.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) strokes: Vec<Stroke>,
    /// For the others, keys get free then.
    pub(super) wait: Option<Duration>,
    /// Some of them have just lost another meaning.
    pub(super) relent: bool,
}

impl Keymap {
    pub(super) fn read(link: &Link) -> Result<Self, XError> {
        let setup = link.x.setup();
        let (first, last) = (setup.min_keycode, setup.max_keycode);
        let count = last.checked_sub(first).and_then(|count| count.checked_add(1));
        let count = count.filter(|_| first >= 8).ok_or_else(|| XError::Lost("it has no keys".to_owned()))?;
        let keymap = link.x.get_keyboard_mapping(first, count)?;
        let modifiers = link.x.get_modifier_mapping()?;
        let pointer = link.x.query_pointer(link.root)?;
        let keymap = keymap.reply()?;
        let levels = usize::from(keymap.keysyms_per_keycode);
        let complete = levels > 0
            && keymap.keysyms_per_keycode <= MAX_LEVELS
            && keymap.keysyms.len() == levels * usize::from(count);
        if !complete {
            return Err(XError::Lost("its keymap is incomplete".to_owned()));
        }
        let modifiers = modifiers.reply()?.keycodes;
        let state = u16::from(pointer.reply()?.mask);
        Ok(Self { first, levels, keysyms: keymap.keysyms, modifiers, state })
    }

    /// Caps Lock is on, and a key that would take it back.
    pub(super) fn caps_lock(&self) -> Option<u8> {
        (self.state & LOCK != 0).then(|| self.find(names::CAPS_LOCK).map(|stroke| stroke.code))?
    }

    /// The key that shifts.
    pub(super) fn shift(&self) -> Option<u8> {
        self.keys().find(|(_, meanings)| meanings.contains(&names::SHIFT)).map(|(code, _)| code)
    }

    /// All keys, each with its meanings.
    fn keys(&self) -> impl Iterator<Item = (u8, &[u32])> {
        (self.first..=u8::MAX).zip(self.keysyms.chunks_exact(self.levels))
    }

    /// The key that gives a keysym in the group that is active.
    fn find(&self, wanted: u32) -> Option<Stroke> {
        self.keys().find_map(|(code, meanings)| {
            let (plain, shifted) = (meanings.first().copied()?, meanings.get(1).copied().unwrap_or(0));
            // With another group active only keys that have no other.
            let usable = self.state & GROUP == 0 || meanings.iter().skip(2).all(|keysym| *keysym == 0);
            let stable = !KEYPAD.contains(&wanted) || plain == shifted || shifted == 0;
            if !usable || !stable {
                None
            } else if plain == wanted {
                Some(Stroke { code, shift: false })
            } else if shifted == wanted {
                Some(Stroke { code, shift: true })
            } else {
                None
            }
        })
    }

    fn set(&mut self, code: u8, new: [u32; 2]) {
        let at = usize::from(code.saturating_sub(self.first)) * self.levels;
        if let Some(meanings) = self.keysyms.get_mut(at..at + self.levels) {
            meanings.fill(0);
            meanings.iter_mut().zip(new).for_each(|(meaning, new)| *meaning = new);
        }
    }

    /// Whether a loan is still as it was made.
    fn has(&self, loan: &Loan) -> bool {
        self.means(loan.stroke.code).get(usize::from(loan.stroke.shift)) == Some(&loan.keysym)
    }

    fn means(&self, code: u8) -> &[u32] {
        let at = usize::from(code.saturating_sub(self.first)) * self.levels;
        self.keysyms.get(at..at + self.levels).unwrap_or_default()
    }

    /// Keys without any meaning, the last ones first.
    fn unused(&self) -> Vec<u8> {
        let unused = |(code, meanings): (u8, &[u32])| {
            let free = meanings.iter().all(|keysym| *keysym == 0) && !self.modifiers.contains(&code);
            free.then_some(code)
        };
        let mut codes: Vec<u8> = self.keys().filter_map(unused).collect();
        codes.reverse();
        codes
    }
}

impl Borrowed {
    /// Finds keys for a series of keysyms, as far as there are keys, and gives them their meaning. With `paired`, a key may
    /// mean another one with Shift.
    pub(super) fn keys(
        &mut self,
        link: &Link,
        keymap: &mut Keymap,
        wanted: &[u32],
        paired: bool,
    ) -> Result<Keys, XError> {
        let (keys, changed) = self.choose(keymap, wanted, paired)?;
        give(link, &changed)?;
        Ok(keys)
    }

    /// The same, with the keys whose new meaning the server is to be told.
    fn choose(
        &mut self,
        keymap: &mut Keymap,
        wanted: &[u32],
        paired: bool,
    ) -> Result<(Keys, Meanings), XError> {
        let now = Instant::now();
        // What somebody else has given a meaning since is no longer ours.
        self.0.retain(|loan| keymap.has(loan));
        let mut unused = keymap.unused();
        let mut changed = Meanings::new();
        // A key that got one of two meanings.
        let mut open = None;
        let mut strokes: Vec<Stroke> = Vec::with_capacity(wanted.len());
        let (mut wait, mut relent) = (None, false);
        for keysym in wanted.iter().copied() {
            if let Some(loan) = self.0.iter_mut().find(|loan| loan.keysym == keysym) {
                loan.last = Some(now);
                strokes.push(loan.stroke);
                continue;
            }
            if let Some(stroke) = keymap.find(keysym) {
                strokes.push(stroke);
                continue;
            }
            let stroke = match open.take() {
                Some(code) => Stroke { code, shift: true },
                None => {
                    let taken_back = || self.oldest(now).inspect(|_| relent = true);
                    let Some(code) = unused.pop().or_else(taken_back) else {
                        wait = self.0.iter().map(|loan| self.kept(loan.stroke.code, now)).min();
                        // A chord needs all its keys at once: none gets free when it has them all itself.
                        let of_this =
                            |loan: &Loan| strokes.iter().any(|stroke| stroke.code == loan.stroke.code);
                        if wait.is_none() || (!paired && self.0.iter().all(of_this)) {
                            return Err(XError::Refused("all keys of its keymap are in use".to_owned()));
                        }
                        break;
                    };
                    open = paired.then_some(code);
                    Stroke { code, shift: false }
                }
            };
            self.0.push(Loan { stroke, keysym, last: Some(now) });
            // The same with Shift and without, until it gets the other one.
            let meanings = changed.entry(stroke.code).or_insert([keysym; 2]);
            meanings[1] = keysym;
            // What it meant before is not to be found there any more.
            keymap.set(stroke.code, *meanings);
            strokes.push(stroke);
        }
        Ok((Keys { strokes, wait, relent }, changed))
    }

    /// How long a key has to be kept, for either of its meanings.
    fn kept(&self, code: u8, now: Instant) -> Duration {
        let of_key = self.0.iter().filter(|loan| loan.stroke.code == code);
        of_key.map(|loan| loan.kept(now)).max().unwrap_or_default()
    }

    /// Takes back the key that was not pressed for the longest time, if that is long enough.
    fn oldest(&mut self, now: Instant) -> Option<u8> {
        let code = self.0.iter().map(|loan| loan.stroke.code).min_by_key(|code| self.kept(*code, now))?;
        if !self.kept(code, now).is_zero() {
            return None;
        }
        self.0.retain(|loan| loan.stroke.code != code);
        Some(code)
    }

    /// Notes that they were pressed just now.
    pub(super) fn pressed(&mut self, strokes: &[Stroke]) {
        let now = Instant::now();
        let of_these = |loan: &&mut Loan| strokes.contains(&loan.stroke);
        self.0.iter_mut().filter(of_these).for_each(|loan| loan.last = Some(now));
    }

    /// Notes that the program in front is past everything.
    pub(super) fn read_by_all(&mut self) {
        self.0.iter_mut().for_each(|loan| loan.last = None);
    }

    /// How long until [`Self::give_back`] has something to do.
    pub(super) fn due(&self) -> Option<Duration> {
        let now = Instant::now();
        self.0.iter().map(|loan| loan.kept(now)).max()
    }

    /// Takes the meanings back.
    pub(super) fn give_back(&mut self, link: &Link) -> Result<(), XError> {
        let keymap = Keymap::read(link)?;
        self.0.retain(|loan| keymap.has(loan));
        give(link, &self.0.drain(..).map(|loan| (loan.stroke.code, [0; 2])).collect())
    }
}

/// Gives keys their meanings, those beside each other in one request: each request makes every program read the keymap.
fn give(link: &Link, keys: &Meanings) -> Result<(), XError> {
    let keys: Vec<(u8, [u32; 2])> = keys.iter().map(|(code, meanings)| (*code, *meanings)).collect();
    for run in keys.chunk_by(|(one, _), (next, _)| u16::from(*next) == u16::from(*one) + 1) {
        let keysyms: Vec<u32> = run.iter().flat_map(|(_, meanings)| *meanings).collect();
        let count = u8::try_from(run.len()).unwrap_or(u8::MAX);
        link.x.change_keyboard_mapping(count, run[0].0, 2, &keysyms)?.check()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keymap(state: u16) -> Keymap {
        let keys: [[u32; 4]; 6] = [
            [0x61, 0x41, 0x0100_0444, 0x0100_0424],
            [0x31, 0x21, 0x31, 0x21],
            [0xff0d, 0, 0, 0],
            [0, 0, 0, 0],
            [0xff9c, 0xffb1, 0, 0],
            [0, 0, 0, 0],
        ];
        Keymap { first: 8, levels: 4, keysyms: keys.concat(), modifiers: vec![0, 13], state }
    }

    #[test]
    fn keys_are_found_in_the_active_group_only() {
        let latin = keymap(0);
        assert_eq!(latin.find(0x61), Some(Stroke { code: 8, shift: false }));
        assert_eq!(latin.find(0x21), Some(Stroke { code: 9, shift: true }));
        assert_eq!(latin.find(0x0100_0444), None);
        // Depends on Num Lock.
        assert_eq!(latin.find(0xffb1), None);
        let other = keymap(1 << 13);
        assert_eq!((other.find(0x61), other.find(0xff0d)), (None, Some(Stroke { code: 10, shift: false })));
    }

    #[test]
    fn modifiers_and_keys_with_a_meaning_are_not_borrowed() {
        assert_eq!(keymap(0).unused(), [11]);
    }

    #[test]
    fn a_chord_that_needs_more_keys_than_there_are_is_refused() {
        // One key is unused.
        let mut borrowed = Borrowed::default();
        let refused = borrowed.choose(&mut keymap(0), &[0x0100_6f22, 0x0100_5b57], false);
        assert!(matches!(refused, Err(XError::Refused(_))), "{refused:?}");
        // Also in the round after, with the one it got before.
        let mut lent = keymap(0);
        let mut borrowed = Borrowed::default();
        let (keys, changed) = borrowed.choose(&mut lent, &[0x0100_6f22], false).unwrap();
        assert_eq!((keys.wait, changed.len()), (None, 1));
        assert!(borrowed.choose(&mut lent, &[0x0100_6f22, 0x0100_5b57], false).is_err());
        // One that needs what others have waits for it, and a text goes on piece by piece.
        let (keys, _) = borrowed.choose(&mut lent, &[0x61, 0x0100_5b57], false).unwrap();
        assert!(keys.wait.is_some());
        let text = [0x0100_6f22, 0x0100_5b57, 0x0100_4e00];
        let (keys, _) = Borrowed::default().choose(&mut keymap(0), &text, true).unwrap();
        assert_eq!((keys.strokes.len(), keys.wait.is_some()), (2, true));
        // One meaning of the key is free already, the other is not: that is no wait of nothing.
        let mut half = Borrowed::default();
        let mut lent = keymap(0);
        half.choose(&mut lent, &text[..2], true).unwrap();
        half.0[0].last = None;
        let (keys, _) = half.choose(&mut lent, &text[2..], true).unwrap();
        assert!(keys.strokes.is_empty() && keys.wait.is_some_and(|wait| !wait.is_zero()), "{keys:?}");
        assert!(!keys.relent);
        half.read_by_all();
        let (keys, _) = half.choose(&mut lent, &text[2..], true).unwrap();
        assert_eq!((keys.strokes.len(), keys.wait, keys.relent), (1, None, true));
    }
}
