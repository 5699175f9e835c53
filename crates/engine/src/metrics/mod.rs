//! What is counted: by each worker on a [`Sheet`] of its own, summed when somebody looks.
//!
//! A sheet has one writer, its worker, so counting is a load and a store, and no cache line moves between
//! processors but when it is read. Knows no socket and no Python; read by [`crate::Engine::figures`], by HTTP
//! and by Python.

mod count;
mod figures;
mod sheet;
mod text;

pub use count::{BOUNDS, Distribution};
pub use figures::{Figures, WorkerFigures};
pub(crate) use sheet::{Sheet, State};
pub use text::{CONTENT_TYPE, to_text};
