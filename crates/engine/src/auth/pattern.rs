//! Patterns of topics, and what they have in common.
//!
//! A topic is a sequence of segments, and there are more words for a segment than any set of patterns names. So for
//! each pattern there are topics whose segments under its wildcards are words that no other pattern names: *strange*
//! ones. Only wildcards match a strange word. Whatever matches the topic with strange words under the wildcards
//! matches it with others too: the strange topics decide whether a pattern is covered.

use crate::topics::MAX_LEN;

/// As many as a topic of [`MAX_LEN`] bytes may have, dots between them; bounds the time of [`covered`].
pub(super) const MAX_SEGMENTS: usize = MAX_LEN.div_ceil(2);

/// A pattern of an access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// 1 to [`MAX_SEGMENTS`] of them; [`Segment::Rest`] is the last if it is there.
    segments: Box<[Segment]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// This word: not empty, without `.`, `*` and `>`.
    Word(Box<str>),
    /// `*`
    One,
    /// `>`
    Rest,
}

/// A segment of a question, which is not taken apart beforehand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestedTopic<'a> {
    Word(&'a str),
    /// Any word: a strange one decides.
    One,
    /// Any words, one at least.
    Rest,
}

impl Pattern {
    /// `None`: it is not a pattern.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let segment = |asked| match asked {
            RequestedTopic::Word(word) => Segment::Word(word.into()),
            RequestedTopic::One => Segment::One,
            RequestedTopic::Rest => Segment::Rest,
        };
        is_question(text).then(|| Self { segments: asked(text).map(segment).collect() })
    }

    /// Whether there is a topic that both match.
    pub(super) fn overlaps(&self, question: &str) -> bool {
        let mut segments = self.segments.iter();
        let mut asked = asked(question);
        loop {
            match (segments.next(), asked.next()) {
                (None, None) => return true,
                (None, Some(_)) | (Some(_), None) => return false,
                // What is left on the other side is one segment or more, which it takes whatever they are.
                (Some(Segment::Rest), Some(_)) | (Some(_), Some(RequestedTopic::Rest)) => return true,
                (Some(Segment::Word(word)), Some(RequestedTopic::Word(other))) if **word != *other => return false,
                _ => {}
            }
        }
    }

    /// Whether it matches every topic of the question, in which `Rest` counts for this many strange words.
    fn covers(&self, question: &str, rest: usize) -> bool {
        let expand = |asked| match asked {
            RequestedTopic::Rest => (RequestedTopic::One, rest),
            other => (other, 1),
        };
        let mut words = asked(question).map(expand).flat_map(|(asked, times)| std::iter::repeat_n(asked, times));
        for segment in &self.segments {
            match (segment, words.next()) {
                (Segment::Rest, Some(_)) => return true,
                (Segment::One, Some(_)) => {}
                (Segment::Word(word), Some(RequestedTopic::Word(other))) if **word == *other => {}
                _ => return false,
            }
        }
        words.next().is_none()
    }
}

/// Whether each topic of the question is matched by one of the patterns.
pub(super) fn covered(question: &str, patterns: &[Pattern]) -> bool {
    let by_one = |rest| patterns.iter().any(|pattern| pattern.covers(question, rest));
    if !question.ends_with('>') {
        return by_one(1);
    }
    // Each length that `>` may have must be covered, maybe by different patterns. Beyond the longest pattern only
    // those that end in `>` match, which they do for all lengths alike.
    let longest = patterns.iter().map(|pattern| pattern.segments.len()).max().unwrap_or(0);
    (1..=longest + 1).all(by_one)
}

/// Whether this is a topic or a pattern: 1 to [`MAX_SEGMENTS`] segments, none empty, `>` the last, and the wildcards
/// not within words, where they could be taken for more than they are.
pub(super) fn is_question(text: &str) -> bool {
    let mut count = 0;
    let mut ended = false;
    for segment in text.split('.') {
        count += 1;
        if ended || segment.is_empty() || count > MAX_SEGMENTS {
            return false;
        }
        ended = segment == ">";
        if segment.len() > 1 && segment.bytes().any(|byte| byte == b'*' || byte == b'>') {
            return false;
        }
    }
    true
}

fn asked(question: &str) -> impl Iterator<Item = RequestedTopic<'_>> {
    question.split('.').map(|segment| match segment {
        "*" => RequestedTopic::One,
        ">" => RequestedTopic::Rest,
        word => RequestedTopic::Word(word),
    })
}
