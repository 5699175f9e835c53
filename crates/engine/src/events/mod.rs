//! Events on their way from the workers to the application.

mod consumers;
mod queue;

pub(crate) use self::queue::Put;
pub use self::queue::{Batch, Closed, Ended, Event, Events, Watch};
