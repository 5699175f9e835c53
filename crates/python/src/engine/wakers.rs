//! What wakes event loops: descriptors that are readable once there is something to look at, until they are silenced.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use wirespeed_engine::mailbox::Wake;
use wirespeed_engine::{capacity, events};

use crate::errors;

struct Bell(UnixStream);

impl Bell {
    /// The one that is watched, and what rings it.
    fn new() -> PyResult<(Self, Arc<dyn Wake>)> {
        let (ours, theirs) = UnixStream::pair().map_err(|error| errors::io_error(&error))?;
        for end in [&ours, &theirs] {
            end.set_nonblocking(true).map_err(|error| errors::io_error(&error))?;
        }
        let wake = move || {
            let _ = (&theirs).write(&[0]); // full: it is readable
        };
        Ok((Self(ours), Arc::new(wake)))
    }

    fn silence(&self) {
        let mut bytes = [0; 64];
        while (&self.0).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
    }
}

/// What rings, and what it watches, until it is closed: whoever waited may be kept for long by what has ended his wait.
struct Rings<W>(Mutex<Option<(Bell, W)>>);

impl<W> Rings<W> {
    fn new(watch: impl FnOnce(Arc<dyn Wake>) -> W) -> PyResult<Self> {
        let (bell, wake) = Bell::new()?;
        Ok(Self(Mutex::new(Some((bell, watch(wake))))))
    }

    fn with<R>(&self, otherwise: R, what: impl FnOnce(&Bell, &W) -> R) -> R {
        let there = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        there.as_ref().map_or(otherwise, |(bell, watch)| what(bell, watch))
    }

    fn close(&self) {
        let there = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(there); // not under the lock
    }

    fn fileno(&self) -> i32 {
        self.with(-1, |bell, _| bell.0.as_raw_fd())
    }

    fn silence(&self) {
        self.with((), |bell, _| bell.silence());
    }
}

/// Rings whenever there may be room, until it is closed.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct RoomBell(Rings<capacity::Watch>);

impl RoomBell {
    pub(super) fn new(watch: impl FnOnce(Arc<dyn Wake>) -> capacity::Watch) -> PyResult<Self> {
        Rings::new(watch).map(Self)
    }
}

#[pymethods]
impl RoomBell {
    /// -1: it is closed.
    fn fileno(&self) -> i32 {
        self.0.fileno()
    }

    fn silence(&self) {
        self.0.silence();
    }

    fn close(&self) {
        self.0.close();
    }
}

/// Rings once for each time that it waits, when there is something to take; closed, it passes on what it was told.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct EventsBell(Rings<events::Watch>);

impl EventsBell {
    pub(super) fn new(events: &Arc<events::Events>) -> PyResult<Self> {
        Rings::new(|wake| events.watch(wake)).map(Self)
    }
}

#[pymethods]
impl EventsBell {
    /// -1: it is closed.
    fn fileno(&self) -> i32 {
        self.0.fileno()
    }

    fn silence(&self) {
        self.0.silence();
    }

    fn close(&self) {
        self.0.close();
    }

    /// False: there may be something to take now, and it will not ring.
    fn wait(&self) -> bool {
        self.0.with(false, |_, watch| watch.wait())
    }
}
