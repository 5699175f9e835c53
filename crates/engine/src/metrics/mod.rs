//! Metrics: each worker counts in its own `WorkerMetrics`, and readers compute the sums.
//!
//! Each has one writer, its worker, so counting is a load and a store, and cache lines move between processors only
//! when they are read. Knows no socket and no Python; read by [`crate::Engine::figures`], by HTTP and by Python.

mod count;
mod snapshot;
mod text;
mod worker_metrics;

pub use count::{BOUNDS, Distribution};
pub use snapshot::{Figures, SessionFigures, WorkerFigures};
pub use text::{CONTENT_TYPE, to_text};
pub(crate) use worker_metrics::{State, WorkerMetrics};
