//! The content of messages: a number and constant data, in one of several formats.
//!
//! The encoding is canonical, so that a server which decodes and encodes a message reproduces its bytes: JSON has
//! sorted keys and no white space, and MessagePack has the shortest form of integers and lengths. Replies can therefore
//! be compared byte by byte.

use std::ops::Range;

use clap::ValueEnum;
use serde_json::{Value, json};
use wirespeed_driver::protocol::MessageKind;

/// The format of messages. The smallest document has about 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// A number in 8 bytes, little-endian, then a pattern
    Binary,
    /// A number of 16 digits in a text message, then words; no JSON
    Text,
    /// A JSON document in a text message
    Json,
    /// A JSON document in a binary message
    JsonBytes,
    /// A MessagePack map in a binary message
    #[value(name = "msgpack")]
    MessagePack,
}

impl Form {
    /// Returns whether messages are text or binary.
    pub(crate) fn kind(self) -> MessageKind {
        match self {
            Self::Text | Self::Json => MessageKind::Text,
            Self::Binary | Self::JsonBytes | Self::MessagePack => MessageKind::Binary,
        }
    }
}

/// Added to the numbers in documents, so that all have 16 digits, which every JSON parser reads as an integer.
const FIRST: u64 = 1_000_000_000_000_000;

/// The number of digits.
const DIGITS: usize = 16;

/// The repeated text in documents.
const WORDS: &str = "the quick brown fox jumps over the lazy dog, ";

/// The messages of a run: a buffer that is rewritten with each number.
pub(crate) struct Content {
    form: Form,
    bytes: Vec<u8>,
    /// The position of the number.
    number: Range<usize>,
}

impl Content {
    /// Makes messages of `size` bytes, or larger ones if a document requires it.
    pub(crate) fn new(form: Form, size: usize) -> Self {
        let bytes: Vec<u8> = match form {
            Form::Binary => (0..size.max(8)).map(|index| (index % 251) as u8).collect(),
            Form::Text => format!("{FIRST} {}", words(size.saturating_sub(DIGITS + 1))).into_bytes(),
            Form::Json | Form::JsonBytes => fitted(size, |document| document.to_string().into_bytes()),
            // Writing to a vector cannot fail.
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

    /// Returns whether messages are text or binary.
    pub(crate) fn kind(&self) -> MessageKind {
        self.form.kind()
    }

    /// Returns the number that message `number` contains.
    pub(crate) fn written(&self, number: u64) -> u64 {
        if self.form == Form::Binary { number } else { FIRST + number }
    }

    /// Returns the size of each message in bytes.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Returns message `number`.
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

    /// Checks a received message, and returns its number. `due`: the expected number, for the error text.
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

/// Returns the position of an existing part.
fn find(bytes: &[u8], part: &[u8]) -> Range<usize> {
    let begin = bytes.windows(part.len()).position(|window| window == part).unwrap_or_default();
    begin..begin + part.len()
}

/// Returns a document of this size, or the smallest larger one. If its other members do not fit, it has none.
fn fitted(size: usize, encode: impl Fn(&Value) -> Vec<u8>) -> Vec<u8> {
    let rich = encode(&document("", true)).len() <= size;
    let mut length = size.saturating_sub(encode(&document("", rich)).len());
    loop {
        let found = encode(&document(&words(length), rich));
        // The header of a MessagePack string grows with the string.
        if found.len() <= size || length == 0 {
            return found;
        }
        length -= 1;
    }
}

/// Returns document number 0, with sorted keys.
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
    fn messages_are_read_back_and_any_changed_byte_is_noticed() {
        for &form in Form::value_variants() {
            let mut content = Content::new(form, 200);
            for number in [0, 1, 255, 256, 1_000_000, 123_456_789_012] {
                let message = content.message(number).to_vec();
                content.message(7); // overwrite the buffer
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
    fn sizes_are_exact_unless_a_document_needs_more() {
        for &form in Form::value_variants() {
            for size in [64, 100, 128, 300, 1000, 8192, 65_536, 70_000] {
                let found = Content::new(form, size).size();
                // In MessagePack, sizes at which the string's header grows cannot be met exactly.
                assert!((size - 2..=size).contains(&found), "{form:?} {size}: {found}");
            }
            assert!(Content::new(form, 8).size() < 64, "{form:?}");
        }
    }

    /// Decoding and encoding a document reproduces its bytes.
    #[test]
    fn documents_are_canonical() {
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
