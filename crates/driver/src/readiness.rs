//! Waits for many descriptors at once with epoll(7), and with a timer that is a descriptor.

#![allow(unsafe_code)] // descriptors that others own, and what epoll returns

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::socket::Readiness;

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The token under which it was registered.
    pub token: u64,
    /// The events for which it is ready.
    pub readiness: Readiness,
    /// The descriptor has failed, or both directions have ended: this concerns every interest.
    pub failed: bool,
}

impl Ready {
    /// Returns whether a caller that waits for `interest` has something to do.
    #[must_use]
    pub fn concerns(&self, interest: Readiness) -> bool {
        self.failed || interest.readable && self.readiness.readable || interest.writable && self.readiness.writable
    }
}

/// The results of a wait.
#[derive(Default)]
pub struct Events(Vec<epoll::Event>);

// SAFETY: the pointer in an event is one form of its user data; ours are numbers.
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

impl Events {
    /// Makes room for `count` results, and clears earlier ones.
    pub fn reserve(&mut self, count: usize) {
        self.0.clear();
        self.0.reserve(count);
    }

    /// Clears the results.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the number of results.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no results.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the results.
    pub fn iter(&self) -> impl Iterator<Item = Ready> + '_ {
        self.0.iter().map(ready)
    }

    /// Removes the result of a token. Returns whether there was one.
    pub fn take(&mut self, token: u64) -> bool {
        let found = self.0.iter().position(|event| { event.data }.u64() == token);
        found.map(|index| self.0.swap_remove(index)).is_some()
    }
}

fn ready(event: &epoll::Event) -> Ready {
    let flags = { event.flags };
    let readiness = Readiness { readable: flags.contains(EventFlags::IN), writable: flags.contains(EventFlags::OUT) };
    Ready { token: { event.data }.u64(), readiness, failed: flags.intersects(EventFlags::ERR | EventFlags::HUP) }
}

/// Watches descriptors, level-triggered. Their owners keep them open as long as they are watched.
pub struct Poller(OwnedFd);

impl Poller {
    /// Creates a poller that watches nothing.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Returns its own descriptor, which is readable when a watched descriptor is ready.
    #[must_use]
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Starts to watch a descriptor.
    pub fn add(&self, fd: RawFd, token: u64, interest: Readiness) -> io::Result<()> {
        Ok(epoll::add(&self.0, borrow(fd)?, EventData::new_u64(token), flags(interest))?)
    }

    /// Changes the interest in a watched descriptor.
    pub fn modify(&self, fd: RawFd, token: u64, interest: Readiness) -> io::Result<()> {
        Ok(epoll::modify(&self.0, borrow(fd)?, EventData::new_u64(token), flags(interest))?)
    }

    /// Stops watching a descriptor.
    pub fn delete(&self, fd: RawFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, borrow(fd)?)?)
    }

    /// Waits until a descriptor is ready, at most for `timeout`. Returns the number of results, at most the room in
    /// `events`, of which there must be some.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        events.0.clear();
        let timeout = timeout.map(timespec);
        Ok(epoll::wait(self.0.as_fd(), rustix::buffer::spare_capacity(&mut events.0), timeout.as_ref())?)
    }
}

fn borrow<'a>(fd: RawFd) -> io::Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(rustix::io::Errno::BADF.into());
    }
    // SAFETY: not -1; a number that is no open descriptor is an error of epoll.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

fn flags(interest: Readiness) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, interest.readable);
    flags.set(EventFlags::OUT, interest.writable);
    flags
}

/// A timer that is a descriptor. Waiting with a timeout costs as much as reading a message. Waits that this timer
/// ends need no timeout, and it stays set over many waits.
pub struct Timer {
    fd: OwnedFd,
    /// When it is due; perhaps earlier than needed, which the caller notices then.
    due: Option<Instant>,
}

impl Timer {
    /// Creates a timer that is never due.
    pub fn new() -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self { fd, due: None })
    }

    /// Returns its descriptor, which is readable when it is due.
    #[must_use]
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Ensures that the descriptor is readable at `until` or earlier.
    pub fn arm(&mut self, now: Instant, until: Instant) -> io::Result<()> {
        if self.due.is_some_and(|due| due <= until) {
            return Ok(());
        }
        let left = until.saturating_duration_since(now).max(Duration::from_nanos(1)); // 0 would disarm it
        let value = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(left) };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &value)?;
        self.due = Some(until);
        Ok(())
    }

    /// Returns whether the descriptor is readable, or about to be.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Resets the timer after its descriptor was readable.
    pub fn clear(&mut self) {
        self.due = None;
        let _ = rustix::io::read(&self.fd, &mut [0; 8]); // the number of expirations is not needed
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn poller_reports_readiness_by_token() {
        let (poller, mut events) = (Poller::new().unwrap(), Events::default());
        events.reserve(8);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (readable, writable) =
            (Readiness { readable: true, writable: false }, Readiness { readable: true, writable: true });
        poller.add(ours.as_raw_fd(), 7, readable).unwrap();
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        poller.modify(ours.as_raw_fd(), 8, writable).unwrap();
        assert_eq!(poller.wait(&mut events, None).unwrap(), 1);
        let found: Vec<_> = events.iter().collect();
        assert_eq!(
            found,
            [Ready { token: 8, readiness: Readiness { readable: false, writable: true }, failed: false }]
        );
        assert!(found[0].concerns(writable) && !found[0].concerns(readable));
        drop(theirs);
        poller.wait(&mut events, None).unwrap();
        let gone = events.iter().next().unwrap();
        assert!(gone.failed && gone.concerns(readable) && gone.concerns(Readiness::default()));
        assert!(events.take(8) && !events.take(8));
        poller.delete(ours.as_raw_fd()).unwrap();
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        assert!(poller.add(-1, 0, readable).is_err());
    }

    #[test]
    fn timer_keeps_the_earliest_deadline() {
        let (poller, mut events, mut timer) = (Poller::new().unwrap(), Events::default(), Timer::new().unwrap());
        events.reserve(8);
        poller.add(timer.raw(), 1, Readiness { readable: true, writable: false }).unwrap();
        let now = Instant::now();
        timer.arm(now, now + Duration::from_secs(1000)).unwrap();
        timer.arm(now, now + Duration::from_millis(20)).unwrap();
        timer.arm(now, now + Duration::from_secs(500)).unwrap(); // changes nothing
        assert_eq!(poller.wait(&mut events, Some(Duration::from_secs(60))).unwrap(), 1);
        assert!((Duration::from_millis(20)..Duration::from_secs(50)).contains(&now.elapsed()));
        assert!(!timer.is_due(now) && timer.is_due(Instant::now()));
        timer.clear();
        assert!(!timer.is_due(Instant::now()));
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
    }
}
