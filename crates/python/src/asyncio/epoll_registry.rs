//! What an epoll of ours watches: the sockets of connections, and of clients whose request is awaited.
//!
//! Our own selector waits on it itself. On other loops the epoll is a descriptor among theirs: however many
//! connections are ready, the loop makes one callback, and none of it is registered or forgotten by the loop.

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

/// Marks descriptors that are ours in what epoll returns.
pub(super) const OURS: u64 = 1 << 63;

/// Who is told, in one callback of a loop, that is not our own: then the loop has a turn.
const SERVED_AT_ONCE: usize = 256;

/// Who is called when a descriptor is ready.
enum Target {
    LoopAdapter(Py<LoopAdapter>),
    /// A function without arguments, for reading.
    Callback(Py<PyAny>),
    /// A task that waits for the descriptor once, and whether it goes on here and now.
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
    /// By descriptor.
    watched: Vec<Option<Watched>>,
    count: usize,
    /// The descriptor that was put in last.
    last: usize,
    event_loop: Option<Py<PyAny>>,
    events: Events,
}

/// See the module.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct EpollRegistry {
    poller: GilMutex<Option<Arc<Poller>>>,
    inner: GilMutex<Inner>,
    /// The process that made it, as [`entropy::forks`] counts them: a child shares the epoll.
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

    /// Says whose they are.
    pub(super) fn set_loop(&self, py: Python<'_>, event_loop: &Bound<'_, PyAny>) {
        let old = self.inner.lock(py).event_loop.replace(event_loop.clone().unbind());
        drop(old);
    }

    /// Whether this is the parent's, in a child process.
    pub(super) fn is_forked(&self) -> bool {
        self.generation != fork::generation()
    }

    /// How many descriptors are watched.
    pub(super) fn count(&self, py: Python<'_>) -> usize {
        self.inner.lock(py).count
    }

    /// The epoll; `None` once it is closed.
    pub(super) fn poller(&self, py: Python<'_>) -> Option<Arc<Poller>> {
        self.poller.lock(py).clone()
    }

    /// Watches nothing any more.
    pub(super) fn close(&self, py: Python<'_>) {
        let poller = self.poller.lock(py).take();
        drop(poller);
        self.__clear__();
    }

    /// Changes what is watched of a connection.
    pub(super) fn watch(
        &self,
        fd: c_int,
        port: &Bound<'_, LoopAdapter>,
        readable: Option<bool>,
        writable: Option<bool>,
    ) -> PyResult<()> {
        self.put(port.py(), fd, Target::LoopAdapter(port.clone().unbind()), readable, writable)
    }

    /// Calls a function whenever a descriptor can be read from.
    pub(super) fn watch_callback(&self, fd: c_int, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put(callback.py(), fd, Target::Callback(callback.clone().unbind()), Some(true), Some(false))
    }

    /// Wakes a task once a descriptor is ready. It is watched until [`Self::forget`], or until a connection
    /// takes its place.
    pub(super) fn watch_once(
        &self,
        py: Python<'_>,
        fd: c_int,
        waiter: WaiterRef,
        direct: bool,
        interest: Readiness,
    ) -> PyResult<()> {
        let Readiness { readable, writable } = interest;
        self.put(py, fd, Target::Waiter(waiter, direct), Some(readable), Some(writable))
    }

    fn put(
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
        #[allow(clippy::indexing_slicing, reason = "there are as many now")]
        let place = &mut inner.watched[index];
        let known = place.is_some();
        // Of somebody else's, the descriptor may have been closed unasked: then epoll has forgotten it, and
        // what was watched is no business of whoever has its number now.
        let mine = place.as_ref().filter(|watched| watched.target.is(&target));
        let same = mine.is_some();
        let before = mine.map_or(Readiness::default(), |watched| watched.interest);
        let interest =
            Readiness { readable: readable.unwrap_or(before.readable), writable: writable.unwrap_or(before.writable) };
        let token = OURS | index as u64;
        // Errors are reported of whatever is registered: nothing is, of which nothing is wanted, or a connection that
        // was reset while it is paused would keep the loop busy.
        let registered = place.as_ref().is_some_and(|watched| !watched.interest.is_none());
        if interest.is_none() {
            if registered {
                let _ = poller.delete(fd); // gone already: as wanted
            }
        } else if !registered {
            match poller.add(fd, token, interest) {
                // Somebody else's, which has been closed unasked, had this number: it was its own file.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => poller.modify(fd, token, interest)?,
                result => result?,
            }
        } else if interest != before || !same {
            match poller.modify(fd, token, interest) {
                Err(error) if !same && error.kind() == io::ErrorKind::NotFound => poller.add(fd, token, interest)?,
                result => result?,
            }
        }
        let old = place.replace(Watched { target, interest });
        inner.count += usize::from(!known);
        inner.last = index;
        drop(inner);
        drop(old);
        Ok(())
    }

    /// Watches a descriptor no longer.
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
            let _ = poller.delete(fd); // gone already: as wanted
        }
        drop(removed);
    }

    /// What the only descriptor there is would be ready for, if it is watched for reading alone.
    fn sole(&self, py: Python<'_>) -> Option<Ready> {
        let inner = self.inner.lock(py);
        let readable = Readiness { readable: true, writable: false };
        let watched = inner.watched.get(inner.last).and_then(Option::as_ref)?;
        let alone = inner.count == 1 && watched.interest == readable;
        alone.then(|| Ready { token: OURS | inner.last as u64, readiness: readable, failed: false })
    }

    /// Calls whoever has something to do, in one pass; `timer` is called for what is not ours, and
    /// `timer_due` says whether it may have to be. What one raises does not keep the others from being
    /// called, unless it ends the program: then they are found ready again.
    pub(super) fn serve_ready(
        slf: &Bound<'_, Self>,
        timer_due: bool,
        mut timer: impl FnMut(u64) -> PyResult<()>,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        // There is nothing to be asked if only one can be meant: that system call would be one for each
        // message of a client with one connection.
        if !timer_due && let Some(ready) = this.sole(py) {
            return this.serve(py, ready);
        }
        let Some(poller) = this.poller(py) else { return Ok(()) };
        // Taken out: a step of a task may run the loop inside (nest_asyncio).
        let mut events = std::mem::take(&mut this.inner.lock(py).events);
        events.reserve(SERVED_AT_ONCE);
        let found = poller.wait(&mut events, Some(Duration::ZERO));
        let mut result = found.map(drop).map_err(PyErr::from);
        if result.is_ok() {
            for ready in events.iter() {
                result = if ready.token & OURS == 0 { timer(ready.token) } else { this.serve(py, ready) };
                if result.is_err() {
                    break;
                }
            }
        }
        this.inner.lock(py).events = events;
        result
    }

    /// Calls whoever waits for a descriptor. What it raises goes where the loop's own callbacks' exceptions
    /// go.
    pub(super) fn serve(&self, py: Python<'_>, ready: Ready) -> PyResult<()> {
        let index = (ready.token & !OURS) as usize;
        enum Found<'py> {
            LoopAdapter(Bound<'py, LoopAdapter>),
            Callback(Bound<'py, PyAny>),
            Waiter(WaiterRef, bool),
        }
        let found = {
            let inner = self.inner.lock(py);
            let Some(watched) = inner.watched.get(index).and_then(Option::as_ref) else { return Ok(()) };
            if !ready.concerns(watched.interest) {
                return Ok(());
            }
            match &watched.target {
                Target::LoopAdapter(port) => Found::LoopAdapter(port.bind(py).clone()),
                Target::Callback(callback) => Found::Callback(callback.bind(py).clone()),
                Target::Waiter(waiter, direct) => Found::Waiter(waiter.clone(), *direct),
            }
        };
        let result = match found {
            Found::LoopAdapter(port) => self.serve_port(&port, ready, index),
            Found::Callback(callback) => invoke::call(&callback, []).map(drop),
            Found::Waiter(waiter, direct) if waiter.stage(py) == Stage::Waiting => {
                // Inside a task's step a loop runs that nest_asyncio nests.
                let event_loop = self.inner.lock(py).event_loop.as_ref().map(|event_loop| event_loop.clone_ref(py));
                let inside = event_loop.map_or(Ok(false), |event_loop| raw::is_inside_task(event_loop.bind(py)));
                let woken = waiter.wake(py, direct && matches!(inside, Ok(false)));
                inside.and(woken)
            }
            Found::Waiter(..) => {
                // Nobody has looked at the descriptor since: it would be ready in every iteration.
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

    fn serve_port(&self, port: &Bound<'_, LoopAdapter>, ready: Ready, index: usize) -> PyResult<()> {
        let py = port.py();
        let mut result = Ok(());
        if ready.readiness.writable || ready.failed {
            let watched = {
                let inner = self.inner.lock(py);
                inner.watched.get(index).and_then(Option::as_ref).is_some_and(|watched| watched.interest.writable)
            };
            if watched {
                result = LoopAdapter::writable(port);
            }
        }
        if ready.readiness.readable || ready.failed {
            result = result.and(LoopAdapter::readable(port));
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
                Target::LoopAdapter(port) => visit.call(port)?,
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
