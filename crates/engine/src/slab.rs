//! Clients in slots: found without a hash. A key never finds a later client of the same slot.

/// A slot, and which of its successive clients is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    place: u32,
    turn: u32,
}

/// The bits of a token for the slot; the others contain the generation.
const PLACE_BITS: u32 = 32;

impl Key {
    /// Returns the key as a number that `mio` carries.
    pub(crate) fn to_token(self) -> usize {
        ((self.turn as usize) << PLACE_BITS | self.place as usize) & (usize::MAX >> 8)
    }

    pub(crate) fn from_token(token: usize) -> Self {
        Self { place: token as u32, turn: (token >> PLACE_BITS) as u32 }
    }
}

struct Entry<T> {
    /// Below 2^24, so that it fits into a token.
    turn: u32,
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
        if let Some(place) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(place as usize)
        {
            entry.value = Some(value);
            return Key { place, turn: entry.turn };
        }
        let place = self.entries.len() as u32;
        self.entries.push(Entry { turn: 0, value: Some(value) });
        Key { place, turn: 0 }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.place as usize)?;
        if entry.turn == key.turn { entry.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.place as usize)?;
        if entry.turn == key.turn { entry.value.as_mut() } else { None }
    }

    /// Replaces the value of a key.
    pub(crate) fn replace(&mut self, key: Key, value: T) {
        if let Some(there) = self.get_mut(key) {
            *there = value;
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.place as usize)?;
        if entry.turn != key.turn {
            return None;
        }
        let value = entry.value.take()?;
        entry.turn = (entry.turn + 1) & 0xff_ffff;
        self.free.push(key.place);
        self.len -= 1;
        Some(value)
    }

    /// Returns the keys of all values.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let of = |(place, entry): (usize, &Entry<T>)| {
            entry.value.as_ref().map(|_| Key { place: place as u32, turn: entry.turn })
        };
        self.entries.iter().enumerate().filter_map(of).collect()
    }
}
