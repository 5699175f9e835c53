//! The limit on the memory of all sessions together. As it is approached, each stalled session may hold less. Beyond
//! it, the sessions that hold most free memory.

use std::time::{Duration, Instant};

use super::Worker;
use crate::connection::Client;
use crate::delivery::memory::Share;
use crate::logs::Cause;
use crate::util::slab::Key;

/// The interval between two checks, while few messages arrive.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// A check is made early when this part of the limit has arrived since the last one.
const EARLY_CHECK_PART: usize = 64;

impl Worker {
    /// Updates the share of stalled sessions, and frees memory if the total is above its limit.
    pub(super) fn check_memory(&mut self, now: Instant) {
        let total = self.shared.config.total_outbox_limit;
        if now < self.check_memory_after && self.bytes_since_check < total / EARLY_CHECK_PART {
            return;
        }
        (self.check_memory_after, self.bytes_since_check) = (now + CHECK_INTERVAL, 0);
        let used = self.shared.session_memory();
        self.share = Share::new(used, total);
        if used <= total {
            return;
        }
        // An eighth of the limit more than necessary, or memory had to be freed again at once. Each worker frees its
        // part.
        let excess = used - (total - total / 8);
        let all: u64 = self.shared.metrics.iter().map(|metrics| metrics.outbox_bytes.value()).sum();
        let part = excess as f64 * self.metrics.outbox_bytes.value() as f64 / all.max(1) as f64;
        self.free_memory(part.ceil() as usize, now);
        if let Some(handles) = self.shared.handles.get() {
            handles.iter().for_each(|worker| worker.mailbox.nudge());
        }
        // Even with many sessions the checks are a small part of the work.
        self.check_memory_after = now + CHECK_INTERVAL.max(now.elapsed() * 20);
    }

    /// Returns the time until the next check; `None`: only when something happens.
    pub(super) fn next_check_in(&self, now: Instant) -> Option<Duration> {
        let over = self.shared.session_memory() > self.shared.config.total_outbox_limit;
        // A worker whose sessions have nothing queued cannot free anything.
        (over && self.metrics.outbox_bytes.value() > 0).then(|| self.check_memory_after.saturating_duration_since(now))
    }

    /// Frees this number of bytes: first from stalled sessions, and from those that hold most. Their policies apply.
    fn free_memory(&mut self, wanted: usize, now: Instant) {
        let mut holders: Vec<(bool, usize, Key)> = Vec::new();
        for key in self.clients.keys() {
            if let Some(Client::Established(client)) = self.clients.get_mut(key)
                && client.queued() > 0
            {
                holders.push((client.is_stalled(now), client.queued(), key));
                if client.take_wrote_early() {
                    self.mark(key);
                }
            }
        }
        holders.sort_unstable_by_key(|(stalled, queued, _)| std::cmp::Reverse((*stalled, *queued)));
        let mut left = wanted;
        for (_, _, key) in holders {
            if left == 0 {
                return;
            }
            let Some(Client::Established(client)) = self.clients.get_mut(key) else { continue };
            let freed = client.free_memory(left, &self.shared.config);
            left = left.saturating_sub(freed.bytes);
            if freed.cut {
                self.shared.logs.note(Cause::SlowConsumer, Instant::now(), || client.describe_cut());
            }
            self.mark(key);
        }
    }
}
