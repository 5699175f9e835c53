//! What an event loop calls for all of its connections. Only the loop holds these objects, which it drops when it is
//! closed: then they release the connections that it kept alive.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

#[cfg(target_os = "linux")]
use super::epoll_registry::EpollRegistry;
use super::loop_state::LoopState;

/// Runs what an object does when the loop drops it, but never while the interpreter ends. An exception that is being
/// raised goes on afterwards.
fn when_dropped(f: impl FnOnce(Python<'_>)) {
    let _ = Python::try_attach(|py| {
        let pending = PyErr::take(py);
        f(py);
        if let Some(pending) = pending {
            pending.restore(py);
        }
    });
}

/// What `call_later` calls.
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

/// What the loop calls when something in the epoll among its descriptors is ready.
#[cfg(target_os = "linux")]
#[pyclass(frozen, module = "wirespeed._native")]
pub(super) struct EpollCallback {
    state: Py<LoopState>,
    epolls: Py<EpollRegistry>,
}

#[cfg(target_os = "linux")]
impl EpollCallback {
    pub(super) fn new(state: &Bound<'_, LoopState>, epolls: Py<EpollRegistry>) -> Self {
        Self { state: state.clone().unbind(), epolls }
    }
}

#[cfg(target_os = "linux")]
#[pymethods]
impl EpollCallback {
    fn serve(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        // In a child process it is the parent's, whose connections are no business of ours.
        if this.epolls.get().is_forked() {
            return Ok(());
        }
        let timer_due = this.state.get().is_timer_due(py);
        EpollRegistry::serve_ready(this.epolls.bind(py), timer_due, |_| LoopState::_on_timer(this.state.bind(py)))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.state)?;
        visit.call(&self.epolls)
    }
}

#[cfg(target_os = "linux")]
impl Drop for EpollCallback {
    fn drop(&mut self) {
        when_dropped(|py| {
            LoopState::on_epoll_dropped(self.state.bind(py), &self.epolls);
            self.epolls.get().close(py);
        });
    }
}
