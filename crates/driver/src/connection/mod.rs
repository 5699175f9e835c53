//! The state of one connection between its socket and the application, independent of how callers wait.
//!
//! `ConnectionDriver` moves bytes, closes the connection and keeps it alive. `Inbox` queues received messages,
//! `SendQueue` orders senders, and `WaitState` joins the three for an event loop. All are generic over the
//! application's types.

mod driver;
mod inbox;
mod lazy_box;
mod send_queue;
mod sender;
mod wait_state;
mod watchers;

pub use driver::{ConnectionDriver, Progress, Reading};
pub use inbox::{Inbox, Item, RECEIVED_COST, Receiver, Unparsed, Wanted};
pub use send_queue::{Output, SendQueue, YIELD_BYTES};
pub use sender::Sender;
pub use wait_state::{Action, ActionCursor, End, Environment, Limits, Teardown, WaitState};

/// The limits of a queue, with hysteresis: intake stops above `high` and restarts at `low`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Above this size the queue accepts no more.
    pub high: usize,
    /// At or below this size the queue accepts more again.
    pub low: usize,
}

impl Watermarks {
    /// Returns watermarks whose low mark is at most `high`.
    #[must_use]
    pub fn new(high: usize, low: usize) -> Self {
        Self { high, low: low.min(high) }
    }

    /// Returns watermarks with both marks at `mark`.
    #[must_use]
    pub fn at(mark: usize) -> Self {
        Self { high: mark, low: mark }
    }
}
