//! Who a client is and what it may do: by its token, by what the application adds to that, and by later tokens.
//!
//! Knows no session and no topic. Called by sessions, which keep one of these once there is anything to be known.

use std::sync::Arc;
use std::time::Instant;

use crate::auth::Identity;
use crate::auth::acl::{Acl, Rights};
use crate::session::TopicPermission;

/// Who it is, by its token.
pub(crate) struct User {
    pub(crate) identity: Identity,
    pub(crate) rights: Rights,
    /// When the token is good no longer.
    pub(crate) expires: Option<Instant>,
}

/// See the module.
pub(crate) struct Principal {
    identity: Option<Arc<Identity>>,
    expires: Option<Instant>,
    /// What its token allows.
    by_token: Rights,
    added: Option<Box<Added>>,
}

struct Added {
    /// What the application has added.
    own: Rights,
    /// With what the token allows.
    all: Rights,
}

impl From<User> for Principal {
    fn from(user: User) -> Self {
        let User { identity, rights, expires } = user;
        Self { identity: Some(Arc::new(identity)), expires, by_token: rights, added: None }
    }
}

impl Principal {
    /// One without a token, who may do this.
    pub(crate) fn nobody(rights: Rights) -> Self {
        Self { identity: None, expires: None, by_token: rights, added: None }
    }

    pub(crate) fn identity(&self) -> Option<&Arc<Identity>> {
        self.identity.as_ref()
    }

    /// The name by which tokens tell users apart; empty if there is none.
    pub(crate) fn user(&self) -> &str {
        self.identity.as_ref().map_or("", |identity| &identity.user)
    }

    pub(crate) fn expires(&self) -> Option<Instant> {
        self.expires
    }

    /// What its token allows; `None` without one.
    pub(crate) fn by_token(&self) -> Option<&Rights> {
        self.identity.is_some().then_some(&self.by_token)
    }

    pub(crate) fn may(&self, deed: TopicPermission, pattern_or_topic: &str) -> bool {
        let rights = self.added.as_ref().map_or(&self.by_token, |added| &added.all);
        match deed {
            TopicPermission::Subscribe => rights.subscribe.may(pattern_or_topic),
            TopicPermission::Publish => rights.publish.may(pattern_or_topic),
        }
    }

    /// Allows and denies more, for these deeds.
    pub(crate) fn add(&mut self, deeds: &[TopicPermission], more: &Acl) {
        let by_token = &self.by_token;
        let added = self.added.get_or_insert_with(|| {
            let own = Rights { subscribe: Acl::default(), publish: Acl::default() };
            Box::new(Added { own, all: by_token.clone() })
        });
        for deed in deeds {
            for rights in [&mut added.own, &mut added.all] {
                match deed {
                    TopicPermission::Subscribe => rights.subscribe.add(more.clone()),
                    TopicPermission::Publish => rights.publish.add(more.clone()),
                }
            }
        }
    }

    /// Another token of the same user: what the application has added stays. False: it is another user's, or nobody's.
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
        (self.identity, self.by_token, self.expires) = (Some(Arc::new(identity)), rights, expires);
        true
    }
}
