//! The envelope of a message on its way over a broker: its publisher, its place among the messages of that publisher,
//! its kind and its key.
//!
//! Messages without an envelope come from other programs, such as the command-line tools of brokers. They are text if
//! they are UTF-8, or else binary.

use wirespeed_engine::driver::protocol::MessageKind;

/// Identifies a node, which is an engine or publisher at a broker: random, drawn when it starts.
pub(crate) type NodeId = [u8; 16];

/// Marks an envelope: no UTF-8 text begins with these bytes. The last byte is the version.
const MAGIC: [u8; 4] = [0xff, b'W', b'S', 1];

const BINARY: u8 = 1;
const KEYED: u8 = 2;

/// The number of bytes before the key.
pub(crate) const HEADER: usize = 4 + 1 + 16 + 8 + 4 + 8;

/// An envelope that [`open`] refuses.
pub(crate) const NONE: &[u8] = &MAGIC;

/// The longest key, in bytes: longer keys are omitted, and so is their effect.
const KEY_MAX: usize = u16::MAX as usize;

/// The place of a message among the messages of its publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its number among all messages, from 1.
    pub(crate) overall: u64,
    /// Numbers on topics can be compared only within one epoch.
    pub(crate) epoch: u32,
    /// Its number among the messages on its topic, from 1.
    pub(crate) on_topic: u64,
}

/// The publisher of a message, and the message's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) node: NodeId,
    pub(crate) place: Place,
}

/// An unwrapped message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened<'a> {
    /// `None`: the message comes from another program.
    pub(crate) origin: Option<Origin>,
    pub(crate) kind: MessageKind,
    pub(crate) key: Option<&'a str>,
    pub(crate) payload: &'a [u8],
}

/// Wraps a message in an envelope.
pub(crate) fn seal(origin: Origin, kind: MessageKind, key: Option<&str>, payload: &[u8]) -> Vec<u8> {
    let key = key.filter(|key| key.len() <= KEY_MAX);
    let mut out = Vec::with_capacity(HEADER + key.map_or(0, |key| key.len() + 2) + payload.len());
    let binary = if kind == MessageKind::Binary { BINARY } else { 0 };
    out.extend_from_slice(&MAGIC);
    out.push(binary | if key.is_some() { KEYED } else { 0 });
    out.extend_from_slice(&origin.node);
    out.extend_from_slice(&origin.place.overall.to_be_bytes());
    out.extend_from_slice(&origin.place.epoch.to_be_bytes());
    out.extend_from_slice(&origin.place.on_topic.to_be_bytes());
    if let Some(key) = key {
        out.extend_from_slice(&(key.len() as u16).to_be_bytes());
        out.extend_from_slice(key.as_bytes());
    }
    out.extend_from_slice(payload);
    out
}

/// Unwraps a message. Returns `None` if it begins like an envelope, but is malformed.
pub(crate) fn open(bytes: &[u8]) -> Option<Opened<'_>> {
    let Some(rest) = bytes.strip_prefix(&MAGIC) else {
        let kind = if std::str::from_utf8(bytes).is_ok() { MessageKind::Text } else { MessageKind::Binary };
        return Some(Opened { origin: None, kind, key: None, payload: bytes });
    };
    let (flags, rest) = take::<1>(rest)?;
    let (node, rest) = take::<16>(rest)?;
    let (overall, rest) = take::<8>(rest)?;
    let (epoch, rest) = take::<4>(rest)?;
    let (on_topic, mut payload) = take::<8>(rest)?;
    let mut key = None;
    if flags[0] & KEYED != 0 {
        let (len, rest) = take::<2>(payload)?;
        let (bytes, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(len)))?;
        key = Some(std::str::from_utf8(bytes).ok()?);
        payload = rest;
    }
    let place = Place {
        overall: u64::from_be_bytes(overall),
        epoch: u32::from_be_bytes(epoch),
        on_topic: u64::from_be_bytes(on_topic),
    };
    let kind = if flags[0] & BINARY != 0 { MessageKind::Binary } else { MessageKind::Text };
    Some(Opened { origin: Some(Origin { node, place }), kind, key, payload })
}

fn take<const N: usize>(bytes: &[u8]) -> Option<([u8; N], &[u8])> {
    bytes.split_first_chunk().map(|(first, rest)| (*first, rest))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PLACE: Place = Place { overall: 7, epoch: 3, on_topic: 5 };

    #[test]
    fn sealed_message_is_opened_unchanged() {
        let origin = Origin { node: [9; 16], place: PLACE };
        for (kind, key, payload) in [
            (MessageKind::Text, None, "text".as_bytes()),
            (MessageKind::Binary, Some("key"), &[0xff, 0]),
            (MessageKind::Text, Some(""), b""),
        ] {
            let sealed = seal(origin, kind, key, payload);
            assert_eq!(open(&sealed), Some(Opened { origin: Some(origin), kind, key, payload }));
        }
    }

    #[test]
    fn message_of_another_program_is_its_own_payload() {
        let text = open(b"hello").unwrap();
        assert_eq!((text.origin, text.kind, text.payload), (None, MessageKind::Text, &b"hello"[..]));
        assert_eq!(open(b"\xff\xfe").unwrap().kind, MessageKind::Binary);
        assert_eq!(open(b"").unwrap().kind, MessageKind::Text);
    }

    #[test]
    fn truncated_envelope_is_invalid() {
        let sealed = seal(Origin { node: [1; 16], place: PLACE }, MessageKind::Text, Some("key"), b"");
        for end in MAGIC.len()..sealed.len() {
            assert_eq!(open(&sealed[..end]), None, "{end}");
        }
    }

    #[test]
    fn too_long_key_is_omitted() {
        let key = "x".repeat(KEY_MAX + 1);
        let sealed = seal(Origin { node: [1; 16], place: PLACE }, MessageKind::Text, Some(&key), b"rest");
        let opened = open(&sealed).unwrap();
        assert_eq!((opened.key, opened.payload), (None, &b"rest"[..]));
    }
}
