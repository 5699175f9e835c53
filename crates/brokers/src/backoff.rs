//! The pauses between attempts to connect, and to subscribe after a denial: exponential backoff with jitter.

use std::time::Duration;

/// Short enough to be unnoticed when a server restarts, and long enough not to disturb a server that is starting.
const FIRST: Duration = Duration::from_millis(50);

/// The longest time until a broker that returns after hours is found.
const LONGEST: Duration = Duration::from_secs(5);

/// Operators seldom grant a permission sooner.
const FIRST_PERMISSION: Duration = Duration::from_secs(1);

/// The longest time that a newly granted permission stays unused.
pub(crate) const LONGEST_PERMISSION: Duration = Duration::from_secs(30);

/// Returns the pause before an attempt to connect; the first attempt is number 0.
pub(crate) fn delay(attempt: u32) -> Duration {
    between(FIRST, LONGEST, attempt)
}

/// Returns the pause before an attempt to subscribe again to a denied pattern.
pub(crate) fn permission(attempt: u32) -> Duration {
    between(FIRST_PERMISSION, LONGEST_PERMISSION, attempt)
}

/// Returns a random duration between half of the exponential delay and all of it.
fn between(first: Duration, longest: Duration, attempt: u32) -> Duration {
    let full = first.saturating_mul(1 << attempt.min(10)).min(longest);
    let mut byte = [0x80];
    let _ = getrandom::fill(&mut byte); // without randomness, the middle of the range is used
    full / 2 + full.mul_f64(f64::from(byte[0]) / 512.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_grows_up_to_its_limit() {
        for attempt in 0..100 {
            let full = FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST);
            let delay = delay(attempt);
            assert!(delay >= full / 2 && delay <= full, "{attempt}: {delay:?}");
        }
    }
}
