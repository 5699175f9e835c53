//! How the messages of sessions are handled, and the decision about an opening request.

use std::net::SocketAddr;

use wirespeed_driver::protocol::handshake::{HeaderList, Request, Response};

use crate::topics::Topic;

/// The way in which the messages of a session are handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// They become events for [`crate::Engine::events`].
    Events,
    /// Each message is sent back.
    Echo,
    /// Each message is published: see [`Relay`].
    Relay(Relay),
}

/// The decision about an opening request.
pub enum Admission {
    /// Accepts the request: it becomes a session.
    Accept {
        /// The handling of its messages. [`Role::Relay`] is not possible here and is answered with 500, because its
        /// topic comes from a route.
        role: Role,
        /// The subprotocol, which must be one that the client offers.
        subprotocol: Option<String>,
        /// Additional header fields of the response.
        headers: HeaderList,
    },
    /// Answers with an HTTP response and closes the connection.
    Refuse {
        /// The status, 200 to 999.
        status: u16,
        /// The header fields.
        headers: HeaderList,
        /// The body.
        body: Vec<u8>,
    },
    /// Answers with a complete response and closes the connection.
    Respond(Response),
}

/// Decides about a request. Called in a worker's thread: it must not block.
pub type Admit = dyn Fn(&Request, Option<SocketAddr>) -> Admission + Send + Sync;

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
