//! Clients in slots: found without a hash. A key never finds a later client of the same slot.

/// A slot, and which of its successive clients is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    slot: u32,
    generation: u32,
}

/// The bits of a token for the slot; the others contain the generation.
const SLOT_BITS: u32 = 32;

impl Key {
    /// Returns the key as a number that `mio` carries.
    pub(crate) fn to_token(self) -> usize {
        ((self.generation as usize) << SLOT_BITS | self.slot as usize) & (usize::MAX >> 8)
    }

    pub(crate) fn from_token(token: usize) -> Self {
        Self { slot: token as u32, generation: (token >> SLOT_BITS) as u32 }
    }
}

struct Entry<T> {
    /// Below 2^24, so that it fits into a token.
    generation: u32,
    value: Option<T>,
}

/// Values in slots that are reused.
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.len += 1;
        if let Some(slot) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(slot as usize)
        {
            entry.value = Some(value);
            return Key { slot, generation: entry.generation };
        }
        let slot = self.entries.len() as u32;
        self.entries.push(Entry { generation: 0, value: Some(value) });
        Key { slot, generation: 0 }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.slot as usize)?;
        if entry.generation == key.generation { entry.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.slot as usize)?;
        if entry.generation == key.generation { entry.value.as_mut() } else { None }
    }

    /// Replaces the value of a key.
    pub(crate) fn replace(&mut self, key: Key, value: T) {
        if let Some(there) = self.get_mut(key) {
            *there = value;
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.slot as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = (entry.generation + 1) & 0xff_ffff;
        self.free.push(key.slot);
        self.len -= 1;
        Some(value)
    }

    /// Returns the keys of all values.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let of = |(slot, entry): (usize, &Entry<T>)| {
            entry.value.as_ref().map(|_| Key { slot: slot as u32, generation: entry.generation })
        };
        self.entries.iter().enumerate().filter_map(of).collect()
    }
}
