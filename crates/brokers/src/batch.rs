//! Packs several messages into one message of the broker, whose overhead far exceeds that of small messages.
//!
//! Consecutive queued messages to the same destination are packed together; a single message is sent unchanged, at
//! once. Packing never delays a message, and preserves order and numbers.

use bytes::Bytes;

use crate::envelope;
use crate::queue::{Destination, Item};

/// Marks a packed batch: no UTF-8 text and no single envelope begins with these bytes.
const MAGIC: [u8; 4] = [0xff, b'W', b'S', 2];

/// The size of the length before each packed message, in bytes.
const LENGTH: usize = 4;

/// The largest packed batch, in bytes: larger ones would hardly reduce the cost.
pub(crate) const MAX_BATCH_BYTES: usize = 32 * 1024;

/// One message for the broker, which holds one or more of ours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) to: Destination,
    pub(crate) bytes: Bytes,
    /// The number of packed messages.
    pub(crate) count: u64,
}

/// Packs messages in their order. No batch of several messages is larger than `max_bytes` bytes.
pub(crate) fn pack(items: Vec<Item>, max_bytes: usize) -> impl Iterator<Item = Batch> {
    let mut items = items.into_iter().peekable();
    std::iter::from_fn(move || {
        let Item { to, bytes } = items.next()?;
        let mut size = MAGIC.len() + LENGTH + bytes.len();
        let mut more = Vec::new();
        while let Some(next) = items.next_if(|next| next.to == to && size + LENGTH + next.bytes.len() <= max_bytes) {
            size += LENGTH + next.bytes.len();
            more.push(next.bytes);
        }
        if more.is_empty() {
            return Some(Batch { to, bytes, count: 1 });
        }
        let mut packed = Vec::with_capacity(size);
        packed.extend_from_slice(&MAGIC);
        for bytes in std::iter::once(&bytes).chain(&more) {
            packed.extend_from_slice(&(bytes.len() as u32).to_be_bytes()); // it is at most `max_bytes`
            packed.extend_from_slice(bytes);
        }
        Some(Batch { to, bytes: packed.into(), count: 1 + more.len() as u64 })
    })
}

/// Splits a received batch into messages for [`envelope::open`]. A truncated message yields one that `open` refuses.
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

/// Returns the first message of a batch.
pub(crate) fn first(bytes: &[u8]) -> &[u8] {
    unpack(bytes).next().unwrap_or(envelope::NONE)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use wirespeed_engine::topics::Topic;

    use super::*;

    fn item(name: &str, bytes: &'static [u8]) -> Item {
        Item { to: Destination::Topic(Topic::new(name).unwrap()), bytes: Bytes::from_static(bytes) }
    }

    fn packed(items: Vec<Item>, max_bytes: usize) -> Vec<Batch> {
        let batches: Vec<Batch> = pack(items.clone(), max_bytes).collect();
        let found: Vec<Item> = batches
            .iter()
            .flat_map(|batch| {
                let messages = unpack(&batch.bytes).map(Bytes::copy_from_slice);
                messages.map(|bytes| Item { to: batch.to.clone(), bytes })
            })
            .collect();
        assert_eq!(found, items);
        batches
    }

    #[test]
    fn single_message_is_sent_unchanged() {
        let batches = packed(vec![item("a", b"one"), item("b", b""), item("a", b"two")], MAX_BATCH_BYTES);
        assert_eq!(batches.iter().map(|batch| batch.count).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(batches[0].bytes, "one");
    }

    #[test]
    fn consecutive_messages_to_one_topic_are_packed_up_to_the_limit() {
        let items = vec![item("a", b"one"), item("a", b""), item("a", b"three"), item("b", b"x"), item("a", b"y")];
        let counts = |max_bytes| packed(items.clone(), max_bytes).iter().map(|batch| batch.count).collect::<Vec<_>>();
        assert_eq!(counts(MAX_BATCH_BYTES), [3, 1, 1]);
        assert_eq!(counts(4 + 3 * 4 + 8), [3, 1, 1]);
        assert_eq!(counts(4 + 3 * 4 + 7), [2, 1, 1, 1]);
        assert_eq!(counts(0), [1, 1, 1, 1, 1]);
        assert!(packed(items.clone(), 30).iter().all(|batch| batch.bytes.len() <= 30));
    }

    #[test]
    fn truncated_message_is_invalid() {
        let batches = packed(vec![item("a", b"one"), item("a", b"two")], MAX_BATCH_BYTES);
        for end in MAGIC.len() + 1..batches[0].bytes.len() {
            let found: Vec<&[u8]> = unpack(&batches[0].bytes[..end]).collect();
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
