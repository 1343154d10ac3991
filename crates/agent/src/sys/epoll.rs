//! Events of registrations that exist.
//!
//! An event loop has the kernel keep an address of its own with each registration, and frees what is there when the
//! registration is removed. After a restore, gVisor's kernel up to the releases of March 2026 reports some that had been removed
//! before (its change 5d857245b684 tells how): the loop then writes to memory that is something else by now. So these stand
//! in the C library's place for the whole program: what the kernel keeps is a number that is used once, and an event of a
//! number that stands for nothing is nobody's.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

use libc::epoll_event;

static REGISTERED: Mutex<Registered> = Mutex::new(Registered::none());

/// What the program registered, of all its epoll instances. A descriptor that was closed without being removed leaves its
/// entry to the next one with its number.
struct Registered {
    last: u64,
    /// By epoll instance and descriptor.
    numbers: BTreeMap<(RawFd, RawFd), u64>,
    data: BTreeMap<u64, u64>,
}

impl Registered {
    const fn none() -> Self {
        Self { last: 0, numbers: BTreeMap::new(), data: BTreeMap::new() }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn set(&mut self, key: (RawFd, RawFd), number: u64, data: u64) {
        self.remove(key);
        self.numbers.insert(key, number);
        self.data.insert(number, data);
    }

    fn remove(&mut self, key: (RawFd, RawFd)) {
        if let Some(former) = self.numbers.remove(&key) {
            self.data.remove(&former);
        }
    }

    /// Puts what was registered in the place of its number, the events that exist first; how many those are.
    fn translate(&self, events: &mut [epoll_event]) -> usize {
        let mut kept = 0;
        for at in 0..events.len() {
            let epoll_event { events: what, u64: number } = events[at];
            if let Some(data) = self.data.get(&number) {
                events[kept] = epoll_event { events: what, u64: *data };
                kept += 1;
            }
        }
        kept
    }
}

/// `epoll_ctl(2)`.
#[expect(unsafe_code, reason = "takes the place of a function of the C library")]
// SAFETY: the name is the C library's, whose function this does the same as; linked first, it is the only one.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // Held during the call: whoever is told of an event at once finds what it stands for.
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = (operation != libc::EPOLL_CTL_DEL && !event.is_null()).then(|| {
        // SAFETY: the caller's event, as the C library would read it; packed on some machines.
        let epoll_event { events, u64: data } = unsafe { event.read_unaligned() };
        // A new number also for a change: the kernel then looks again whether there is an event.
        (epoll_event { events, u64: registered.number() }, data)
    });
    let numbered = wanted.as_ref().map_or(std::ptr::null(), |(event, _)| std::ptr::from_ref(event));
    // SAFETY: the kernel reads the event, if there is one, and nothing else.
    let done = unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, operation, fd, numbered) };
    if done < 0 {
        return -1;
    }
    match wanted {
        Some((epoll_event { u64: number, .. }, data)) => registered.set((epoll, fd), number, data),
        None => registered.remove((epoll, fd)),
    }
    0
}

/// `epoll_wait(2)`. Returns early and without an event when all there were are nobody's.
#[expect(unsafe_code, reason = "takes the place of a function of the C library")]
// SAFETY: as with the other.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
) -> c_int {
    let no_mask = std::ptr::null::<libc::sigset_t>();
    // SAFETY: the caller's room for so many events, which the kernel fills and checks; the length of no mask is not looked at.
    let found = unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, events, room, timeout_ms, no_mask, 0) };
    let Ok(length) = usize::try_from(found) else { return -1 };
    if length == 0 {
        return 0;
    }
    // SAFETY: the kernel has filled so many. The type has the alignment that the caller's room has.
    let found = unsafe { std::slice::from_raw_parts_mut(events, length) };
    let kept = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).translate(found);
    // No more than the room, which is one of these.
    c_int::try_from(kept).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::buffer::spare_capacity;
    use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

    use super::*;

    const DATA: u64 = 0x5555_0000_0001;

    fn ready() -> OwnedFd {
        eventfd(1, EventfdFlags::CLOEXEC).unwrap()
    }

    #[expect(unsafe_code, reason = "calls what the event loop calls")]
    fn control(instance: &OwnedFd, operation: c_int, fd: &OwnedFd, data: u64) -> c_int {
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: data };
        // SAFETY: open descriptors and an event of ours.
        unsafe { libc::epoll_ctl(instance.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) }
    }

    /// What the event loop would see.
    #[expect(unsafe_code, reason = "calls what the event loop calls")]
    fn seen(instance: &OwnedFd) -> Vec<u64> {
        let mut events = [epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: room for eight.
        let found = unsafe { libc::epoll_wait(instance.as_raw_fd(), events.as_mut_ptr(), 8, 0) };
        events[..usize::try_from(found).unwrap()].iter().map(|event| event.u64).collect()
    }

    /// What the kernel keeps.
    fn kept(instance: &OwnedFd) -> Vec<u64> {
        let mut events = Vec::with_capacity(8);
        epoll::wait(instance, spare_capacity(&mut events), Some(&Timespec::default())).unwrap();
        events.iter().map(|event| event.data.u64()).collect()
    }

    #[test]
    fn an_event_of_a_registration_that_was_removed_is_not_reported() {
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let [one, other, forgotten] = [ready(), ready(), ready()];
        assert_eq!(control(&instance, libc::EPOLL_CTL_ADD, &one, DATA), 0);
        assert_eq!(control(&instance, libc::EPOLL_CTL_ADD, &other, DATA + 1), 0);
        assert_eq!(seen(&instance), [DATA, DATA + 1]);
        let numbers = kept(&instance);
        assert!(numbers.len() == 2 && !numbers.contains(&DATA), "the library's own was called");
        // As a kernel would that has not forgotten one.
        let stale = epoll::EventData::new_u64(numbers[0]);
        epoll::add(&instance, &forgotten, stale, epoll::EventFlags::IN).unwrap();
        assert_eq!(control(&instance, libc::EPOLL_CTL_DEL, &one, 0), 0);
        assert_eq!(kept(&instance).len(), 2);
        assert_eq!(seen(&instance), [DATA + 1]);
    }

    #[test]
    fn a_change_is_seen_and_an_error_changes_nothing() {
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let one = ready();
        assert_eq!(control(&instance, libc::EPOLL_CTL_MOD, &one, DATA), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOENT));
        assert_eq!(control(&instance, libc::EPOLL_CTL_ADD, &one, DATA), 0);
        assert_eq!(control(&instance, libc::EPOLL_CTL_ADD, &one, 0), -1);
        assert_eq!(seen(&instance), [DATA]);
        assert_eq!(control(&instance, libc::EPOLL_CTL_MOD, &one, u64::MAX), 0);
        assert_eq!(seen(&instance), [u64::MAX]);
    }

    #[tokio::test]
    async fn the_event_loop_goes_through_it() {
        let before = REGISTERED.lock().unwrap().last;
        let (stream, _other) = tokio::net::UnixStream::pair().unwrap();
        stream.writable().await.unwrap();
        assert!(REGISTERED.lock().unwrap().last > before);
    }
}
