//! The memory of all messages that wait, of one engine: each counted once, however many sessions it waits for.
//!
//! Whoever makes or frees a message counts on a line of its own thread's, or nearly so: nobody waits for anybody.
//! What a worker's sessions hold beside, their queues and what was copied into them, is on its
//! [`Sheet`](crate::metrics::Sheet). The sum is looked at a few times in a turn at most.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use wirespeed_driver::frames::Account;

/// Threads that count have so many lines.
const LINES: usize = 16;

/// What a message takes beside its bytes: what holds them.
const OVERHEAD: usize = 192;

/// Two lines are fetched at a time on x86.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Line(AtomicUsize);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    lines: [Line; LINES],
}

fn number() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = Cell::new(LAST.fetch_add(1, Ordering::Relaxed) % LINES);
    }
    // A message may be freed while its thread ends.
    NUMBER.try_with(Cell::get).unwrap_or(0)
}

impl Ledger {
    /// What there is. While others count it may be off by what they do at that moment.
    pub(crate) fn sum(&self) -> usize {
        // A line may have less than nothing: what one thread makes another frees.
        let sum = self.lines.iter().fold(0_usize, |sum, line| sum.wrapping_add(line.0.load(Ordering::Relaxed)));
        usize::try_from(sum.cast_signed()).unwrap_or(0)
    }

    fn line(&self) -> &AtomicUsize {
        #[allow(clippy::indexing_slicing, reason = "a number below LINES, by its making")]
        &self.lines[number()].0
    }
}

impl Account for Ledger {
    fn add(&self, bytes: usize) {
        self.line().fetch_add(bytes + OVERHEAD, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: usize) {
        self.line().fetch_sub(bytes + OVERHEAD, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use std::sync::Arc;

    use wirespeed_driver::encoded::Encoded;
    use wirespeed_driver::protocol::MessageKind;

    use super::*;

    #[test]
    fn what_one_thread_makes_another_frees() {
        let ledger = Arc::new(Ledger::default());
        let make = || {
            let account: Arc<dyn Account> = Arc::<Ledger>::clone(&ledger);
            Encoded::counted(MessageKind::Binary, &[0; 1000], Some(account)).unwrap()
        };
        let made: Vec<_> = (0..40).map(|_| std::thread::scope(|scope| scope.spawn(make).join().unwrap())).collect();
        let size = made[0].size();
        assert_eq!(ledger.sum(), 40 * (size + OVERHEAD));
        drop(made);
        assert_eq!(ledger.sum(), 0);
    }
}
