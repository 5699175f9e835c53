//! The identity and the rights of a client: from its token, from grants of the application, and from later tokens.
//!
//! Knows neither sessions nor topics. A session creates a [`Principal`] once it has a token or a grant.

use std::sync::Arc;
use std::time::Instant;

use crate::auth::Identity;
use crate::auth::acl::{Acl, Rights, TopicPermission};

/// A user and its rights, according to a token.
pub(crate) struct User {
    pub(crate) identity: Identity,
    pub(crate) rights: Rights,
    /// When the token expires.
    pub(crate) expires: Option<Instant>,
}

/// A client: its identity if it has a token, and its rights.
pub(crate) struct Principal {
    identity: Option<Arc<Identity>>,
    expires: Option<Instant>,
    /// The rights that the token grants.
    token_rights: Rights,
    added: Option<Box<Added>>,
}

struct Added {
    /// The grants of the application alone.
    own: Rights,
    /// The grants of the application and of the token together.
    all: Rights,
}

impl From<User> for Principal {
    fn from(user: User) -> Self {
        let User { identity, rights, expires } = user;
        Self { identity: Some(Arc::new(identity)), expires, token_rights: rights, added: None }
    }
}

impl Principal {
    /// Creates a principal without a token, with these rights.
    pub(crate) fn anonymous(rights: Rights) -> Self {
        Self { identity: None, expires: None, token_rights: rights, added: None }
    }

    pub(crate) fn identity(&self) -> Option<&Arc<Identity>> {
        self.identity.as_ref()
    }

    /// Returns the `sub` of the token; empty without one.
    pub(crate) fn user(&self) -> &str {
        self.identity.as_ref().map_or("", |identity| &identity.user)
    }

    pub(crate) fn expires(&self) -> Option<Instant> {
        self.expires
    }

    /// Returns the rights that the token grants; `None` without a token.
    pub(crate) fn token_rights(&self) -> Option<&Rights> {
        self.identity.is_some().then_some(&self.token_rights)
    }

    pub(crate) fn may(&self, permission: TopicPermission, pattern_or_topic: &str) -> bool {
        let rights = self.added.as_ref().map_or(&self.token_rights, |added| &added.all);
        match permission {
            TopicPermission::Subscribe => rights.subscribe.may(pattern_or_topic),
            TopicPermission::Publish => rights.publish.may(pattern_or_topic),
        }
    }

    /// Adds allowed and denied patterns for these permissions.
    pub(crate) fn add(&mut self, permissions: &[TopicPermission], more: &Acl) {
        let token_rights = &self.token_rights;
        let added = self.added.get_or_insert_with(|| {
            let own = Rights { subscribe: Acl::default(), publish: Acl::default() };
            Box::new(Added { own, all: token_rights.clone() })
        });
        for permission in permissions {
            for rights in [&mut added.own, &mut added.all] {
                match permission {
                    TopicPermission::Subscribe => rights.subscribe.add(more.clone()),
                    TopicPermission::Publish => rights.publish.add(more.clone()),
                }
            }
        }
    }

    /// Replaces the token; the grants of the application stay. Returns false if the new token has another user or no
    /// user.
    pub(crate) fn renew(&mut self, user: User) -> bool {
        if user.identity.user.is_empty() || self.user() != user.identity.user {
            return false;
        }
        let User { identity, rights, expires } = user;
        if let Some(added) = &mut self.added {
            added.all = rights.clone();
            added.all.subscribe.add(added.own.subscribe.clone());
            added.all.publish.add(added.own.publish.clone());
        }
        (self.identity, self.token_rights, self.expires) = (Some(Arc::new(identity)), rights, expires);
        true
    }
}
