//! Messages that were taken out of the queue and are not yet settled.

use std::sync::atomic::Ordering;

use wirespeed_engine::broker::Notice;

use super::Shared;
use crate::queue::Item;

/// Takes messages out of the queue; nothing else may. Messages that are not settled when it is dropped count as
/// unconfirmed.
pub(crate) struct InFlight<'a> {
    shared: &'a Shared,
    count: u64,
}

impl<'a> InFlight<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        Self { shared, count: 0 }
    }

    /// Takes queued messages of at most this size in bytes, but at least one.
    pub(crate) fn take(&mut self, max_bytes: usize) -> Vec<Item> {
        let items = self.shared.change(|queue| {
            wirespeed_engine::driver::protocol::failpoint::hit("brokers.take");
            queue.take(max_bytes)
        });
        self.count += items.len() as u64;
        items
    }

    /// Returns the number of messages in flight.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Records that the broker has the oldest `count` messages.
    pub(crate) fn settle(&mut self, count: u64) {
        let count = self.end(count);
        self.shared.published.fetch_add(count, Ordering::Relaxed);
        self.shared.forget_refusal();
        self.shared.change(|queue| queue.settle(count, false));
    }

    /// Records that the broker refused the oldest `count` messages.
    pub(crate) fn refuse(&mut self, count: u64) {
        let count = self.end(count);
        if count == 0 {
            return;
        }
        // Counted before the waiting callers are woken. The notice runs foreign code, so it comes last.
        self.shared.refused.fetch_add(count, Ordering::Relaxed);
        self.shared.change(|queue| queue.settle(count, true));
        self.shared.message_refused.notify_one();
        self.shared.notify(Notice::Refused(count));
    }

    /// Records that it is unknown whether the broker has the oldest `count` messages.
    pub(crate) fn mark_unconfirmed(&mut self, count: u64) {
        let count = self.end(count);
        self.shared.mark_unconfirmed(count);
    }

    fn end(&mut self, count: u64) -> u64 {
        let count = count.min(self.count);
        self.count -= count;
        count
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        // A second panic would abort the process, so the thread counts the messages after it has caught this one.
        if !std::thread::panicking() {
            self.shared.mark_unconfirmed(self.count);
        }
    }
}
