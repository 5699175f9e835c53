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
use wirespeed_driver::readiness::{Events, Poller, Ready, Timer};
use wirespeed_driver::socket::Readiness;

use super::guarded::Guarded;
use super::invoke;
use super::port::Port;

/// Marks the descriptors of connections in what epoll returns.
const NATIVE: u64 = 1 << 63;

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

struct Native {
    port: Py<Port>,
    interest: Readiness,
}

struct Inner {
    /// By descriptor.
    native: Vec<Option<Native>>,
    registered: usize,
    event_loop: Option<Py<PyAny>>,
    ready: Option<Py<PyAny>>,
    events: Events,
}

/// See the module.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct NativeSelector {
    poller: Guarded<Option<Arc<Poller>>>,
    keys: Py<PyDict>,
    /// What was asked for, by descriptor: a `modify` that changes nothing is none.
    interests: Guarded<std::collections::HashMap<c_int, u32>>,
    busy_poll: Duration,
    timer: Guarded<Option<Timer>>,
    inner: Guarded<Inner>,
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
        self.poller.lock(py).clone().ok_or_else(closed)
    }

    /// Changes what is watched of a connection.
    pub(super) fn watch(
        slf: &Bound<'_, Self>,
        fd: c_int,
        port: &Py<Port>,
        readable: Option<bool>,
        writable: Option<bool>,
    ) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let Ok(poller) = this.poller(py) else { return Ok(()) };
        let index = usize::try_from(fd).map_err(|_| PyValueError::new_err("invalid file descriptor"))?;
        let mut inner = this.inner.lock(py);
        if inner.native.len() <= index {
            inner.native.resize_with(index + 1, || None);
        }
        let place = &mut inner.native[index];
        let known = place.is_some();
        let before = place.as_ref().map_or(Readiness::default(), |native| native.interest);
        let wanted =
            Readiness { readable: readable.unwrap_or(before.readable), writable: writable.unwrap_or(before.writable) };
        let token = NATIVE | index as u64;
        if !known {
            poller.add(fd, token, wanted)?;
            *place = Some(Native { port: port.clone_ref(py), interest: wanted });
        } else if wanted != before {
            poller.modify(fd, token, wanted)?;
            if let Some(native) = place {
                native.interest = wanted;
            }
        }
        if !known {
            inner.registered += 1;
        }
        Ok(())
    }

    /// Watches a connection no longer.
    pub(super) fn forget(slf: &Bound<'_, Self>, fd: c_int) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let removed = {
            let mut inner = this.inner.lock(py);
            let removed = usize::try_from(fd).ok().and_then(|index| inner.native.get_mut(index)?.take());
            inner.registered -= usize::from(removed.is_some());
            removed
        };
        if removed.is_some()
            && let Ok(poller) = this.poller(py)
        {
            let _ = poller.delete(fd); // gone already: as wanted
        }
        drop(removed);
        Ok(())
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
            poller: Guarded::new(Some(Arc::new(Poller::new()?))),
            keys: PyDict::new(py).unbind(),
            interests: Guarded::new(std::collections::HashMap::new()),
            busy_poll,
            timer: Guarded::new(None),
            inner: Guarded::new(Inner {
                native: Vec::new(),
                registered: 0,
                event_loop: None,
                ready: None,
                events: Events::default(),
            }),
        })
    }

    /// Says whose selector this is; `ready` and `scheduled` are the loop's own.
    #[pyo3(signature = (ready, scheduled, r#loop))]
    fn attach(&self, py: Python<'_>, ready: Py<PyAny>, scheduled: Py<PyAny>, r#loop: Py<PyAny>) {
        drop(scheduled); // the loop replaces it at times: it is looked up
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
        let (mut events, event_loop, ready) = {
            let mut inner = this.inner.lock(py);
            let mut events = std::mem::take(&mut inner.events);
            events.reserve((inner.registered + this.keys.bind(py).len()).max(64));
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
                if ready.token & NATIVE == 0 {
                    foreign = true;
                } else if let Err(error) = serve(slf, ready, event_loop.as_ref()) {
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
        let poller = self.poller.lock(py).take();
        let timer = self.timer.lock(py).take();
        drop((timer, poller));
        self.keys.bind(py).clear();
        self.interests.lock(py).clear();
        self.__clear__();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.keys)?;
        let Some(inner) = self.inner.try_lock_for_gc() else { return Ok(()) };
        visit.call(&inner.event_loop)?;
        visit.call(&inner.ready)?;
        for native in inner.native.iter().flatten() {
            visit.call(&native.port)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let taken = self.inner.try_lock_for_gc().map(|mut inner| {
            inner.registered = 0;
            (std::mem::take(&mut inner.native), inner.event_loop.take(), inner.ready.take())
        });
        drop(taken);
    }
}

/// Calls the port of a connection. What it raises goes where the loop's own callbacks' exceptions go.
fn serve(slf: &Bound<'_, NativeSelector>, ready: Ready, event_loop: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let py = slf.py();
    let index = (ready.token & !NATIVE) as usize;
    let port = {
        let inner = slf.get().inner.lock(py);
        let Some(native) = inner.native.get(index).and_then(Option::as_ref) else { return Ok(()) };
        if !ready.concerns(native.interest) {
            return Ok(());
        }
        native.port.bind(py).clone()
    };
    let mut result = Ok(());
    if ready.readiness.writable || ready.failed {
        let watched = {
            let inner = slf.get().inner.lock(py);
            inner.native.get(index).and_then(Option::as_ref).is_some_and(|native| native.interest.writable)
        };
        if watched {
            result = Port::writable(&port);
        }
    }
    if ready.readiness.readable || ready.failed {
        result = result.and(Port::readable(&port));
    }
    let Err(error) = result else { return Ok(()) };
    match event_loop {
        Some(event_loop) => invoke::report(event_loop, error),
        None => Err(error),
    }
}

/// The keys of the loop's own descriptors that are ready.
fn collect(this: &NativeSelector, py: Python<'_>, events: &Events, result: &Bound<'_, PyList>) -> PyResult<()> {
    let keys = this.keys.bind(py);
    for found in events.iter().filter(|found| found.token & NATIVE == 0) {
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
