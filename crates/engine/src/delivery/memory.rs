//! The memory of all messages of an engine that wait, each counted once, for any number of sessions.
//!
//! Threads count on separate cache lines, so that they rarely slow each other. The queues of a worker's sessions, and
//! bytes copied into them, are counted by its [`WorkerMetrics`](crate::metrics::WorkerMetrics). The sum is read a few
//! times in a turn at most. Messages that wait for workers are counted a second time, each once for any number of
//! mailboxes.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use wirespeed_driver::frames::Account;

use crate::delivery::outbox;

/// The number of cache lines. Threads beyond it share them.
const LINES: usize = 16;

/// The memory of a message beside its bytes.
const OVERHEAD: usize = 192;

/// Aligned to two cache lines, as x86 fetches two at a time.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Line {
    allocated: AtomicUsize,
    in_mailboxes: AtomicUsize,
}

/// Counts the memory of messages, for all threads of an engine.
#[derive(Debug, Default)]
pub(crate) struct MemoryAccounting {
    lines: [Line; LINES],
}

fn line_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static INDEX: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % LINES);
    }
    // A message may be freed while its thread ends.
    INDEX.try_with(Cell::get).unwrap_or(0)
}

impl MemoryAccounting {
    /// Returns the memory of all messages. Concurrent changes may or may not be included.
    pub(crate) fn sum(&self) -> usize {
        self.sum_of(|line| &line.allocated)
    }

    /// Returns the part of it that waits for workers, as their mailboxes count it. It never exceeds the memory of all.
    pub(crate) fn in_mailboxes(&self) -> usize {
        self.sum_of(|line| &line.in_mailboxes)
    }

    fn sum_of(&self, of: impl Fn(&Line) -> &AtomicUsize) -> usize {
        // A line may be negative: one thread allocates and another frees.
        let sum = self.lines.iter().fold(0_usize, |sum, line| sum.wrapping_add(of(line).load(Ordering::Relaxed)));
        usize::try_from(sum.cast_signed()).unwrap_or(0)
    }

    fn line(&self) -> &Line {
        #[allow(clippy::indexing_slicing, reason = "a number below LINES, by its making")]
        &self.lines[line_index()]
    }
}

impl Account for MemoryAccounting {
    fn add(&self, bytes: usize) {
        self.line().allocated.fetch_add(bytes + OVERHEAD, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: usize) {
        self.line().allocated.fetch_sub(bytes + OVERHEAD, Ordering::Relaxed);
    }

    fn post(&self, bytes: usize) {
        self.line().in_mailboxes.fetch_add(bytes + outbox::OVERHEAD, Ordering::Relaxed);
    }

    fn collect(&self, bytes: usize) {
        self.line().in_mailboxes.fetch_sub(bytes + outbox::OVERHEAD, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use std::sync::Arc;

    use wirespeed_driver::encoded::Encoded;
    use wirespeed_driver::protocol::MessageKind;

    use super::*;
    use crate::delivery::outbox::Pending;
    use crate::pubsub::publish::Envelope;

    #[test]
    fn memory_is_freed_by_another_thread() {
        let memory = Arc::new(MemoryAccounting::default());
        let make = || {
            let account: Arc<dyn Account> = Arc::<MemoryAccounting>::clone(&memory);
            Encoded::counted(MessageKind::Binary, &[0; 1000], Some(account)).unwrap()
        };
        let allocated: Vec<_> =
            (0..40).map(|_| std::thread::scope(|scope| scope.spawn(make).join().unwrap())).collect();
        let size = allocated[0].size();
        assert_eq!(memory.sum(), 40 * (size + OVERHEAD));
        drop(allocated);
        assert_eq!(memory.sum(), 0);
    }

    #[test]
    fn message_in_several_mailboxes_is_counted_once() {
        let memory = Arc::new(MemoryAccounting::default());
        let account: Arc<dyn Account> = Arc::<MemoryAccounting>::clone(&memory);
        let message = Arc::new(Encoded::counted(MessageKind::Binary, &[0; 1000], Some(account)).unwrap());
        let pending = Pending { message, key: None };
        for _ in 0..2 {
            let first = Envelope::new(pending.clone());
            let others: Vec<_> = (0..5).map(|_| Envelope::new(pending.clone())).collect();
            assert_eq!(memory.in_mailboxes(), pending.cost());
            drop(first);
            assert_eq!(memory.in_mailboxes(), pending.cost());
            std::thread::spawn(|| drop(others)).join().unwrap();
            assert_eq!(memory.in_mailboxes(), 0);
        }
        assert!(memory.sum() > pending.cost());
    }
}
