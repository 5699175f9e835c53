//! The clients of a worker: first an opening handshake, then a session.
//!
//! Moves bytes and returns what is next. The worker decides when to call it.

mod established;
mod handshaking;
pub(crate) mod meter;
mod relaying;

pub(crate) use self::established::Established;
pub(crate) use self::handshaking::{Accepted, Detail, Opened, Opening};

/// The result of reading a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing more can be done before the next edge.
    Idle,
    /// There is more to read: the client had its turn.
    Ready,
    /// There may be more to read once events have capacity.
    Paused,
    /// There may be more to read after some time: the client exceeds its message rate.
    RateLimited,
    /// There may be more to read once the handler of its messages resumes reading.
    ReadingDisabled,
    /// There may be more to read once its topic has capacity. `published`: it has published something before.
    Backpressured {
        /// Whether it published something in this turn.
        published: bool,
    },
    /// The connection is over.
    Over,
}

/// A client, before or after its opening handshake.
pub(crate) enum Client {
    Opening(Box<Opening>),
    Established(Box<Established>),
}
