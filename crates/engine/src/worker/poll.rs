//! What a worker waits for: sockets, what others want, and time.

use std::io;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use mio::Events as Ready;

use super::Worker;

/// Between two looks at topics whose publishers should wait.
pub(super) const CONGESTION_PAUSE: Duration = Duration::from_millis(2);

impl Worker {
    /// Waits until there is something to do, and takes what others want. `idle`: there is nothing left of the last turn.
    pub(super) fn wait(&mut self, idle: bool, ready: &mut Ready) -> io::Result<()> {
        let busy_poll = self.shared.config.busy_poll;
        if idle && !busy_poll.is_zero() && self.busy_poll(busy_poll, ready)? {
            return Ok(());
        }
        let some = if self.commands.is_empty() { self.mailbox.take(&mut self.commands, idle) } else { true };
        let timeout = if idle && !some { self.sleep() } else { Some(Duration::ZERO) };
        self.look(ready, timeout)
    }

    /// Looks for something to do without sleeping, for as long at most. Whether there is any. Nobody has to wake a worker
    /// that does so.
    fn busy_poll(&mut self, most: Duration, ready: &mut Ready) -> io::Result<bool> {
        let began = Instant::now();
        // By time nothing is due before.
        let most = self.sleep().map_or(most, |sleep| sleep.min(most));
        loop {
            let some = self.mailbox.take(&mut self.commands, false);
            self.look(ready, Some(Duration::ZERO))?;
            if some || !ready.is_empty() || self.shared.stop.load(Ordering::Acquire) {
                return Ok(true);
            }
            if began.elapsed() >= most {
                return Ok(false);
            }
            // Whoever else is to run on this core has a turn, as the thread that takes the events may be.
            thread::yield_now();
        }
    }

    fn look(&mut self, ready: &mut Ready, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(ready, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => ready.clear(),
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        Ok(())
    }

    /// How long there is nothing to do by time.
    fn sleep(&self) -> Option<Duration> {
        let now = Instant::now();
        let accept = self.accept_after.map(|after| after.saturating_duration_since(now));
        let congested = (!self.congested.is_empty()).then_some(CONGESTION_PAUSE);
        [self.wheel.sleep(now), accept, congested, self.trim_in(now), self.look_in(now)].into_iter().flatten().min()
    }
}
