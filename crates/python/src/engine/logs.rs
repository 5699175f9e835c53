//! The log of an engine, for a thread that writes it.

use std::io::Write;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use wirespeed_engine::logs::{Level, Logs};

use crate::errors;

/// The log records of an engine. A thread that waits for them does not keep the engine alive.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct NativeLogs(pub(crate) Arc<Logs>);

#[pymethods]
impl NativeLogs {
    /// Returns a descriptor that becomes readable when there are records, and reaches its end with the engine. The
    /// caller owns it.
    fn wake_fd(&self) -> PyResult<i32> {
        let (ours, theirs) = UnixStream::pair().map_err(|error| errors::io_error(&error))?;
        ours.set_nonblocking(true).map_err(|error| errors::io_error(&error))?;
        self.0.set_notify(Arc::new(move || {
            let _ = (&ours).write(&[0]); // if the pipe is full, it is readable already
        }));
        Ok(theirs.into_raw_fd())
    }

    /// Takes the records: level, text, and number of suppressed similar records.
    fn take(&self) -> Vec<(i32, String, u64)> {
        // The levels of `logging`.
        let level = |level| match level {
            Level::Debug => 10,
            Level::Info => 20,
            Level::Warning => 30,
            Level::Error => 40,
        };
        let records = self.0.take(Instant::now());
        records.into_iter().map(|record| (level(record.level), record.text, record.suppressed)).collect()
    }

    /// Returns whether suppressed records will become due, for which the descriptor does not become readable.
    #[getter]
    fn has_suppressed(&self) -> bool {
        self.0.has_suppressed()
    }
}
