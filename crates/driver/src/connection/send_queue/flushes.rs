//! Tasks that wait until their bytes are written.

use std::mem::take;

use super::{SendQueue, Waiting};
use crate::connection::{ConnectionDriver, Environment};

impl<E: Environment> SendQueue<E> {
    /// Returns whether a task waits until bytes are written.
    #[inline]
    pub fn has_flushes(&self) -> bool {
        self.waiting.get().is_some_and(Waiting::has_flushes)
    }

    /// Adds a task that waits until all bytes queued now are written.
    pub(in crate::connection) fn add_flush(&mut self, driver: &mut ConnectionDriver<E::Buffer>, waiter: E::Waiter) {
        let send_half = driver.send_half_mut();
        send_half.seal(); // encrypted, the queue has the length that will be written
        let target = if self.large.is_some() { u64::MAX } else { send_half.written() + send_half.queued() as u64 };
        self.waiting.make().flushes.push((target, waiter));
    }

    /// Records that the large message is queued completely: tasks that wait for its end need not wait for later
    /// messages.
    pub(in crate::connection) fn record_large_queued(&mut self, driver: &mut ConnectionDriver<E::Buffer>) {
        let Some(waiting) = self.waiting.get_mut().filter(|waiting| waiting.has_flushes()) else { return };
        let send_half = driver.send_half_mut();
        send_half.seal();
        let queued = send_half.written() + send_half.queued() as u64;
        for (target, _) in &mut waiting.flushes {
            *target = (*target).min(queued);
        }
    }

    /// Returns whether a task waits until bytes are written, and they may be.
    #[inline]
    pub(in crate::connection) fn is_flush_due(&self, driver: &ConnectionDriver<E::Buffer>) -> bool {
        let Some(waiting) = self.waiting.get() else { return false };
        waiting.has_flushes() && driver.send_half().failure().is_none() && {
            let written = driver.send_half().written();
            self.is_written(driver) || waiting.flushes.iter().any(|(target, _)| *target <= written)
        }
    }

    /// Takes the tasks whose bytes were written. After a write error it takes none: the end of the connection
    /// notifies them.
    pub(in crate::connection) fn take_flushed(&mut self, driver: &ConnectionDriver<E::Buffer>) -> Vec<E::Waiter> {
        if !self.is_flush_due(driver) {
            return Vec::new();
        }
        let (all, written) = (self.is_written(driver), driver.send_half().written());
        let flushes = &mut self.waiting.make().flushes;
        flushes.extract_if(.., |(target, _)| all || *target <= written).map(|(_, waiter)| waiter).collect()
    }

    /// Takes all tasks that wait for a flush, when the connection is over.
    pub(in crate::connection) fn take_flushes(&mut self) -> impl Iterator<Item = E::Waiter> + use<E> {
        let flushes = self.waiting.get_mut().map(|waiting| take(&mut waiting.flushes)).unwrap_or_default();
        flushes.into_iter().map(|(_, waiter)| waiter)
    }
}
