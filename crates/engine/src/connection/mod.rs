//! One client of a worker: its opening, then its session. It moves bytes, and says what is next; who it is
//! called by, and when, is the worker's.

mod established;
mod handshaking;
mod relaying;

pub(crate) use self::established::Established;
pub(crate) use self::handshaking::{Accepted, Detail, Opened, Opening};

/// What a turn of a session has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing more can be done before the next edge.
    Idle,
    /// There is more to be read: it has had its turn.
    Again,
    /// There may be more to be read, once events have room.
    Held,
    /// The same, once time has passed: it has sent too much.
    Limited,
    /// The same, once whoever handles its messages wants more.
    Stopped,
    /// The same, once those who get what it publishes have room. `moved`: some of it has gone on before.
    BackpressureWaiters {
        /// Whether it had a turn.
        moved: bool,
    },
    /// It is over.
    Over,
}

/// A client, on whichever side of its opening.
pub(crate) enum Client {
    Opening(Box<Opening>),
    Established(Box<Established>),
}
