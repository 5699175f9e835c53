//! Several messages as one of the broker's: what one costs there, and on its way, is far more than what is in it.
//!
//! Messages that wait one after the other and are for the same are put together; one that is alone goes as it is, at
//! once. Nobody waits for others to go with. Order and numbers are those of the messages.

use bytes::Bytes;

use crate::envelope;
use crate::queue::{Item, To};

/// No UTF-8 begins so, and no message of a node.
const MAGIC: [u8; 4] = [0xff, b'W', b'S', 2];

/// Bytes before each of the messages: its length.
const LENGTH: usize = 4;

/// Bytes of one with several messages, at most: more would not make them much cheaper.
pub(crate) const MOST: usize = 32 * 1024;

/// What is sent at once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) to: To,
    pub(crate) bytes: Bytes,
    /// Messages in it.
    pub(crate) count: u64,
}

/// Puts messages together, in their order, none with several larger than `most`.
pub(crate) fn pack(items: Vec<Item>, most: usize) -> impl Iterator<Item = Batch> {
    let mut items = items.into_iter().peekable();
    std::iter::from_fn(move || {
        let Item { to, bytes } = items.next()?;
        let mut size = MAGIC.len() + LENGTH + bytes.len();
        let mut more = Vec::new();
        while let Some(next) = items.next_if(|next| next.to == to && size + LENGTH + next.bytes.len() <= most) {
            size += LENGTH + next.bytes.len();
            more.push(next.bytes);
        }
        if more.is_empty() {
            return Some(Batch { to, bytes, count: 1 });
        }
        let mut packed = Vec::with_capacity(size);
        packed.extend_from_slice(&MAGIC);
        for bytes in std::iter::once(&bytes).chain(&more) {
            packed.extend_from_slice(&(bytes.len() as u32).to_be_bytes()); // less than `most`
            packed.extend_from_slice(bytes);
        }
        Some(Batch { to, bytes: packed.into(), count: 1 + more.len() as u64 })
    })
}

/// The messages in what came, each as [`envelope::open`] takes it; what is cut off is none there.
pub(crate) fn unpack(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut alone, mut rest) = match bytes.strip_prefix(&MAGIC) {
        Some(rest) => (None, rest),
        None => (Some(bytes), &[][..]),
    };
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return alone.take();
        }
        let next = rest
            .split_first_chunk::<LENGTH>()
            .and_then(|(length, after)| after.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?));
        let (message, after) = next.unwrap_or((envelope::NONE, &[]));
        rest = after;
        Some(message)
    })
}

/// The first of them.
pub(crate) fn first(bytes: &[u8]) -> &[u8] {
    unpack(bytes).next().unwrap_or(envelope::NONE)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use wirespeed_engine::topics::Topic;

    use super::*;

    fn item(name: &str, bytes: &'static [u8]) -> Item {
        Item { to: To::Topic(Topic::new(name).unwrap()), bytes: Bytes::from_static(bytes) }
    }

    fn packed(items: Vec<Item>, most: usize) -> Vec<Batch> {
        let parcels: Vec<Batch> = pack(items.clone(), most).collect();
        let found: Vec<Item> = parcels
            .iter()
            .flat_map(|parcel| {
                let messages = unpack(&parcel.bytes).map(Bytes::copy_from_slice);
                messages.map(|bytes| Item { to: parcel.to.clone(), bytes })
            })
            .collect();
        assert_eq!(found, items);
        parcels
    }

    #[test]
    fn one_that_is_alone_goes_as_it_is() {
        let parcels = packed(vec![item("a", b"one"), item("b", b""), item("a", b"two")], MOST);
        assert_eq!(parcels.iter().map(|parcel| parcel.count).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(parcels[0].bytes, "one");
    }

    #[test]
    fn those_for_the_same_go_together_as_far_as_there_is_room() {
        let items = vec![item("a", b"one"), item("a", b""), item("a", b"three"), item("b", b"x"), item("a", b"y")];
        let counts = |most| packed(items.clone(), most).iter().map(|parcel| parcel.count).collect::<Vec<_>>();
        assert_eq!(counts(MOST), [3, 1, 1]);
        assert_eq!(counts(4 + 3 * 4 + 8), [3, 1, 1]);
        assert_eq!(counts(4 + 3 * 4 + 7), [2, 1, 1, 1]);
        assert_eq!(counts(0), [1, 1, 1, 1, 1]);
        assert!(packed(items.clone(), 30).iter().all(|parcel| parcel.bytes.len() <= 30));
    }

    #[test]
    fn what_is_cut_off_is_none() {
        let parcels = packed(vec![item("a", b"one"), item("a", b"two")], MOST);
        for end in MAGIC.len() + 1..parcels[0].bytes.len() {
            let found: Vec<&[u8]> = unpack(&parcels[0].bytes[..end]).collect();
            let whole = (end - MAGIC.len()) / (LENGTH + 3);
            assert_eq!(
                found.iter().filter(|one| envelope::open(one).is_none()).count(),
                usize::from(whole * 7 + 4 != end)
            );
            assert_eq!(found.iter().filter(|one| envelope::open(one).is_some()).count(), whole);
        }
        assert_eq!(first(&MAGIC), envelope::NONE);
    }
}
