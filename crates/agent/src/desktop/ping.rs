//! Asks the program in front whether it has read everything that was sent to it: the ping by which window managers find out
//! whether a program hangs. It is an event like all others, so its answer comes when everything before was read.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use x11rb::connection::Connection as _;
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{
    AtomEnum, ChangeWindowAttributesAux, ClientMessageEvent, ConnectionExt as _, EventMask,
};
use x11rb::wrapper::ConnectionExt as _;

use super::fault::XError;
use super::link::Link;

/// A program that draws a page may take a second to come to its events.
const ANSWER_WITHIN: Duration = Duration::from_millis(2_500);
/// Names of protocols a window has; more is nonsense.
const MAX_PROTOCOLS: u32 = 64;

impl Link {
    /// `false` when it does not say, or nobody can ask it.
    pub(super) fn front_is_past_events(&self) -> Result<bool, XError> {
        self.begin();
        let atom = |name: &str| -> Result<u32, XError> {
            Ok(self.x.intern_atom(false, name.as_bytes())?.reply()?.atom)
        };
        let (active, protocols, ping) =
            (atom("_NET_ACTIVE_WINDOW")?, atom("WM_PROTOCOLS")?, atom("_NET_WM_PING")?);
        let values = |window: u32, property: u32, kind: AtomEnum, most: u32| -> Result<Vec<u32>, XError> {
            let reply = match self.x.get_property(false, window, property, kind, 0, most)?.reply() {
                Ok(reply) => reply,
                // It may be gone by now.
                Err(x11rb::errors::ReplyError::X11Error(_)) => return Ok(Vec::new()),
                Err(error) => return Err(error.into()),
            };
            Ok(reply.value32().map(Iterator::collect).unwrap_or_default())
        };
        let front = values(self.root, active, AtomEnum::WINDOW, 1)?.first().copied();
        let Some(front) = front.filter(|window| *window != x11rb::NONE) else { return Ok(false) };
        if !values(front, protocols, AtomEnum::ATOM, MAX_PROTOCOLS)?.contains(&ping) {
            return Ok(false);
        }
        // Answers go to the root window.
        let listen = |mask| ChangeWindowAttributesAux::new().event_mask(mask);
        self.x.change_window_attributes(self.root, &listen(EventMask::SUBSTRUCTURE_NOTIFY))?;
        let answered = self.ask(front, protocols, ping);
        self.x.change_window_attributes(self.root, &listen(EventMask::NO_EVENT))?;
        self.begin();
        self.sync()?;
        answered
    }

    fn ask(&self, front: u32, protocols: u32, ping: u32) -> Result<bool, XError> {
        // Told apart from the window manager's by its number, which stands for a time nobody looks at.
        let number = self.x.generate_id()?;
        let question = ClientMessageEvent::new(32, front, protocols, [ping, number, front, 0, 0]);
        self.x.send_event(false, front, EventMask::NO_EVENT, question)?;
        self.x.sync()?;
        let until = Instant::now() + ANSWER_WITHIN;
        loop {
            while let Some(event) = self.x.poll_for_event()? {
                if let Event::ClientMessage(answer) = event
                    && (answer.format, answer.type_) == (32, protocols)
                    && answer.data.as_data32()[..2] == [ping, number]
                {
                    return Ok(true);
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            let Some(left) = Timespec::try_from(left).ok().filter(|_| !left.is_zero()) else {
                return Ok(false);
            };
            let mut fds = [PollFd::new(self.x.stream(), PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(XError::Lost(error.to_string())),
            }
        }
    }
}
