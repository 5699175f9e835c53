//! Topics without an application: a client that connects to a path subscribes to the topic in it, and publishes its
//! messages there.
//!
//! Owns the mapping from paths to topics and the permissions. [`connection`](crate::connection) forwards the messages.

use wirespeed_driver::protocol::handshake::Request;

use crate::broker;
use crate::config::routes::{self, Route};
use crate::topics::Topic;

/// The name of the path parameter that contains the topic.
const TOPIC: &str = "topic";

/// The settings of a relay. The topic is the decoded path parameter `{topic}`, one segment, or `{*topic}`, all
/// remaining segments with dots between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Whether clients publish their messages. If not, a client that sends one is closed with code 1008.
    pub send: bool,
    /// Whether clients subscribe to the topic.
    pub receive: bool,
    /// Whether clients receive their own messages.
    pub echo: bool,
    /// The prefix of all topics, to which a dot is appended. Clients cannot reach topics outside it.
    pub prefix: Option<Topic>,
}

impl Default for Relay {
    fn default() -> Self {
        Self { send: true, receive: true, echo: false, prefix: None }
    }
}

impl Relay {
    /// Returns the topic that a request names; `None` if it is invalid or reserved.
    pub(crate) fn topic(&self, route: &Route, request: &Request) -> Option<Topic> {
        let path = routes::path(request);
        let (_, raw) = route.params(path).into_iter().find(|(name, _)| *name == TOPIC)?;
        // Slashes are replaced before decoding, so an encoded slash does not separate segments.
        let dotted = raw.replace('/', ".");
        let name = percent_encoding::percent_decode_str(&dotted).decode_utf8().ok()?;
        let topic = match &self.prefix {
            Some(prefix) => Topic::new(&format!("{prefix}.{name}")),
            None => Topic::new(&name),
        };
        topic.ok().filter(|topic| !broker::is_reserved(topic))
    }
}
