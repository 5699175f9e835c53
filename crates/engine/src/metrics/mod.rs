//! What is counted: by each worker on a [`WorkerMetrics`] of its own, summed when somebody looks.
//!
//! A sheet has one writer, its worker, so counting is a load and a store, and no cache line moves between
//! processors but when it is read. Knows no socket and no Python; read by [`crate::Engine::figures`], by HTTP
//! and by Python.

mod count;
mod snapshot;
mod text;
mod worker_metrics;

pub use count::{BOUNDS, Distribution};
pub use snapshot::{Figures, WorkerFigures};
pub use text::{CONTENT_TYPE, to_text};
pub(crate) use worker_metrics::{State, WorkerMetrics};
