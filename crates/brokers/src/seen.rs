//! A sliding window over the numbers of a publisher, which detects duplicates.

/// The size of the window. Brokers deliver a message once for each matching subscription, and the copies arrive within
/// the length of one batch. A number that is below the largest one by more than this is no copy: the largest one was
/// wrong.
const WINDOW: u64 = 1024;

const WORDS: usize = WINDOW as usize / 64;

/// The largest number received, and which numbers just below it were. Forged numbers count like others, so each of them
/// hides at most one genuine message.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenNumbers {
    last: u64,
    /// Bit `n % WINDOW` is set if the number `n` has arrived, for the last [`WINDOW`] numbers.
    bits: [u64; WORDS],
}

impl SeenNumbers {
    /// Returns a window in which one number has arrived.
    pub(crate) fn of(number: u64) -> Self {
        let mut seen = Self { last: number, ..Self::default() };
        seen.set(number, true);
        seen
    }

    /// Records a number. Returns whether it is new.
    pub(crate) fn record(&mut self, number: u64) -> bool {
        if number > self.last {
            if number - self.last >= WINDOW {
                self.bits = [0; WORDS];
            } else {
                (self.last + 1..number).for_each(|skipped| self.set(skipped, false));
            }
            self.last = number;
        } else if self.last - number >= WINDOW {
            *self = Self::of(number);
            return true;
        } else if self.has(number) {
            return false;
        }
        self.set(number, true);
        true
    }

    fn has(&self, number: u64) -> bool {
        let place = number % WINDOW;
        self.bits.get(place as usize / 64).is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    fn set(&mut self, number: u64, arrived: bool) {
        let place = number % WINDOW;
        if let Some(word) = self.bits.get_mut(place as usize / 64) {
            let bit = 1 << (place % 64);
            *word = if arrived { *word | bit } else { *word & !bit };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_new_once() {
        let mut seen = SeenNumbers::default();
        for number in [1, 2, 3, 70, 69, 1000, 1024, 1025, 1500, 1 << 40, (1 << 40) - 1023] {
            assert!(seen.record(number), "{number}");
            assert!(!seen.record(number), "{number}");
        }
    }

    #[test]
    fn skipped_numbers_may_still_arrive() {
        let mut seen = SeenNumbers::default();
        (1..=2000).for_each(|number| assert!(seen.record(number)));
        assert!(seen.record(3000));
        (2001..3000).for_each(|number| assert!(seen.record(number), "{number}"));
        (2001..=3000).for_each(|number| assert!(!seen.record(number), "{number}"));
    }

    #[test]
    fn far_too_large_number_is_forgotten() {
        let mut seen = SeenNumbers::default();
        assert!(seen.record(5));
        assert!(seen.record(u64::MAX));
        assert!(seen.record(6) && seen.record(7) && !seen.record(6));
    }
}
