//! Events on their way from the workers to the application.

mod batch;
mod consumers;
mod queue;

pub use self::batch::{Batch, Ended, Event};
pub(crate) use self::queue::Put;
pub use self::queue::{Closed, Events, Watch};
