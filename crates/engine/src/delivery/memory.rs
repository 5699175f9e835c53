//! The memory of all messages of an engine that wait, each counted once, for any number of sessions.
//!
//! Threads count on separate cache lines, so that they rarely slow each other. The queues of a worker's sessions, and
//! bytes copied into them, are counted by its [`WorkerMetrics`](crate::metrics::WorkerMetrics). The sum is read a few
//! times in a turn at most. Messages that wait for workers are counted a second time, each once for any number of
//! mailboxes.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use wirespeed_driver::frames::Account;

use super::message;

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
        self.line().in_mailboxes.fetch_add(bytes + message::OVERHEAD, Ordering::Relaxed);
    }

    fn collect(&self, bytes: usize) {
        self.line().in_mailboxes.fetch_sub(bytes + message::OVERHEAD, Ordering::Relaxed);
    }
}

/// A session may always hold this number of bytes, while the total is below its limit.
const MIN_SHARE: usize = 64 * 1024;

/// The share of its own limit that the outbox of a stalled session may hold: all of it until half of the total is
/// used, and from there on proportionally less.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share(f64);

impl Default for Share {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Share {
    pub(crate) fn new(used: usize, total: usize) -> Self {
        let half = total / 2;
        if used <= half { Self::default() } else { Self(total.saturating_sub(used) as f64 / half.max(1) as f64) }
    }

    /// Returns the share of a session's own limit.
    pub(crate) fn of(self, own: usize) -> usize {
        if self.0 >= 1.0 { own } else { ((own as f64 * self.0) as usize).max(MIN_SHARE).min(own) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use std::sync::Arc;

    use wirespeed_driver::encoded::Encoded;
    use wirespeed_driver::protocol::MessageKind;

    use super::message::{Envelope, Pending};
    use super::*;

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

    #[test]
    fn share_falls_as_the_total_is_used_up() {
        let (own, total) = (1 << 20, 1 << 30);
        let share = |own, used, total| Share::new(used, total).of(own);
        let of = |used| share(own, used, total);
        assert_eq!([of(0), of(total / 2)], [own, own]);
        assert_eq!(of(total / 4 * 3), own / 2);
        assert_eq!([of(total), of(usize::MAX)], [MIN_SHARE, MIN_SHARE]);
        assert_eq!(share(1000, total, total), 1000);
        assert_eq!([share(own, 1, 0), share(own, 1, 1)], [MIN_SHARE, MIN_SHARE]);
        assert_eq!(share(usize::MAX, 1 << 40, usize::MAX), usize::MAX);
    }
}
