//! A selector for the standard event loop that serves native connections inside `select()`.
//!
//! Its epoll knows two kinds of descriptors: those of the loop, whose keys `select` returns, and those of
//! connections, whose ports it calls. When only connections were ready, and serving them scheduled nothing,
//! it polls again without a turn of the loop.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use wirespeed_driver::readiness::{Events, Poller, Timer};
use wirespeed_driver::socket::Readiness;

use super::epoll_registry::{EpollRegistry, OURS};
use super::gil_mutex::GilMutex;
use super::loop_state::LoopState;

/// `selectors.EVENT_READ` and `EVENT_WRITE`.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// Polls without a return to the loop after which it has a turn all the same, for whoever counts on turns.
const ROUNDS: usize = 256;

/// Marks the descriptor of our timer.
const TIMER: u64 = 1 << 62;

/// A wait that is to end later than this leaves its end to a timer. That of a nearer end would be set anew
/// each time.
const FAR: Duration = Duration::from_millis(2);

/// How long to spin before signals are looked for.
const SPIN_SLICE: Duration = Duration::from_millis(10);

struct Inner {
    event_loop: Option<Py<PyAny>>,
    ready: Option<Py<PyAny>>,
    events: Events,
}

/// See the module.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct NativeSelector {
    /// The epoll, and what is ours of what it watches.
    epolls: Py<EpollRegistry>,
    keys: Py<PyDict>,
    /// What was asked for, by descriptor: a `modify` that changes nothing is none.
    interests: GilMutex<std::collections::HashMap<c_int, u32>>,
    busy_poll: Duration,
    timer: GilMutex<Option<Timer>>,
    inner: GilMutex<Inner>,
}

fn interest(events: u32) -> Readiness {
    Readiness { readable: events & READ != 0, writable: events & WRITE != 0 }
}

fn check(fd: c_int) -> PyResult<()> {
    if fd >= 0 { Ok(()) } else { Err(PyValueError::new_err(format!("invalid file descriptor: {fd}"))) }
}

impl NativeSelector {
    fn poller(&self, py: Python<'_>) -> PyResult<Arc<Poller>> {
        let closed = || PyValueError::new_err("I/O operation on closed epoll object");
        self.epolls.get().poller(py).ok_or_else(closed)
    }

    pub(super) fn epolls(&self, py: Python<'_>) -> Py<EpollRegistry> {
        self.epolls.clone_ref(py)
    }

    /// One wait; the number of events, which are in `events`.
    fn wait(&self, py: Python<'_>, poller: &Poller, events: &mut Events, until: Option<Instant>) -> PyResult<usize> {
        let mut spin = (!self.busy_poll.is_zero()).then(|| Instant::now() + self.busy_poll);
        loop {
            let now = Instant::now();
            let mut left = until.map(|until| until.saturating_duration_since(now));
            if let Some(until) = until.filter(|_| left.is_some_and(|left| left > FAR)) {
                let mut timer = self.timer.lock(py);
                let timer = match &mut *timer {
                    Some(timer) => timer,
                    none => none.insert(add_timer(poller)?),
                };
                timer.arm(now, until)?;
                left = None;
            }
            let result = if left == Some(Duration::ZERO) {
                poller.wait(events, left)
            } else if let Some(spin_until) = spin {
                let slice = spin_until.min(now + SPIN_SLICE);
                let slice = until.map_or(slice, |until| slice.min(until));
                let result = py.detach(|| {
                    loop {
                        match poller.wait(events, Some(Duration::ZERO)) {
                            Ok(0) if Instant::now() < slice => std::hint::spin_loop(),
                            result => return result,
                        }
                    }
                });
                if matches!(result, Ok(0)) {
                    if slice >= spin_until {
                        spin = None;
                    }
                    py.check_signals()?;
                    continue;
                }
                result
            } else {
                py.detach(|| poller.wait(events, left))
            };
            if events.take(TIMER) {
                if let Some(timer) = &mut *self.timer.lock(py) {
                    timer.clear();
                }
                if events.is_empty() && until.is_none_or(|until| Instant::now() < until) {
                    continue; // it was set for an earlier wait
                }
                return Ok(events.len());
            }
            match result {
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => py.check_signals()?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn add_timer(poller: &Poller) -> io::Result<Timer> {
    let timer = Timer::new()?;
    poller.add(timer.raw(), TIMER, interest(READ))?;
    Ok(timer)
}

#[pymethods]
impl NativeSelector {
    #[new]
    #[pyo3(signature = (busy_poll = 0.0))]
    fn new(py: Python<'_>, busy_poll: f64) -> PyResult<Self> {
        let busy_poll = Duration::try_from_secs_f64(busy_poll)
            .map_err(|_| PyValueError::new_err("busy_poll must be a number of seconds, not negative"))?;
        Ok(Self {
            epolls: Py::new(py, EpollRegistry::new(Arc::new(Poller::new()?)))?,
            keys: PyDict::new(py).unbind(),
            interests: GilMutex::new(std::collections::HashMap::new()),
            busy_poll,
            timer: GilMutex::new(None),
            inner: GilMutex::new(Inner { event_loop: None, ready: None, events: Events::default() }),
        })
    }

    /// Says whose selector this is; `ready` and `scheduled` are the loop's own.
    #[pyo3(signature = (ready, scheduled, r#loop))]
    fn attach(&self, py: Python<'_>, ready: Py<PyAny>, scheduled: Py<PyAny>, r#loop: Py<PyAny>) {
        drop(scheduled); // the loop replaces it at times: it is looked up
        self.epolls.get().set_loop(py, r#loop.bind(py));
        let mut inner = self.inner.lock(py);
        inner.ready = Some(ready);
        inner.event_loop = Some(r#loop);
    }

    fn fileno(&self, py: Python<'_>) -> PyResult<c_int> {
        Ok(self.poller(py)?.raw())
    }

    fn register(&self, py: Python<'_>, fd: c_int, events: u32, key: &Bound<'_, PyAny>) -> PyResult<()> {
        check(fd)?;
        self.poller(py)?.add(fd, fd as u64, interest(events))?;
        self.interests.lock(py).insert(fd, events);
        self.keys.bind(py).set_item(fd, key)
    }

    fn modify(&self, py: Python<'_>, fd: c_int, events: u32, key: &Bound<'_, PyAny>) -> PyResult<()> {
        check(fd)?;
        let poller = self.poller(py)?;
        if self.interests.lock(py).get(&fd) != Some(&events) {
            poller.modify(fd, fd as u64, interest(events))?;
            self.interests.lock(py).insert(fd, events);
        }
        self.keys.bind(py).set_item(fd, key)
    }

    fn unregister(&self, py: Python<'_>, fd: c_int) -> PyResult<()> {
        let keys = self.keys.bind(py);
        if keys.get_item(fd)?.is_none() {
            return Err(PyKeyError::new_err(fd));
        }
        keys.del_item(fd)?;
        self.interests.lock(py).remove(&fd);
        if let Ok(poller) = self.poller(py) {
            let _ = poller.delete(fd); // closed already: the system has forgotten it
        }
        Ok(())
    }

    fn get_key<'py>(&self, py: Python<'py>, fd: c_int) -> PyResult<Bound<'py, PyAny>> {
        self.keys.bind(py).get_item(fd)?.ok_or_else(|| PyKeyError::new_err(fd))
    }

    fn map(&self, py: Python<'_>) -> Py<PyDict> {
        self.keys.clone_ref(py)
    }

    /// Waits until something is ready; serves connections meanwhile.
    #[pyo3(signature = (timeout = None))]
    fn select<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyList>> {
        let py = slf.py();
        let this = slf.get();
        let poller = this.poller(py)?;
        let until = match timeout {
            None => None,
            Some(timeout) if timeout.is_nan() => return Err(PyValueError::new_err("timeout must not be NaN")),
            // What is too far for the clock is for ever.
            Some(timeout) => Duration::try_from_secs_f64(timeout.max(0.0))
                .ok()
                .and_then(|timeout| Instant::now().checked_add(timeout)),
        };
        let once = timeout.is_some_and(|timeout| timeout <= 0.0);
        let count = this.epolls.get().count(py);
        let (mut events, event_loop, ready) = {
            let mut inner = this.inner.lock(py);
            let mut events = std::mem::take(&mut inner.events);
            events.reserve((count + this.keys.bind(py).len()).max(64));
            let clone = |object: &Option<Py<PyAny>>| object.as_ref().map(|object| object.bind(py).clone());
            (events, clone(&inner.event_loop), clone(&inner.ready))
        };
        // The list of timers: the loop replaces it at times, but not while it is in here.
        let scheduled =
            event_loop.as_ref().map(|event_loop| event_loop.getattr(intern!(py, "_scheduled"))).transpose()?;
        let timers = || scheduled.as_ref().map_or(Ok(0), PyAnyMethods::len);
        let timers_before = timers()?;
        let result = PyList::empty(py);
        let mut outcome = Ok(());
        for _ in 0..ROUNDS {
            match this.wait(py, &poller, &mut events, until) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            let mut foreign = false;
            for ready in events.iter() {
                if ready.token & OURS == 0 {
                    foreign = true;
                } else if let Err(error) = this.epolls.get().serve(py, ready) {
                    outcome = Err(error);
                    break;
                }
            }
            if foreign && outcome.is_ok() {
                // After the connections, whose callbacks may have changed what is registered.
                outcome = collect(this, py, &events, &result);
            }
            if outcome.is_err() || foreign || once {
                break;
            }
            // A timer of the loop may be due meanwhile.
            if until.is_some_and(|until| until <= Instant::now()) {
                break;
            }
            // Serving them may have scheduled something, or stopped the loop.
            let Some(event_loop) = &event_loop else { break };
            if ready.as_ref().is_none_or(|ready| ready.len().map_or(true, |len| len > 0))
                || timers()? != timers_before
                || event_loop.getattr(intern!(py, "_stopping"))?.is_truthy()?
            {
                break;
            }
        }
        this.inner.lock(py).events = events;
        outcome.map(|()| result)
    }

    fn close(&self, py: Python<'_>) {
        let event_loop = self.inner.lock(py).event_loop.as_ref().map(|event_loop| event_loop.bind(py).clone());
        if let Some(event_loop) = event_loop {
            LoopState::release_of_closed(&event_loop);
        }
        let timer = self.timer.lock(py).take();
        drop(timer);
        self.epolls.get().close(py);
        self.keys.bind(py).clear();
        self.interests.lock(py).clear();
        self.__clear__();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.keys)?;
        let Some(inner) = self.inner.try_lock_for_gc() else { return Ok(()) };
        visit.call(&self.epolls)?;
        visit.call(&inner.event_loop)?;
        visit.call(&inner.ready)
    }

    fn __clear__(&self) {
        let taken = self.inner.try_lock_for_gc().map(|mut inner| (inner.event_loop.take(), inner.ready.take()));
        drop(taken);
    }
}

/// The keys of the loop's own descriptors that are ready.
fn collect(this: &NativeSelector, py: Python<'_>, events: &Events, result: &Bound<'_, PyList>) -> PyResult<()> {
    let keys = this.keys.bind(py);
    for found in events.iter().filter(|found| found.token & OURS == 0) {
        let Some(key) = keys.get_item(found.token)? else { continue };
        let mut ready = 0;
        if found.readiness.writable || found.failed {
            ready |= WRITE;
        }
        if found.readiness.readable || found.failed {
            ready |= READ;
        }
        let wanted: u32 = key.cast::<PyTuple>()?.get_item(2)?.extract()?;
        result.append((key, ready & wanted))?;
    }
    Ok(())
}
