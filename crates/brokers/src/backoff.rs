//! How long to wait before the next attempt to connect, or to subscribe after a denial: longer each time, with jitter.

use std::time::Duration;

/// Short enough to be unnoticed when a server restarts, long enough not to keep one that is coming up from it.
const FIRST: Duration = Duration::from_millis(50);

/// A broker that was down for hours is found again so soon.
const LONGEST: Duration = Duration::from_secs(5);

/// Operators seldom grant a permission sooner.
const FIRST_PERMISSION: Duration = Duration::from_secs(1);

/// The longest time that a permission which was granted later stays unused.
pub(crate) const LONGEST_PERMISSION: Duration = Duration::from_secs(30);

/// The pause before an attempt to connect; the first has the number 0.
pub(crate) fn delay(attempt: u32) -> Duration {
    between(FIRST, LONGEST, attempt)
}

/// The pause before an attempt to subscribe to what was denied.
pub(crate) fn permission(attempt: u32) -> Duration {
    between(FIRST_PERMISSION, LONGEST_PERMISSION, attempt)
}

/// Between half of the exponential and all of it.
fn between(first: Duration, longest: Duration, attempt: u32) -> Duration {
    let full = first.saturating_mul(1 << attempt.min(10)).min(longest);
    let mut byte = [0x80];
    let _ = getrandom::fill(&mut byte); // the middle will do
    full / 2 + full.mul_f64(f64::from(byte[0]) / 512.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_each_time_up_to_a_bound() {
        for attempt in 0..100 {
            let full = FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST);
            let delay = delay(attempt);
            assert!(delay >= full / 2 && delay <= full, "{attempt}: {delay:?}");
        }
    }
}
