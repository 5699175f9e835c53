//! What a connection does between its socket and whoever uses it, however they wait: what moves, closes and
//! keeps it alive, and the queue of what was received, generic over what messages are to the application.

mod flow;
mod inbox;
mod motion;
mod outbox;
mod rare;
mod sender;
mod watchers;

pub use flow::{End, Environment, Farewell, Flow, Limits, Settling, Step};
pub use inbox::{Inbox, Item, RECEIVED_COST, Receiver, Unparsed, Wanted};
pub use motion::{Drive, Progress, Reading};
pub use outbox::{Hold, Large, Outbox, Output, TellWritable, YIELD_BYTES};
pub use rare::Rare;
pub use sender::Sender;
pub use watchers::Watchers;

/// High and low marks of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Above it no more is taken in.
    pub high: usize,
    /// Once it is no more than this, more is.
    pub low: usize,
}

impl Marks {
    /// Marks with the low one no higher than the other.
    #[must_use]
    pub fn new(high: usize, low: usize) -> Self {
        Self { high, low: low.min(high) }
    }

    /// Both the same.
    #[must_use]
    pub fn at(mark: usize) -> Self {
        Self { high: mark, low: mark }
    }
}
