//! Topics without an application: whoever connects to a path subscribes to the topic that it names, and publishes on
//! it what he sends.
//!
//! Owns which topic a path names, and what clients of it may do. What they send is moved in
//! [`connection`](crate::connection).

use wirespeed_driver::protocol::handshake::Request;

use crate::broker;
use crate::routes::{self, Route};
use crate::topics::Topic;

/// The name of the segments that are the topic's.
const TOPIC: &str = "topic";

/// What clients of a relay may do. Their topic is what the path says for `{topic}`, decoded: one segment; or for
/// `{*topic}`: all that follow, with dots between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// They publish what they send; else they are closed with code 1008 if they send anything.
    pub send: bool,
    /// They subscribe to the topic.
    pub receive: bool,
    /// Each gets what it sends itself as well.
    pub echo: bool,
    /// What all topics begin with, before a dot: paths name no others.
    pub prefix: Option<Topic>,
}

impl Default for Relay {
    fn default() -> Self {
        Self { send: true, receive: true, echo: false, prefix: None }
    }
}

impl Relay {
    /// The topic that a request names; `None`: there is no such topic, or it is not for clients.
    pub(crate) fn topic(&self, route: &Route, request: &Request) -> Option<Topic> {
        let path = routes::path(request);
        let (_, raw) = route.params(path).into_iter().find(|(name, _)| *name == TOPIC)?;
        // Segments of the path before they are decoded: a slash that is encoded is none.
        let dotted = raw.replace('/', ".");
        let name = percent_encoding::percent_decode_str(&dotted).decode_utf8().ok()?;
        let topic = match &self.prefix {
            Some(prefix) => Topic::new(&format!("{prefix}.{name}")),
            None => Topic::new(&name),
        };
        topic.ok().filter(|topic| !broker::is_reserved(topic))
    }
}
