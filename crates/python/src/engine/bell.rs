//! What wakes event loops: descriptors that are readable once there is something to look at, until they are silenced.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use pyo3::prelude::*;
use wirespeed_engine::mailbox::Wake;
use wirespeed_engine::{events, room};

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

/// Rings whenever there may be room, until it is dropped.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct RoomBell {
    bell: Bell,
    _watch: room::Watch,
}

impl RoomBell {
    pub(super) fn new(watch: impl FnOnce(Arc<dyn Wake>) -> room::Watch) -> PyResult<Self> {
        let (bell, wake) = Bell::new()?;
        Ok(Self { bell, _watch: watch(wake) })
    }
}

#[pymethods]
impl RoomBell {
    fn fileno(&self) -> i32 {
        self.bell.0.as_raw_fd()
    }

    fn silence(&self) {
        self.bell.silence();
    }
}

/// Rings once for each time that it waits, when there is something to take; who drops it passes on what it was told.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct EventsBell {
    bell: Bell,
    watch: events::Watch,
}

impl EventsBell {
    pub(super) fn new(events: &Arc<events::Events>) -> PyResult<Self> {
        let (bell, wake) = Bell::new()?;
        Ok(Self { bell, watch: events.watch(wake) })
    }
}

#[pymethods]
impl EventsBell {
    fn fileno(&self) -> i32 {
        self.bell.0.as_raw_fd()
    }

    fn silence(&self) {
        self.bell.silence();
    }

    /// False: there may be something to take now, and it will not ring.
    fn wait(&self) -> bool {
        self.watch.wait()
    }
}
