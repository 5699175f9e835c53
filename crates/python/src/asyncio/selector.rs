//! A selector for the standard event loop that serves native connections inside `select()`.
//!
//! Its epoll has two kinds of descriptors: those of the loop, whose keys `select` returns, and those of
//! connections, whose adapters it calls. If only connections were ready, and serving them scheduled no
//! callbacks, it polls again without returning to the loop.

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

use super::epoll_registry::{EpollRegistry, REGISTRY_TOKEN};
use super::gil_mutex::GilMutex;
use super::loop_state::LoopState;

/// The values of `selectors.EVENT_READ` and `EVENT_WRITE`.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// The most polls without a return to the loop. Some programs count on the loop's turns.
const MAX_POLLS: usize = 256;

/// The epoll token of the timer.
const TIMER: u64 = 1 << 62;

/// A wait that ends later than this uses a timer for its end. For a nearer end, the timer would have to be set
/// for each wait.
const TIMER_THRESHOLD: Duration = Duration::from_millis(2);

/// How long to spin between checks for signals.
const SPIN_SLICE: Duration = Duration::from_millis(10);

struct Inner {
    event_loop: Option<Py<PyAny>>,
    ready: Option<Py<PyAny>>,
    events: Events,
}

/// The native selector of one event loop.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct NativeSelector {
    /// The epoll, and the descriptors of connections that it watches.
    registry: Py<EpollRegistry>,
    keys: Py<PyDict>,
    /// The registered events by descriptor. A `modify` that changes nothing makes no system call.
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
        self.registry.get().poller(py).ok_or_else(closed)
    }

    pub(super) fn registry(&self, py: Python<'_>) -> Py<EpollRegistry> {
        self.registry.clone_ref(py)
    }

    /// Waits once. Returns the number of events, which are in `events`.
    fn wait(&self, py: Python<'_>, poller: &Poller, events: &mut Events, until: Option<Instant>) -> PyResult<usize> {
        let mut spin = (!self.busy_poll.is_zero()).then(|| Instant::now() + self.busy_poll);
        loop {
            let now = Instant::now();
            let mut left = until.map(|until| until.saturating_duration_since(now));
            if let Some(until) = until.filter(|_| left.is_some_and(|left| left > TIMER_THRESHOLD)) {
                let mut timer = self.timer.lock(py);
                let timer = match &mut *timer {
                    Some(timer) => timer,
                    none => none.insert(create_timer(poller)?),
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
                    continue; // the timer was set for an earlier wait
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

fn create_timer(poller: &Poller) -> io::Result<Timer> {
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
            registry: Py::new(py, EpollRegistry::new(Arc::new(Poller::new()?)))?,
            keys: PyDict::new(py).unbind(),
            interests: GilMutex::new(std::collections::HashMap::new()),
            busy_poll,
            timer: GilMutex::new(None),
            inner: GilMutex::new(Inner { event_loop: None, ready: None, events: Events::default() }),
        })
    }

    /// Attaches the selector to its loop. `ready` and `scheduled` are the loop's own queues.
    #[pyo3(signature = (ready, scheduled, r#loop))]
    fn attach(&self, py: Python<'_>, ready: Py<PyAny>, scheduled: Py<PyAny>, r#loop: Py<PyAny>) {
        drop(scheduled); // looked up on use, because the loop sometimes replaces it
        self.registry.get().set_loop(py, r#loop.bind(py));
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
            let _ = poller.delete(fd); // a closed descriptor is gone already
        }
        Ok(())
    }

    fn get_key<'py>(&self, py: Python<'py>, fd: c_int) -> PyResult<Bound<'py, PyAny>> {
        self.keys.bind(py).get_item(fd)?.ok_or_else(|| PyKeyError::new_err(fd))
    }

    fn map(&self, py: Python<'_>) -> Py<PyDict> {
        self.keys.clone_ref(py)
    }

    /// Waits until a descriptor of the loop is ready. Serves connections meanwhile.
    #[pyo3(signature = (timeout = None))]
    fn select<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyList>> {
        let py = slf.py();
        let this = slf.get();
        let poller = this.poller(py)?;
        let until = match timeout {
            None => None,
            Some(timeout) if timeout.is_nan() => return Err(PyValueError::new_err("timeout must not be NaN")),
            // A time beyond the clock's range means no timeout.
            Some(timeout) => Duration::try_from_secs_f64(timeout.max(0.0))
                .ok()
                .and_then(|timeout| Instant::now().checked_add(timeout)),
        };
        let nonblocking = timeout.is_some_and(|timeout| timeout <= 0.0);
        let count = this.registry.get().count(py);
        let (mut events, event_loop, ready) = {
            let mut inner = this.inner.lock(py);
            let mut events = std::mem::take(&mut inner.events);
            events.reserve((count + this.keys.bind(py).len()).max(64));
            let clone = |object: &Option<Py<PyAny>>| object.as_ref().map(|object| object.bind(py).clone());
            (events, clone(&inner.event_loop), clone(&inner.ready))
        };
        // The list of timers. The loop sometimes replaces it, but not during this call.
        let scheduled =
            event_loop.as_ref().map(|event_loop| event_loop.getattr(intern!(py, "_scheduled"))).transpose()?;
        let timers = || scheduled.as_ref().map_or(Ok(0), PyAnyMethods::len);
        let timers_before = timers()?;
        let result = PyList::empty(py);
        let mut outcome = Ok(());
        for _ in 0..MAX_POLLS {
            match this.wait(py, &poller, &mut events, until) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            let mut loop_ready = false;
            for ready in events.iter() {
                if ready.token & REGISTRY_TOKEN == 0 {
                    loop_ready = true;
                } else if let Err(error) = this.registry.get().serve(py, ready) {
                    outcome = Err(error);
                    break;
                }
            }
            if loop_ready && outcome.is_ok() {
                // After the connections, whose callbacks may have changed the registrations.
                outcome = collect(this, py, &events, &result);
            }
            if outcome.is_err() || loop_ready || nonblocking {
                break;
            }
            // A timer of the loop may have become due.
            if until.is_some_and(|until| until <= Instant::now()) {
                break;
            }
            // Serving connections may have scheduled callbacks or stopped the loop.
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
        self.registry.get().close(py);
        self.keys.bind(py).clear();
        self.interests.lock(py).clear();
        self.__clear__();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.keys)?;
        let Some(inner) = self.inner.try_lock_for_gc() else { return Ok(()) };
        visit.call(&self.registry)?;
        visit.call(&inner.event_loop)?;
        visit.call(&inner.ready)
    }

    fn __clear__(&self) {
        let taken = self.inner.try_lock_for_gc().map(|mut inner| (inner.event_loop.take(), inner.ready.take()));
        drop(taken);
    }
}

/// Appends the keys of the loop's own ready descriptors to `result`.
fn collect(this: &NativeSelector, py: Python<'_>, events: &Events, result: &Bound<'_, PyList>) -> PyResult<()> {
    let keys = this.keys.bind(py);
    for event in events.iter().filter(|event| event.token & REGISTRY_TOKEN == 0) {
        let Some(key) = keys.get_item(event.token)? else { continue };
        let mut ready = 0;
        if event.readiness.writable || event.failed {
            ready |= WRITE;
        }
        if event.readiness.readable || event.failed {
            ready |= READ;
        }
        let wanted: u32 = key.cast::<PyTuple>()?.get_item(2)?.extract()?;
        result.append((key, ready & wanted))?;
    }
    Ok(())
}
