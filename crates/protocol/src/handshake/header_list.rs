//! [`HeaderList`]: the fields of an HTTP head, in order.
//!
//! Knows the syntax that all fields share (RFC 9110 5), not what any of them means. A list can only hold
//! names and values that are safe to write into a head, whoever they come from, so writing one out cannot
//! inject a line.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Fields whose values are secrets: debug output leaves them out, because it ends up in logs.
const SECRET: [&str; 4] = ["Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie"];

/// One field line: a name and a value.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    name: String,
    value: Vec<u8>,
}

impl Header {
    /// The name as it was written. Compare it without regard to case.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value, without leading and trailing whitespace. It holds no control character but HTAB.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// The value, if it is UTF-8.
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

/// Header fields in the order of the head; names compare without regard to case and may repeat.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HeaderList {
    headers: Vec<Header>,
}

impl HeaderList {
    /// An empty list. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { headers: Vec::new() }
    }

    /// Appends a field, whether or not the name is there already. Whitespace around the value is dropped.
    ///
    /// # Errors The name is no token (RFC 9110 5.6.2), or the value holds a control character: CR, LF or NUL
    /// could end the line or the head early, and a peer may refuse a head for any other.
    pub fn push(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), HeaderError> {
        if !is_token(name.as_bytes()) {
            return Err(HeaderError::Name { name: name.to_owned() });
        }
        let value = trim(value.as_ref());
        // RFC 9110 5.5: "Field values containing CR, LF, or NUL characters are invalid and dangerous". Our
        // choice: the other control characters, which a recipient is free to refuse, are refused here.
        if value.iter().any(|&byte| byte.is_ascii_control() && byte != b'\t') {
            return Err(HeaderError::Value { name: name.to_owned() });
        }
        self.headers.push(Header { name: name.to_owned(), value: value.to_vec() });
        Ok(())
    }

    /// Replaces every field of that name by one, at the place of the first, or appends it.
    ///
    /// # Errors
    /// As [`HeaderList::push`]; the list is then as it was.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), HeaderError> {
        let position = self.headers.iter().position(|header| header.name.eq_ignore_ascii_case(name));
        self.push(name, value)?;
        if let Some(position) = position {
            self.headers.swap_remove(position); // brings the new field, the last, to the place of the first
            let mut index = 0;
            self.headers.retain(|header| {
                index += 1;
                index <= position + 1 || !header.name.eq_ignore_ascii_case(name)
            });
        }
        Ok(())
    }

    /// Appends every field of another list.
    pub fn extend(&mut self, other: &Self) {
        self.headers.extend_from_slice(&other.headers);
    }

    /// Removes every field of that name and returns how many there were.
    pub fn remove(&mut self, name: &str) -> usize {
        let before = self.headers.len();
        self.headers.retain(|header| !header.name.eq_ignore_ascii_case(name));
        before - self.headers.len()
    }

    /// The values of every field of that name, in order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(Header::value)
    }

    /// The value of a field that may occur once, or `None` if it does not occur.
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

    /// The value of the first field of that name, if it is UTF-8.
    #[must_use]
    pub fn value_str(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).and_then(Header::value_str)
    }

    /// Whether a field of that name occurs.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.headers.iter().any(|header| header.name.eq_ignore_ascii_case(name))
    }

    /// The elements of a comma-separated list over all occurrences of the field (RFC 9110 5.6.1), trimmed;
    /// empty elements are skipped. For lists of tokens: a comma inside a quoted string would separate, too.
    pub fn tokens<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.all(name)
            .flat_map(|value| value.split(|&byte| byte == b','))
            .map(trim)
            .filter(|element| !element.is_empty())
    }

    /// Whether the comma-separated list of that name has the token, in any case.
    #[must_use]
    pub fn contains_token(&self, name: &str, token: &str) -> bool {
        self.tokens(name).any(|element| element.eq_ignore_ascii_case(token.as_bytes()))
    }

    /// The fields in order.
    pub fn iter(&self) -> core::slice::Iter<'_, Header> {
        self.headers.iter()
    }

    /// How many fields there are, repeated names counted each time.
    #[must_use]
    pub fn len(&self) -> usize {
        self.headers.len()
    }

    /// Whether there is no field.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Appends the fields to `out` as lines, without the empty line that ends a head.
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

/// A field that cannot stand in a head.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// The name is no token.
    Name {
        /// The name as given.
        name: String,
    },
    /// The value holds a control character. It is not repeated here: it may be a secret.
    Value {
        /// The name of its field.
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

/// A field that may occur once occurs more often.
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

/// Whether the bytes are a token of RFC 9110 5.6.2: not empty, no separator, no whitespace, ASCII.
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().copied().all(is_token_byte)
}

/// Whether the byte may stand in a token.
pub(crate) const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

/// Without the optional whitespace of RFC 9110 5.6.3 (space and HTAB) on both sides.
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}
