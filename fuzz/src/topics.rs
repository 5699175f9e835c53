//! Topics and patterns: their syntax, the index of subscribers, and permissions, compared with linear searches in lists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use wirespeed_engine::auth::acl::Acl;
use wirespeed_engine::topics::{Index, Pattern, Registry, Topic, WorkerId};

use crate::input::Input;

/// The first byte selects the comparison.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 3 {
        0 => texts(input),
        1 => subscribers(input),
        _ => permissions(input),
    }
}

fn texts(input: Input<'_>) {
    let text = String::from_utf8_lossy(input.rest());
    let (is_topic, is_pattern) = (is_topic(&text), is_pattern(&text));
    assert_eq!(Topic::new(&text).is_ok(), is_topic, "{text:?}");
    assert_eq!(Pattern::new(&text).is_ok(), is_pattern, "{text:?}");
    for error in [Topic::new(&text).err(), Pattern::new(&text).err()].into_iter().flatten() {
        assert!(error.at() <= text.len() && !error.to_string().chars().any(char::is_control), "{error}");
    }
    // Every pattern is also valid in an access control list.
    if is_pattern {
        // There it may have a placeholder for the user, so a user name is given.
        assert!(Acl::new(&[&*text], &[], "u").is_ok(), "{text:?}");
        assert!(Acl::all().may(&text), "{text:?}");
    }
    if let (Ok(topic), Ok(all)) = (Topic::new(&text), Pattern::new(">")) {
        assert!(all.matches(&topic) && Pattern::from(topic.clone()).matches(&topic) && Pattern::from(topic).is_exact());
    }
}

fn is_topic(text: &str) -> bool {
    let good = |letter: char| !letter.is_ascii_control() && !" *>".contains(letter);
    text.len() <= 255 && text.split('.').all(|segment| !segment.is_empty() && segment.chars().all(good))
}

fn is_pattern(text: &str) -> bool {
    let mut segments: Vec<&str> = text.split('.').collect();
    if segments.last() == Some(&">") {
        segments.pop();
    }
    let words: Vec<&str> = segments.iter().map(|segment| if *segment == "*" { "w" } else { segment }).collect();
    text.len() <= 255 && (words.is_empty() || is_topic(&words.join(".")))
}

/// Returns a pattern of a few different words, so that many topics match.
fn pattern(input: &mut Input<'_>) -> Vec<&'static str> {
    let byte = input.byte();
    let mut segments: Vec<&str> = (0..1 + byte % 3).map(|_| *input.pick(&["a", "b", "c", "*"])).collect();
    if byte & 64 != 0 {
        segments.push(">");
    }
    segments
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

/// Returns all topics of one to `most` of the words.
fn topics(words: &[&'static str], most: usize) -> Vec<Vec<&'static str>> {
    let (mut all, mut longest) = (Vec::new(), vec![Vec::new()]);
    for _ in 0..most {
        longest =
            longest.iter().flat_map(|topic| words.iter().map(move |word| [&topic[..], &[*word]].concat())).collect();
        all.extend(longest.iter().cloned());
    }
    all
}

/// Checks the index of a worker and the registry of all workers after random steps.
fn subscribers(mut input: Input<'_>) {
    const LIMIT: usize = 4;
    let mut index: Index<u64> = Index::new();
    let registry = Registry::new(LIMIT);
    let wanted: Arc<Mutex<BTreeMap<String, bool>>> = Arc::default();
    let notified = Arc::clone(&wanted);
    registry.set_interest(Box::new(move |pattern, is_wanted| {
        let before = notified.lock().unwrap().insert(pattern.as_str().to_owned(), is_wanted);
        assert_ne!(before.unwrap_or(false), is_wanted, "{pattern} is notified once");
    }));
    let mut model: BTreeSet<(Vec<&str>, u64)> = BTreeSet::new();
    let worker = |id: u64| WorkerId::new(id as usize % 3).expect("it is below the maximum");
    for _ in 0..60 {
        if input.is_empty() {
            break;
        }
        let (step, id) = (input.byte(), u64::from(input.below(7)));
        let segments = pattern(&mut input);
        let parsed = Pattern::new(&segments.join(".")).unwrap();
        let mut applied = false;
        match step % 8 {
            0..=3 => {
                let has = model.iter().filter(|(_, other)| *other == id).count();
                let is_new = !model.contains(&(segments.clone(), id));
                let outcome = registry.subscribe(&parsed, worker(id), id, || applied = true);
                assert_eq!(outcome.ok(), if is_new && has >= LIMIT { None } else { Some(is_new) });
                assert_eq!(applied, is_new && has < LIMIT);
                if applied {
                    assert!(index.insert(&parsed, id));
                    model.insert((segments, id));
                }
            }
            4..=6 => {
                let was = model.remove(&(segments, id));
                assert_eq!(registry.unsubscribe(&parsed, id, || applied = true), was);
                assert_eq!(applied, was);
                assert_eq!(index.remove(&parsed, id), was);
            }
            _ => {
                let gone: BTreeSet<String> = registry.remove_session(id).iter().map(ToString::to_string).collect();
                let had: Vec<_> = model.iter().filter(|(_, other)| *other == id).cloned().collect();
                assert_eq!(gone, had.iter().map(|(segments, _)| segments.join(".")).collect());
                for (segments, id) in had {
                    assert!(index.remove(&Pattern::new(&segments.join(".")).unwrap(), id));
                    model.remove(&(segments, id));
                }
            }
        }
    }
    let patterns: BTreeSet<String> = model.iter().map(|(segments, _)| segments.join(".")).collect();
    let still: BTreeSet<String> =
        wanted.lock().unwrap().iter().filter(|(_, wanted)| **wanted).map(|(text, _)| text.clone()).collect();
    assert_eq!(still, patterns);
    assert_eq!((index.len(), registry.len()), (patterns.len(), patterns.len()));
    assert_eq!((index.is_empty(), index.branches() == 0 || !model.is_empty()), (model.is_empty(), true));
    for topic in topics(&["a", "b", "c", "d"], 4) {
        let name = Topic::new(&topic.join(".")).unwrap();
        let ids: BTreeSet<u64> =
            model.iter().filter(|(pattern, _)| matches(pattern, &topic)).map(|(_, id)| *id).collect();
        let found: BTreeSet<u64> = index.matching(&name).flat_map(|set| set.iter().collect::<Vec<_>>()).collect();
        assert_eq!(found, ids, "{name}");
        assert_eq!(index.count(&name), ids.len());
        let workers: BTreeSet<usize> = ids.iter().filter(|id| **id != 3).map(|id| *id as usize % 3).collect();
        let (count, reached) =
            registry.publish(&name, Some(3), |workers| workers.iter().map(|id| id.index()).collect::<BTreeSet<_>>());
        assert_eq!((count, reached), (ids.iter().filter(|id| **id != 3).count(), workers), "{name}");
    }
    for id in 0..7 {
        let of: BTreeSet<String> = registry.patterns_of(id).iter().map(ToString::to_string).collect();
        assert_eq!(
            of,
            model.iter().filter(|(_, other)| *other == id).map(|(segments, _)| segments.join(".")).collect()
        );
    }
}

/// A pattern is permitted if, and only if, each of its topics is allowed and none is denied.
fn permissions(mut input: Input<'_>) {
    let lists = [input.below(5), input.below(4)];
    let [allow, deny] = lists.map(|count| (0..count).map(|_| pattern(&mut input)).collect::<Vec<_>>());
    let texts = |list: &[Vec<&str>]| list.iter().map(|segments| segments.join(".")).collect::<Vec<_>>();
    let acl = Acl::new(&texts(&allow), &texts(&deny), "").unwrap();
    let question = pattern(&mut input);
    // A word that occurs in no pattern stands for all such words; one more segment than the longest pattern has stands for
    // all longer topics.
    let all = topics(&["a", "b", "c", "strange"], 5);
    let expected = all.iter().filter(|topic| matches(&question, topic)).all(|topic| {
        allow.iter().any(|pattern| matches(pattern, topic)) && !deny.iter().any(|pattern| matches(pattern, topic))
    });
    let text = question.join(".");
    assert_eq!(acl.may(&text), expected, "{text} by {allow:?} without {deny:?}");
}
