//! Valid topics and patterns, and their matches.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use proptest::prelude::*;
use wirespeed_engine::topics::{InvalidTopic, MAX_LEN, Pattern, Topic};

/// Whether a text is valid as a topic, and as a pattern.
type Verdict = (Result<(), InvalidTopic>, Result<(), InvalidTopic>);

fn verdict(text: &str) -> Verdict {
    (Topic::new(text).map(|_| ()), Pattern::new(text).map(|_| ()))
}

#[test]
fn valid_and_invalid_topics_and_patterns() {
    use InvalidTopic::*;
    let both = |error: InvalidTopic| (Err(error), Err(error));
    let only_pattern = |at| (Err(Wildcard { at }), Ok(()));
    let longest = "a".repeat(MAX_LEN);
    let too_long = "a".repeat(MAX_LEN + 1);
    let deepest = vec!["a"; 128].join(".");
    let table: &[(&str, Verdict)] = &[
        ("prices", (Ok(()), Ok(()))),
        ("prices.EUR-USD_1/x:y#z$", (Ok(()), Ok(()))),
        ("größe.😀", (Ok(()), Ok(()))),
        ("a\u{a0}b\u{85}", (Ok(()), Ok(()))),
        (&longest, (Ok(()), Ok(()))),
        (&deepest, (Ok(()), Ok(()))),
        ("", both(Empty)),
        (&too_long, both(TooLong { len: 256 })),
        (".", both(EmptySegment { at: 0 })),
        (".a", both(EmptySegment { at: 0 })),
        ("a.", both(EmptySegment { at: 2 })),
        ("a..b", both(EmptySegment { at: 2 })),
        ("é..b", both(EmptySegment { at: 3 })),
        ("a b", both(Character { at: 1, byte: b' ' })),
        ("a.\tb", both(Character { at: 2, byte: b'\t' })),
        ("a\0", both(Character { at: 1, byte: 0 })),
        ("a.b\u{7f}", both(Character { at: 3, byte: 0x7f })),
        ("a\r\n..", both(Character { at: 1, byte: b'\r' })),
        ("*", only_pattern(0)),
        (">", only_pattern(0)),
        ("a.*", only_pattern(2)),
        ("a.>", only_pattern(2)),
        ("*.*.>", only_pattern(0)),
        ("*.a.*", only_pattern(0)),
        ("a*", (Err(Wildcard { at: 1 }), Err(PartialWildcard { at: 1 }))),
        ("b.*a", (Err(Wildcard { at: 2 }), Err(PartialWildcard { at: 2 }))),
        ("b.>>", (Err(Wildcard { at: 2 }), Err(PartialWildcard { at: 2 }))),
        ("**.b", (Err(Wildcard { at: 0 }), Err(PartialWildcard { at: 0 }))),
        (">.a", (Err(Wildcard { at: 0 }), Err(RestNotLast { at: 0 }))),
        ("a.>.*", (Err(Wildcard { at: 2 }), Err(RestNotLast { at: 2 }))),
        ("a.>.", (Err(Wildcard { at: 2 }), Err(RestNotLast { at: 2 }))),
        ("*.a.", (Err(Wildcard { at: 0 }), Err(EmptySegment { at: 4 }))),
    ];
    for (text, expected) in table {
        assert_eq!(&verdict(text), expected, "{text:?}");
    }
}

#[test]
fn errors_contain_reason_and_position() {
    let table = [
        ("", 0, "a topic cannot be empty"),
        ("a..b", 2, "empty segment at byte 2"),
        ("a b", 1, "space at byte 1"),
        ("a\n", 1, "control character 0x0a at byte 1"),
        ("a.*", 2, "wildcard at byte 2: one cannot publish to a pattern"),
    ];
    for (text, at, says) in table {
        let error = Topic::new(text).unwrap_err();
        assert_eq!((error.at(), error.to_string().as_str()), (at, says));
    }
    let table = [
        ("b*.a", 1, "wildcard at byte 1, which is not a whole segment"),
        ("b.>.a", 2, "'>' at byte 2, which is not the last segment"),
    ];
    for (text, at, says) in table {
        let error = Pattern::new(text).unwrap_err();
        assert_eq!((error.at(), error.to_string().as_str()), (at, says));
    }
    let error = Topic::new(&"é".repeat(200)).unwrap_err();
    assert_eq!((error.at(), error.to_string().as_str()), (255, "a topic has at most 255 bytes, not 400"));
}

#[test]
fn patterns_match_topics() {
    let table = [
        ("prices", "prices", true),
        ("prices", "price", false),
        ("prices", "Prices", false),
        ("prices", "prices.EUR", false),
        ("prices.EUR", "prices", false),
        ("prices.*", "prices", false),
        ("prices.*", "prices.EUR", true),
        ("prices.*", "prices.EUR.bid", false),
        ("prices.*.bid", "prices.EUR.bid", true),
        ("prices.*.bid", "prices.EUR.ask", false),
        ("*.EUR", "prices.EUR", true),
        ("*", "prices", true),
        ("*", "prices.EUR", false),
        ("*.*", "prices.EUR", true),
        ("prices.>", "prices", false),
        ("prices.>", "prices.EUR", true),
        ("prices.>", "prices.EUR.bid.1", true),
        ("prices.>", "price.EUR", false),
        ("prices.*.>", "prices.EUR", false),
        ("prices.*.>", "prices.EUR.bid", true),
        (">", "prices", true),
        (">", "prices.EUR.bid", true),
    ];
    for (pattern, topic, expected) in table {
        assert_eq!(Pattern::new(pattern).unwrap().matches(&Topic::new(topic).unwrap()), expected, "{pattern} {topic}");
    }
}

#[test]
fn topic_as_a_pattern_matches_itself() {
    let topic = Topic::new("a.b").unwrap();
    let pattern = Pattern::from(topic.clone());
    assert_eq!(pattern, Pattern::new("a.b").unwrap());
    assert!(pattern.is_exact() && pattern.matches(&topic));
    assert_eq!((pattern.to_string(), topic.to_string()), ("a.b".to_owned(), "a.b".to_owned()));
    assert!(!Pattern::new("a.*").unwrap().is_exact() && !Pattern::new("a.>").unwrap().is_exact());
}

fn matches(pattern: &[&str], topic: &[&str]) -> bool {
    match (pattern, topic) {
        ([], []) => true,
        ([">"], [_, ..]) => true,
        (["*", pattern @ ..], [_, topic @ ..]) => matches(pattern, topic),
        ([one, pattern @ ..], [other, topic @ ..]) => one == other && matches(pattern, topic),
        _ => false,
    }
}

proptest! {
    #[test]
    fn text_is_valid_if_each_segment_is(text in "[ab.*> \té]{0,7}") {
        let segments: Vec<&str> = text.split('.').collect();
        let name = |segment: &str| !segment.is_empty() && segment.chars().all(|c| "abé".contains(c));
        let topic = segments.iter().all(|segment| name(segment));
        let (last, others) = segments.split_last().unwrap();
        let pattern = others.iter().all(|segment| name(segment) || *segment == "*") && (name(last) || ["*", ">"].contains(last));
        prop_assert_eq!(Topic::new(&text).is_ok(), topic);
        prop_assert_eq!(Pattern::new(&text).is_ok(), pattern);
        for error in [Topic::new(&text).err(), Pattern::new(&text).err()].into_iter().flatten() {
            // A text before it could be the beginning of one.
            let before = &text[..error.at()];
            prop_assert!(before.is_empty() || Pattern::new(&format!("{}a", before.trim_end_matches('*'))).is_ok(), "{error:?}");
        }
    }

    #[test]
    fn matching_is_decided_segment_by_segment(
        pattern in "([ab*]\\.){0,3}[ab*>]",
        topic in "([ab]\\.){0,3}[ab]",
    ) {
        let expected = matches(&pattern.split('.').collect::<Vec<_>>(), &topic.split('.').collect::<Vec<_>>());
        prop_assert_eq!(Pattern::new(&pattern).unwrap().matches(&Topic::new(&topic).unwrap()), expected);
    }
}
