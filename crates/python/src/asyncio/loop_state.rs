//! State that the connections of one event loop share: the current iteration, corked connections, the watcher
//! of their sockets, and one timer for all.

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

/// The attribute of the loop that holds this state.
const ATTRIBUTE: &str = "_wirespeed_state";

/// The state that the connections of one event loop share.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct LoopState {
    iteration: AtomicU64,
    /// The thread that certainly runs the loop now, see [`this_thread`]: one of our callbacks is running, or is
    /// scheduled before the loop can stop. 0 if unknown.
    thread: AtomicUsize,
    /// The thread that was found to run the loop since a task was last suspended on a connection. The loop may
    /// have stopped since.
    probable_thread: AtomicUsize,
    inner: GilMutex<Inner>,
}

struct Inner {
    /// `None` once the garbage collector has cleared it.
    event_loop: Option<Py<PyAny>>,
    corked: Vec<Py<AsyncConnection>>,
    scheduled: bool,
    timers: BTreeMap<(Instant, u64), Py<LoopAdapter>>,
    last_timer: u64,
    loop_timer: LoopTimer,
    /// The loop is closed and calls no callbacks any more.
    closed: bool,
    /// The epoll that the loop waits on: its selector's, or one registered among its descriptors.
    #[cfg(target_os = "linux")]
    registry: Option<Py<EpollRegistry>>,
    /// Whether the loop may watch such an epoll among its descriptors.
    #[cfg(target_os = "linux")]
    can_embed_epoll: bool,
}

/// The epoll token of the timer.
#[cfg(target_os = "linux")]
const TIMER: u64 = 1;

/// The loop's timer, which serves all connections.
enum LoopTimer {
    Off,
    /// `call_later`: its deadline and its handle. A weak reference to the handle where possible: the loop then
    /// drops the handle, and its [`TimerCallback`], when it is closed.
    Handle(Instant, Py<PyAny>),
    /// A timer in the epoll among the loop's descriptors: the loop, if it has no timers of its own, waits
    /// without a timeout.
    #[cfg(target_os = "linux")]
    Descriptor(Timer),
}

impl LoopState {
    /// Returns the state of a loop. Creates it for the first connection.
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
            loop_timer: LoopTimer::Off,
            closed: false,
            #[cfg(target_os = "linux")]
            can_embed_epoll: selector.is_none() && can_embed_epoll(event_loop)?,
            #[cfg(target_os = "linux")]
            registry: selector.map(|selector| selector.get().registry(py)),
        };
        let state = Bound::new(
            py,
            Self {
                iteration: AtomicU64::new(1),
                thread: AtomicUsize::new(0),
                probable_thread: AtomicUsize::new(0),
                inner: GilMutex::new(inner),
            },
        )?;
        // If the loop accepts no attributes, each connection has its own state, and its own timer.
        let _ = event_loop.setattr(ATTRIBUTE, &state);
        Ok(state)
    }

    /// Returns a number that changes with every iteration of the loop that is noticed.
    #[inline]
    pub(super) fn iteration(&self) -> u64 {
        self.iteration.load(Ordering::Relaxed)
    }

    /// Starts a new iteration: a callback of the loop runs, or a task is being suspended.
    #[inline]
    pub(super) fn begin_iteration(&self) {
        self.end_turn();
        self.probable_thread.store(0, Ordering::Relaxed);
        self.iteration.store(self.iteration.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Starts a turn of the loop in which a lot of work may be done: yields the GIL to another thread first if
    /// that is due.
    #[inline]
    pub(super) fn begin_turn(&self, py: Python<'_>) {
        self.begin_iteration();
        self.thread.store(this_thread(), Ordering::Relaxed);
        gil_yield::begin_turn(py);
    }

    /// Ends a callback of the loop. Another loop may run next in this thread.
    #[inline]
    pub(super) fn end_turn(&self) {
        self.thread.store(0, Ordering::Relaxed);
    }

    /// Returns whether this thread runs the loop, or no thread runs it and this thread runs no other loop. A
    /// message sent on another loop would wait until this loop runs again.
    #[inline]
    pub(super) fn runs_here(&self, event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.thread.load(Ordering::Relaxed) == this_thread() { Ok(true) } else { runs_here_now(event_loop) }
    }

    /// Like [`Self::runs_here`], faster and less certain, for calls that do no harm on another loop.
    #[inline]
    pub(super) fn probably_runs_here(&self, event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.probable_thread.load(Ordering::Relaxed) == this_thread() {
            return Ok(true);
        }
        let runs_here = self.runs_here(event_loop)?;
        if runs_here {
            self.probable_thread.store(this_thread(), Ordering::Relaxed);
        }
        Ok(runs_here)
    }

    /// Schedules `connection` to be flushed at the end of this iteration.
    pub(super) fn cork(slf: &Bound<'_, Self>, connection: &Bound<'_, AsyncConnection>) -> PyResult<()> {
        let py = slf.py();
        let (event_loop, scheduled) = {
            let mut inner = slf.get().inner.lock(py);
            inner.corked.push(connection.clone().unbind());
            (inner.event_loop.as_ref().map(|event_loop| event_loop.bind(py).clone()), inner.scheduled)
        };
        let Some(event_loop) = event_loop else { return Ok(()) };
        // A running loop flushes before it stops.
        let running_thread = &slf.get().thread;
        if running_thread.load(Ordering::Relaxed) != this_thread()
            && running_loop(py).is_ok_and(|running| running.is(&event_loop))
        {
            running_thread.store(this_thread(), Ordering::Relaxed);
        }
        if scheduled {
            return Ok(());
        }
        // Interning a name panics if there is no memory: before the flush is marked as scheduled.
        let (name, flush) = (intern!(py, "call_soon"), intern!(py, "_flush"));
        slf.get().inner.lock(py).scheduled = true;
        let (done, result) = invoke::retry_interrupted_succeeded(|| {
            let flush = slf.getattr(flush)?;
            invoke::method(&event_loop, name, [&flush]).map(drop)
        });
        if !done {
            let dropped = {
                let mut inner = slf.get().inner.lock(py);
                inner.scheduled = false; // the next cork schedules it again
                // A closed loop flushes nothing, and must not keep the connection alive.
                if inner.closed { std::mem::take(&mut inner.corked) } else { Vec::new() }
            };
            drop(dropped);
        }
        result
    }

    /// Sets the timer of `adapter` to `deadline`, replacing the one with the key `old`. Returns the new key.
    pub(super) fn schedule(
        slf: &Bound<'_, Self>,
        adapter: &Py<LoopAdapter>,
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
                inner.timers.insert(key, adapter.clone_ref(py));
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

    /// Releases the connections that the loop keeps alive, if it is closed. Called by the callbacks that the
    /// loop drops when it is closed, because the application may keep the loop, whose attribute this state is,
    /// for a long time.
    pub(super) fn release_if_closed(slf: &Bound<'_, Self>) {
        let Some(event_loop) = Self::event_loop(slf) else { return };
        if is_closed(&event_loop) {
            Self::release_all(slf);
        }
    }

    /// Like [`Self::release_if_closed`], for a loop that may have no state.
    #[cfg(target_os = "linux")]
    pub(super) fn release_of_closed(event_loop: &Bound<'_, PyAny>) {
        if let Ok(state) = event_loop.getattr(ATTRIBUTE)
            && let Ok(state) = state.cast_into::<Self>()
        {
            Self::release_if_closed(&state);
        }
    }

    /// Returns whether the timer in the epoll among the loop's descriptors is due.
    #[cfg(target_os = "linux")]
    pub(super) fn is_timer_due(&self, py: Python<'_>) -> bool {
        match &self.inner.lock(py).loop_timer {
            LoopTimer::Descriptor(timer) => timer.is_due(Instant::now()),
            _ => false,
        }
    }

    /// Handles that the loop no longer waits on the epoll that was among its descriptors.
    #[cfg(target_os = "linux")]
    pub(super) fn on_epoll_dropped(slf: &Bound<'_, Self>, registry: &Py<EpollRegistry>) {
        let py = slf.py();
        let (loop_timer, current) = {
            let mut inner = slf.get().inner.lock(py);
            if !inner.registry.as_ref().is_some_and(|current| current.is(registry)) {
                return;
            }
            (std::mem::replace(&mut inner.loop_timer, LoopTimer::Off), inner.registry.take())
        };
        drop((loop_timer, current));
        Self::release_if_closed(slf);
    }

    fn release_all(slf: &Bound<'_, Self>) {
        let py = slf.py();
        let (corked, timers, loop_timer) = {
            let mut inner = slf.get().inner.lock(py);
            inner.closed = true;
            let loop_timer = std::mem::replace(&mut inner.loop_timer, LoopTimer::Off);
            (std::mem::take(&mut inner.corked), std::mem::take(&mut inner.timers), loop_timer)
        };
        for adapter in timers.values() {
            adapter.get().release(py);
        }
        drop((corked, timers, loop_timer));
    }

    /// Sets the loop's timer to the earliest deadline of the connections. A timer that fires too early is left
    /// unchanged.
    fn arm(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let (old, earliest, event_loop) = {
            let mut inner = slf.get().inner.lock(py);
            let earliest = inner.timers.first_key_value().map(|(key, _)| key.0);
            match (&mut inner.loop_timer, earliest) {
                (LoopTimer::Off, None) => return Ok(()),
                (LoopTimer::Handle(due, _), Some(earliest)) if *due <= earliest => return Ok(()),
                // It stays for the next connection.
                #[cfg(target_os = "linux")]
                (LoopTimer::Descriptor(_), None) => return Ok(()),
                #[cfg(target_os = "linux")]
                (LoopTimer::Descriptor(timer), Some(earliest)) => {
                    return Ok(timer.arm(Instant::now(), earliest)?);
                }
                _ => {}
            }
            let old = std::mem::replace(&mut inner.loop_timer, LoopTimer::Off);
            (old, earliest, inner.event_loop.as_ref().map(|event_loop| event_loop.clone_ref(py)))
        };
        let Some(event_loop) = event_loop else { return Ok(()) };
        if let LoopTimer::Handle(_, handle) = old {
            cancel(handle.bind(py))?;
        }
        let Some(earliest) = earliest else { return Ok(()) };
        if slf.get().inner.lock(py).closed {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        if slf.get().inner.lock(py).can_embed_epoll
            && let Some(timer) = Self::watch_timer(slf, earliest)
        {
            slf.get().inner.lock(py).loop_timer = LoopTimer::Descriptor(timer);
            return Ok(());
        }
        let delay = earliest.saturating_duration_since(Instant::now()).as_secs_f64();
        let callback = Bound::new(py, TimerCallback::new(slf))?;
        let (delay, on_timer) = (delay.into_pyobject(py)?, callback.getattr(intern!(py, "on_timer"))?);
        drop(callback); // only the loop refers to it now
        let mut handle = None;
        // Two timers that check for due connections do no harm. No timer would.
        let result = invoke::retry_interrupted(|| {
            let later = invoke::method(event_loop.bind(py), intern!(py, "call_later"), [delay.as_any(), &on_timer])?;
            handle = Some(later);
            Ok(())
        });
        if let Some(handle) = handle {
            let weak = PyWeakrefReference::new(&handle).map(Bound::into_any);
            let kept = weak.unwrap_or_else(|_| handle.clone()).unbind();
            slf.get().inner.lock(py).loop_timer = LoopTimer::Handle(earliest, kept);
        }
        result.or_else(|error| invoke::unless_closed(event_loop.bind(py), error))
    }

    /// Creates a timer in the epoll among the loop's descriptors. `None` if that fails, for example for lack of
    /// descriptors.
    #[cfg(target_os = "linux")]
    fn watch_timer(slf: &Bound<'_, Self>, earliest: Instant) -> Option<Timer> {
        let poller = Self::registry(slf)?.get().poller(slf.py())?;
        let mut timer = Timer::new().ok()?;
        timer.arm(Instant::now(), earliest).ok()?;
        poller.add(timer.raw(), TIMER, Readiness { readable: true, writable: false }).ok()?;
        Some(timer)
    }

    /// Returns the registry that watches the sockets of this loop's connections. `None` if the loop itself
    /// watches them.
    #[cfg(target_os = "linux")]
    pub(super) fn registry(slf: &Bound<'_, Self>) -> Option<Py<EpollRegistry>> {
        let py = slf.py();
        let (event_loop, old) = {
            let mut inner = slf.get().inner.lock(py);
            match &inner.registry {
                Some(registry) if !inner.can_embed_epoll || !registry.get().is_forked() => {
                    return Some(registry.clone_ref(py));
                }
                _ if !inner.can_embed_epoll => return None,
                _ => {}
            }
            // A child process creates a new epoll: its copy is shared with the parent.
            let loop_timer = inner.registry.is_some().then(|| std::mem::replace(&mut inner.loop_timer, LoopTimer::Off));
            (inner.event_loop.as_ref()?.clone_ref(py), (inner.registry.take(), loop_timer))
        };
        // Not closed, because the child's loop may still know the descriptor.
        std::mem::forget(old);
        let registry = Self::embed_epoll(slf, event_loop.bind(py)).ok()?;
        slf.get().inner.lock(py).registry = Some(registry.clone_ref(py));
        Some(registry)
    }

    /// Registers an epoll among the descriptors of the loop, until the loop is closed.
    #[cfg(target_os = "linux")]
    fn embed_epoll(slf: &Bound<'_, Self>, event_loop: &Bound<'_, PyAny>) -> PyResult<Py<EpollRegistry>> {
        let py = slf.py();
        let poller = Arc::new(Poller::new()?);
        let fd = poller.raw();
        let registry = Py::new(py, EpollRegistry::new(poller))?;
        registry.get().set_loop(py, event_loop);
        let callback = Bound::new(py, EpollCallback::new(slf, registry.clone_ref(py)))?;
        let serve = callback.getattr(intern!(py, "serve"))?;
        // The current context must not become the context of later connections.
        let context = py.import(intern!(py, "contextvars"))?.getattr(intern!(py, "Context"))?.call0()?;
        let add_reader = event_loop.getattr(intern!(py, "add_reader"))?;
        invoke::retry_interrupted(|| context.call_method1(intern!(py, "run"), (&add_reader, fd, &serve)).map(drop))?;
        Ok(registry)
    }
}

/// Returns the event loop that runs in this thread, or None.
pub(super) fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    super::raw::asyncio(py)?.running_loop.bind(py).call0()
}

#[cold]
fn runs_here_now(event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
    let running = running_loop(event_loop.py())?;
    Ok(running.is(event_loop) || running.is_none() && !is_running(event_loop)?)
}

/// Returns whether a loop runs, in any thread.
pub(super) fn is_running(event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
    invoke::method(event_loop, intern!(event_loop.py(), "is_running"), [])?.is_truthy()
}

/// Returns whether a loop is closed; false if it raises an exception.
fn is_closed(event_loop: &Bound<'_, PyAny>) -> bool {
    let closed = invoke::method(event_loop, intern!(event_loop.py(), "is_closed"), []);
    closed.and_then(|closed| closed.is_truthy()).unwrap_or(false)
}

/// Cancels the handle of `call_later`, or the handle that a weak reference refers to.
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

/// Returns whether a loop can efficiently wait for an epoll among its descriptors, as those of the standard
/// library and uvloop can. For tests of other loops, an attribute overrides this.
#[cfg(target_os = "linux")]
fn can_embed_epoll(event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = event_loop.py();
    if let Ok(can_embed_epoll) = event_loop.getattr("_wirespeed_nests") {
        return can_embed_epoll.is_truthy();
    }
    if event_loop.is_instance(&py.import("asyncio.selector_events")?.getattr("BaseSelectorEventLoop")?)? {
        return Ok(true);
    }
    let module: String = event_loop.get_type().getattr("__module__")?.extract()?;
    Ok(module == "uvloop" || module.starts_with("uvloop."))
}

#[pymethods]
impl LoopState {
    /// Writes corked messages.
    fn _flush(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        this.begin_iteration();
        let corked = {
            let mut inner = this.inner.lock(py);
            inner.scheduled = false;
            std::mem::take(&mut inner.corked)
        };
        let mut first_error = FirstError::new();
        for connection in corked {
            let connection = connection.bind(py);
            first_error.record(AsyncConnection::contain(connection, || AsyncConnection::uncork(connection)));
        }
        first_error.into_result()
    }

    /// Returns the state of a loop.
    #[staticmethod]
    #[pyo3(name = "of")]
    fn of_loop<'py>(r#loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        Self::of(r#loop)
    }

    /// Calls a function whenever a descriptor is readable, until [`Self::_ignore`] is called or a connection
    /// replaces it.
    fn _watch(slf: &Bound<'_, Self>, fd: c_int, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        #[cfg(target_os = "linux")]
        if let Some(registry) = Self::registry(slf) {
            return registry.get().watch_callback(fd, callback);
        }
        match Self::event_loop(slf) {
            Some(event_loop) => event_loop.call_method1(intern!(slf.py(), "add_reader"), (fd, callback)).map(drop),
            None => Ok(()),
        }
    }

    /// Stops watching a descriptor.
    fn _ignore(slf: &Bound<'_, Self>, fd: c_int) -> PyResult<()> {
        #[cfg(target_os = "linux")]
        if let Some(registry) = Self::registry(slf) {
            registry.get().forget(slf.py(), fd);
            return Ok(());
        }
        match Self::event_loop(slf) {
            Some(event_loop) => event_loop.call_method1(intern!(slf.py(), "remove_reader"), (fd,)).map(drop),
            None => Ok(()),
        }
    }

    /// Waits until a descriptor is ready. It stays watched until [`Self::_ignore`] is called or a connection
    /// replaces it. `None` if the caller must use the loop's own methods.
    fn _ready(slf: &Bound<'_, Self>, fd: c_int, to_read: bool, to_write: bool) -> PyResult<Option<Ready>> {
        Ready::begin(slf, fd, Readiness { readable: to_read, writable: to_write })
    }

    /// Handles the timers of all due connections.
    pub(super) fn _on_timer(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let now = Instant::now();
        // The handle that has called this method is dropped outside the lock.
        let (_handle, due): (_, Vec<Py<LoopAdapter>>) = {
            let mut inner = this.inner.lock(py);
            let handle = match &mut inner.loop_timer {
                #[cfg(target_os = "linux")]
                LoopTimer::Descriptor(timer) => {
                    timer.clear();
                    None
                }
                loop_timer => Some(std::mem::replace(loop_timer, LoopTimer::Off)),
            };
            let later = inner.timers.split_off(&(now, u64::MAX));
            (handle, std::mem::replace(&mut inner.timers, later).into_values().collect())
        };
        let mut first_error = FirstError::new();
        for adapter in due {
            first_error.record(LoopAdapter::handle_timer(adapter.bind(py), now));
        }
        first_error.record(Self::arm(slf));
        first_error.into_result()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(inner) = self.inner.try_lock_for_gc() else { return Ok(()) };
        visit.call(&inner.event_loop)?;
        for connection in &inner.corked {
            visit.call(connection)?;
        }
        for adapter in inner.timers.values() {
            visit.call(adapter)?;
        }
        #[cfg(target_os = "linux")]
        visit.call(&inner.registry)?;
        match &inner.loop_timer {
            LoopTimer::Handle(_, handle) => visit.call(handle),
            _ => Ok(()),
        }
    }

    fn __clear__(&self) {
        let taken = self.inner.try_lock_for_gc().map(|mut inner| {
            (
                inner.event_loop.take(),
                std::mem::take(&mut inner.corked),
                std::mem::take(&mut inner.timers),
                std::mem::replace(&mut inner.loop_timer, LoopTimer::Off),
                #[cfg(target_os = "linux")]
                inner.registry.take(),
            )
        });
        drop(taken);
    }
}
