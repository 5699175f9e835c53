//! Which of the last numbers of a publisher have arrived.

/// Brokers deliver a message once for each matching subscription, and these copies arrive within one parcel's length of each
/// other. A number that is smaller than the largest one by more than this is not a copy: the largest one was wrong.
const AGAIN: u64 = 1024;

const WORDS: usize = AGAIN as usize / 64;

/// The largest number that has arrived, and which of the numbers just below it have. Forged numbers count as others do, so
/// each of them hides one genuine message at most.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    last: u64,
    /// Bit `n % AGAIN` is set if the number `n` has arrived, for the last [`AGAIN`] numbers.
    bits: [u64; WORDS],
}

impl Seen {
    /// One number has arrived.
    pub(crate) fn of(number: u64) -> Self {
        let mut seen = Self { last: number, ..Self::default() };
        seen.set(number, true);
        seen
    }

    /// Notes that a number has arrived; whether it had not before.
    pub(crate) fn note(&mut self, number: u64) -> bool {
        if number > self.last {
            if number - self.last >= AGAIN {
                self.bits = [0; WORDS];
            } else {
                (self.last + 1..number).for_each(|skipped| self.set(skipped, false));
            }
            self.last = number;
        } else if self.last - number >= AGAIN {
            *self = Self::of(number);
            return true;
        } else if self.has(number) {
            return false;
        }
        self.set(number, true);
        true
    }

    fn has(&self, number: u64) -> bool {
        let place = number % AGAIN;
        self.bits.get(place as usize / 64).is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    fn set(&mut self, number: u64, arrived: bool) {
        let place = number % AGAIN;
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
    fn a_number_arrives_once() {
        let mut seen = Seen::default();
        for number in [1, 2, 3, 70, 69, 1000, 1024, 1025, 1500, 1 << 40, (1 << 40) - 1023] {
            assert!(seen.note(number), "{number}");
            assert!(!seen.note(number), "{number}");
        }
    }

    #[test]
    fn numbers_that_were_skipped_may_still_arrive() {
        let mut seen = Seen::default();
        (1..=2000).for_each(|number| assert!(seen.note(number)));
        assert!(seen.note(3000));
        (2001..3000).for_each(|number| assert!(seen.note(number), "{number}"));
        (2001..=3000).for_each(|number| assert!(!seen.note(number), "{number}"));
    }

    #[test]
    fn a_number_that_is_far_too_large_is_forgotten() {
        let mut seen = Seen::default();
        assert!(seen.note(5));
        assert!(seen.note(u64::MAX));
        assert!(seen.note(6) && seen.note(7) && !seen.note(6));
    }
}
