//! Callbacks that an event loop holds for all of its connections. Only the loop refers to these objects, and
//! drops them when it is closed. They then release the connections that the loop kept alive.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

#[cfg(target_os = "linux")]
use super::epoll_registry::EpollRegistry;
use super::loop_state::LoopState;

/// Runs the drop handler of an object of the loop, except while the interpreter is finalizing. A pending
/// exception is preserved.
fn when_dropped(f: impl FnOnce(Python<'_>)) {
    let _ = Python::try_attach(|py| {
        let pending = PyErr::take(py);
        f(py);
        if let Some(pending) = pending {
            pending.restore(py);
        }
    });
}

/// The callback of `call_later`.
#[pyclass(frozen, module = "wirespeed._native")]
pub(super) struct TimerCallback {
    state: Py<LoopState>,
}

impl TimerCallback {
    pub(super) fn new(state: &Bound<'_, LoopState>) -> Self {
        Self { state: state.clone().unbind() }
    }
}

#[pymethods]
impl TimerCallback {
    fn on_timer(&self, py: Python<'_>) -> PyResult<()> {
        LoopState::_on_timer(self.state.bind(py))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.state)
    }
}

impl Drop for TimerCallback {
    fn drop(&mut self) {
        when_dropped(|py| LoopState::release_if_closed(self.state.bind(py)));
    }
}

/// The callback of the loop for the epoll that is registered among its descriptors.
#[cfg(target_os = "linux")]
#[pyclass(frozen, module = "wirespeed._native")]
pub(super) struct EpollCallback {
    state: Py<LoopState>,
    registry: Py<EpollRegistry>,
}

#[cfg(target_os = "linux")]
impl EpollCallback {
    pub(super) fn new(state: &Bound<'_, LoopState>, registry: Py<EpollRegistry>) -> Self {
        Self { state: state.clone().unbind(), registry }
    }
}

#[cfg(target_os = "linux")]
#[pymethods]
impl EpollCallback {
    fn serve(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        // In a child process the epoll belongs to the parent.
        if this.registry.get().is_forked() {
            return Ok(());
        }
        let timer_due = this.state.get().is_timer_due(py);
        EpollRegistry::serve_ready(this.registry.bind(py), timer_due, |_| LoopState::_on_timer(this.state.bind(py)))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.state)?;
        visit.call(&self.registry)
    }
}

#[cfg(target_os = "linux")]
impl Drop for EpollCallback {
    fn drop(&mut self) {
        when_dropped(|py| {
            LoopState::on_epoll_dropped(self.state.bind(py), &self.registry);
            self.registry.get().close(py);
        });
    }
}
