//! A selector for the standard event loop that serves native connections inside `select()`.
//!
//! Its epoll knows two kinds of descriptors: those of the loop, whose keys `select` returns, and those of connections, whose ports it calls.
//! When only connections were ready, and serving them scheduled nothing, it polls again without a turn of the loop.

#![allow(unsafe_code)] // descriptors that others own

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::guarded::Guarded;
use super::invoke;
use super::port::Port;
use super::timer::{Timer, timespec};

/// Marks the descriptors of connections in what epoll returns.
const NATIVE: u64 = 1 << 63;

/// `selectors.EVENT_READ` and `EVENT_WRITE`.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// Polls without a return to the loop after which it has a turn all the same, for whoever counts on turns.
const ROUNDS: usize = 256;

/// Marks the descriptor of our timer.
const TIMER: u64 = 1 << 62;

/// A wait that is to end later than this leaves its end to a timer. That of a nearer end would be set anew each time.
const FAR: Duration = Duration::from_millis(2);

/// How long to spin before signals are looked for.
const SPIN_SLICE: Duration = Duration::from_millis(10);

/// What epoll returned.
#[derive(Default)]
struct Events(Vec<Event>);

// SAFETY: the pointer in an event is one form of its user data; ours are numbers.
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

struct Native {
    port: Py<Port>,
    flags: EventFlags,
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
    epoll: Guarded<Option<std::sync::Arc<OwnedFd>>>,
    keys: Py<PyDict>,
    /// What was asked for, by descriptor: a `modify` that changes nothing is none.
    interests: Guarded<std::collections::HashMap<c_int, u32>>,
    busy_poll: Duration,
    timer: Guarded<Option<Timer>>,
    inner: Guarded<Inner>,
}

fn borrow<'a>(fd: c_int) -> PyResult<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(PyValueError::new_err(format!("invalid file descriptor: {fd}")));
    }
    // SAFETY: not -1; a number that is no open descriptor is an error of epoll.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

fn os_error(errno: Errno) -> PyErr {
    std::io::Error::from(errno).into()
}

fn flags(events: u32) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, events & READ != 0);
    flags.set(EventFlags::OUT, events & WRITE != 0);
    flags
}

impl NativeSelector {
    fn epoll(&self, py: Python<'_>) -> PyResult<std::sync::Arc<OwnedFd>> {
        let closed = || PyValueError::new_err("I/O operation on closed epoll object");
        self.epoll.lock(py).clone().ok_or_else(closed)
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
        let Ok(epoll) = this.epoll(py) else { return Ok(()) };
        let index = usize::try_from(fd).map_err(|_| PyValueError::new_err("invalid file descriptor"))?;
        let mut inner = this.inner.lock(py);
        if inner.native.len() <= index {
            inner.native.resize_with(index + 1, || None);
        }
        let place = &mut inner.native[index];
        let known = place.is_some();
        let before = place.as_ref().map_or(EventFlags::empty(), |native| native.flags);
        let mut wanted = before;
        if let Some(readable) = readable {
            wanted.set(EventFlags::IN, readable);
        }
        if let Some(writable) = writable {
            wanted.set(EventFlags::OUT, writable);
        }
        let data = EventData::new_u64(NATIVE | index as u64);
        if !known {
            epoll::add(&*epoll, borrow(fd)?, data, wanted).map_err(os_error)?;
            *place = Some(Native { port: port.clone_ref(py), flags: wanted });
        } else if wanted != before {
            epoll::modify(&*epoll, borrow(fd)?, data, wanted).map_err(os_error)?;
            if let Some(native) = place {
                native.flags = wanted;
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
            && let Ok(epoll) = this.epoll(py)
        {
            let _ = epoll::delete(&*epoll, borrow(fd)?); // gone already: as wanted
        }
        drop(removed);
        Ok(())
    }

    /// One wait; the number of events, which are in `events`.
    fn wait(&self, py: Python<'_>, epoll: &OwnedFd, events: &mut Events, until: Option<Instant>) -> PyResult<usize> {
        let mut spin = (!self.busy_poll.is_zero()).then(|| Instant::now() + self.busy_poll);
        loop {
            events.0.clear();
            let now = Instant::now();
            let mut left = until.map(|until| until.saturating_duration_since(now));
            if let Some(until) = until.filter(|_| left.is_some_and(|left| left > FAR)) {
                let mut timer = self.timer.lock(py);
                let timer = match &mut *timer {
                    Some(timer) => timer,
                    none => none.insert(add_timer(epoll).map_err(os_error)?),
                };
                timer.arm(now, until).map_err(os_error)?;
                left = None;
            }
            let result = if left == Some(Duration::ZERO) {
                poll(epoll, events, left)
            } else if let Some(spin_until) = spin {
                let slice = spin_until.min(now + SPIN_SLICE);
                let slice = until.map_or(slice, |until| slice.min(until));
                let result = py.detach(|| {
                    loop {
                        match poll(epoll, events, Some(Duration::ZERO)) {
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
                py.detach(|| poll(epoll, events, left))
            };
            if let Some(index) = events.0.iter().position(|event| { event.data }.u64() == TIMER) {
                events.0.swap_remove(index);
                if let Some(timer) = &mut *self.timer.lock(py) {
                    timer.clear();
                }
                if events.0.is_empty() && until.is_none_or(|until| Instant::now() < until) {
                    continue; // it was set for an earlier wait
                }
                return Ok(events.0.len());
            }
            match result {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => py.check_signals()?,
                Err(errno) => return Err(os_error(errno)),
            }
        }
    }
}

fn add_timer(epoll: &OwnedFd) -> Result<Timer, Errno> {
    let timer = Timer::new()?;
    epoll::add(epoll, &timer.fd, EventData::new_u64(TIMER), EventFlags::IN)?;
    Ok(timer)
}

fn poll(epoll: &OwnedFd, events: &mut Events, timeout: Option<Duration>) -> Result<usize, Errno> {
    let timeout = timeout.map(timespec);
    epoll::wait(epoll.as_fd(), rustix::buffer::spare_capacity(&mut events.0), timeout.as_ref())
}

#[pymethods]
impl NativeSelector {
    #[new]
    #[pyo3(signature = (busy_poll = 0.0))]
    fn new(py: Python<'_>, busy_poll: f64) -> PyResult<Self> {
        let busy_poll = Duration::try_from_secs_f64(busy_poll)
            .map_err(|_| PyValueError::new_err("busy_poll must be a number of seconds, not negative"))?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(os_error)?;
        Ok(Self {
            epoll: Guarded::new(Some(std::sync::Arc::new(epoll))),
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
        Ok(self.epoll(py)?.as_raw_fd())
    }

    fn register(&self, py: Python<'_>, fd: c_int, events: u32, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let epoll = self.epoll(py)?;
        epoll::add(&*epoll, borrow(fd)?, EventData::new_u64(fd as u64), flags(events)).map_err(os_error)?;
        self.interests.lock(py).insert(fd, events);
        self.keys.bind(py).set_item(fd, key)
    }

    fn modify(&self, py: Python<'_>, fd: c_int, events: u32, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let epoll = self.epoll(py)?;
        if self.interests.lock(py).get(&fd) != Some(&events) {
            epoll::modify(&*epoll, borrow(fd)?, EventData::new_u64(fd as u64), flags(events)).map_err(os_error)?;
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
        if let Ok(epoll) = self.epoll(py) {
            let _ = epoll::delete(&*epoll, borrow(fd)?); // closed already: epoll has forgotten it
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
        let epoll = this.epoll(py)?;
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
            events.0.clear();
            events.0.reserve((inner.registered + this.keys.bind(py).len()).max(64));
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
            match this.wait(py, &epoll, &mut events, until) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            let mut foreign = false;
            for event in &events.0 {
                let (data, flags) = ({ event.data }.u64(), { event.flags });
                if data & NATIVE == 0 {
                    foreign = true;
                    continue;
                }
                if let Err(error) = serve(slf, (data & !NATIVE) as usize, flags, event_loop.as_ref()) {
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
        let epoll = self.epoll.lock(py).take();
        let timer = self.timer.lock(py).take();
        drop((timer, epoll));
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
fn serve(
    slf: &Bound<'_, NativeSelector>,
    index: usize,
    flags: EventFlags,
    event_loop: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = slf.py();
    let port = {
        let inner = slf.get().inner.lock(py);
        let Some(native) = inner.native.get(index).and_then(Option::as_ref) else { return Ok(()) };
        // An error or a hang-up counts for whatever is watched.
        if !flags.intersects(EventFlags::ERR | EventFlags::HUP) && !native.flags.intersects(flags) {
            return Ok(());
        }
        native.port.bind(py).clone()
    };
    let mut result = Ok(());
    if flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) && flags != EventFlags::IN {
        let watched = {
            let inner = slf.get().inner.lock(py);
            inner
                .native
                .get(index)
                .and_then(Option::as_ref)
                .is_some_and(|native| native.flags.contains(EventFlags::OUT))
        };
        if watched {
            result = Port::writable(&port);
        }
    }
    if flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP) {
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
    for event in &events.0 {
        let (data, flags) = ({ event.data }.u64(), { event.flags });
        if data & NATIVE != 0 {
            continue;
        }
        let Some(key) = keys.get_item(data)? else { continue };
        let mut ready = 0;
        if flags.intersects(!EventFlags::IN) {
            ready |= WRITE;
        }
        if flags.intersects(!EventFlags::OUT) {
            ready |= READ;
        }
        let wanted: u32 = key.cast::<PyTuple>()?.get_item(2)?.extract()?;
        result.append((key, ready & wanted))?;
    }
    Ok(())
}
