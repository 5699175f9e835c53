//! [`HeaderList`]: the fields of an HTTP head, in order.
//!
//! It knows the syntax that all fields share (RFC 9110 5), not the meaning of any field. It only accepts names and
//! values that are safe to write into a head, so writing a list cannot inject a line.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Fields with secret values, which debug output omits.
const SECRET: [&str; 4] = ["Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie"];

/// A header field: a name and a value.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    name: String,
    value: Vec<u8>,
}

impl Header {
    /// Returns the name as written. Names are case-insensitive.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value without leading and trailing whitespace. It has no control characters except HTAB.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Returns the value if it is UTF-8.
    #[must_use]
    pub fn value_str(&self) -> Option<&str> {
        core::str::from_utf8(&self.value).ok()
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if SECRET.iter().any(|secret| self.name.eq_ignore_ascii_case(secret)) {
            write!(f, "{}: [{} bytes]", self.name, self.value.len())
        } else {
            write!(f, "{}: {}", self.name, self.value.escape_ascii())
        }
    }
}

/// Header fields in the order of the head. Names are case-insensitive and may occur more than once.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HeaderList {
    headers: Vec<Header>,
}

impl HeaderList {
    /// Creates an empty list. Does not allocate.
    #[must_use]
    pub const fn new() -> Self {
        Self { headers: Vec::new() }
    }

    /// Appends a field, even if the name occurs already. Whitespace around the value is removed.
    ///
    /// # Errors
    /// The name is not a token (RFC 9110 5.6.2), or the value has a control character. CR, LF or NUL could end the line
    /// or the head early, and a recipient may reject the others.
    pub fn push(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), HeaderError> {
        if !is_token(name.as_bytes()) {
            return Err(HeaderError::Name { name: name.to_owned() });
        }
        let value = trim(value.as_ref());
        // RFC 9110 5.5: "Field values containing CR, LF, or NUL characters are invalid and dangerous". Our choice:
        // reject all control characters, as a recipient may reject them.
        if value.iter().any(|&byte| byte.is_ascii_control() && byte != b'\t') {
            return Err(HeaderError::Value { name: name.to_owned() });
        }
        self.headers.push(Header { name: name.to_owned(), value: value.to_vec() });
        Ok(())
    }

    /// Replaces all fields with this name by one field at the position of the first, or appends the field.
    ///
    /// # Errors
    /// The errors of [`HeaderList::push`]. The list is then unchanged.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), HeaderError> {
        let position = self.headers.iter().position(|header| header.name.eq_ignore_ascii_case(name));
        self.push(name, value)?;
        if let Some(position) = position {
            self.headers.swap_remove(position); // moves the new field, which is the last, to the position of the first
            let mut index = 0;
            self.headers.retain(|header| {
                index += 1;
                index <= position + 1 || !header.name.eq_ignore_ascii_case(name)
            });
        }
        Ok(())
    }

    /// Appends all fields of another list.
    pub fn extend(&mut self, other: &Self) {
        self.headers.extend_from_slice(&other.headers);
    }

    /// Removes all fields with this name and returns their number.
    pub fn remove(&mut self, name: &str) -> usize {
        let before = self.headers.len();
        self.headers.retain(|header| !header.name.eq_ignore_ascii_case(name));
        before - self.headers.len()
    }

    /// Returns the values of all fields with this name, in order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(Header::value)
    }

    /// Returns the value of a field that may occur at most once, or `None` if it does not occur.
    ///
    /// # Errors
    /// The field occurs more than once.
    pub fn single(&self, name: &str) -> Result<Option<&[u8]>, DuplicateHeader> {
        let mut occurrences = self.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        let first = occurrences.next();
        match (first, occurrences.next()) {
            (Some(_), Some(_)) => Err(DuplicateHeader { name: name.to_owned() }),
            (first, _) => Ok(first.map(Header::value)),
        }
    }

    /// Returns the value of the first field with this name, if it is UTF-8.
    #[must_use]
    pub fn value_str(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).and_then(Header::value_str)
    }

    /// Returns whether a field with this name occurs.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.headers.iter().any(|header| header.name.eq_ignore_ascii_case(name))
    }

    /// Returns the elements of a comma-separated list over all occurrences of the field (RFC 9110 5.6.1), trimmed and
    /// without empty elements. Only for lists of tokens, as it also splits at commas inside quoted strings.
    pub fn tokens<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.all(name)
            .flat_map(|value| value.split(|&byte| byte == b','))
            .map(trim)
            .filter(|element| !element.is_empty())
    }

    /// Returns whether the comma-separated list with this name has the token. Case is ignored.
    #[must_use]
    pub fn contains_token(&self, name: &str, token: &str) -> bool {
        self.tokens(name).any(|element| element.eq_ignore_ascii_case(token.as_bytes()))
    }

    /// Returns the fields in order.
    pub fn iter(&self) -> core::slice::Iter<'_, Header> {
        self.headers.iter()
    }

    /// Returns the number of fields; repeated names count each time.
    #[must_use]
    pub fn len(&self) -> usize {
        self.headers.len()
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Appends the fields to `out` as lines, without the empty line at the end of a head.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        for header in &self.headers {
            out.extend_from_slice(header.name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(&header.value);
            out.extend_from_slice(b"\r\n");
        }
    }
}

impl fmt::Debug for HeaderList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.headers).finish()
    }
}

impl<'a> IntoIterator for &'a HeaderList {
    type Item = &'a Header;
    type IntoIter = core::slice::Iter<'a, Header>;

    fn into_iter(self) -> Self::IntoIter {
        self.headers.iter()
    }
}

/// A field is not valid in a head.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// The name is not a token.
    Name {
        /// The invalid name.
        name: String,
    },
    /// The value has a control character. The error omits the value, which may be a secret.
    Value {
        /// The name of the field.
        name: String,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { name } => {
                write!(f, "invalid header name \"{}\": expected a token", name.as_bytes().escape_ascii())
            }
            Self::Value { name } => {
                write!(
                    f,
                    "invalid value for the {name} header: CR, LF, NUL and other control characters are not allowed"
                )
            }
        }
    }
}

impl core::error::Error for HeaderError {}

/// A field that may occur at most once occurs more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateHeader {
    /// The field's name.
    pub name: String,
}

impl fmt::Display for DuplicateHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than one {} header", self.name)
    }
}

impl core::error::Error for DuplicateHeader {}

/// Returns whether the bytes are a token of RFC 9110 5.6.2: ASCII, not empty, without separators and whitespace.
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().copied().all(is_token_byte)
}

/// Returns whether the byte is allowed in a token.
pub(crate) const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

/// Removes the optional whitespace of RFC 9110 5.6.3 (space and HTAB) on both sides.
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}
