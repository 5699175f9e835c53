//! The clients of a worker: first an opening handshake, then a session.
//!
//! Moves bytes and returns what is next. The worker decides when to call it.

mod established;
mod handshaking;
mod relaying;

pub(crate) use self::established::Established;
pub(crate) use self::handshaking::{Accepted, Detail, Opened, Opening};

/// The result of reading a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing more can be done before the next edge.
    Idle,
    /// There is more to read: the client had its turn.
    Again,
    /// There may be more to read once events have capacity.
    Held,
    /// There may be more to read after some time: the client exceeds its message rate.
    Limited,
    /// There may be more to read once the handler of its messages resumes reading.
    Stopped,
    /// There may be more to read once its topic has capacity. `moved`: it has published something before.
    BackpressureWaiters {
        /// Whether it published something in this turn.
        moved: bool,
    },
    /// The connection is over.
    Over,
}

/// A client, before or after its opening handshake.
pub(crate) enum Client {
    Opening(Box<Opening>),
    Established(Box<Established>),
}
