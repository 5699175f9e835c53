//! Denied subscriptions: each denial is reported once, and the subscription is retried later.

use std::sync::atomic::Ordering;

use wirespeed_engine::broker::Notice;
use wirespeed_engine::lock as locked;
use wirespeed_engine::topics::Pattern;

use super::Shared;
use crate::tracker::{ALL, DeliveryTracker};

impl Shared {
    /// Records that the broker denies a pattern. `reason` is its answer, or `None` if it has no such subscriptions. The
    /// pattern is retried later, by the next connection, and when a session subscribes to it anew.
    pub(crate) fn deny(&self, tracker: &mut DeliveryTracker, pattern: &Pattern, reason: Option<&str>) {
        tracker.unfollow(pattern);
        let news = locked(&self.subscriptions).deny(pattern, reason.is_none());
        match reason {
            None if news => self.notify(Notice::Unsupported(pattern.clone())),
            Some(reason) if news => self.report_denial(pattern, reason),
            _ => {}
        }
        self.subscription_denied.notify_one();
    }

    /// Records that the broker denies the subject of broadcasts.
    pub(crate) fn deny_broadcasts(&self, reason: &str) {
        if let Ok(pattern) = Pattern::new(ALL) {
            self.deny_reserved(pattern, reason);
        }
    }

    /// Records that the broker denies an internal subject, to which no session subscribes.
    pub(crate) fn deny_reserved(&self, pattern: Pattern, reason: &str) {
        let news = locked(&self.reserved).insert(pattern.clone(), true).is_none();
        if news {
            self.report_denial(&pattern, reason);
        }
        self.subscription_denied.notify_one();
    }

    /// Takes the denied internal subjects that have to be retried.
    pub(crate) fn take_reserved(&self) -> Vec<Pattern> {
        if !self.retry_reserved.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        let mut reserved = locked(&self.reserved);
        let denied =
            reserved.iter_mut().filter_map(|(pattern, denied)| std::mem::take(denied).then_some(pattern.clone()));
        denied.collect()
    }

    /// Forgets internal subjects that were retried and not denied again: the next denial is reported.
    pub(crate) fn clear_allowed_reserved(&self) {
        locked(&self.reserved).retain(|_, denied| *denied);
    }

    /// Forgets all denials of internal subjects: a new connection reports each denial.
    pub(crate) fn forget_reserved(&self) {
        locked(&self.reserved).clear();
    }

    /// Reports a denial to the application, and shows it in the status.
    pub(crate) fn report_denial(&self, pattern: &Pattern, reason: &str) {
        let reason = self.address.redact(reason);
        locked(&self.notices).denial = Some(reason.clone());
        self.notify(Notice::Denied { pattern: pattern.clone(), reason });
    }

    /// Schedules denied subscriptions for a retry, without reporting a second denial. Returns whether there are any.
    pub(super) fn retry_denied(&self) -> bool {
        let reserved = locked(&self.reserved).values().any(|denied| *denied);
        if reserved {
            self.retry_reserved.store(true, Ordering::Relaxed);
        }
        let again = locked(&self.subscriptions).retry_denied() || reserved;
        if again {
            self.subscriptions_changed.notify_one();
        }
        again
    }
}
