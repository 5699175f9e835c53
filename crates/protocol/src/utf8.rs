//! UTF-8 that arrives in pieces, refused at the first byte that cannot be right (RFC 6455 8.1).

/// The bytes are not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidUtf8;

/// Whether the whole of `text` is UTF-8.
pub fn validate(text: &[u8]) -> Result<(), InvalidUtf8> {
    simdutf8::basic::from_utf8(text).map(drop).map_err(|_| InvalidUtf8)
}

/// Validates a text whose pieces may end inside a character.
#[derive(Clone, Copy, Debug, Default)]
pub struct Validator {
    /// The first bytes of a character whose rest has not arrived. Invariant: a proper prefix of a valid
    /// encoding.
    partial: [u8; 4],
    partial_len: u8,
}

impl Validator {
    /// Takes the next piece; fails as soon as no continuation could make the text valid.
    pub fn feed(&mut self, mut piece: &[u8]) -> Result<(), InvalidUtf8> {
        while self.partial_len > 0 {
            let Some((&byte, rest)) = piece.split_first() else { return Ok(()) };
            piece = rest;
            // Never full: four bytes are a character, or can be none.
            let place = self.partial.get_mut(usize::from(self.partial_len)).ok_or(InvalidUtf8)?;
            *place = byte;
            self.partial_len += 1;
            match core::str::from_utf8(self.partial.get(..usize::from(self.partial_len)).unwrap_or_default()) {
                Ok(_) => self.partial_len = 0,
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return Err(InvalidUtf8),
            }
        }
        match simdutf8::compat::from_utf8(piece) {
            Ok(_) => Ok(()),
            Err(error) if error.error_len().is_none() => {
                let partial = piece.get(error.valid_up_to()..).unwrap_or_default();
                self.partial.get_mut(..partial.len()).ok_or(InvalidUtf8)?.copy_from_slice(partial);
                self.partial_len = partial.len() as u8;
                Ok(())
            }
            Err(_) => Err(InvalidUtf8),
        }
    }

    /// Whether the text may end here: not inside a character.
    pub fn finish(&self) -> Result<(), InvalidUtf8> {
        if self.partial_len == 0 { Ok(()) } else { Err(InvalidUtf8) }
    }
}
