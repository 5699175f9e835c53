//! Patterns of topics: whether two overlap, and whether a set of patterns covers another pattern.
//!
//! A question is a topic or pattern that a client asks for. It is covered if each topic that it matches is matched by
//! one of the patterns. It suffices to test *fresh* words, which occur in no pattern, in place of its wildcards: only
//! wildcards match a fresh word, and a pattern that matches the topic with fresh words matches it with any others.

use crate::topics::MAX_LEN;

/// The maximum number of segments in a topic of [`MAX_LEN`] bytes. It bounds the time of [`covered`].
pub(super) const MAX_SEGMENTS: usize = MAX_LEN.div_ceil(2);

/// A pattern of an access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// 1 to [`MAX_SEGMENTS`] segments. [`Segment::Rest`] occurs only as the last one.
    segments: Box<[Segment]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// A literal word: not empty, without `.`, `*` and `>`.
    Word(Box<str>),
    /// `*`: one segment.
    One,
    /// `>`: one or more segments.
    Rest,
}

/// A segment of a question, which is split while it is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QuestionSegment<'a> {
    Word(&'a str),
    /// `*`: any word; a fresh one decides.
    One,
    /// `>`: one or more of any words.
    Rest,
}

impl Pattern {
    /// Parses a pattern; `None` if the text is not one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let segment = |segment| match segment {
            QuestionSegment::Word(word) => Segment::Word(word.into()),
            QuestionSegment::One => Segment::One,
            QuestionSegment::Rest => Segment::Rest,
        };
        is_question(text).then(|| Self { segments: segments(text).map(segment).collect() })
    }

    /// Whether a topic exists that both match.
    pub(super) fn overlaps(&self, question: &str) -> bool {
        let mut own = self.segments.iter();
        let mut other = segments(question);
        loop {
            match (own.next(), other.next()) {
                (None, None) => return true,
                (None, Some(_)) | (Some(_), None) => return false,
                // `>` matches the rest of the other side, which is one segment or more.
                (Some(Segment::Rest), Some(_)) | (Some(_), Some(QuestionSegment::Rest)) => return true,
                (Some(Segment::Word(word)), Some(QuestionSegment::Word(other))) if **word != *other => return false,
                _ => {}
            }
        }
    }

    /// Whether the pattern matches every topic of the question, with `rest` fresh words in place of `>`.
    fn covers(&self, question: &str, rest: usize) -> bool {
        let expand = |segment| match segment {
            QuestionSegment::Rest => (QuestionSegment::One, rest),
            other => (other, 1),
        };
        let mut words = segments(question).map(expand).flat_map(|(segment, times)| std::iter::repeat_n(segment, times));
        for segment in &self.segments {
            match (segment, words.next()) {
                (Segment::Rest, Some(_)) => return true,
                (Segment::One, Some(_)) => {}
                (Segment::Word(word), Some(QuestionSegment::Word(other))) if **word == *other => {}
                _ => return false,
            }
        }
        words.next().is_none()
    }
}

/// Whether each topic that the question matches is matched by one of the patterns.
pub(super) fn covered(question: &str, patterns: &[Pattern]) -> bool {
    let by_one_pattern = |rest| patterns.iter().any(|pattern| pattern.covers(question, rest));
    if !question.ends_with('>') {
        return by_one_pattern(1);
    }
    // Each number of words for `>` must be covered, possibly by different patterns. Beyond the longest pattern only
    // patterns that end in `>` match, and they match all lengths alike.
    let longest = patterns.iter().map(|pattern| pattern.segments.len()).max().unwrap_or(0);
    (1..=longest + 1).all(by_one_pattern)
}

/// Whether the text is a topic or a pattern: 1 to [`MAX_SEGMENTS`] segments, none empty, `>` only as the last one.
/// Wildcards must be whole segments; within a word they could be mistaken for prefix matches.
pub(super) fn is_question(text: &str) -> bool {
    let mut count = 0;
    let mut after_rest = false;
    for segment in text.split('.') {
        count += 1;
        if after_rest || segment.is_empty() || count > MAX_SEGMENTS {
            return false;
        }
        after_rest = segment == ">";
        if segment.len() > 1 && segment.bytes().any(|byte| byte == b'*' || byte == b'>') {
            return false;
        }
    }
    true
}

fn segments(question: &str) -> impl Iterator<Item = QuestionSegment<'_>> {
    question.split('.').map(|segment| match segment {
        "*" => QuestionSegment::One,
        ">" => QuestionSegment::Rest,
        word => QuestionSegment::Word(word),
    })
}
