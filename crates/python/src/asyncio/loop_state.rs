//! What the connections of one event loop share: the iteration it is in, corked connections, what watches
//! their sockets, and one timer for all.

use std::collections::BTreeMap;
use std::ffi::c_int;
#[cfg(target_os = "linux")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};
use wirespeed_driver::thread::this_thread;

use super::connection::AsyncConnection;
#[cfg(target_os = "linux")]
use super::epoll_registry::EpollRegistry;
use super::gil_mutex::GilMutex;
use super::invoke::{self, FirstError};
use super::loop_adapter::LoopAdapter;
#[cfg(target_os = "linux")]
use super::loop_callbacks::EpollCallback;
use super::loop_callbacks::TimerCallback;
use super::ready::Ready;
#[cfg(target_os = "linux")]
use super::selector::NativeSelector;
use crate::gil_yield;
#[cfg(target_os = "linux")]
use wirespeed_driver::readiness::{Poller, Timer};
use wirespeed_driver::socket::Readiness;

/// The attribute of the loop that keeps it.
const ATTRIBUTE: &str = "_wirespeed_state";

/// See the module.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct LoopState {
    iteration: AtomicU64,
    /// The thread that certainly runs the loop now, see [`this_thread`]: the loop calls a callback of ours, or will before it
    /// can stop. 0: not known.
    thread: AtomicUsize,
    /// The thread that ran the loop at the last look, since a task was last suspended on a connection. The loop may
    /// have stopped since.
    found: AtomicUsize,
    inner: GilMutex<Inner>,
}

struct Inner {
    /// `None` once the collector has cleared it.
    event_loop: Option<Py<PyAny>>,
    corked: Vec<Py<AsyncConnection>>,
    scheduled: bool,
    timers: BTreeMap<(Instant, u64), Py<LoopAdapter>>,
    last_timer: u64,
    alarm: Alarm,
    /// The loop is closed: no callback of ours is called any more.
    closed: bool,
    /// The epoll that the loop waits on: its selector's, or one among its descriptors.
    #[cfg(target_os = "linux")]
    epolls: Option<Py<EpollRegistry>>,
    /// The loop may be asked to watch such a one.
    #[cfg(target_os = "linux")]
    nests: bool,
}

/// Marks the timer in what epoll returns.
#[cfg(target_os = "linux")]
const TIMER: u64 = 1;

/// The loop's one timer for all of ours.
enum Alarm {
    Off,
    /// `call_later`: when it is due, and its handle. A weak reference to the handle, if there can be one: the loop
    /// drops the handle when it is closed, and [`TimerCallback`] with it.
    Handle(Instant, Py<PyAny>),
    /// In the epoll among the loop's descriptors: the loop, without timers of its own, waits without a
    /// timeout.
    #[cfg(target_os = "linux")]
    Descriptor(Timer),
}

impl LoopState {
    /// That of a loop, made with its first connection.
    pub(super) fn of<'py>(event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let py = event_loop.py();
        if let Ok(state) = event_loop.getattr(ATTRIBUTE)
            && let Ok(state) = state.cast_into::<Self>()
        {
            return Ok(state);
        }
        #[cfg(target_os = "linux")]
        let selector =
            event_loop.getattr("_wirespeed_selector").ok().and_then(|it| it.cast_into::<NativeSelector>().ok());
        let inner = Inner {
            event_loop: Some(event_loop.clone().unbind()),
            corked: Vec::new(),
            scheduled: false,
            timers: BTreeMap::new(),
            last_timer: 0,
            alarm: Alarm::Off,
            closed: false,
            #[cfg(target_os = "linux")]
            nests: selector.is_none() && nests(event_loop)?,
            #[cfg(target_os = "linux")]
            epolls: selector.map(|selector| selector.get().epolls(py)),
        };
        let state = Bound::new(
            py,
            Self {
                iteration: AtomicU64::new(1),
                thread: AtomicUsize::new(0),
                found: AtomicUsize::new(0),
                inner: GilMutex::new(inner),
            },
        )?;
        // A loop without room for attributes: each connection has a state of its own, which costs a timer
        // each.
        let _ = event_loop.setattr(ATTRIBUTE, &state);
        Ok(state)
    }

    /// A number that changes with every iteration of the loop, as far as we notice.
    #[inline]
    pub(super) fn iteration(&self) -> u64 {
        self.iteration.load(Ordering::Relaxed)
    }

    /// A callback of the loop runs, or a task is being suspended: a new iteration, or as good as one.
    #[inline]
    pub(super) fn begin_iteration(&self) {
        self.end_turn();
        self.found.store(0, Ordering::Relaxed);
        self.iteration.store(self.iteration.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A turn of the loop begins in which much may be done: another thread has its chance first, if it is due
    /// one.
    #[inline]
    pub(super) fn begin_turn(&self, py: Python<'_>) {
        self.begin_iteration();
        self.thread.store(this_thread(), Ordering::Relaxed);
        gil_yield::begin_turn(py);
    }

    /// A callback of the loop ends: another loop may run next.
    #[inline]
    pub(super) fn end_turn(&self) {
        self.thread.store(0, Ordering::Relaxed);
    }

    /// Whether this thread runs the loop, or no thread runs it and this thread runs no other loop. A message sent on another
    /// loop would wait until this one runs again.
    #[inline]
    pub(super) fn is_here(&self, event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.thread.load(Ordering::Relaxed) == this_thread() { Ok(true) } else { is_here_now(event_loop) }
    }

    /// As [`Self::is_here`], cheaper and less certain: for calls that do no harm on another loop.
    #[inline]
    pub(super) fn is_likely_here(&self, event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.found.load(Ordering::Relaxed) == this_thread() {
            return Ok(true);
        }
        let here = self.is_here(event_loop)?;
        if here {
            self.found.store(this_thread(), Ordering::Relaxed);
        }
        Ok(here)
    }

    /// Flushes `connection` at the end of this iteration.
    pub(super) fn cork(slf: &Bound<'_, Self>, connection: &Bound<'_, AsyncConnection>) -> PyResult<()> {
        let py = slf.py();
        let (event_loop, scheduled) = {
            let mut inner = slf.get().inner.lock(py);
            inner.corked.push(connection.clone().unbind());
            (inner.event_loop.as_ref().map(|event_loop| event_loop.bind(py).clone()), inner.scheduled)
        };
        let Some(event_loop) = event_loop else { return Ok(()) };
        // A loop that runs flushes before it stops.
        let known = &slf.get().thread;
        if known.load(Ordering::Relaxed) != this_thread()
            && running_loop(py).is_ok_and(|running| running.is(&event_loop))
        {
            known.store(this_thread(), Ordering::Relaxed);
        }
        if scheduled {
            return Ok(());
        }
        // A name for which there is no memory is a panic: before anybody relies on the loop having been asked.
        let (name, flush) = (intern!(py, "call_soon"), intern!(py, "_flush"));
        slf.get().inner.lock(py).scheduled = true;
        let (done, result) = invoke::retry_interrupted_known(|| {
            let flush = slf.getattr(flush)?;
            invoke::method(&event_loop, name, [&flush]).map(drop)
        });
        if !done {
            let dropped = {
                let mut inner = slf.get().inner.lock(py);
                inner.scheduled = false; // whoever corks next asks again
                // A loop that is closed flushes nothing, and must not keep the connection alive.
                if inner.closed { std::mem::take(&mut inner.corked) } else { Vec::new() }
            };
            drop(dropped);
        }
        result
    }

    /// Sets the timer of `port` to `deadline`, instead of the one with the key `old`; the new key.
    pub(super) fn schedule(
        slf: &Bound<'_, Self>,
        port: &Py<LoopAdapter>,
        old: Option<(Instant, u64)>,
        deadline: Option<Instant>,
    ) -> PyResult<Option<(Instant, u64)>> {
        let py = slf.py();
        if old.map(|old| old.0) == deadline {
            return Ok(old);
        }
        let mut removed = None;
        let key = {
            let mut inner = slf.get().inner.lock(py);
            if let Some(old) = old {
                removed = inner.timers.remove(&old);
            }
            deadline.filter(|_| !inner.closed).map(|deadline| {
                inner.last_timer += 1;
                let key = (deadline, inner.last_timer);
                inner.timers.insert(key, port.clone_ref(py));
                key
            })
        };
        drop(removed);
        Self::arm(slf)?;
        Ok(key)
    }

    pub(super) fn event_loop<'py>(slf: &Bound<'py, Self>) -> Option<Bound<'py, PyAny>> {
        let py = slf.py();
        slf.get().inner.lock(py).event_loop.as_ref().map(|event_loop| event_loop.bind(py).clone())
    }

    /// Releases the connections that the loop keeps alive, if it is closed. The callbacks that the loop drops when it is
    /// closed call this: the state is an attribute of the loop, which the application may keep for long.
    pub(super) fn release_if_closed(slf: &Bound<'_, Self>) {
        let Some(event_loop) = Self::event_loop(slf) else { return };
        if is_closed(&event_loop) {
            Self::release_all(slf);
        }
    }

    /// As [`Self::release_if_closed`], for a loop that may have no state.
    #[cfg(target_os = "linux")]
    pub(super) fn release_of_closed(event_loop: &Bound<'_, PyAny>) {
        if let Ok(state) = event_loop.getattr(ATTRIBUTE)
            && let Ok(state) = state.cast_into::<Self>()
        {
            Self::release_if_closed(&state);
        }
    }

    /// Whether the timer in the epoll among the loop's descriptors is due.
    #[cfg(target_os = "linux")]
    pub(super) fn is_timer_due(&self, py: Python<'_>) -> bool {
        match &self.inner.lock(py).alarm {
            Alarm::Descriptor(timer) => timer.is_due(Instant::now()),
            _ => false,
        }
    }

    /// The loop does not wait any more on the epoll that was among its descriptors.
    #[cfg(target_os = "linux")]
    pub(super) fn on_epoll_dropped(slf: &Bound<'_, Self>, epolls: &Py<EpollRegistry>) {
        let py = slf.py();
        let (alarm, current) = {
            let mut inner = slf.get().inner.lock(py);
            if !inner.epolls.as_ref().is_some_and(|current| current.is(epolls)) {
                return;
            }
            (std::mem::replace(&mut inner.alarm, Alarm::Off), inner.epolls.take())
        };
        drop((alarm, current));
        Self::release_if_closed(slf);
    }

    fn release_all(slf: &Bound<'_, Self>) {
        let py = slf.py();
        let (corked, timers, alarm) = {
            let mut inner = slf.get().inner.lock(py);
            inner.closed = true;
            let alarm = std::mem::replace(&mut inner.alarm, Alarm::Off);
            (std::mem::take(&mut inner.corked), std::mem::take(&mut inner.timers), alarm)
        };
        for port in timers.values() {
            port.get().release(py);
        }
        drop((corked, timers, alarm));
    }

    /// Sets the loop's timer to the earliest of ours; one that is set too early is left alone.
    fn arm(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let (old, wanted, event_loop) = {
            let mut inner = slf.get().inner.lock(py);
            let wanted = inner.timers.first_key_value().map(|(key, _)| key.0);
            match (&mut inner.alarm, wanted) {
                (Alarm::Off, None) => return Ok(()),
                (Alarm::Handle(due, _), Some(wanted)) if *due <= wanted => return Ok(()),
                // It stays for the next connection.
                #[cfg(target_os = "linux")]
                (Alarm::Descriptor(_), None) => return Ok(()),
                #[cfg(target_os = "linux")]
                (Alarm::Descriptor(timer), Some(wanted)) => {
                    return Ok(timer.arm(Instant::now(), wanted)?);
                }
                _ => {}
            }
            let old = std::mem::replace(&mut inner.alarm, Alarm::Off);
            (old, wanted, inner.event_loop.as_ref().map(|event_loop| event_loop.clone_ref(py)))
        };
        let Some(event_loop) = event_loop else { return Ok(()) };
        if let Alarm::Handle(_, handle) = old {
            cancel(handle.bind(py))?;
        }
        let Some(wanted) = wanted else { return Ok(()) };
        if slf.get().inner.lock(py).closed {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        if slf.get().inner.lock(py).nests
            && let Some(timer) = Self::watch_timer(slf, wanted)
        {
            slf.get().inner.lock(py).alarm = Alarm::Descriptor(timer);
            return Ok(());
        }
        let delay = wanted.saturating_duration_since(Instant::now()).as_secs_f64();
        let callback = Bound::new(py, TimerCallback::new(slf))?;
        let (delay, on_timer) = (delay.into_pyobject(py)?, callback.getattr(intern!(py, "on_timer"))?);
        drop(callback); // the loop holds it alone
        let mut handle = None;
        // Two that look for what is due do no harm; none would.
        let result = invoke::retry_interrupted(|| {
            let later = invoke::method(event_loop.bind(py), intern!(py, "call_later"), [delay.as_any(), &on_timer])?;
            handle = Some(later);
            Ok(())
        });
        if let Some(handle) = handle {
            let weak = PyWeakrefReference::new(&handle).map(Bound::into_any);
            let kept = weak.unwrap_or_else(|_| handle.clone()).unbind();
            slf.get().inner.lock(py).alarm = Alarm::Handle(wanted, kept);
        }
        result.or_else(|error| invoke::unless_closed(event_loop.bind(py), error))
    }

    /// A timer in the epoll among the loop's descriptors; `None`: descriptors are used up, perhaps.
    #[cfg(target_os = "linux")]
    fn watch_timer(slf: &Bound<'_, Self>, wanted: Instant) -> Option<Timer> {
        let poller = Self::epolls(slf)?.get().poller(slf.py())?;
        let mut timer = Timer::new().ok()?;
        timer.arm(Instant::now(), wanted).ok()?;
        poller.add(timer.raw(), TIMER, Readiness { readable: true, writable: false }).ok()?;
        Some(timer)
    }

    /// What watches the sockets of this loop's connections; `None`: the loop does it itself.
    #[cfg(target_os = "linux")]
    pub(super) fn epolls(slf: &Bound<'_, Self>) -> Option<Py<EpollRegistry>> {
        let py = slf.py();
        let (event_loop, old) = {
            let mut inner = slf.get().inner.lock(py);
            match &inner.epolls {
                Some(epolls) if !inner.nests || !epolls.get().is_forked() => return Some(epolls.clone_ref(py)),
                _ if !inner.nests => return None,
                _ => {}
            }
            // A child process begins anew: what it has is shared with the parent.
            let alarm = inner.epolls.is_some().then(|| std::mem::replace(&mut inner.alarm, Alarm::Off));
            (inner.event_loop.as_ref()?.clone_ref(py), (inner.epolls.take(), alarm))
        };
        // Not closed: the child's loop may still know the number.
        std::mem::forget(old);
        let epolls = Self::embed_epoll(slf, event_loop.bind(py)).ok()?;
        slf.get().inner.lock(py).epolls = Some(epolls.clone_ref(py));
        Some(epolls)
    }

    /// An epoll of ours among the descriptors of the loop, until that is closed.
    #[cfg(target_os = "linux")]
    fn embed_epoll(slf: &Bound<'_, Self>, event_loop: &Bound<'_, PyAny>) -> PyResult<Py<EpollRegistry>> {
        let py = slf.py();
        let poller = Arc::new(Poller::new()?);
        let fd = poller.raw();
        let epolls = Py::new(py, EpollRegistry::new(poller))?;
        epolls.get().set_loop(py, event_loop);
        let callback = Bound::new(py, EpollCallback::new(slf, epolls.clone_ref(py)))?;
        let serve = callback.getattr(intern!(py, "serve"))?;
        // Whatever context is current is not that of all connections to come.
        let context = py.import(intern!(py, "contextvars"))?.getattr(intern!(py, "Context"))?.call0()?;
        let add_reader = event_loop.getattr(intern!(py, "add_reader"))?;
        invoke::retry_interrupted(|| context.call_method1(intern!(py, "run"), (&add_reader, fd, &serve)).map(drop))?;
        Ok(epolls)
    }
}

/// The event loop that runs in this thread, or None.
pub(super) fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    super::raw::asyncio(py)?.running_loop.bind(py).call0()
}

#[cold]
fn is_here_now(event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
    let running = running_loop(event_loop.py())?;
    Ok(running.is(event_loop) || running.is_none() && !is_running(event_loop)?)
}

/// Whether a loop runs, in any thread.
pub(super) fn is_running(event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
    invoke::method(event_loop, intern!(event_loop.py(), "is_running"), [])?.is_truthy()
}

/// Whether a loop is closed; no, if it cannot be asked.
fn is_closed(event_loop: &Bound<'_, PyAny>) -> bool {
    let closed = invoke::method(event_loop, intern!(event_loop.py(), "is_closed"), []);
    closed.and_then(|closed| closed.is_truthy()).unwrap_or(false)
}

/// Cancels the handle of `call_later`, or what a weak reference to it refers to.
fn cancel(handle: &Bound<'_, PyAny>) -> PyResult<()> {
    let handle = match handle.cast::<PyWeakrefReference>() {
        Ok(weak) => weak.upgrade(),
        Err(_) => Some(handle.clone()),
    };
    match handle {
        Some(handle) => invoke::method(&handle, intern!(handle.py(), "cancel"), []).map(drop),
        None => Ok(()),
    }
}

/// Whether a loop waits for descriptors with little ado, an epoll among them: those of the standard library
/// and uvloop. For tests of how connections are on others, an attribute says that it does not.
#[cfg(target_os = "linux")]
fn nests(event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = event_loop.py();
    if let Ok(nests) = event_loop.getattr("_wirespeed_nests") {
        return nests.is_truthy();
    }
    if event_loop.is_instance(&py.import("asyncio.selector_events")?.getattr("BaseSelectorEventLoop")?)? {
        return Ok(true);
    }
    let module: String = event_loop.get_type().getattr("__module__")?.extract()?;
    Ok(module == "uvloop" || module.starts_with("uvloop."))
}

#[pymethods]
impl LoopState {
    /// Sends what was corked.
    fn _flush(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        this.begin_iteration();
        let corked = {
            let mut inner = this.inner.lock(py);
            inner.scheduled = false;
            std::mem::take(&mut inner.corked)
        };
        let mut steps = FirstError::new();
        for connection in corked {
            let connection = connection.bind(py);
            steps.note(AsyncConnection::contain(connection, || AsyncConnection::uncork(connection)));
        }
        steps.end()
    }

    /// That of a loop.
    #[staticmethod]
    #[pyo3(name = "of")]
    fn of_loop<'py>(r#loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        Self::of(r#loop)
    }

    /// Calls a function whenever a descriptor can be read from, until [`Self::_ignore`], or until a
    /// connection takes its place.
    fn _watch(slf: &Bound<'_, Self>, fd: c_int, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        #[cfg(target_os = "linux")]
        if let Some(epolls) = Self::epolls(slf) {
            return epolls.get().watch_callback(fd, callback);
        }
        match Self::event_loop(slf) {
            Some(event_loop) => event_loop.call_method1(intern!(slf.py(), "add_reader"), (fd, callback)).map(drop),
            None => Ok(()),
        }
    }

    /// Watches it no longer.
    fn _ignore(slf: &Bound<'_, Self>, fd: c_int) -> PyResult<()> {
        #[cfg(target_os = "linux")]
        if let Some(epolls) = Self::epolls(slf) {
            epolls.get().forget(slf.py(), fd);
            return Ok(());
        }
        match Self::event_loop(slf) {
            Some(event_loop) => event_loop.call_method1(intern!(slf.py(), "remove_reader"), (fd,)).map(drop),
            None => Ok(()),
        }
    }

    /// Waits until a descriptor is ready. It stays watched, until [`Self::_ignore`], or until a connection
    /// takes its place. `None`: this loop must be asked to watch it.
    fn _ready(slf: &Bound<'_, Self>, fd: c_int, to_read: bool, to_write: bool) -> PyResult<Option<Ready>> {
        Ready::begin(slf, fd, Readiness { readable: to_read, writable: to_write })
    }

    /// Sees to the connections whose time has come.
    pub(super) fn _on_timer(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let now = Instant::now();
        // The handle that has called us is dropped outside the lock.
        let (_handle, due): (_, Vec<Py<LoopAdapter>>) = {
            let mut inner = this.inner.lock(py);
            let handle = match &mut inner.alarm {
                #[cfg(target_os = "linux")]
                Alarm::Descriptor(timer) => {
                    timer.clear();
                    None
                }
                alarm => Some(std::mem::replace(alarm, Alarm::Off)),
            };
            let later = inner.timers.split_off(&(now, u64::MAX));
            (handle, std::mem::replace(&mut inner.timers, later).into_values().collect())
        };
        let mut steps = FirstError::new();
        for port in due {
            steps.note(LoopAdapter::handle_timer(port.bind(py), now));
        }
        steps.note(Self::arm(slf));
        steps.end()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(inner) = self.inner.try_lock_for_gc() else { return Ok(()) };
        visit.call(&inner.event_loop)?;
        for connection in &inner.corked {
            visit.call(connection)?;
        }
        for port in inner.timers.values() {
            visit.call(port)?;
        }
        #[cfg(target_os = "linux")]
        visit.call(&inner.epolls)?;
        match &inner.alarm {
            Alarm::Handle(_, handle) => visit.call(handle),
            _ => Ok(()),
        }
    }

    fn __clear__(&self) {
        let taken = self.inner.try_lock_for_gc().map(|mut inner| {
            (
                inner.event_loop.take(),
                std::mem::take(&mut inner.corked),
                std::mem::take(&mut inner.timers),
                std::mem::replace(&mut inner.alarm, Alarm::Off),
                #[cfg(target_os = "linux")]
                inner.epolls.take(),
            )
        });
        drop(taken);
    }
}
