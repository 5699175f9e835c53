//! The descriptors that an epoll of this library watches: the sockets of connections, and of clients in the
//! opening handshake.
//!
//! This library's selector waits on the epoll itself. On other loops the epoll is one of the loop's
//! descriptors. However many connections are ready, the loop makes one callback, and connections need no
//! registration of their own in the loop.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use wirespeed_driver::fork;
use wirespeed_driver::readiness::{Events, Poller, Ready};
use wirespeed_driver::socket::Readiness;

use super::gil_mutex::GilMutex;
use super::invoke;
use super::loop_adapter::LoopAdapter;
use super::raw;
use super::waiter::{Stage, WaiterRef};

/// Marks the tokens of this registry among those that epoll returns.
pub(super) const REGISTRY_TOKEN: u64 = 1 << 63;

/// The most descriptors served in one callback of a foreign loop, before the loop runs other callbacks.
const MAX_EVENTS: usize = 256;

/// What is called when a descriptor is ready.
enum Target {
    LoopAdapter(Py<LoopAdapter>),
    /// A function without arguments, for a readable descriptor.
    Callback(Py<PyAny>),
    /// A task that waits for the descriptor once, and whether it is resumed directly.
    Waiter(WaiterRef, bool),
}

impl Target {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::LoopAdapter(one), Self::LoopAdapter(other)) => one.is(other),
            _ => false,
        }
    }
}

struct Watched {
    target: Target,
    interest: Readiness,
}

#[derive(Default)]
struct Inner {
    /// Indexed by descriptor.
    watched: Vec<Option<Watched>>,
    count: usize,
    /// The descriptor that was registered last.
    last: usize,
    event_loop: Option<Py<PyAny>>,
    events: Events,
}

/// The descriptors that one epoll watches, and their targets.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct EpollRegistry {
    poller: GilMutex<Option<Arc<Poller>>>,
    inner: GilMutex<Inner>,
    /// The process that created it, see [`fork::generation`]. A child process shares the epoll.
    generation: u64,
}

impl EpollRegistry {
    pub(super) fn new(poller: Arc<Poller>) -> Self {
        Self {
            poller: GilMutex::new(Some(poller)),
            inner: GilMutex::new(Inner::default()),
            generation: fork::generation(),
        }
    }

    /// Sets the loop that the registry belongs to.
    pub(super) fn set_loop(&self, py: Python<'_>, event_loop: &Bound<'_, PyAny>) {
        let old = self.inner.lock(py).event_loop.replace(event_loop.clone().unbind());
        drop(old);
    }

    /// Returns whether this is a copy in a child process.
    pub(super) fn is_forked(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Returns the number of watched descriptors.
    pub(super) fn count(&self, py: Python<'_>) -> usize {
        self.inner.lock(py).count
    }

    /// Returns the epoll, or `None` once it is closed.
    pub(super) fn poller(&self, py: Python<'_>) -> Option<Arc<Poller>> {
        self.poller.lock(py).clone()
    }

    /// Closes the epoll and drops all targets.
    pub(super) fn close(&self, py: Python<'_>) {
        let poller = self.poller.lock(py).take();
        drop(poller);
        self.__clear__();
    }

    /// Changes the interest of a connection. `None` leaves a direction unchanged.
    pub(super) fn watch(
        &self,
        fd: c_int,
        adapter: &Bound<'_, LoopAdapter>,
        readable: Option<bool>,
        writable: Option<bool>,
    ) -> PyResult<()> {
        self.register(adapter.py(), fd, Target::LoopAdapter(adapter.clone().unbind()), readable, writable)
    }

    /// Calls a function whenever a descriptor is readable.
    pub(super) fn watch_callback(&self, fd: c_int, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        self.register(callback.py(), fd, Target::Callback(callback.clone().unbind()), Some(true), Some(false))
    }

    /// Wakes a task once a descriptor is ready. It stays watched until [`Self::forget`] is called or a
    /// connection replaces it.
    pub(super) fn watch_once(
        &self,
        py: Python<'_>,
        fd: c_int,
        waiter: WaiterRef,
        direct: bool,
        interest: Readiness,
    ) -> PyResult<()> {
        let Readiness { readable, writable } = interest;
        self.register(py, fd, Target::Waiter(waiter, direct), Some(readable), Some(writable))
    }

    fn register(
        &self,
        py: Python<'_>,
        fd: c_int,
        target: Target,
        readable: Option<bool>,
        writable: Option<bool>,
    ) -> PyResult<()> {
        let Some(poller) = self.poller(py) else { return Ok(()) };
        let index = usize::try_from(fd).map_err(|_| PyValueError::new_err("invalid file descriptor"))?;
        let mut inner = self.inner.lock(py);
        if inner.watched.len() <= index {
            inner.watched.resize_with(index + 1, || None);
        }
        #[allow(clippy::indexing_slicing, reason = "resized above")]
        let entry = &mut inner.watched[index];
        let existed = entry.is_some();
        // A descriptor of another target may have been closed without `forget`. Epoll has dropped it then, and
        // its interest does not concern the file that has the number now.
        let own_entry = entry.as_ref().filter(|watched| watched.target.is(&target));
        let same_target = own_entry.is_some();
        let before = own_entry.map_or(Readiness::default(), |watched| watched.interest);
        let interest =
            Readiness { readable: readable.unwrap_or(before.readable), writable: writable.unwrap_or(before.writable) };
        let token = REGISTRY_TOKEN | index as u64;
        // Epoll reports errors of every registered descriptor. So a descriptor without interest is not
        // registered: a connection that was reset while paused would keep the loop busy.
        let registered = entry.as_ref().is_some_and(|watched| !watched.interest.is_none());
        if interest.is_none() {
            if registered {
                let _ = poller.delete(fd); // it may be gone already
            }
        } else if !registered {
            match poller.add(fd, token, interest) {
                // The number belonged to another target, which was closed without `forget`, but epoll still has
                // the file.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => poller.modify(fd, token, interest)?,
                result => result?,
            }
        } else if interest != before || !same_target {
            match poller.modify(fd, token, interest) {
                Err(error) if !same_target && error.kind() == io::ErrorKind::NotFound => {
                    poller.add(fd, token, interest)?
                }
                result => result?,
            }
        }
        let old = entry.replace(Watched { target, interest });
        inner.count += usize::from(!existed);
        inner.last = index;
        drop(inner);
        drop(old);
        Ok(())
    }

    /// Stops watching a descriptor.
    pub(super) fn forget(&self, py: Python<'_>, fd: c_int) {
        let removed = {
            let mut inner = self.inner.lock(py);
            let removed = usize::try_from(fd).ok().and_then(|index| inner.watched.get_mut(index)?.take());
            inner.count -= usize::from(removed.is_some());
            removed
        };
        if removed.is_some()
            && let Some(poller) = self.poller(py)
        {
            let _ = poller.delete(fd); // it may be gone already
        }
        drop(removed);
    }

    /// Returns the event of the only descriptor, as if it were readable, if it is watched for reading alone.
    fn only_readable(&self, py: Python<'_>) -> Option<Ready> {
        let inner = self.inner.lock(py);
        let readable = Readiness { readable: true, writable: false };
        let watched = inner.watched.get(inner.last).and_then(Option::as_ref)?;
        let alone = inner.count == 1 && watched.interest == readable;
        alone.then(|| Ready { token: REGISTRY_TOKEN | inner.last as u64, readiness: readable, failed: false })
    }

    /// Serves all ready descriptors in one pass. `timer` is called for tokens of others, and `timer_due` is
    /// whether that may be necessary. An exception of one target does not prevent the others from being called,
    /// unless it ends the program: then they are found ready again.
    pub(super) fn serve_ready(
        slf: &Bound<'_, Self>,
        timer_due: bool,
        mut timer: impl FnMut(u64) -> PyResult<()>,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        // With only one candidate there is no need to ask: a client with one connection would make this system
        // call for each message.
        if !timer_due && let Some(ready) = this.only_readable(py) {
            return this.serve(py, ready);
        }
        let Some(poller) = this.poller(py) else { return Ok(()) };
        // Taken out, because the step of a task may run the loop inside (nest_asyncio).
        let mut events = std::mem::take(&mut this.inner.lock(py).events);
        events.reserve(MAX_EVENTS);
        let waited = poller.wait(&mut events, Some(Duration::ZERO));
        let mut result = waited.map(drop).map_err(PyErr::from);
        if result.is_ok() {
            for ready in events.iter() {
                result = if ready.token & REGISTRY_TOKEN == 0 { timer(ready.token) } else { this.serve(py, ready) };
                if result.is_err() {
                    break;
                }
            }
        }
        this.inner.lock(py).events = events;
        result
    }

    /// Calls the target of a ready descriptor. Its exceptions go to the loop's exception handler.
    pub(super) fn serve(&self, py: Python<'_>, ready: Ready) -> PyResult<()> {
        let index = (ready.token & !REGISTRY_TOKEN) as usize;
        enum Found<'py> {
            LoopAdapter(Bound<'py, LoopAdapter>),
            Callback(Bound<'py, PyAny>),
            Waiter(WaiterRef, bool),
        }
        let target = {
            let inner = self.inner.lock(py);
            let Some(watched) = inner.watched.get(index).and_then(Option::as_ref) else { return Ok(()) };
            if !ready.concerns(watched.interest) {
                return Ok(());
            }
            match &watched.target {
                Target::LoopAdapter(adapter) => Found::LoopAdapter(adapter.bind(py).clone()),
                Target::Callback(callback) => Found::Callback(callback.bind(py).clone()),
                Target::Waiter(waiter, direct) => Found::Waiter(waiter.clone(), *direct),
            }
        };
        let result = match target {
            Found::LoopAdapter(adapter) => self.serve_adapter(&adapter, ready, index),
            Found::Callback(callback) => invoke::call(&callback, []).map(drop),
            Found::Waiter(waiter, direct) if waiter.stage(py) == Stage::Waiting => {
                // With nest_asyncio, a loop can run inside the step of a task.
                let event_loop = self.inner.lock(py).event_loop.as_ref().map(|event_loop| event_loop.clone_ref(py));
                let inside = event_loop.map_or(Ok(false), |event_loop| raw::is_inside_task(event_loop.bind(py)));
                let woken = waiter.wake(py, direct && matches!(inside, Ok(false)));
                inside.and(woken)
            }
            Found::Waiter(..) => {
                // No task has read the descriptor since: it would be ready in every iteration.
                self.forget(py, index as c_int);
                Ok(())
            }
        };
        let Err(error) = result else { return Ok(()) };
        let event_loop = self.inner.lock(py).event_loop.as_ref().map(|event_loop| event_loop.bind(py).clone());
        match event_loop {
            Some(event_loop) => invoke::report(&event_loop, error),
            None => Err(error),
        }
    }

    fn serve_adapter(&self, adapter: &Bound<'_, LoopAdapter>, ready: Ready, index: usize) -> PyResult<()> {
        let py = adapter.py();
        let mut result = Ok(());
        if ready.readiness.writable || ready.failed {
            let watched = {
                let inner = self.inner.lock(py);
                inner.watched.get(index).and_then(Option::as_ref).is_some_and(|watched| watched.interest.writable)
            };
            if watched {
                result = LoopAdapter::writable(adapter);
            }
        }
        if ready.readiness.readable || ready.failed {
            result = result.and(LoopAdapter::readable(adapter));
        }
        result
    }
}

#[pymethods]
impl EpollRegistry {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(inner) = self.inner.try_lock_for_gc() else { return Ok(()) };
        visit.call(&inner.event_loop)?;
        for watched in inner.watched.iter().flatten() {
            match &watched.target {
                Target::LoopAdapter(adapter) => visit.call(adapter)?,
                Target::Callback(callback) => visit.call(callback)?,
                Target::Waiter(waiter, _) => waiter.visit(&visit)?,
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        let taken = self.inner.try_lock_for_gc().map(|mut inner| {
            inner.count = 0;
            (std::mem::take(&mut inner.watched), inner.event_loop.take())
        });
        drop(taken);
    }
}
