//! The sets of patterns with wildcards, as a tree of segments.
//!
//! Finds the patterns that match a topic by a walk along the topic's segments, which enters only branches that match
//! so far. Knows no exact pattern, and of a set only whether it is empty. Called by the index and the registry.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::pattern::{ANY, Pattern, REST, SEPARATOR, Topic};
use super::set::Members;

/// The sets of patterns with wildcards. `S`: the set of one pattern.
#[derive(Debug)]
pub(super) struct Tree<S> {
    root: Branch<S>,
    /// The number of leaves.
    len: usize,
}

/// The patterns that continue after some segments. Only the root may be empty.
#[derive(Debug)]
struct Branch<S> {
    named: HashMap<Box<str>, Branch<S>, RandomState>,
    any: Option<Box<Branch<S>>>,
    /// The pattern that ends here.
    end: Option<Box<Leaf<S>>>,
    /// The pattern that continues with `>`.
    rest: Option<Box<Leaf<S>>>,
}

/// A pattern with a subscriber.
#[derive(Debug)]
struct Leaf<S> {
    pattern: Pattern,
    /// Not empty.
    members: S,
}

impl<S> Default for Tree<S> {
    fn default() -> Self {
        Self { root: Branch::default(), len: 0 }
    }
}

impl<S: Members> Tree<S> {
    /// Returns the number of patterns.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the set of this pattern, and creates it if necessary. The caller has to add a member.
    pub(super) fn members_mut(&mut self, pattern: &Pattern) -> &mut S {
        let leaf = self.root.leaf_mut(pattern);
        if leaf.is_none() {
            self.len += 1;
        }
        &mut leaf.get_or_insert_with(|| Box::new(Leaf { pattern: pattern.clone(), members: S::default() })).members
    }

    /// Calls `change` with the set of this pattern, and frees what is empty then. Returns the result of `change`;
    /// false if there is no such set.
    pub(super) fn remove(&mut self, pattern: &Pattern, change: impl FnOnce(&mut S) -> bool) -> bool {
        let (changed, freed) = self.root.remove(pattern.segments(), change);
        self.len -= usize::from(freed);
        changed
    }

    /// Iterates over the sets of all matching patterns.
    pub(super) fn matching<'a, 't>(&'a self, topic: &'t Topic) -> Matching<'a, 't, S> {
        let next = if self.is_empty() { None } else { Some((&self.root, Some(topic.as_str()))) };
        Matching { next, others: Vec::new() }
    }

    /// Iterates over all patterns with their sets.
    pub(super) fn patterns(&self) -> impl Iterator<Item = (&Pattern, &S)> {
        let mut leaves = Vec::with_capacity(self.len);
        self.root.visit(&mut |branch| leaves.extend([&branch.end, &branch.rest].into_iter().flatten()));
        leaves.into_iter().map(|leaf| (&leaf.pattern, &leaf.members))
    }

    /// Returns the number of branches, without the root.
    pub(super) fn branches(&self) -> usize {
        let mut branches = 0;
        self.root.visit(&mut |_| branches += 1);
        branches - 1
    }
}

impl<S> Default for Branch<S> {
    fn default() -> Self {
        Self { named: HashMap::default(), any: None, end: None, rest: None }
    }
}

impl<S: Members> Branch<S> {
    fn is_empty(&self) -> bool {
        self.named.is_empty() && self.any.is_none() && self.end.is_none() && self.rest.is_none()
    }

    fn leaf_mut(&mut self, pattern: &Pattern) -> &mut Option<Box<Leaf<S>>> {
        let mut branch = self;
        for segment in pattern.segments() {
            branch = match segment {
                REST => return &mut branch.rest,
                ANY => branch.any.get_or_insert_default(),
                name => branch.named.entry(name.into()).or_default(),
            };
        }
        &mut branch.end
    }

    /// Returns the result of `change`, and whether the leaf was freed. The depth is the number of segments of the
    /// pattern, which its length limits to 128.
    fn remove<'p>(
        &mut self,
        mut segments: impl Iterator<Item = &'p str>,
        change: impl FnOnce(&mut S) -> bool,
    ) -> (bool, bool) {
        match segments.next() {
            None => remove_member(&mut self.end, change),
            Some(REST) => remove_member(&mut self.rest, change),
            Some(ANY) => {
                let Some(branch) = &mut self.any else { return (false, false) };
                let done = branch.remove(segments, change);
                self.any.take_if(|branch| branch.is_empty());
                done
            }
            Some(name) => {
                let Some(branch) = self.named.get_mut(name) else { return (false, false) };
                let done = branch.remove(segments, change);
                if branch.is_empty() {
                    self.named.remove(name);
                }
                done
            }
        }
    }

    fn visit<'a>(&'a self, see: &mut impl FnMut(&'a Self)) {
        see(self);
        for branch in self.named.values().chain(self.any.as_deref()) {
            branch.visit(see);
        }
    }
}

fn remove_member<S: Members>(leaf: &mut Option<Box<Leaf<S>>>, change: impl FnOnce(&mut S) -> bool) -> (bool, bool) {
    let Some(found) = leaf else { return (false, false) };
    let changed = change(&mut found.members);
    (changed, leaf.take_if(|leaf| leaf.members.len() == 0).is_some())
}

/// A walk through the matching branches.
pub(super) struct Matching<'a, 't, S> {
    /// The next branch, and the rest of the topic there.
    next: Option<(&'a Branch<S>, Option<&'t str>)>,
    /// Where to continue after that: if two branches match, one waits here.
    others: Vec<(&'a Branch<S>, Option<&'t str>)>,
}

impl<'a, S> Iterator for Matching<'a, '_, S> {
    type Item = &'a S;

    fn next(&mut self) -> Option<&'a S> {
        loop {
            let (branch, left) = self.next.take().or_else(|| self.others.pop())?;
            let leaf = match left {
                None => &branch.end,
                Some(left) => {
                    let (segment, left) = match left.split_once(SEPARATOR) {
                        Some((segment, left)) => (segment, Some(left)),
                        None => (left, None),
                    };
                    let named = branch.named.get(segment).map(|branch| (branch, left));
                    let any = branch.any.as_deref().map(|branch| (branch, left));
                    self.next = named.or(any);
                    if named.is_some() {
                        self.others.extend(any);
                    }
                    &branch.rest
                }
            };
            if let Some(leaf) = leaf {
                return Some(&leaf.members);
            }
        }
    }
}
