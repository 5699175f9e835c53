//! For how long this thread was held up: it waits for room in the engine with all that it does, so that a broker is not
//! read faster than its messages go on. Answers of the broker lie unread meanwhile.

use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    static HELD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// In all. Who waits for an answer, and it is more than before: nobody has looked for it.
pub(crate) fn stalled() -> Duration {
    HELD.get()
}

/// Waits, and counts it.
pub(crate) fn count_stall<T>(wait: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = wait();
    HELD.set(HELD.get() + began.elapsed());
    result
}

/// Lets what else this thread does go on while it works off what was read at once: publishing, for one. Each time more
/// may be read, which nothing else bounds, so each time after twice as long, and a few times at most.
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

    pub(crate) async fn take(&mut self) {
        if stalled().saturating_sub(self.last) >= self.pause && self.pause <= Self::LAST {
            self.pause *= 2;
            tokio::task::yield_now().await;
            self.last = stalled();
        }
    }
}
