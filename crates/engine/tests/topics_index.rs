//! The index, compared with a search through a list of all subscriptions.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use wirespeed_engine::topics::{Index, Pattern, Topic};

fn pattern(text: &str) -> Pattern {
    Pattern::new(text).unwrap()
}

fn topic(text: &str) -> Topic {
    Topic::new(text).unwrap()
}

/// All topics of one to four segments, each `a`, `b` or `c`.
fn topics() -> Vec<Topic> {
    let mut all: Vec<String> = Vec::new();
    let mut longest = vec![String::new()];
    for _ in 0..4 {
        longest = longest.iter().flat_map(|text| ["a", "b", "c"].map(|name| format!("{text}.{name}"))).collect();
        all.extend(longest.iter().map(|text| text[1..].to_owned()));
    }
    all.iter().map(|text| topic(text)).collect()
}

/// Returns the matching subscriptions, each once.
#[derive(Default)]
struct Model(BTreeSet<(Pattern, u8)>);

impl Model {
    /// Returns the matching patterns with their keys.
    fn matching(&self, topic: &Topic) -> BTreeMap<&Pattern, BTreeSet<u8>> {
        let mut sets: BTreeMap<_, BTreeSet<u8>> = BTreeMap::new();
        for (pattern, key) in self.0.iter().filter(|(pattern, _)| pattern.matches(topic)) {
            sets.entry(pattern).or_default().insert(*key);
        }
        sets
    }

    fn patterns(&self) -> BTreeMap<Pattern, BTreeSet<u8>> {
        let mut sets: BTreeMap<_, BTreeSet<u8>> = BTreeMap::new();
        for (pattern, key) in &self.0 {
            sets.entry(pattern.clone()).or_default().insert(*key);
        }
        sets
    }

    /// Returns the distinct prefixes of patterns with wildcards; each has its own branch.
    fn branches(&self) -> usize {
        let mut beginnings = BTreeSet::new();
        for (pattern, _) in self.0.iter().filter(|(pattern, _)| !pattern.is_exact()) {
            let segments: Vec<&str> = pattern.segments().filter(|segment| *segment != ">").collect();
            beginnings.extend((1..=segments.len()).map(|len| segments[..len].join(".")));
        }
        beginnings.len()
    }

    fn check(&self, index: &Index<u8>, topics: &[Topic]) {
        for topic in topics {
            let expected = self.matching(topic);
            let found: Vec<Vec<u8>> = index.matching(topic).map(|set| set.iter().collect()).collect();
            let mut sorted: Vec<Vec<u8>> = found
                .iter()
                .cloned()
                .map(|mut set| {
                    set.sort();
                    set
                })
                .collect();
            if let Some(exact) = expected.get(&Pattern::from(topic.clone())) {
                assert!(sorted[0].iter().eq(exact), "{topic}: the set of its name is not the first");
            }
            let mut sets: Vec<Vec<u8>> = expected.values().map(|set| set.iter().copied().collect()).collect();
            sorted.sort();
            sets.sort();
            assert_eq!(sorted, sets, "{topic}");
            let distinct: BTreeSet<u8> = expected.values().flatten().copied().collect();
            assert_eq!(index.count(topic), distinct.len(), "{topic}");
            for set in index.matching(topic) {
                assert_eq!(
                    (set.is_empty(), set.len(), set.iter().all(|key| set.contains(key))),
                    (false, set.iter().len(), true)
                );
                assert!(!set.contains(99));
            }
        }
        let listed: Vec<_> = index.patterns().map(|(pattern, set)| (pattern.clone(), set.iter().collect())).collect();
        assert_eq!((listed.len(), index.len()), (self.patterns().len(), self.patterns().len()));
        assert_eq!(listed.into_iter().collect::<BTreeMap<_, _>>(), self.patterns());
        assert_eq!(index.is_empty(), self.0.is_empty());
        assert_eq!(index.branches(), self.branches());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn agrees_with_a_list(
        steps in prop::collection::vec((prop::bool::weighted(0.6), "([abc*]\\.){0,3}[abc*>]", 0..6_u8, 0..117_usize), 1..80),
    ) {
        let topics = topics();
        let (mut index, mut model) = (Index::new(), Model::default());
        for (insert, text, key, some) in &steps {
            let pattern = pattern(text);
            if *insert {
                prop_assert_eq!(index.insert(&pattern, *key), model.0.insert((pattern, *key)));
            } else {
                prop_assert_eq!(index.remove(&pattern, *key), model.0.remove(&(pattern, *key)));
            }
            model.check(&index, &topics[*some..][..4]);
        }
        model.check(&index, &topics);
        // One of two equal ones is removed and comes back; then all are removed, and nothing is left.
        let all: Vec<_> = model.0.iter().cloned().collect();
        for (pattern, key) in all.iter().step_by(2) {
            prop_assert!(index.remove(pattern, *key) && model.0.remove(&(pattern.clone(), *key)));
        }
        model.check(&index, &topics);
        for (pattern, key) in all.iter().step_by(2) {
            prop_assert!(index.insert(pattern, *key) && model.0.insert((pattern.clone(), *key)));
        }
        model.check(&index, &topics);
        for (pattern, key) in all.iter().rev() {
            prop_assert!(index.remove(pattern, *key) && !index.remove(pattern, *key));
            model.0.remove(&(pattern.clone(), *key));
            prop_assert_eq!((index.len(), index.branches()), (model.patterns().len(), model.branches()));
        }
        model.check(&index, &topics);
        prop_assert_eq!((index.len(), index.branches()), (0, 0));
    }

    #[test]
    fn counts_each_key_once(sizes in prop::collection::vec((0..40_u32, 0..40_u32), 6)) {
        let patterns = ["a.b.c", "a.b.*", "a.*.c", "*.b.c", "a.>", ">"];
        let (mut index, mut all) = (Index::new(), BTreeSet::new());
        for (text, (first, len)) in patterns.iter().zip(sizes) {
            for key in first..first + len {
                prop_assert!(index.insert(&pattern(text), key));
                all.insert(key);
            }
        }
        prop_assert_eq!(index.count(&topic("a.b.c")), all.len());
    }
}

#[test]
fn removing_a_missing_subscription_changes_nothing() {
    let mut index = Index::new();
    for text in ["a", "a.*", "a.>", "a.*.b"] {
        assert!(index.insert(&pattern(text), 1));
    }
    for text in ["b", "*", ">", "a.b", "*.a", "b.*", "b.>", "a.*.>", "a.*.c", "a.*.b.*"] {
        assert!(!index.remove(&pattern(text), 1), "{text}");
    }
    for text in ["a", "a.*", "a.>", "a.*.b"] {
        assert!(!index.remove(&pattern(text), 2), "{text}");
        assert!(!index.insert(&pattern(text), 1), "{text}");
    }
    assert_eq!((index.len(), index.branches()), (4, 3));
}

#[test]
fn deepest_topic_is_matched() {
    let mut index = Index::new();
    let texts = [vec!["a"; 128].join("."), vec!["*"; 128].join("."), format!("{}.>", vec!["a"; 127].join("."))];
    for (key, text) in texts.iter().enumerate() {
        assert!(index.insert(&pattern(text), key));
    }
    assert_eq!(index.branches(), 128 + 127);
    assert_eq!(index.count(&topic(&texts[0])), 3);
    assert_eq!(index.count(&topic(&texts[0][2..])), 0);
    for (key, text) in texts.iter().enumerate() {
        assert!(index.remove(&pattern(text), key));
    }
    assert_eq!((index.len(), index.branches()), (0, 0));
}
