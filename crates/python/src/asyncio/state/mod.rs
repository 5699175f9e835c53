//! The state of a connection on an event loop: the driver's [`WaitState`] over Python objects, and the fields
//! that only the Python bindings need.

mod inbox;

use std::time::Instant;

use pyo3::exceptions::PyBaseException;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use wirespeed_driver::connection::{ConnectionDriver, Environment, Limits, WaitState};
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::protocol::Delivery;
use wirespeed_driver::thread::BULK_IO_BYTES;
use wirespeed_driver::write_queue::Flushed;

pub(super) use self::inbox::{Arrival, Control, PendingNotifications};
use super::waiter::{Stage, WaiterRef};
use crate::gil_yield;
use crate::payload::PyPayload;

/// The environment of an asyncio event loop.
pub(super) struct Asyncio;

impl Environment for Asyncio {
    type Buffer = PyPayload;
    type Message = Py<PyAny>;
    type Waiter = WaiterRef;
    /// An `asyncio.Future`.
    type Future = Py<PyAny>;
    /// A `bytes` or `str`, which is immutable.
    type Source = Py<PyAny>;
    type Context<'a> = Python<'a>;

    #[inline]
    fn is_waiting(py: Python<'_>, waiter: &WaiterRef) -> bool {
        waiter.stage(py) == Stage::Waiting
    }

    #[inline]
    fn has_assigned_message(py: Python<'_>, waiter: &WaiterRef) -> bool {
        waiter.is_message_pending(py)
    }

    #[inline]
    fn delivery(waiter: &WaiterRef) -> Delivery {
        waiter.receive_options().1
    }
}

pub(super) struct State {
    /// The waiting tasks, the queues and the driver.
    pub(super) wait_state: WaitState<Asyncio>,
    /// The iteration of the loop for which the inbox counts messages received without a suspension.
    received_in: u64,
    /// Whether a receiving task has yielded to the loop, and will continue with the rest of the read bytes.
    pub(super) turn_pending: bool,
    /// Whether the transport is inside its `resume_writing` call. It must not be aborted before that returns.
    pub(super) resuming: bool,
    /// Whether a listener wants to be notified of pings and pongs.
    pub(super) wants_controls: bool,
    /// Whether `recv_streaming` is running.
    pub(super) streaming_receiver: bool,
    /// Notifications that are not delivered yet.
    notifications: Option<Box<PendingNotifications>>,
    /// The first exception that a listener raised.
    pub(super) listener_error: Option<Py<PyBaseException>>,
    /// Whether the connection is attached to its loop: events received before are processed then.
    pub(super) attached: bool,
    /// Whether the transport called `connection_lost`.
    pub(super) transport_lost: bool,
    /// Whether the application closes without waiting. The loop then keeps the connection alive until it is
    /// closed.
    pub(super) closing_unattended: bool,
    /// The timer that aborts a closing transport after the close timeout.
    pub(super) abort_timer: Option<Py<PyAny>>,
    /// The key of the connection's timer in [`LoopState`](super::loop_state::LoopState).
    pub(super) timer: Option<(Instant, u64)>,
}

impl State {
    pub(super) fn new(driver: ConnectionDriver<PyPayload>, limits: Limits, listens: bool) -> Self {
        Self::with_wait_state(WaitState::new(driver, limits, listens))
    }

    /// The state of a closed connection, in place of one that is locked by a thread that no longer exists.
    pub(super) fn placeholder(failure: Failure) -> Self {
        Self::with_wait_state(WaitState::placeholder(failure))
    }

    fn with_wait_state(wait_state: WaitState<Asyncio>) -> Self {
        Self {
            wait_state,
            received_in: 0,
            turn_pending: false,
            resuming: false,
            wants_controls: false,
            streaming_receiver: false,
            notifications: None,
            listener_error: None,
            attached: false,
            transport_lost: false,
            closing_unattended: false,
            abort_timer: None,
            timer: None,
        }
    }

    /// Returns the driver, which moves bytes, closes the connection and keeps it alive.
    #[inline]
    pub(super) fn driver(&self) -> &ConnectionDriver<PyPayload> {
        self.wait_state.driver()
    }

    /// Returns the driver, to record what was read or is sent.
    #[inline]
    pub(super) fn driver_mut(&mut self) -> &mut ConnectionDriver<PyPayload> {
        self.wait_state.driver_mut()
    }

    /// Writes queued bytes to the socket, as far as the kernel accepts them.
    #[inline]
    pub(super) fn write_to_socket(&mut self, py: Python<'_>) -> Flushed {
        let driver = self.driver_mut();
        let large_transfer = driver.send_half().queued() >= BULK_IO_BYTES;
        gil_yield::run_transfer(py, large_transfer, || driver.flush()).unwrap_or(Flushed::All)
    }

    /// Like [`WaitState::is_quiescent`], and no notifications are pending.
    #[inline]
    pub(super) fn is_quiescent(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.notifications.is_none() && self.wait_state.is_quiescent(now)
    }

    /// Returns whether notifications are pending.
    #[inline]
    pub(super) fn has_notifications(&self) -> bool {
        self.notifications.is_some()
    }

    /// Takes the pending notifications.
    pub(super) fn take_notifications(&mut self) -> Option<Box<PendingNotifications>> {
        self.notifications.take()
    }

    /// Returns whether the connection must be kept alive although the application may have dropped it, because
    /// a task waits on it.
    pub(super) fn has_waiters(&self) -> bool {
        self.turn_pending || self.notifications.is_some() || self.wait_state.has_waiters()
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let wait_state = &self.wait_state;
        for waiter in wait_state.waiters() {
            waiter.visit(visit)?;
        }
        let pongs = self.notifications.iter().flat_map(|notifications| &notifications.pongs).map(|(future, _)| future);
        for future in wait_state.futures().chain(pongs) {
            visit.call(future)?;
        }
        if let Some(abort_timer) = &self.abort_timer {
            visit.call(abort_timer)?;
        }
        // An instance of a subclass of str may have attributes.
        if let Some(source) = wait_state.send_queue().large_source() {
            visit.call(source)?;
        }
        // Its traceback refers to frames, which may refer to the connection.
        self.listener_error.as_ref().map_or(Ok(()), |error| visit.call(error))
    }

    /// Takes out all references that may be part of a cycle.
    pub(super) fn take_references(&mut self) -> impl Sized + use<> {
        (
            self.wait_state.take_references(),
            self.notifications.take(),
            self.abort_timer.take(),
            self.listener_error.take(),
        )
    }
}
