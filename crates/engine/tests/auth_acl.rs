//! Rights on topics: what claims say, and what patterns have in common.

#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod auth_support;

use auth_support::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use wirespeed_engine::auth::acl::{Acl, AclOptions, DefaultPolicy, Rights, segment};
use wirespeed_engine::auth::{Denied, Identity};
use wirespeed_engine::topics::Topic;

fn acl(allow: &[&str], deny: &[&str]) -> Acl {
    Acl::new(allow, deny, "alice").unwrap()
}

#[test]
fn topics_are_allowed_and_denied() {
    let acl = acl(&["prices.*", "news.>", "exact.topic"], &["prices.secret", "news.internal.>"]);
    for topic in ["prices.gold", "news.a", "news.a.b.c", "exact.topic", "news.internal"] {
        assert!(acl.may(topic), "{topic}");
    }
    for topic in [
        "prices",
        "prices.secret",
        "prices.a.b",
        "news",
        "news.internal.x",
        "news.internal.x.y",
        "exact",
        "exact.topic.x",
        "other",
        "Prices.gold",
    ] {
        assert!(!acl.may(topic), "{topic}");
    }
}

#[test]
fn pattern_is_allowed_if_all_its_topics_are() {
    let all_but = acl(&["prices.>"], &["prices.secret"]);
    for (pattern, granted) in [
        ("prices.>", false),
        ("prices.*", false),
        ("prices.*.*", true),
        ("prices.secret.>", true),
        ("prices.*.>", true),
        ("prices.gold.>", true),
        ("*.secret", false),
        ("*.secret.x", false),
        (">", false),
        ("*", false),
    ] {
        assert_eq!(all_but.may(pattern), granted, "{pattern}");
    }
    let only = acl(&["a.*", "b.>"], &[]);
    for (pattern, granted) in [
        ("a.*", true),
        ("a.>", false),
        ("a.*.*", false),
        ("b.*", true),
        ("b.>", true),
        ("b.*.c.>", true),
        ("*.b", false),
        ("b", false),
        (">", false),
    ] {
        assert_eq!(only.may(pattern), granted, "{pattern}");
    }
}

#[test]
fn several_patterns_cover_one_together() {
    let acl = acl(&["a.*", "a.*.*", "a.*.*.>", "b.x", "b.*.>"], &[]);
    assert!(acl.may("a.>"));
    assert!(acl.may("a.*.>"));
    assert!(!acl.may("b.>"), "b.y is not allowed");
    assert!(Acl::new(&["*", "*.>"], &[], "").unwrap().may(">"));
    assert!(Acl::new(&["*", "*.*", "*.*.*.>"], &[], "").unwrap().may("*.*.*.>"));
    assert!(!Acl::new(&["*", "*.*", "*.*.*.*.>"], &[], "").unwrap().may(">"), "three segments are missing");
    assert!(!Acl::new(&["*", "*.*", "*.*.*"], &[], "").unwrap().may(">"), "long topics are missing");
}

#[test]
fn deny_wins() {
    assert!(!acl(&["a", "a"], &["a"]).may("a"));
    assert!(!acl(&[">"], &[">"]).may("a"));
    assert!(!acl(&["a.b"], &["*.b"]).may("a.b"));
    assert!(acl(&["a.b"], &["*.c", "a", "a.b.>", "a.b.c"]).may("a.b"));
}

#[test]
fn default_policies_allow_all_or_nothing() {
    for text in ["a", "a.b", ">", "*", "a.*.>"] {
        assert!(Acl::all().may(text));
        assert!(!Acl::default().may(text));
    }
}

#[test]
fn invalid_patterns_are_refused() {
    let long = vec!["a"; 129].join(".");
    for text in
        ["", ".", "a.", ".a", "a..b", ">.a", "a.>.b", ">.>", "a*", "*a", "a.b>", "**", ">>", "a.*>", long.as_str()]
    {
        assert!(!Acl::all().may(text), "{text:?}");
        let error = Acl::new(&[text], &[], "").unwrap_err().to_string();
        assert_eq!(error, format!("allow: {text:?} is not a pattern"));
        let error = Acl::new(&["a"], &["b", text], "").unwrap_err().to_string();
        assert_eq!(error, format!("deny: {text:?} is not a pattern"));
    }
    assert!(Acl::all().may(&vec!["*"; 128].join(".")));
    for text in ["a b", "ü.日本", "a/b#c", "$SYS.x", "{user}", "%2E", "\0"] {
        assert!(Acl::all().may(text), "{text:?}");
    }
}

/// Every valid topic can be in a list.
#[test]
fn every_valid_topic_can_be_allowed() {
    for segments in 1..=128 {
        let text = vec!["a"; segments].join(".");
        assert!(Topic::new(&text).is_ok());
        for pattern in [">", text.as_str()] {
            assert!(Acl::new(&[pattern], &[], "").unwrap().may(&text), "{segments}");
        }
        assert!(!Acl::new(&[">"], &[&text], "").unwrap().may(&text), "{segments}");
    }
    assert!(Topic::new(&vec!["a"; 129].join(".")).is_err());
}

#[test]
fn user_is_encoded_as_one_segment() {
    let of = |user: &str| Acl::new(&["users.{user}.>", "inbox-{user}", "{user}.{user}"], &[], user).unwrap();
    assert!(of("alice").may("users.alice.a.b") && of("alice").may("inbox-alice") && of("alice").may("alice.alice"));
    assert!(!of("alice").may("users.bob.a") && !of("alice").may("users.*.a") && !of("alice").may("users.>"));
    for user in ["*", ">", "alice.*", "*.bob", "a.b", "alice.bob"] {
        let acl = of(user);
        for other in ["alice", "bob", "*", "alice.bob", "a.b", "a", ">"] {
            assert!(!acl.may(&format!("users.{other}.x")), "{user} as {other}");
        }
        assert!(acl.may(&format!("users.{}.x", segment(user))), "{user}");
    }
    assert_eq!(segment("jane.doe@example.com"), "jane%2Edoe@example%2Ecom");
    assert_eq!(segment("*>%.ü"), "%2A%3E%25%2Eü");
    // A name that looks like a placeholder is not replaced again.
    assert!(of("{user}").may("users.{user}.x") && !of("{user}").may("users.alice.x"));
    // The empty segment belongs to no user.
    assert!(Acl::new(&["users.{user}"], &[], "").is_err());
    assert!(Acl::new(&["inbox.{user}"], &["inbox.{user}.old"], "al").unwrap().may("inbox.al"));
}

fn identity(user: &str, topics: Option<Value>) -> Identity {
    let mut claims = json!({"sub": user, "exp": NOW + 60});
    if let Some(topics) = topics {
        claims["topics"] = topics;
    }
    jwt(|options| options.required.clear()).verify_token(&hs256(&claims), NOW).unwrap()
}

fn rights(default_policy: DefaultPolicy, topics: Value) -> Result<Rights, Denied> {
    AclOptions { default_policy, ..AclOptions::default() }.rights(&identity("alice", Some(topics)))
}

fn both(acl: Acl) -> Result<Rights, Denied> {
    Ok(Rights { subscribe: acl.clone(), publish: acl })
}

#[test]
fn missing_claim_gives_the_default() {
    for topics in [None, Some(Value::Null)] {
        let of = |default_policy| {
            AclOptions { default_policy, ..AclOptions::default() }.rights(&identity("alice", topics.clone()))
        };
        assert_eq!(of(DefaultPolicy::All), both(Acl::all()));
        assert_eq!(of(DefaultPolicy::Nothing), both(Acl::default()));
        assert_eq!(AclOptions::default().rights(&identity("alice", topics.clone())), both(Acl::default()));
    }
}

#[test]
fn one_claim_grants_both_rights() {
    let claim = json!({"allow": ["prices.>", "users.{user}"], "deny": ["prices.secret"]});
    for default_policy in [DefaultPolicy::All, DefaultPolicy::Nothing] {
        let expected = acl(&["prices.>", "users.alice"], &["prices.secret"]);
        assert_eq!(rights(default_policy, claim.clone()), both(expected));
        assert_eq!(rights(default_policy, json!({"allow": []})), both(Acl::default()));
    }
}

#[test]
fn missing_parts_of_the_claim_get_the_default() {
    assert_eq!(rights(DefaultPolicy::All, json!({})), both(Acl::all()));
    assert_eq!(rights(DefaultPolicy::Nothing, json!({})), both(Acl::default()));
    assert_eq!(rights(DefaultPolicy::All, json!({"deny": ["a"]})), both(acl(&[">"], &["a"])));
    assert!(!rights(DefaultPolicy::Nothing, json!({"deny": ["a"]})).unwrap().publish.may("b"));
    let half = json!({"subscribe": {"allow": ["a"]}});
    let subscribe = acl(&["a"], &[]);
    assert_eq!(
        rights(DefaultPolicy::Nothing, half.clone()),
        Ok(Rights { subscribe: subscribe.clone(), publish: Acl::default() })
    );
    assert_eq!(rights(DefaultPolicy::All, half), Ok(Rights { subscribe, publish: Acl::all() }));
}

#[test]
fn rights_may_be_separate() {
    let claim =
        json!({"subscribe": {"allow": ["news.>"]}, "publish": {"allow": ["chat.{user}"], "deny": ["chat.alice"]}});
    let rights = rights(DefaultPolicy::All, claim).unwrap();
    assert_eq!(rights.subscribe, acl(&["news.>"], &[]));
    assert_eq!(rights.publish, acl(&["chat.alice"], &["chat.alice"]));
}

#[test]
fn malformed_claim_denies() {
    for wrong in [
        json!("prices.>"),
        json!(["prices.>"]),
        json!(1),
        json!(false),
        json!({"allow": "prices.>"}),
        json!({"allow": null}),
        json!({"allow": {"a": 1}}),
        json!({"allow": ["a", 1]}),
        json!({"allow": [null]}),
        json!({"allow": ["a"], "denied": ["b"]}),
        json!({"allow": ["a"], "Deny": ["b"]}),
        json!({"allow": ["a"], "deny": ["b-*"]}),
        json!({"allow": ["a"], "deny": ["b..c"]}),
        json!({"allow": ["a"], "deny": [""]}),
        json!({"allow": ["a"], "subscribe": {}}),
        json!({"subscribe": ["a"], "publish": {}}),
        json!({"subscribe": null}),
        json!({"subscribe": {"subscribe": {}}}),
        json!({"publish": {"allow": ["a"]}, "receive": {}}),
    ] {
        for default_policy in [DefaultPolicy::All, DefaultPolicy::Nothing] {
            assert_eq!(rights(default_policy, wrong.clone()), Err(Denied::BadClaim("topics".to_owned())), "{wrong}");
        }
    }
    let options = AclOptions::default();
    let anonymous = identity("", Some(json!({"allow": ["users.{user}.>"]})));
    assert_eq!(options.rights(&anonymous), Err(Denied::BadClaim("topics".to_owned())));
}

#[test]
fn name_of_the_claim_is_configurable() {
    let options = AclOptions { claim: "https://example.com/acl".to_owned(), ..AclOptions::default() };
    let mut identity = identity("alice", Some(json!({"allow": [">"]})));
    assert_eq!(options.rights(&identity), both(Acl::default()));
    identity.claims.insert("https://example.com/acl".to_owned(), json!({"allow": ["a"]}));
    assert_eq!(options.rights(&identity), both(acl(&["a"], &[])));
}

/// The definition of a match, by recursion over lists of segments.
fn matches(pattern: &[&str], topic: &[&str]) -> bool {
    match (pattern, topic) {
        ([], []) => true,
        ([">"], [_, ..]) => true,
        (["*", pattern @ ..], [_, topic @ ..]) => matches(pattern, topic),
        ([word, pattern @ ..], [first, topic @ ..]) => word == first && matches(pattern, topic),
        _ => false,
    }
}

/// All topics of up to six segments, with two words that patterns contain and one that they do not.
fn universe() -> &'static [Vec<&'static str>] {
    static TOPICS: std::sync::OnceLock<Vec<Vec<&str>>> = std::sync::OnceLock::new();
    TOPICS.get_or_init(|| {
        let mut topics: Vec<Vec<&str>> = Vec::new();
        let mut longest: Vec<Vec<&str>> = vec![Vec::new()];
        for _ in 0..6 {
            longest =
                longest.iter().flat_map(|topic| ["a", "b", "z"].map(|word| [&topic[..], &[word]].concat())).collect();
            topics.extend(longest.iter().cloned());
        }
        topics
    })
}

/// A pattern of up to four segments, so that topics of six segments are longer than any `>` requires.
fn pattern() -> impl Strategy<Value = String> {
    let word = prop_oneof![2 => Just("a"), 2 => Just("b"), 3 => Just("*")];
    (proptest::collection::vec(word, 0..4), any::<bool>()).prop_map(|(mut segments, rest)| {
        if rest || segments.is_empty() {
            segments.push(">");
        }
        segments.join(".")
    })
}

fn may(allow: &[String], deny: &[String], question: &str) -> bool {
    let split = |patterns: &[String]| -> Vec<Vec<String>> {
        patterns.iter().map(|pattern| pattern.split('.').map(str::to_owned).collect()).collect()
    };
    let (allow, deny, question) = (split(allow), split(deny), question.split('.').collect::<Vec<_>>());
    let any = |patterns: &[Vec<String>], topic: &[&str]| {
        patterns.iter().any(|pattern| matches(&pattern.iter().map(String::as_str).collect::<Vec<_>>(), topic))
    };
    let mut matching = universe().iter().filter(|topic| matches(&question, topic));
    matching.all(|topic| any(&allow, topic) && !any(&deny, topic))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn covering_equals_a_check_of_each_topic(
        allow in proptest::collection::vec(pattern(), 0..6),
        deny in prop_oneof![Just(vec![]), proptest::collection::vec(pattern(), 1..3)],
        question in pattern(),
    ) {
        let acl = Acl::new(&allow, &deny, "").unwrap();
        prop_assert_eq!(acl.may(&question), may(&allow, &deny, &question));
    }

    #[test]
    fn covering_by_several_patterns_equals_a_check_of_each_topic(parts in proptest::collection::vec(prop_oneof![Just("*"), Just("*.*"), Just("*.*.*"), Just(">"), Just("*.>"), Just("*.*.>"), Just("*.*.*.>"), Just("a.>"), Just("a")], 1..6), prefix in prop_oneof![Just(""), Just("a."), Just("*.")], question in prop_oneof![Just(">"), Just("*.>"), Just("a.>"), Just("*.*.>")]) {
        let allow: Vec<String> = parts.iter().map(|part| format!("{prefix}{part}")).collect();
        let question = format!("{prefix}{question}");
        let acl = Acl::new(&allow, &[], "").unwrap();
        prop_assert_eq!(acl.may(&question), may(&allow, &[], &question));
    }

    #[test]
    fn granted_pattern_grants_its_topics(allow in proptest::collection::vec(pattern(), 0..6), deny in proptest::collection::vec(pattern(), 0..2), question in pattern(), topic in proptest::collection::vec("[abz]", 1..9)) {
        let acl = Acl::new(&allow, &deny, "").unwrap();
        let question_segments: Vec<&str> = question.split('.').collect();
        let topic: Vec<&str> = topic.iter().map(String::as_str).collect();
        if acl.may(&question) && matches(&question_segments, &topic) {
            prop_assert!(acl.may(&topic.join(".")));
        }
    }

    #[test]
    fn arbitrary_text_causes_no_panic(text in ".{0,80}", patterns in proptest::collection::vec(r"[ab*>.{}]{0,12}", 0..4), user in ".{0,8}") {
        let _ = Acl::all().may(&text);
        if let Ok(acl) = Acl::new(&patterns, &[], &user) {
            prop_assert!(!acl.may(&text) || Acl::all().may(&text));
        }
    }

    #[test]
    fn users_never_share_a_segment(one in r"[a%.*>2E]{0,5}", other in r"[a%.*>2E]{0,5}") {
        prop_assert_eq!(segment(&one) == segment(&other), one == other);
        prop_assert!(one.is_empty() || Acl::all().may(&segment(&one)));
        prop_assert!(!segment(&one).contains(['.', '*', '>']));
    }
}
