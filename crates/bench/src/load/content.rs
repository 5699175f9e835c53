//! What the messages hold: a number, and the same rest in all of them, in one of three forms.
//!
//! A server that reads a message and writes it again comes to the same bytes: keys are sorted, the JSON has
//! no white space, the MessagePack has integers and lengths in their shortest form. So replies are compared
//! with what was sent, byte for byte.

use wirespeed_driver::protocol::MessageKind;

/// The form of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A number in 8 bytes, little-endian, then a pattern.
    Binary,
    /// A number of 16 digits in a text message, then words. No JSON.
    Text,
    /// A document in a text message.
    Json,
    /// The same in a binary message.
    JsonBytes,
    /// A map in a binary message.
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

/// Digits of a number in JSON.
const DIGITS: usize = 16;

/// What the text in documents repeats.
const WORDS: &str = "the quick brown fox jumps over the lazy dog, ";

/// The messages of a run: one that is written again and again with another number.
pub(crate) struct Content {
    form: Form,
    bytes: Vec<u8>,
    /// Where the number begins, and ends.
    number: std::ops::Range<usize>,
}

impl Content {
    /// Messages of `size` bytes; of more, if a document needs more.
    pub(crate) fn new(form: Form, size: usize) -> Self {
        let (bytes, at, length) = match form {
            Form::Binary => ((0..size.max(8)).map(|index| (index % 251) as u8).collect(), 0, 8),
            Form::Text => {
                let number = FIRST.to_string();
                let words = text(size.saturating_sub(number.len() + 1));
                (format!("{number} {words}").into_bytes(), 0, DIGITS)
            }
            Form::Json | Form::JsonBytes => fitted(size, json),
            Form::MessagePack => fitted(size, message_pack),
        };
        let mut content = Self { form, bytes, number: at..at + length };
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
        let begin = &bytes[..bytes.len().min(60)];
        let begin = if kind == MessageKind::Text {
            format!("{:?}", String::from_utf8_lossy(begin))
        } else {
            format!("{:?}", begin.escape_ascii().to_string())
        };
        format!(
            "message {due} was changed on its way: {} of {} bytes came where {} of {} were due; it begins with {begin}",
            name(kind),
            bytes.len(),
            name(self.kind()),
            self.bytes.len()
        )
    }
}

fn name(kind: MessageKind) -> &'static str {
    match kind {
        MessageKind::Text => "text",
        MessageKind::Binary => "binary",
    }
}

/// The document of that size, or the smallest above it: without its other members, if it does not fit with
/// them.
fn fitted(size: usize, document: impl Fn(&str, bool) -> (Vec<u8>, usize, usize)) -> (Vec<u8>, usize, usize) {
    let rich = document("", true).0.len() <= size;
    let mut length = size.saturating_sub(document("", rich).0.len());
    loop {
        let found = document(&text(length), rich);
        // The header of a text in MessagePack grows with it, by some bytes.
        if found.0.len() <= size || length == 0 {
            return found;
        }
        length -= 1;
    }
}

fn text(length: usize) -> String {
    WORDS.chars().cycle().take(length).collect()
}

/// A document with a number and that text, and where the number lies.
fn json(text: &str, rich: bool) -> (Vec<u8>, usize, usize) {
    let (before, after) = if rich {
        (r#"{"kind":"update","number":"#, r#","tags":["red","green","blue"],"text":""#)
    } else {
        (r#"{"number":"#, r#","text":""#)
    };
    let last = if rich { r#"","value":12.5}"# } else { r#""}"# };
    let document = format!("{before}{FIRST}{after}{text}{last}");
    (document.into_bytes(), before.len(), DIGITS)
}

/// The same as a map of MessagePack.
fn message_pack(text: &str, rich: bool) -> (Vec<u8>, usize, usize) {
    let mut map = vec![if rich { 0x85 } else { 0x82 }];
    if rich {
        pack_text(&mut map, "kind");
        pack_text(&mut map, "update");
    }
    pack_text(&mut map, "number");
    map.push(0xcf);
    let at = map.len();
    map.extend_from_slice(&FIRST.to_be_bytes());
    if rich {
        pack_text(&mut map, "tags");
        map.push(0x93);
        for tag in ["red", "green", "blue"] {
            pack_text(&mut map, tag);
        }
    }
    pack_text(&mut map, "text");
    pack_text(&mut map, text);
    if rich {
        pack_text(&mut map, "value");
        map.push(0xcb);
        map.extend_from_slice(&12.5_f64.to_be_bytes());
    }
    (map, at, 8)
}

#[allow(clippy::cast_possible_truncation)] // each arm has what fits
fn pack_text(map: &mut Vec<u8>, text: &str) {
    match text.len() {
        length @ 0..32 => map.push(0xa0 | length as u8),
        length @ 32..0x100 => map.extend_from_slice(&[0xd9, length as u8]),
        length @ 0x100..0x1_0000 => {
            map.push(0xda);
            map.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            map.push(0xdb);
            map.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
    map.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const FORMS: [Form; 5] = [Form::Binary, Form::Text, Form::Json, Form::JsonBytes, Form::MessagePack];

    #[test]
    fn what_was_sent_is_read_again() {
        for form in FORMS {
            let mut content = Content::new(form, 200);
            for number in [0, 1, 255, 256, 1_000_000, 123_456_789_012] {
                let message = content.message(number).to_vec();
                content.message(7); // another one meanwhile
                assert_eq!(content.read(content.kind(), &message, number), Ok(number), "{form:?}");
            }
        }
    }

    #[test]
    fn a_change_of_any_byte_is_noticed() {
        for form in FORMS {
            let mut content = Content::new(form, 150);
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
        for form in FORMS {
            for size in [64, 100, 128, 300, 1000, 8192, 65_536, 70_000] {
                let found = Content::new(form, size).size();
                // In MessagePack no text fits where a longer header is needed: there, some bytes are missing.
                assert!((size - 2..=size).contains(&found), "{form:?} {size}: {found}");
            }
            assert!(Content::new(form, 8).size() < 64, "{form:?}");
        }
    }

    #[test]
    fn json_is_compact_and_sorted() {
        for size in [8, 500] {
            let mut content = Content::new(Form::Json, size);
            let message = content.message(42).to_vec();
            let value: Value = serde_json::from_slice(&message).expect("JSON");
            assert_eq!(value["number"], FIRST + 42);
            // serde_json sorts keys and adds no white space.
            assert_eq!(value.to_string().into_bytes(), message);
        }
    }

    #[test]
    fn message_pack_is_what_its_specification_says() {
        let mut content = Content::new(Form::MessagePack, 8);
        let message = content.message(3).to_vec();
        // A map of two; "number", a 64-bit integer; "text", an empty string.
        let mut expected = b"\x82\xa6number\xcf".to_vec();
        expected.extend_from_slice(&1_000_000_000_000_003_u64.to_be_bytes());
        expected.extend_from_slice(b"\xa4text\xa0");
        assert_eq!(message, expected);
        let large = Content::new(Form::MessagePack, 400).message(0).to_vec();
        assert!(large.starts_with(b"\x85\xa4kind\xa6update\xa6number\xcf"));
        assert!(large.windows(6).any(|window| window == b"\xa4text\xda"), "a text of 256 bytes or more");
    }
}
