//! What was taken out of the queue, until it is known what has become of it.

use std::sync::atomic::Ordering;

use wirespeed_engine::broker::Notice;

use super::Shared;
use crate::queue::Item;

/// The only way to take something out of the queue. What nothing is known of when this is dropped is in doubt.
pub(crate) struct InFlight<'a> {
    shared: &'a Shared,
    count: u64,
}

impl<'a> InFlight<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        Self { shared, count: 0 }
    }

    /// Takes what waits, of so many bytes.
    pub(crate) fn take(&mut self, most: usize) -> Vec<Item> {
        let items = self.shared.change(|queue| {
            wirespeed_engine::driver::protocol::failpoint::hit("brokers.take");
            queue.take(most)
        });
        self.count += items.len() as u64;
        items
    }

    /// How many messages.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The broker has so many of them.
    pub(crate) fn settle(&mut self, count: u64) {
        let count = self.end(count);
        self.shared.published.fetch_add(count, Ordering::Relaxed);
        self.shared.forget_refusal();
        self.shared.change(|queue| queue.settle(count, false));
    }

    /// It takes no such messages.
    pub(crate) fn refuse(&mut self, count: u64) {
        let count = self.end(count);
        if count == 0 {
            return;
        }
        // Before those who wait for it to be settled are woken; the notice, which runs code of others, behind it.
        self.shared.refused.fetch_add(count, Ordering::Relaxed);
        self.shared.change(|queue| queue.settle(count, true));
        self.shared.refusing.notify_one();
        self.shared.notify(Notice::Refused(count));
    }

    /// Nobody knows whether it has them.
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
        // A second panic would be the end of the process: the thread sees to it once it has caught this one.
        if !std::thread::panicking() {
            self.shared.mark_unconfirmed(self.count);
        }
    }
}
