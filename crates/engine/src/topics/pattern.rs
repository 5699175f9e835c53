//! Names of topics, and patterns of names.
//!
//! Owns which texts are valid, and the plain definition of a match: the faster forms in [`super::Index`] and
//! [`super::Registry`] must agree with it. Knows no subscribers. Called for any text of an application or a client.

use std::borrow::Borrow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// The maximum length of a topic or a pattern, in bytes: a length fits into one byte, and the work for a name and the
/// depth of a tree of names stay small.
pub const MAX_LEN: usize = 255;

/// Separates segments.
pub(super) const SEPARATOR: char = '.';

/// The segment of a pattern that stands for any one segment.
pub(super) const ANY: &str = "*";

/// The segment of a pattern that stands for one or more segments at the end.
pub(super) const REST: &str = ">";

/// The name of a topic: segments separated by `.`, none of them empty, without ASCII control characters, spaces, `*`
/// and `>`, of at most [`MAX_LEN`] bytes in all. Upper and lower case differ. A clone shares the text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Topic(Arc<str>);

/// A pattern of topics: a topic in which any whole segment may be `*`, for exactly one segment, and the last one `>`,
/// for one segment or more. A clone shares the text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern(Arc<str>);

/// Why a text is no topic or pattern: the first error from its beginning, unless it is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidTopic {
    /// The text is empty.
    Empty,
    /// It has more than [`MAX_LEN`] bytes.
    TooLong {
        /// Its length.
        len: usize,
    },
    /// It begins or ends with a separator, or has two in a row.
    EmptySegment {
        /// The byte at which the segment would begin; the length of the text, if that is its end.
        at: usize,
    },
    /// A space or an ASCII control character.
    Character {
        /// Its index in bytes.
        at: usize,
        /// The character.
        byte: u8,
    },
    /// A wildcard in a topic.
    Wildcard {
        /// Its index in bytes.
        at: usize,
    },
    /// A wildcard in a pattern that is not a whole segment.
    PartialWildcard {
        /// Its index in bytes.
        at: usize,
    },
    /// A `>` in a pattern that is not the last segment.
    RestNotLast {
        /// Its index in bytes.
        at: usize,
    },
}

impl Topic {
    /// Creates a topic.
    ///
    /// # Errors
    /// The text is no topic.
    pub fn new(text: &str) -> Result<Self, InvalidTopic> {
        check(text, false)?;
        Ok(Self(text.into()))
    }

    /// Returns its name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Iterates over its segments: one or more, none of them empty.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split(SEPARATOR)
    }
}

impl Pattern {
    /// Creates a pattern.
    ///
    /// # Errors
    /// The text is no pattern.
    pub fn new(text: &str) -> Result<Self, InvalidTopic> {
        check(text, true)?;
        Ok(Self(text.into()))
    }

    /// Returns its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Iterates over its segments, including wildcards: one or more, none of them empty.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split(SEPARATOR)
    }

    /// Returns whether it has no wildcard, and so matches the topic of the same name and no other.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        !self.0.bytes().any(is_wildcard)
    }

    /// Returns whether a topic matches.
    #[must_use]
    pub fn matches(&self, topic: &Topic) -> bool {
        let mut names = topic.segments();
        for segment in self.segments() {
            match (segment, names.next()) {
                (_, None) => return false,
                (REST, Some(_)) => return true,
                (ANY, Some(_)) => {}
                (segment, Some(name)) if segment == name => {}
                _ => return false,
            }
        }
        names.next().is_none()
    }
}

impl From<Topic> for Pattern {
    fn from(topic: Topic) -> Self {
        Self(topic.0)
    }
}

// A pattern is hashed and compared as its text, as `Borrow` requires.
impl Borrow<str> for Pattern {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl InvalidTopic {
    /// Returns the byte at which the error was found.
    #[must_use]
    pub fn at(&self) -> usize {
        match *self {
            Self::Empty => 0,
            Self::TooLong { .. } => MAX_LEN,
            Self::EmptySegment { at }
            | Self::Character { at, .. }
            | Self::Wildcard { at }
            | Self::PartialWildcard { at }
            | Self::RestNotLast { at } => at,
        }
    }
}

impl fmt::Display for InvalidTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => f.write_str("a topic cannot be empty"),
            Self::TooLong { len } => write!(f, "a topic has at most {MAX_LEN} bytes, not {len}"),
            Self::EmptySegment { at } => write!(f, "empty segment at byte {at}"),
            Self::Character { at, byte: b' ' } => write!(f, "space at byte {at}"),
            Self::Character { at, byte } => write!(f, "control character 0x{byte:02x} at byte {at}"),
            Self::Wildcard { at } => write!(f, "wildcard at byte {at}: one cannot publish to a pattern"),
            Self::PartialWildcard { at } => write!(f, "wildcard at byte {at}, which is not a whole segment"),
            Self::RestNotLast { at } => write!(f, "'>' at byte {at}, which is not the last segment"),
        }
    }
}

impl Error for InvalidTopic {}

fn is_wildcard(byte: u8) -> bool {
    matches!(byte, b'*' | b'>')
}

fn check(text: &str, wildcards: bool) -> Result<(), InvalidTopic> {
    if text.is_empty() {
        return Err(InvalidTopic::Empty);
    }
    if text.len() > MAX_LEN {
        return Err(InvalidTopic::TooLong { len: text.len() });
    }
    let mut start = 0;
    for segment in text.split(SEPARATOR) {
        if segment.is_empty() {
            return Err(InvalidTopic::EmptySegment { at: start });
        }
        for (at, byte) in (start..).zip(segment.bytes()) {
            if byte == b' ' || byte.is_ascii_control() {
                return Err(InvalidTopic::Character { at, byte });
            }
            if !is_wildcard(byte) {
                continue;
            }
            if !wildcards {
                return Err(InvalidTopic::Wildcard { at });
            }
            if segment.len() > 1 {
                return Err(InvalidTopic::PartialWildcard { at });
            }
            if segment == REST && at + 1 < text.len() {
                return Err(InvalidTopic::RestNotLast { at });
            }
        }
        start += segment.len() + SEPARATOR.len_utf8();
    }
    Ok(())
}
