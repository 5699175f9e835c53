//! How long to wait before a connection is tried again: longer each time, and not as long as others do.

use std::time::Duration;

/// Short enough to be unnoticed when a server restarts, long enough not to keep one that is coming up from it.
const FIRST: Duration = Duration::from_millis(50);

/// A broker that was down for hours is found again so soon.
const LONGEST: Duration = Duration::from_secs(5);

/// Before the attempt of this number, from 0: between half of the exponential and all of it.
pub(crate) fn delay(attempt: u32) -> Duration {
    let full = FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST);
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
