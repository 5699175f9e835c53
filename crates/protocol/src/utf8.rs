//! Validation of UTF-8 that arrives in pieces (RFC 6455 8.1).

/// The bytes are not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidUtf8;

/// Checks that `text` is complete and valid UTF-8.
pub fn validate(text: &[u8]) -> Result<(), InvalidUtf8> {
    simdutf8::basic::from_utf8(text).map(drop).map_err(|_| InvalidUtf8)
}

/// Validates a text whose pieces may end inside a character. It takes only three bytes, as each open message has one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Validator {
    /// The bytes of a character whose end has not arrived, padded with zeros. Invariant: a proper prefix of a valid
    /// encoding, in which no byte is zero.
    partial: [u8; 3],
}

impl Validator {
    fn partial_len(self) -> usize {
        self.partial.iter().filter(|byte| **byte != 0).count()
    }

    /// Validates the next piece. Fails at the first byte after which no continuation can make the text valid.
    pub fn feed(&mut self, mut piece: &[u8]) -> Result<(), InvalidUtf8> {
        let mut len = self.partial_len();
        while len > 0 {
            let Some((&byte, rest)) = piece.split_first() else { return Ok(()) };
            piece = rest;
            let [first, second, third] = self.partial;
            let mut character = [first, second, third, 0];
            // Four bytes are either a whole character or invalid, so there is no fifth.
            *character.get_mut(len).ok_or(InvalidUtf8)? = byte;
            len += 1;
            match core::str::from_utf8(character.get(..len).unwrap_or_default()) {
                Ok(_) => (self.partial, len) = ([0; 3], 0),
                Err(error) if error.error_len().is_none() => {
                    let [first, second, third, _] = character;
                    self.partial = [first, second, third];
                }
                Err(_) => return Err(InvalidUtf8),
            }
        }
        match simdutf8::compat::from_utf8(piece) {
            Ok(_) => Ok(()),
            Err(error) if error.error_len().is_none() => {
                let partial = piece.get(error.valid_up_to()..).unwrap_or_default();
                self.partial.get_mut(..partial.len()).ok_or(InvalidUtf8)?.copy_from_slice(partial);
                Ok(())
            }
            Err(_) => Err(InvalidUtf8),
        }
    }

    /// Checks that the text does not end inside a character.
    pub fn finish(&self) -> Result<(), InvalidUtf8> {
        if self.partial_len() == 0 { Ok(()) } else { Err(InvalidUtf8) }
    }
}
