//! What the messages hold: a number, and the same rest in all of them, in one of three forms.
//!
//! A server that reads a message and writes it again comes to the same bytes: keys are sorted, the JSON has
//! no white space, the MessagePack has integers and lengths in their shortest form. So replies are compared
//! with what was sent, byte for byte.

use std::ops::Range;

use clap::ValueEnum;
use serde_json::{Value, json};
use wirespeed_driver::protocol::MessageKind;

/// The form of messages. The smallest document has some 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// A number in 8 bytes, little-endian, then a pattern
    Binary,
    /// A number of 16 digits in a text message, then words. No JSON
    Text,
    /// A document in a text message
    Json,
    /// The same in a binary message
    JsonBytes,
    /// A map in a binary message
    #[value(name = "msgpack")]
    MessagePack,
}

impl Form {
    /// Of all messages.
    pub(crate) fn kind(self) -> MessageKind {
        match self {
            Self::Text | Self::Json => MessageKind::Text,
            Self::Binary | Self::JsonBytes | Self::MessagePack => MessageKind::Binary,
        }
    }
}

/// Added to the numbers in documents, so that all have as many digits: 16, which every reader of JSON takes
/// for an integer.
const FIRST: u64 = 1_000_000_000_000_000;

/// How many those are.
const DIGITS: usize = 16;

/// What the text in documents repeats.
const WORDS: &str = "the quick brown fox jumps over the lazy dog, ";

/// The messages of a run: one that is written again and again with another number.
pub(crate) struct Content {
    form: Form,
    bytes: Vec<u8>,
    /// Where the number begins, and ends.
    number: Range<usize>,
}

impl Content {
    /// Messages of `size` bytes; of more, if a document needs more.
    pub(crate) fn new(form: Form, size: usize) -> Self {
        let bytes: Vec<u8> = match form {
            Form::Binary => (0..size.max(8)).map(|index| (index % 251) as u8).collect(),
            Form::Text => format!("{FIRST} {}", words(size.saturating_sub(DIGITS + 1))).into_bytes(),
            Form::Json | Form::JsonBytes => fitted(size, |document| document.to_string().into_bytes()),
            // A vector takes everything.
            Form::MessagePack => fitted(size, |document| rmp_serde::to_vec(document).unwrap_or_default()),
        };
        let number = match form {
            Form::Binary => 0..8,
            Form::Text | Form::Json | Form::JsonBytes => find(&bytes, FIRST.to_string().as_bytes()),
            Form::MessagePack => find(&bytes, &FIRST.to_be_bytes()),
        };
        let mut content = Self { form, bytes, number };
        content.message(0);
        content
    }

    /// Of all messages.
    pub(crate) fn kind(&self) -> MessageKind {
        self.form.kind()
    }

    /// What stands in message `number` where its number is.
    pub(crate) fn written(&self, number: u64) -> u64 {
        if self.form == Form::Binary { number } else { FIRST + number }
    }

    /// Bytes of each message.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Message `number`.
    #[inline]
    pub(crate) fn message(&mut self, number: u64) -> &[u8] {
        let place = &mut self.bytes[self.number.clone()];
        match self.form {
            Form::Binary => place.copy_from_slice(&number.to_le_bytes()),
            Form::MessagePack => place.copy_from_slice(&(FIRST + number).to_be_bytes()),
            Form::Text | Form::Json | Form::JsonBytes => {
                let mut rest = FIRST + number;
                for digit in place.iter_mut().rev() {
                    *digit = b'0' + (rest % 10) as u8;
                    rest /= 10;
                }
            }
        }
        &self.bytes
    }

    /// The number of a message that arrived, if everything else in it is right too. `due`: the one that is
    /// expected, for the words.
    #[inline]
    pub(crate) fn read(&self, kind: MessageKind, bytes: &[u8], due: u64) -> Result<u64, String> {
        let range = self.number.clone();
        if kind != self.kind()
            || bytes.len() != self.bytes.len()
            || bytes[..range.start] != self.bytes[..range.start]
            || bytes[range.end..] != self.bytes[range.end..]
        {
            return Err(self.changed(kind, bytes, due));
        }
        self.number(&bytes[range]).ok_or_else(|| self.changed(kind, bytes, due))
    }

    fn number(&self, place: &[u8]) -> Option<u64> {
        match self.form {
            Form::Binary => Some(u64::from_le_bytes(place.try_into().ok()?)),
            Form::MessagePack => u64::from_be_bytes(place.try_into().ok()?).checked_sub(FIRST),
            Form::Text | Form::Json | Form::JsonBytes => {
                let mut number = 0_u64;
                for digit in place {
                    number = number * 10 + u64::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
                }
                number.checked_sub(FIRST)
            }
        }
    }

    #[cold]
    fn changed(&self, kind: MessageKind, bytes: &[u8], due: u64) -> String {
        let begin = bytes[..bytes.len().min(60)].escape_ascii();
        let (came, size) = (format!("{kind:?}").to_lowercase(), bytes.len());
        let (wanted, wanted_size) = (format!("{:?}", self.kind()).to_lowercase(), self.size());
        format!(
            "message {due} was changed on its way: {came} of {size} bytes came where {wanted} of {wanted_size} were due; \
             it begins with \"{begin}\""
        )
    }
}

/// Where a part lies that is there.
fn find(bytes: &[u8], part: &[u8]) -> Range<usize> {
    let begin = bytes.windows(part.len()).position(|window| window == part).unwrap_or_default();
    begin..begin + part.len()
}

/// The document of that size, or the smallest above it: without its other members, if it does not fit with
/// them.
fn fitted(size: usize, encode: impl Fn(&Value) -> Vec<u8>) -> Vec<u8> {
    let rich = encode(&document("", true)).len() <= size;
    let mut length = size.saturating_sub(encode(&document("", rich)).len());
    loop {
        let found = encode(&document(&words(length), rich));
        // The header of a text in MessagePack grows with it, by some bytes.
        if found.len() <= size || length == 0 {
            return found;
        }
        length -= 1;
    }
}

/// Document number 0, its keys sorted.
fn document(text: &str, rich: bool) -> Value {
    if rich {
        json!({"kind": "update", "number": FIRST, "tags": ["red", "green", "blue"], "text": text, "value": 12.5})
    } else {
        json!({"number": FIRST, "text": text})
    }
}

fn words(length: usize) -> String {
    WORDS.chars().cycle().take(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_read_again_and_a_change_of_any_byte_is_noticed() {
        for &form in Form::value_variants() {
            let mut content = Content::new(form, 200);
            for number in [0, 1, 255, 256, 1_000_000, 123_456_789_012] {
                let message = content.message(number).to_vec();
                content.message(7); // another one meanwhile
                assert_eq!(content.read(content.kind(), &message, number), Ok(number), "{form:?}");
            }
            let message = content.message(5).to_vec();
            for index in 0..message.len() {
                let mut changed = message.clone();
                changed[index] ^= 0x10;
                assert_ne!(content.read(content.kind(), &changed, 5), Ok(5), "{form:?} {index}");
            }
            assert!(content.read(content.kind(), &message[1..], 5).is_err());
            let other = if form.kind() == MessageKind::Text { MessageKind::Binary } else { MessageKind::Text };
            assert!(content.read(other, &message, 5).is_err());
        }
    }

    #[test]
    fn sizes_are_met_unless_a_document_needs_more() {
        for &form in Form::value_variants() {
            for size in [64, 100, 128, 300, 1000, 8192, 65_536, 70_000] {
                let found = Content::new(form, size).size();
                // In MessagePack no text fits where a longer header is needed: there, some bytes are missing.
                assert!((size - 2..=size).contains(&found), "{form:?} {size}: {found}");
            }
            assert!(Content::new(form, 8).size() < 64, "{form:?}");
        }
    }

    /// A reader that writes what it has read comes to the same bytes.
    #[test]
    fn documents_are_what_readers_write() {
        for size in [8, 500] {
            let json = Content::new(Form::Json, size).message(42).to_vec();
            let value: Value = serde_json::from_slice(&json).expect("JSON");
            assert_eq!((&value["number"], value.to_string().into_bytes()), (&json!(FIRST + 42), json));
            let packed = Content::new(Form::MessagePack, size).message(42).to_vec();
            let value: Value = rmp_serde::from_slice(&packed).expect("MessagePack");
            assert_eq!((&value["number"], rmp_serde::to_vec(&value).expect("a map")), (&json!(FIRST + 42), packed));
        }
    }
}
