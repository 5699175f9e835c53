//! An awaitable that waits once for a descriptor to become ready.

use std::ffi::c_int;

use pyo3::gc::{PyTraverseError, PyVisit};
#[cfg(target_os = "linux")]
use pyo3::intern;
use pyo3::prelude::*;
#[cfg(target_os = "linux")]
use wirespeed_driver::protocol::Delivery;
use wirespeed_driver::socket::Readiness;

#[cfg(target_os = "linux")]
use super::invoke;
use super::loop_state::LoopState;
use super::raw::adopt;
use super::waiter::{Stage, WaiterRef};

/// The awaitable, whose result is `None`. A coroutine that stops waiting must call `LoopState._ignore` for the
/// descriptor.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Ready {
    waiter: WaiterRef,
}

impl Ready {
    /// Starts watching the descriptor. `None` if the caller must use the loop's own methods for this.
    #[cfg(target_os = "linux")]
    pub(super) fn begin(state: &Bound<'_, LoopState>, fd: c_int, interest: Readiness) -> PyResult<Option<Self>> {
        let py = state.py();
        let (Some(registry), Some(event_loop)) = (LoopState::registry(state), LoopState::event_loop(state)) else {
            return Ok(None);
        };
        let waiter = WaiterRef::new(&event_loop, None, Delivery::default())?;
        // In debug mode the loop itself resumes tasks, so that it can measure how long their steps take.
        let direct = !invoke::method(&event_loop, intern!(py, "get_debug"), [])?.is_truthy()?;
        registry.get().watch_once(py, fd, waiter.clone(), direct, interest)?;
        Ok(Some(Self { waiter }))
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn begin(_: &Bound<'_, LoopState>, _: c_int, _: Readiness) -> PyResult<Option<Self>> {
        Ok(None)
    }
}

#[pymethods]
impl Ready {
    fn __await__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.waiter.stage(py) {
            Stage::Waiting => adopt(py, self.waiter.yield_again(py)).map(Some),
            // When the wait was cancelled, the task throws the error into the coroutine.
            Stage::Woken | Stage::Cancelled => Ok(None),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.waiter.visit(&visit)
    }
}
