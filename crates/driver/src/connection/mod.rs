//! What a connection does between its socket and whoever uses it, however they wait: what moves, closes and
//! keeps it alive, and the queue of what was received, generic over what messages are to the application.

mod driver;
mod inbox;
mod lazy_box;
mod send_queue;
mod sender;
mod wait_state;
mod watchers;

pub use driver::{ConnectionDriver, Progress, Reading};
pub use inbox::{Inbox, Item, RECEIVED_COST, Receiver, Unparsed, Wanted};
pub use lazy_box::LazyBox;
pub use send_queue::{Hold, Large, Output, SendQueue, WritableNotice, YIELD_BYTES};
pub use sender::Sender;
pub use wait_state::{Action, ActionCursor, End, Environment, Limits, Teardown, WaitState};
pub use watchers::Watchers;

/// High and low marks of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Above it no more is taken in.
    pub high: usize,
    /// Once it is no more than this, more is.
    pub low: usize,
}

impl Watermarks {
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
