//! Wakers of event loops: descriptors that become readable when there may be something to do, until they are cleared.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use wirespeed_engine::{Wake, control, events};

use crate::errors;

struct WakePipe(UnixStream);

impl WakePipe {
    /// Returns the end to watch, and the function that makes it readable.
    fn new() -> PyResult<(Self, Arc<dyn Wake>)> {
        let (ours, theirs) = UnixStream::pair().map_err(|error| errors::io_error(&error))?;
        for end in [&ours, &theirs] {
            end.set_nonblocking(true).map_err(|error| errors::io_error(&error))?;
        }
        let wake = move || {
            let _ = (&theirs).write(&[0]); // if the pipe is full, it is readable already
        };
        Ok((Self(ours), Arc::new(wake)))
    }

    fn clear(&self) {
        let mut bytes = [0; 64];
        while (&self.0).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
    }
}

/// A descriptor and the watch that makes it readable, until it is closed. Closing is explicit, because tracebacks may
/// keep the object alive.
struct Waker<W>(Mutex<Option<(WakePipe, W)>>);

impl<W> Waker<W> {
    fn new(watch: impl FnOnce(Arc<dyn Wake>) -> W) -> PyResult<Self> {
        let (pipe, wake) = WakePipe::new()?;
        Ok(Self(Mutex::new(Some((pipe, watch(wake))))))
    }

    fn with<R>(&self, otherwise: R, what: impl FnOnce(&WakePipe, &W) -> R) -> R {
        let there = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        there.as_ref().map_or(otherwise, |(pipe, watch)| what(pipe, watch))
    }

    fn close(&self) {
        let there = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(there); // not under the lock
    }

    fn fileno(&self) -> i32 {
        self.with(-1, |pipe, _| pipe.0.as_raw_fd())
    }

    fn clear(&self) {
        self.with((), |pipe, _| pipe.clear());
    }
}

/// Becomes readable whenever there may be capacity, until it is closed.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct CapacityWaker(Waker<control::Watch>);

impl CapacityWaker {
    pub(super) fn new(watch: impl FnOnce(Arc<dyn Wake>) -> control::Watch) -> PyResult<Self> {
        Waker::new(watch).map(Self)
    }
}

#[pymethods]
impl CapacityWaker {
    /// Returns the descriptor, or -1 once it is closed.
    fn fileno(&self) -> i32 {
        self.0.fileno()
    }

    fn clear(&self) {
        self.0.clear();
    }

    fn close(&self) {
        self.0.close();
    }
}

/// Becomes readable once after each call of `wait`, when there are events. Closing it passes a pending notification on
/// to another waiter.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct EventsWaker(Waker<events::Watch>);

impl EventsWaker {
    pub(super) fn new(events: &Arc<events::Events>) -> PyResult<Self> {
        Waker::new(|wake| events.watch(wake)).map(Self)
    }
}

#[pymethods]
impl EventsWaker {
    /// Returns the descriptor, or -1 once it is closed.
    fn fileno(&self) -> i32 {
        self.0.fileno()
    }

    fn clear(&self) {
        self.0.clear();
    }

    fn close(&self) {
        self.0.close();
    }

    /// Requests a notification. Returns false, without one, if there may be events now.
    fn wait(&self) -> bool {
        self.0.with(false, |_, watch| watch.wait())
    }
}
