//! Subscriptions that a broker denies: each denial is reported once, and the broker is asked again later.

use std::sync::atomic::Ordering;

use wirespeed_engine::broker::Notice;
use wirespeed_engine::lock as locked;
use wirespeed_engine::topics::Pattern;

use super::Shared;
use crate::tracker::{ALL, DeliveryTracker};

impl Shared {
    /// The broker denies a pattern. `reason`: its answer; `None`: it has no such subscriptions. It is asked again later, by the
    /// next connection, and when something wants the pattern anew.
    pub(crate) fn deny(&self, tracker: &mut DeliveryTracker, pattern: &Pattern, reason: Option<&str>) {
        tracker.leave(pattern);
        let news = locked(&self.subscriptions).deny(pattern, reason.is_none());
        match reason {
            None if news => self.notify(Notice::Unsupported(pattern.clone())),
            Some(reason) if news => self.tell_denied(pattern, reason),
            _ => {}
        }
        self.denied.notify_one();
    }

    /// The broker denies broadcasts.
    pub(crate) fn deny_all(&self, reason: &str) {
        if let Ok(pattern) = Pattern::new(ALL) {
            self.deny_reserved(pattern, reason);
        }
    }

    /// The broker denies a subject that nodes need themselves, and which no session wants.
    pub(crate) fn deny_reserved(&self, pattern: Pattern, reason: &str) {
        let news = locked(&self.reserved).insert(pattern.clone(), true).is_none();
        if news {
            self.tell_denied(&pattern, reason);
        }
        self.denied.notify_one();
    }

    /// The denied internal subjects that are to be asked for again.
    pub(crate) fn take_reserved(&self) -> Vec<Pattern> {
        if !self.reserved_again.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        let mut reserved = locked(&self.reserved);
        let denied =
            reserved.iter_mut().filter_map(|(pattern, denied)| std::mem::take(denied).then_some(pattern.clone()));
        denied.collect()
    }

    /// The broker allows what was asked for again and not denied again: the next denial is news.
    pub(crate) fn forgive_reserved(&self) {
        locked(&self.reserved).retain(|_, denied| *denied);
    }

    /// A new connection asks for all internal subjects: each denial is news.
    pub(crate) fn forget_reserved(&self) {
        locked(&self.reserved).clear();
    }

    /// Reports a denial to the application, and shows it in the status.
    pub(crate) fn tell_denied(&self, pattern: &Pattern, reason: &str) {
        let reason = self.address.redact(reason);
        locked(&self.notices).denial = Some(reason.clone());
        self.notify(Notice::Denied { pattern: pattern.clone(), reason });
    }

    /// Has denied subscriptions asked for again, without reporting a second denial; whether there are any.
    pub(super) fn ask_denied_again(&self) -> bool {
        let reserved = locked(&self.reserved).values().any(|denied| *denied);
        if reserved {
            self.reserved_again.store(true, Ordering::Relaxed);
        }
        let again = locked(&self.subscriptions).ask_denied_again() || reserved;
        if again {
            self.wanted.notify_one();
        }
        again
    }
}
