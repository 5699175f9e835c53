//! Measures how long a client's thread was blocked by an engine without capacity. Blocking the whole thread keeps the
//! client from reading a broker faster than its engine handles messages. Replies of the broker stay unread meanwhile,
//! so timeouts exclude this time.

use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    static STALLED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Returns the total time in which this thread was blocked. If it grew while waiting for a reply, the reply may be
/// unread.
pub(crate) fn stalled() -> Duration {
    STALLED.get()
}

/// Runs a blocking function, and adds its time.
pub(crate) fn count_stall<T>(wait: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = wait();
    STALLED.set(STALLED.get() + began.elapsed());
    result
}

/// Yields to the other tasks of this thread, such as publishing, while it handles messages that were read at once. Each
/// yield may read more messages, without another limit. Therefore the interval doubles each time, and the number of
/// yields is small.
pub(crate) struct StallClock {
    last: Duration,
    pause: Duration,
}

impl StallClock {
    const FIRST: Duration = Duration::from_millis(50);
    const LAST: Duration = Duration::from_secs(6);

    pub(crate) fn new() -> Self {
        Self { last: stalled(), pause: Self::FIRST }
    }

    pub(crate) async fn yield_if_stalled(&mut self) {
        if stalled().saturating_sub(self.last) >= self.pause && self.pause <= Self::LAST {
            self.pause *= 2;
            tokio::task::yield_now().await;
            self.last = stalled();
        }
    }
}
