//! Access to topics: which ones a client may subscribe to and publish on, by a claim of its token.
//!
//! Compares names and patterns only and does not know which topics exist. A session calls [`Acl::may`] for each
//! subscription and each publication.

use serde_json::{Map, Value};

use super::Identity;
use super::error::Error;
use super::pattern::{self, Pattern, is_question};
use crate::reasons::Denied;

/// The claim with a client's rights, and the policy for clients without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclOptions {
    /// The name of the claim. Default: `topics`.
    pub claim: String,
    /// The policy for missing parts of the claim: all of it, `subscribe` or `publish` beside the other, or `allow`.
    /// Default: [`DefaultPolicy::Nothing`].
    pub default_policy: DefaultPolicy,
}

/// The rights of a client whose token does not state them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultPolicy {
    /// Everything that is not denied.
    All,
    /// Nothing.
    #[default]
    Nothing,
}

/// An operation on a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicPermission {
    /// Receiving its messages.
    Subscribe,
    /// Publishing on it.
    Publish,
}

/// The rights of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The topics that the client may subscribe to.
    pub subscribe: Acl,
    /// The topics that the client may publish on.
    pub publish: Acl,
}

/// A list of allowed patterns and a list of denied ones. Deny wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    allow: Vec<Pattern>,
    deny: Vec<Pattern>,
}

impl Default for AclOptions {
    fn default() -> Self {
        Self { claim: "topics".to_owned(), default_policy: DefaultPolicy::default() }
    }
}

impl AclOptions {
    /// Returns the rights of this client.
    ///
    /// The claim is `{"subscribe": LISTS, "publish": LISTS}`, or `LISTS` for both, where `LISTS` is
    /// `{"allow": [PATTERN, ...], "deny": [PATTERN, ...]}`. A claim of any other form denies the client altogether:
    /// a typing error in `deny` must not grant access.
    pub fn rights(&self, identity: &Identity) -> Result<Rights, Denied> {
        let bad = || Denied::BadClaim(self.claim.clone());
        let both = |acl: Acl| Rights { subscribe: acl.clone(), publish: acl };
        let claim = match identity.claims.get(&self.claim) {
            None | Some(Value::Null) => return Ok(both(self.default_policy.acl())),
            Some(Value::Object(claim)) => claim,
            Some(_) => return Err(bad()),
        };
        let lists = |claim: &Map<String, Value>| self.lists(claim, &identity.user).ok_or_else(bad);
        if !claim.contains_key("subscribe") && !claim.contains_key("publish") {
            return lists(claim).map(both);
        }
        if claim.keys().any(|name| name != "subscribe" && name != "publish") {
            return Err(bad());
        }
        let half = |name: &str| match claim.get(name) {
            None => Ok(self.default_policy.acl()),
            Some(Value::Object(half)) => lists(half),
            Some(_) => Err(bad()),
        };
        Ok(Rights { subscribe: half("subscribe")?, publish: half("publish")? })
    }

    fn lists(&self, claim: &Map<String, Value>, user: &str) -> Option<Acl> {
        let mut acl = self.default_policy.acl();
        for (name, list) in claim {
            let patterns: Option<Vec<Pattern>> =
                list.as_array()?.iter().map(|pattern| Pattern::parse(&for_user(pattern.as_str()?, user))).collect();
            match name.as_str() {
                "allow" => acl.allow = patterns?,
                "deny" => acl.deny = patterns?,
                _ => return None,
            }
        }
        Some(acl)
    }
}

impl DefaultPolicy {
    /// Returns the rights of a client without a token.
    pub fn rights(self) -> Rights {
        Rights { subscribe: self.acl(), publish: self.acl() }
    }

    /// Whether a client without a token may use this topic or pattern: see [`Acl::may`].
    pub fn may(self, pattern_or_topic: &str) -> bool {
        self == Self::All && is_question(pattern_or_topic)
    }

    fn acl(self) -> Acl {
        match self {
            Self::All => Acl::all(),
            Self::Nothing => Acl::default(),
        }
    }
}

impl Acl {
    /// Allows topics that match a pattern of `allow` and no pattern of `deny`.
    ///
    /// A pattern consists of segments between dots, at most 128, none empty. `*` stands for one segment; `>` must be
    /// the last segment and stands for one or more. `{user}` is replaced by the user's name as [`segment`] encodes it.
    /// Any other form is an error, as is `*` or `>` within a longer segment.
    pub fn new<S: AsRef<str>>(allow: &[S], deny: &[S], user: &str) -> Result<Self, Error> {
        let parse = |name: &'static str, patterns: &[S]| -> Result<Vec<Pattern>, Error> {
            let pattern = |text: &S| {
                Pattern::parse(&for_user(text.as_ref(), user))
                    .ok_or_else(|| Error::option(name, format!("{:?} is not a pattern", text.as_ref())))
            };
            patterns.iter().map(pattern).collect()
        };
        Ok(Self { allow: parse("allow", allow)?, deny: parse("deny", deny)? })
    }

    /// Adds the patterns of another list.
    pub fn add(&mut self, other: Self) {
        for (list, more) in [(&mut self.allow, other.allow), (&mut self.deny, other.deny)] {
            for pattern in more {
                if !list.contains(&pattern) {
                    list.push(pattern);
                }
            }
        }
    }

    /// Returns a list that allows everything.
    pub fn all() -> Self {
        Self { allow: Vec::from_iter(Pattern::parse(">")), deny: Vec::new() }
    }

    /// Whether all topics that this topic or pattern matches are allowed and none is denied. Returns false for
    /// text that is neither a topic nor a pattern, or that has more than 128 segments.
    ///
    /// So `prices.>` is refused where `prices.secret` is denied. It is granted where `prices.*` and `prices.*.>` are
    /// allowed, which together match the same topics. Allocates no memory. The time is proportional to the number of
    /// patterns, and for a `>` also to the length of the longest pattern.
    pub fn may(&self, pattern_or_topic: &str) -> bool {
        is_question(pattern_or_topic)
            && !self.deny.iter().any(|denied| denied.overlaps(pattern_or_topic))
            && pattern::covered(pattern_or_topic, &self.allow)
    }
}

/// Encodes a user's name as one segment of a topic: `.`, `*`, `>` and `%` are percent-encoded, so that
/// `jane@example.com` becomes `jane@example%2Ecom`. Different users have different segments. An empty name gives an
/// empty segment, which makes a pattern with `{user}` between dots invalid.
pub fn segment(user: &str) -> String {
    let mut text = String::with_capacity(user.len());
    for character in user.chars() {
        match character {
            '.' => text.push_str("%2E"),
            '*' => text.push_str("%2A"),
            '>' => text.push_str("%3E"),
            '%' => text.push_str("%25"),
            other => text.push(other),
        }
    }
    text
}

fn for_user(pattern: &str, user: &str) -> String {
    if pattern.contains("{user}") { pattern.replace("{user}", &segment(user)) } else { pattern.to_owned() }
}
