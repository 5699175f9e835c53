//! Waiting of a worker: for sockets, commands and time.

use std::io;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use mio::Events as Ready;

use super::Worker;

/// The interval between two checks of congested audiences.
pub(super) const CONGESTION_INTERVAL: Duration = Duration::from_millis(2);

impl Worker {
    /// Waits until there is something to do, and takes the commands. `idle`: the last turn left nothing to do.
    pub(super) fn wait(&mut self, idle: bool, ready: &mut Ready) -> io::Result<()> {
        let busy_poll = self.shared.config.busy_poll;
        if idle && !busy_poll.is_zero() && self.busy_poll(busy_poll, ready)? {
            return Ok(());
        }
        let some = if self.commands.is_empty() { self.mailbox.take(&mut self.commands, idle) } else { true };
        let timeout = if idle && !some { self.time_to_deadline() } else { Some(Duration::ZERO) };
        self.poll_sockets(ready, timeout)
    }

    /// Polls without sleeping, for `most` at most. Returns whether there is something to do. Other threads need not
    /// wake a worker that polls.
    fn busy_poll(&mut self, most: Duration, ready: &mut Ready) -> io::Result<bool> {
        let began = Instant::now();
        // Nothing is due by time before the next timer.
        let most = self.time_to_deadline().map_or(most, |sleep| sleep.min(most));
        loop {
            let some = self.mailbox.take(&mut self.commands, false);
            self.poll_sockets(ready, Some(Duration::ZERO))?;
            if some || !ready.is_empty() || self.shared.stop.load(Ordering::Acquire) {
                return Ok(true);
            }
            if began.elapsed() >= most {
                return Ok(false);
            }
            // Other threads of this core get a turn, such as the one that takes the events.
            thread::yield_now();
        }
    }

    fn poll_sockets(&mut self, ready: &mut Ready, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(ready, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => ready.clear(),
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Returns the time until the next deadline.
    fn time_to_deadline(&self) -> Option<Duration> {
        let now = Instant::now();
        let accept = self.accept_after.map(|after| after.saturating_duration_since(now));
        let congested = (!self.congested.is_empty()).then_some(CONGESTION_INTERVAL);
        [self.wheel.sleep(now), accept, congested, self.pending.trim_in(now), self.next_check_in(now)]
            .into_iter()
            .flatten()
            .min()
    }
}
