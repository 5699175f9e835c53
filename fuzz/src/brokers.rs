//! The encoding of messages and batches for brokers, names and patterns at brokers, addresses, and the tracking of
//! deliveries.

use std::collections::{BTreeMap, BTreeSet};

use wirespeed_brokers::Address;
use wirespeed_brokers::fuzzing::{ALL, DeliveryTracker, Numbered, Outcome, glob, open, pack, seal, unpack};
use wirespeed_engine::broker::is_reserved;
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_protocol::MessageKind;

use crate::input::Input;

/// Overhead in bytes of a batch and of each message in it.
const BATCH: usize = 4;
const LENGTH: usize = 4;

/// The first byte selects the comparison.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 5 {
        0 => batches(input),
        1 => any_bytes(input.rest()),
        2 => names(input),
        3 => arrivals(input),
        _ => addresses(input),
    }
}

fn message(input: &mut Input<'_>) -> (Numbered, MessageKind, Option<String>, Vec<u8>) {
    let flags = input.byte();
    let kind = if flags & 1 == 0 { MessageKind::Text } else { MessageKind::Binary };
    let len = input.byte();
    let key = String::from_utf8_lossy(input.take(usize::from(len & 15))).repeat(if flags & 8 == 0 { 1 } else { 3000 });
    let numbered = ([input.below(3); 16], u64::from(input.number()), u32::from(flags >> 4), u64::from(input.number()));
    (numbered, kind, (flags & 4 != 0).then_some(key), input.payload())
}

/// Batches are decoded into their messages, in order and with their topics. No batch exceeds the maximum size.
fn batches(mut input: Input<'_>) {
    let most = usize::from(input.number());
    let (mut items, mut messages) = (Vec::new(), Vec::new());
    while !input.is_empty() && items.len() < 12 {
        let topic = Some(*input.pick(&["a", "a", "a.b", ALL]))
            .filter(|name| *name != ALL)
            .map(|name| Topic::new(name).unwrap());
        let (numbered, kind, key, payload) = message(&mut input);
        items.push((topic, seal(numbered, kind, key.as_deref(), &payload)));
        messages.push((numbered, kind, key.filter(|key| key.len() <= usize::from(u16::MAX)), payload));
    }
    let batches = pack(items.clone(), most);
    let mut found = Vec::new();
    for (topic, bytes, count) in &batches {
        let parts: Vec<&[u8]> = unpack(bytes).collect();
        assert_eq!(parts.len() as u64, *count);
        assert!(*count == 1 || bytes.len() <= most);
        found.extend(parts.iter().map(|part| (topic.clone(), part.to_vec())));
    }
    // There are as few batches as possible.
    for pair in batches.windows(2) {
        let [(topic, bytes, count), (next, behind, _)] = pair else { continue };
        let size = bytes.len() + if *count == 1 { BATCH + LENGTH } else { 0 };
        let first = unpack(behind).next().map_or(0, <[u8]>::len);
        assert!(topic != next || size + LENGTH + first > most);
    }
    assert_eq!(found, items);
    for ((_, sealed), (numbered, kind, key, payload)) in items.iter().zip(messages) {
        let opened = open(sealed).expect("it was sealed");
        assert_eq!((opened.origin, opened.kind, opened.key, opened.payload), (Some(numbered), kind, key, payload));
    }
}

/// Any received bytes decode to at most their own size, and encoding a decoded message gives the same bytes.
fn any_bytes(bytes: &[u8]) {
    let prefixes: [&[u8]; 3] = [b"", b"\xffWS\x01", b"\xffWS\x02"];
    for prefix in prefixes {
        let bytes = [prefix, bytes].concat();
        let mut total = 0;
        for (number, part) in unpack(&bytes).enumerate() {
            assert!(number <= bytes.len() / LENGTH);
            total += part.len();
            let Some(opened) = open(part) else { continue };
            match opened.origin {
                None => {
                    assert_eq!((&opened.payload[..], opened.key), (part, None));
                    assert_eq!(opened.kind == MessageKind::Text, std::str::from_utf8(part).is_ok());
                }
                Some(origin) => {
                    let again = seal(origin, opened.kind, opened.key.as_deref(), &opened.payload);
                    // Unknown flags are ignored.
                    assert_eq!((&again[5..], again[4], &again[..4]), (&part[5..], part[4] & 3, &part[..4]));
                }
            }
        }
        assert!(total <= bytes.len() + LENGTH);
    }
}

/// The names of topics are valid at brokers, and the patterns for Redis match the same names as ours.
fn names(mut input: Input<'_>) {
    const WORDS: [&str; 14] = ["a", "b", ".", ".", "?", "[", "]", "^", "-", "\\", "é", "!", "$", "_wirespeed"];
    let prefix = input.words(4, &WORDS);
    let prefix = if Topic::new(&prefix).is_ok() { format!("{prefix}.") } else { String::new() };
    let topics: Vec<Topic> = (0..6).filter_map(|_| Topic::new(&input.words(6, &WORDS)).ok()).collect();
    for topic in &topics {
        let name = format!("{prefix}{topic}");
        // NATS: tokens between dots, without spaces and wildcards.
        assert!(
            name.split('.').all(|token| !token.is_empty()) && !name.contains([' ', '\t', '\r', '\n', '\0', '*', '>'])
        );
        assert!(is_reserved(&Topic::new(ALL).unwrap()) && (topic.as_str() != ALL || is_reserved(topic)));
    }
    let with_wildcards: Vec<&str> = WORDS.iter().copied().chain(["*", "*", ">"]).collect();
    for _ in 0..4 {
        let Ok(pattern) = Pattern::new(&input.words(6, &with_wildcards)) else { continue };
        let glob = glob(&prefix, &pattern);
        let segments: Vec<&str> = pattern.segments().collect();
        for topic in &topics {
            let name = format!("{prefix}{topic}");
            let found = redis_matches(glob.as_bytes(), name.as_bytes());
            assert!(found || !pattern.matches(topic), "{glob} and {name}");
            assert_eq!(found, matches_loosely(&segments.join("."), topic.as_str()), "{glob} and {name}");
            assert!(
                topic.as_str().starts_with(&prefix)
                    || !redis_matches(glob.as_bytes(), topic.as_str().as_bytes())
                    || prefix.is_empty()
            );
        }
    }
}

/// Matches with wildcards that match any text, even an empty one or one with dots.
fn matches_loosely(pattern: &str, text: &str) -> bool {
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*' | '>') => text
            .char_indices()
            .map(|(at, _)| at)
            .chain([text.len()])
            .any(|at| matches_loosely(&pattern[1..], &text[at..])),
        Some(letter) => {
            text.strip_prefix(letter).is_some_and(|text| matches_loosely(&pattern[letter.len_utf8()..], text))
        }
    }
}

/// Matches like `PSUBSCRIBE` of Redis: `?`, `*`, and a backslash before a literal character. Character classes such as
/// `[ae]` must not occur.
fn redis_matches(pattern: &[u8], text: &[u8]) -> bool {
    let Some((first, behind)) = pattern.split_first() else { return text.is_empty() };
    match first {
        b'*' => (0..=text.len()).any(|at| redis_matches(behind, &text[at..])),
        b'[' => {
            let Some(end) = behind.iter().position(|byte| *byte == b']') else { panic!("an unterminated class") };
            panic!("a class: {}", behind[..end].escape_ascii())
        }
        b'?' => !text.is_empty() && redis_matches(behind, &text[1..]),
        b'\\' => {
            let (letter, behind) = behind.split_first().expect("a character after the backslash");
            text.first() == Some(letter) && redis_matches(behind, &text[1..])
        }
        letter => text.first() == Some(letter) && redis_matches(behind, &text[1..]),
    }
}

/// Messages arrive by any subscription, in any order, and repeatedly. Each is delivered at most once, to its subscribers
/// only, and exactly the missing messages are reported as lost.
fn arrivals(mut input: Input<'_>) {
    const OWN: u8 = 0;
    const NAMES: [&str; 8] =
        ["app.a", "app.a.b", "app.b", "app.a b", "a", "app._wirespeed.broadcast", "app._wirespeed.x", "app."];
    const PATTERNS: [&str; 6] = ["a", "a.b", "a.*", "*", ">", "b"];
    let scattered = input.byte() & 1 != 0;
    let mut tracker = DeliveryTracker::new([OWN; 16], "app.", scattered);
    let patterns = PATTERNS.map(|text| Pattern::new(text).unwrap());
    let (mut asked, mut confirmed) = (BTreeSet::new(), BTreeSet::new());
    // The last delivered number of each node.
    let mut delivered: BTreeMap<[u8; 16], u64> = BTreeMap::new();
    // The highest received number of each node; the last delivered one of each topic; the highest one of each topic.
    let mut latest: BTreeMap<[u8; 16], u64> = BTreeMap::new();
    let mut last: BTreeMap<(&str, [u8; 16]), (u32, u64)> = BTreeMap::new();
    let mut highest: BTreeMap<(&str, [u8; 16], u32), u64> = BTreeMap::new();
    for _ in 0..80 {
        if input.is_empty() {
            break;
        }
        let step = input.byte();
        let at = usize::from(step >> 4) % patterns.len();
        match step & 15 {
            0 | 1 => {
                tracker.request(&patterns[at]);
                asked.insert(at);
            }
            2 => {
                tracker.confirm(&patterns[at]);
                if asked.contains(&at) {
                    confirmed.insert(at);
                }
            }
            3 => {
                tracker.end(&patterns[at]);
                asked.remove(&at);
                confirmed.remove(&at);
                // Messages published before a new subscription are not lost, unless another subscription covers the
                // topic. Broadcasts arrive without a pattern.
                last.retain(|(name, _), _| {
                    Topic::new(&name[4..]).is_ok_and(|topic| {
                        topic.as_str() == ALL
                            || !patterns[at].matches(&topic)
                            || asked.iter().any(|other: &usize| patterns[*other].matches(&topic))
                    })
                });
            }
            4 if step >> 4 == 0 => {
                tracker.disconnect();
                asked.clear();
                confirmed.clear();
            }
            5 => foreign(&mut input, &mut tracker, &patterns, &asked, &confirmed),
            _ => {
                let name = *input.pick(&NAMES);
                let via = (step & 1 != 0).then(|| std::slice::from_ref(&patterns[at]));
                let (numbered, kind, key, payload) = message(&mut input);
                let numbered = if step & 2 != 0 {
                    ([1; 16], 1 + numbered.1 % 16, numbered.2 & 1, 1 + numbered.3 % 16)
                } else {
                    numbered
                };
                let bytes = seal(numbered, kind, key.as_deref(), &payload);
                let came = tracker.arrive(name, via, &bytes);
                let (lost, topic) =
                    (tracker.take_lost(), name.strip_prefix("app.").and_then(|name| Topic::new(name).ok()));
                let (node, overall, epoch, on_topic) = numbered;
                let wanted = topic
                    .as_ref()
                    .is_some_and(|topic| asked.iter().any(|at| patterns[*at].matches(topic)) && !is_reserved(topic));
                let before = latest.entry(node).or_default();
                let ever = highest.entry((name, node, epoch)).or_default();
                let is_message = kind == MessageKind::Binary || std::str::from_utf8(&payload).is_ok();
                let is_new = (overall > *before || scattered) && on_topic > *ever && node != [OWN; 16] && is_message;
                *before = overall.max(*before);
                *ever = on_topic.max(*ever);
                let Outcome::Deliver(to, opened) = came else {
                    assert_eq!(lost, 0);
                    assert!(!is_new || !wanted && name != "app._wirespeed.broadcast", "{numbered:?} of {name} is kept");
                    continue;
                };
                assert_ne!(node, [OWN; 16], "our own");
                assert_eq!(Some(opened), open(&bytes));
                match &to {
                    None => assert_eq!(name, "app._wirespeed.broadcast"),
                    Some(to) => assert!(wanted && Some(to) == topic.as_ref(), "{to}"),
                }
                assert!(is_message, "text that is not UTF-8");
                let before = delivered.insert(node, overall);
                assert!(scattered || before != Some(overall), "again");
                let missing = match last.insert((name, node), (epoch, on_topic)) {
                    Some((same, number)) if same == epoch => on_topic.saturating_sub(number).saturating_sub(1),
                    _ => 0,
                };
                assert_eq!(lost, missing, "before {numbered:?} of {name}");
            }
        }
    }
}

/// A message of another program arrives by each matching subscription. It has no node and number.
fn foreign(
    input: &mut Input<'_>,
    tracker: &mut DeliveryTracker,
    patterns: &[Pattern],
    asked: &BTreeSet<usize>,
    confirmed: &BTreeSet<usize>,
) {
    let topic = Topic::new(input.pick::<&str>(&["a", "a.b", "b", "c.d"])).unwrap();
    let bytes = input.payload();
    if bytes.starts_with(b"\xffWS") {
        return;
    }
    let matching =
        |of: &BTreeSet<usize>| of.iter().copied().filter(|at| patterns[*at].matches(&topic)).collect::<Vec<_>>();
    let times = matching(asked)
        .iter()
        .filter(|at| {
            let came = tracker.arrive(&format!("app.{topic}"), Some(std::slice::from_ref(&patterns[**at])), &bytes);
            matches!(came, Outcome::Deliver(..))
        })
        .count();
    // It arrives by all subscriptions and is delivered once, even before any is confirmed.
    assert_eq!(times, usize::from(!matching(asked).is_empty()), "{topic}, confirmed: {:?}", matching(confirmed));
}

/// Any text is a valid address or an error. Neither the display of the address nor the error has its secrets.
fn addresses(mut input: Input<'_>) {
    const WORDS: [&str; 34] = [
        "nats",
        "redis",
        "rediss",
        "valkey",
        "valkeys",
        "tls",
        "NATS",
        "+sentinel",
        "+cluster",
        "+tls",
        "memory",
        "://",
        "://",
        ":",
        "@",
        "/",
        ",",
        "?",
        "&",
        "=",
        "h",
        "[::1]",
        "]",
        ":1",
        "4222",
        "tls_ca",
        "tls_cert",
        "tls_key",
        "SECRET",
        "%53ECRET",
        "%ff",
        "%",
        "mymaster",
        "é",
    ];
    let text = if input.byte() & 1 == 0 {
        String::from_utf8_lossy(input.rest()).into_owned()
    } else {
        input.words(14, &WORDS)
    };
    // The text before the last `@` is the login and must not be shown, unless it also occurs elsewhere.
    let (scheme, rest) = text.split_once("://").unwrap_or((&text, ""));
    let (user, others) = rest.rsplit_once('@').unwrap_or(("", rest));
    let secret = user.contains("SECRET") && !others.contains("ECRET") && !scheme.contains("SECRET");
    match Address::parse(&text) {
        Ok(address) => {
            let shown = address.to_string();
            assert_eq!(format!("{address:?}"), format!("Address({shown})"));
            assert!(!secret || scheme.eq_ignore_ascii_case("memory") || !shown.contains("SECRET"), "{text}: {shown}");
        }
        Err(error) => {
            let words = error.to_string();
            assert!(!words.chars().any(char::is_control), "{words:?}");
            assert!(!secret || !words.contains("SECRET"), "{text}: {words}");
        }
    }
}
