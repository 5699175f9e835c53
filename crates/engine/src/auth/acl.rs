//! Which topics a client may subscribe to and publish on, as a claim of its token says.
//!
//! Decides about names and patterns alone; knows no topics that exist. A session asks [`Acl::may`] for each
//! subscription and each publication.

use serde_json::{Map, Value};

use super::Identity;
use super::error::{Denied, Error};
use super::pattern::{self, Pattern, is_question};

/// Where the rights of a client are, and what it has when nothing is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclOptions {
    /// The claim. Default: `topics`.
    pub claim: String,
    /// What the claim leaves unsaid: all of it, `subscribe` or `publish` beside the other, or `allow`. Default:
    /// [`DefaultPolicy::Nothing`].
    pub unsaid: DefaultPolicy,
}

/// What a client may do where its token does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultPolicy {
    /// Everything that is not denied.
    All,
    /// Nothing.
    #[default]
    Nothing,
}

/// What a client may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// What it may receive.
    pub subscribe: Acl,
    /// What it may send.
    pub publish: Acl,
}

/// A list of patterns that are allowed and one of those that are denied all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    allow: Vec<Pattern>,
    deny: Vec<Pattern>,
}

impl Default for AclOptions {
    fn default() -> Self {
        Self { claim: "topics".to_owned(), unsaid: DefaultPolicy::default() }
    }
}

impl AclOptions {
    /// What this client may do.
    ///
    /// The claim is `{"subscribe": LISTS, "publish": LISTS}`, or `LISTS` for both, where `LISTS` is
    /// `{"allow": [PATTERN, ...], "deny": [PATTERN, ...]}`. Anything else in it denies the client altogether: a
    /// slip of the pen in a `deny` must not open what was meant to be closed.
    pub fn rights(&self, identity: &Identity) -> Result<Rights, Denied> {
        let bad = || Denied::BadClaim(self.claim.clone());
        let both = |acl: Acl| Rights { subscribe: acl.clone(), publish: acl };
        let claim = match identity.claims.get(&self.claim) {
            None | Some(Value::Null) => return Ok(both(self.unsaid.acl())),
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
            None => Ok(self.unsaid.acl()),
            Some(Value::Object(half)) => lists(half),
            Some(_) => Err(bad()),
        };
        Ok(Rights { subscribe: half("subscribe")?, publish: half("publish")? })
    }

    fn lists(&self, claim: &Map<String, Value>, user: &str) -> Option<Acl> {
        let mut acl = self.unsaid.acl();
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
    /// What whoever has no token may do.
    pub fn rights(self) -> Rights {
        Rights { subscribe: self.acl(), publish: self.acl() }
    }

    /// The same, of one topic or pattern: see [`Acl::may`].
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
    /// Allows what one of `allow` matches and none of `deny`. Deny wins.
    ///
    /// A pattern is of segments between dots, 128 at most, none empty. `*` stands for one segment; `>`, the last, for
    /// one or more. `{user}` anywhere is the user as [`segment`] writes it. A pattern of another form, with `*` or
    /// `>` beside other characters for one, is an error.
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

    /// Allows and denies besides what another one does.
    pub fn add(&mut self, other: Self) {
        for (list, more) in [(&mut self.allow, other.allow), (&mut self.deny, other.deny)] {
            for pattern in more {
                if !list.contains(&pattern) {
                    list.push(pattern);
                }
            }
        }
    }

    /// Allows everything.
    pub fn all() -> Self {
        Self { allow: Vec::from_iter(Pattern::parse(">")), deny: Vec::new() }
    }

    /// Whether everything that this topic or pattern stands for is allowed and nothing of it denied; not for what is
    /// neither a topic nor a pattern, nor for more segments than a topic may have, 128.
    ///
    /// So `prices.>` is refused where `prices.secret` is denied, and granted where `prices.*` and `prices.*.>` are
    /// allowed, which together are the same. Takes no memory; time by the number of patterns, and for a `>` by the
    /// segments of the longest one too.
    pub fn may(&self, pattern_or_topic: &str) -> bool {
        is_question(pattern_or_topic)
            && !self.deny.iter().any(|denied| denied.overlaps(pattern_or_topic))
            && pattern::covered(pattern_or_topic, &self.allow)
    }
}

/// A user's name as one segment of a topic: what would end the segment or be a wildcard, and `%`, is percent-encoded:
/// `.`, `*` and `>` (`jane@example.com` is `jane@example%2Ecom`). Different users have different segments. That of an
/// empty name is empty, so that a pattern with `{user}` between dots is an error then.
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
