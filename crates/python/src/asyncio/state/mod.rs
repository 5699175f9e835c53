//! What a connection on an event loop knows between two calls: the driver's [`WaitState`] over objects of Python,
//! and what only Python has.

mod inbox;

use std::ops::{Deref, DerefMut};
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

/// An event loop of asyncio's kind, and the objects on it.
pub(super) struct Asyncio;

impl Environment for Asyncio {
    type Buffer = PyPayload;
    type Message = Py<PyAny>;
    type Waiter = WaiterRef;
    /// A future.
    type Future = Py<PyAny>;
    /// A `bytes` or `str`: it cannot change.
    type Source = Py<PyAny>;
    type Context<'a> = Python<'a>;

    #[inline]
    fn is_waiting(py: Python<'_>, waiter: &WaiterRef) -> bool {
        waiter.stage(py) == Stage::Waiting
    }

    #[inline]
    fn has_assigned_message(py: Python<'_>, waiter: &WaiterRef) -> bool {
        waiter.is_holding(py)
    }

    #[inline]
    fn delivery(waiter: &WaiterRef) -> Delivery {
        waiter.wants().1
    }
}

pub(super) struct State {
    wait_state: WaitState<Asyncio>,
    /// The iteration of the loop for which the inbox counts what was received without a suspension.
    received_in: u64,
    /// A task that receives has given the loop a turn and comes back for the rest of what was read.
    pub(super) turn_pending: bool,
    /// The transport is telling that it has room: it must not be aborted before it is done.
    pub(super) resuming: bool,
    /// A listener wants to know of pings and pongs.
    pub(super) tell_controls: bool,
    /// `recv_streaming` is running.
    pub(super) streaming_receiver: bool,
    /// What has yet to be told.
    notes: Option<Box<PendingNotifications>>,
    /// What a listener raised.
    pub(super) listener_error: Option<Py<PyBaseException>>,
    /// What the loop says is acted upon.
    pub(super) begun: bool,
    /// The transport has ended.
    pub(super) lost: bool,
    /// The application does not wait for the end: the loop keeps the connection until then.
    pub(super) left: bool,
    /// What ends a transport that is being closed, when its time is up.
    pub(super) give_up: Option<Py<PyAny>>,
    /// The key of our timer.
    pub(super) timer: Option<(Instant, u64)>,
}

impl Deref for State {
    type Target = WaitState<Asyncio>;

    #[inline]
    fn deref(&self) -> &WaitState<Asyncio> {
        &self.wait_state
    }
}

impl DerefMut for State {
    #[inline]
    fn deref_mut(&mut self) -> &mut WaitState<Asyncio> {
        &mut self.wait_state
    }
}

impl State {
    pub(super) fn new(driver: ConnectionDriver<PyPayload>, limits: Limits, listens: bool) -> Self {
        Self::of(WaitState::new(driver, limits, listens))
    }

    /// That of a connection that a thread has which there is not: it is over.
    pub(super) fn placeholder(failure: Failure) -> Self {
        Self::of(WaitState::placeholder(failure))
    }

    fn of(wait_state: WaitState<Asyncio>) -> Self {
        Self {
            wait_state,
            received_in: 0,
            turn_pending: false,
            resuming: false,
            tell_controls: false,
            streaming_receiver: false,
            notes: None,
            listener_error: None,
            begun: false,
            lost: false,
            left: false,
            give_up: None,
            timer: None,
        }
    }

    /// Hands the kernel what is queued, as far as it has room.
    #[inline]
    pub(super) fn flush(&mut self, py: Python<'_>) -> Flushed {
        let driver = &mut self.wait_state.driver;
        let much = driver.send_half().queued() >= MUCH;
        gil_yield::run_transfer(py, much, || driver.flush())
    }

    /// As [`WaitState::is_quiescent`]; and nobody has anything to be told.
    #[inline]
    pub(super) fn is_quiescent(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.notes.is_none() && self.wait_state.is_quiescent(now)
    }

    /// Whether somebody has something to be told.
    #[inline]
    pub(super) fn has_notes(&self) -> bool {
        self.notes.is_some()
    }

    /// Takes what has yet to be told.
    pub(super) fn take_notes(&mut self) -> Option<Box<PendingNotifications>> {
        self.notes.take()
    }

    /// Whether anything must keep this connection alive although the application may have dropped it: a task
    /// that waits on it.
    pub(super) fn is_awaited(&self) -> bool {
        self.turn_pending || self.notes.is_some() || self.wait_state.has_waiters()
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let wait_state = &self.wait_state;
        let receivers = wait_state.receivers.iter().chain(&wait_state.in_delivery);
        for waiter in receivers.chain(wait_state.send_queue.waiters()).chain(wait_state.watchers.error_waiters()) {
            waiter.visit(visit)?;
        }
        let answered = self.notes.iter().flat_map(|notes| &notes.pongs).map(|(future, _)| future);
        for future in wait_state.watchers.futures().chain(answered) {
            visit.call(future)?;
        }
        if let Some(give_up) = &self.give_up {
            visit.call(give_up)?;
        }
        // An instance of a subclass of str has attributes.
        if let Some(large) = &wait_state.send_queue.large {
            visit.call(&large.source)?;
        }
        // Its traceback knows the frames it went through, and they the connection.
        self.listener_error.as_ref().map_or(Ok(()), |error| visit.call(error))
    }

    /// Takes everything out that may lead back to here.
    pub(super) fn take_references(&mut self) -> impl Sized + use<> {
        let wait_state = &mut self.wait_state;
        (
            std::mem::take(&mut wait_state.receivers),
            wait_state.in_delivery.take(),
            wait_state.send_queue.take_all().collect::<Vec<_>>(),
            wait_state.send_queue.take_flushes().collect::<Vec<_>>(),
            wait_state.watchers.take(),
            self.notes.take(),
            self.give_up.take(),
            self.listener_error.take(),
        )
    }
}
