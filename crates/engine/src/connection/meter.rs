//! The message rate of a session, and what happens above it.
//!
//! There is a token bucket for messages and one for their bytes, each as large as its burst. A message larger than a
//! full bucket takes all of it, and the rest from what flows in later.

use std::time::{Duration, Instant};

use crate::config::{Inbound, Rate, RatePolicy};
use crate::util::timer_wheel::TICK;

/// The decision about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Drop,
    Disconnect,
}

struct Bucket {
    per_second: f64,
    burst: f64,
    /// Negative: taken in advance.
    level: f64,
}

impl Bucket {
    fn new(rate: Rate, policy: RatePolicy) -> Self {
        // The timer has a resolution of one tick: messages of two ticks must fit.
        let least = if policy == RatePolicy::Delay { rate.per_second() * 2.0 * TICK.as_secs_f64() } else { 0.0 };
        let burst = rate.burst().max(least);
        Self { per_second: rate.per_second(), burst, level: burst }
    }

    fn fill(&mut self, passed: Duration) {
        self.level = (self.level + passed.as_secs_f64() * self.per_second).min(self.burst);
    }

    fn has(&self, amount: f64) -> bool {
        self.level >= amount.min(self.burst)
    }

    /// Returns the time until the bucket contains this amount.
    fn wait(&self, amount: f64) -> Duration {
        let seconds = ((amount.min(self.burst) - self.level) / self.per_second).max(0.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(ONE_YEAR).min(ONE_YEAR)
    }
}

/// One year, for longer times.
const ONE_YEAR: Duration = Duration::from_secs(365 * 86_400);

/// The recent messages of one session.
pub(crate) struct Meter {
    messages: Option<Bucket>,
    bytes: Option<Bucket>,
    policy: RatePolicy,
    /// When the buckets were filled last.
    filled: Instant,
    /// Nothing is read until then.
    paused: Option<Instant>,
    /// The rate was exceeded, and the session is being closed.
    exceeded: bool,
    /// The session is closing, and read until its close frame: messages above the rate are dropped.
    released: bool,
}

impl Meter {
    /// Returns `None` if nothing is limited.
    pub(crate) fn new(inbound: &Inbound, now: Instant) -> Option<Box<Self>> {
        if inbound.messages.is_none() && inbound.bytes.is_none() {
            return None;
        }
        let bucket = |rate: Option<Rate>| rate.map(|rate| Bucket::new(rate, inbound.policy));
        let (messages, bytes) = (bucket(inbound.messages), bucket(inbound.bytes));
        Some(Box::new(Self {
            messages,
            bytes,
            policy: inbound.policy,
            filled: now,
            paused: None,
            exceeded: false,
            released: false,
        }))
    }

    /// Counts a message of `len` bytes, and decides about it.
    pub(crate) fn take(&mut self, len: usize, now: Instant) -> Verdict {
        let len = len as f64;
        let passed = now.saturating_duration_since(self.filled);
        self.filled = now;
        let amounts = [(&mut self.messages, 1.0), (&mut self.bytes, len)];
        let mut buckets = amounts.map(|(bucket, amount)| bucket.as_mut().map(|bucket| (bucket, amount)));
        buckets.iter_mut().flatten().for_each(|(bucket, _)| bucket.fill(passed));
        let fits = buckets.iter().flatten().all(|(bucket, amount)| bucket.has(*amount));
        match self.policy {
            RatePolicy::Drop if !fits => return Verdict::Drop,
            RatePolicy::Disconnect if !fits || self.exceeded => {
                return if std::mem::replace(&mut self.exceeded, true) { Verdict::Drop } else { Verdict::Disconnect };
            }
            _ => {}
        }
        for (bucket, amount) in buckets.iter_mut().flatten() {
            bucket.level -= *amount;
        }
        if self.policy == RatePolicy::Delay {
            // The size of the next message is unknown: one byte at least.
            let wait = buckets.iter().flatten().map(|(bucket, _)| bucket.wait(1.0)).max().unwrap_or_default();
            self.paused = (!wait.is_zero()).then(|| now + wait);
        }
        Verdict::Pass
    }

    /// Resumes reading before the time, because the session is closing. Returns true once.
    pub(crate) fn release(&mut self) -> bool {
        self.paused.is_some() && !std::mem::replace(&mut self.released, true)
    }

    /// Returns whether [`Self::release`] was called.
    pub(crate) fn is_released(&self) -> bool {
        self.released
    }

    /// Returns until when nothing is read.
    pub(crate) fn paused(&self) -> Option<Instant> {
        self.paused
    }

    /// Resumes reading.
    pub(crate) fn resume(&mut self) {
        self.paused = None;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;

    fn meter(messages: Option<Rate>, bytes: Option<Rate>, policy: RatePolicy) -> (Meter, Instant) {
        let now = Instant::now();
        (*Meter::new(&Inbound { messages, bytes, policy }, now).unwrap(), now)
    }

    #[test]
    fn no_limit_needs_no_meter() {
        assert!(Meter::new(&Inbound::default(), Instant::now()).is_none());
    }

    #[test]
    fn burst_passes_and_then_the_rate() {
        let (mut meter, start) = meter(Rate::new(10.0, Some(5.0)), None, RatePolicy::Drop);
        let mut passed = 0;
        // 100 a second for ten seconds.
        for step in 0..1000 {
            let verdict = meter.take(1, start + Duration::from_millis(10 * step));
            passed += u32::from(verdict == Verdict::Pass);
            assert!(step >= 5 || verdict == Verdict::Pass);
        }
        assert!((104..=105).contains(&passed), "{passed}");
    }

    #[test]
    fn delays_add_up_to_the_rate() {
        for (messages, bytes, len, expected) in [
            (Rate::new(50.0, None), None, 1, 5.0),
            (None, Rate::new(1000.0, None), 100, 29.0),
            // Larger than the burst, and passed nevertheless.
            (None, Rate::new(1000.0, Some(10.0)), 100, 29.8),
            (Rate::new(50.0, None), Rate::new(1e9, None), 100, 5.0),
            (None, Rate::new(1000.0, None), 0, 0.0),
        ] {
            let (mut meter, start) = meter(messages, bytes, RatePolicy::Delay);
            let mut now = start;
            for _ in 0..300 {
                assert_eq!(meter.take(len, now), Verdict::Pass);
                if let Some(until) = meter.paused() {
                    assert!(until > now);
                    now = until;
                    meter.resume();
                }
            }
            let took = (now - start).as_secs_f64();
            assert!((took - expected).abs() < 0.2, "{messages:?} {bytes:?}: {took}");
        }
    }

    #[test]
    fn first_message_above_the_rate_disconnects() {
        let (mut meter, now) = meter(Rate::new(1.0, Some(2.0)), None, RatePolicy::Disconnect);
        assert_eq!([0; 5].map(|len| meter.take(len, now)), {
            use Verdict::{Disconnect, Drop, Pass};
            [Pass, Pass, Disconnect, Drop, Drop]
        });
        assert_eq!(meter.take(0, now + Duration::from_secs(60)), Verdict::Drop);
    }
}
