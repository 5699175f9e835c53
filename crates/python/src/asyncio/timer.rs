//! A timer that is a descriptor. A wait with a timeout costs as much as reading a message; one that this ends needs none, and it stays as it is
//! over many waits.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

pub(super) struct Timer {
    /// Readable when it is due.
    pub(super) fd: OwnedFd,
    /// When that will be: perhaps earlier than needed, which is noticed when it happens.
    due: Option<Instant>,
}

impl Timer {
    pub(super) fn new() -> Result<Self, Errno> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self { fd, due: None })
    }

    /// Sees to it that the descriptor is readable at `until`, or before.
    pub(super) fn arm(&mut self, now: Instant, until: Instant) -> Result<(), Errno> {
        if self.due.is_some_and(|due| due <= until) {
            return Ok(());
        }
        let left = until.saturating_duration_since(now).max(Duration::from_nanos(1)); // 0 would switch it off
        let value = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(left) };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &value)?;
        self.due = Some(until);
        Ok(())
    }

    /// It was readable.
    pub(super) fn clear(&mut self) {
        self.due = None;
        let _ = rustix::io::read(&self.fd, &mut [0; 8]); // a count of no interest
    }
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}
