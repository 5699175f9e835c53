//! What a connection on an event loop knows between two calls: the driver's [`Flow`] over objects of Python,
//! and what only Python has.

mod inbox;

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use pyo3::exceptions::PyBaseException;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use wirespeed_driver::drive::{Drive, Environment, Flow, Limits};
use wirespeed_driver::peer::Failure;
use wirespeed_driver::protocol::Delivery;
use wirespeed_driver::thread::MUCH;
use wirespeed_driver::write_queue::Flushed;

pub(super) use self::inbox::{Arrival, Control, Notes};
use super::waiter::{Stage, WaiterRef};
use crate::handover;
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
    fn is_holding(py: Python<'_>, waiter: &WaiterRef) -> bool {
        waiter.is_holding(py)
    }

    #[inline]
    fn delivery(waiter: &WaiterRef) -> Delivery {
        waiter.wants().1
    }
}

pub(super) struct State {
    flow: Flow<Asyncio>,
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
    notes: Option<Box<Notes>>,
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
    type Target = Flow<Asyncio>;

    #[inline]
    fn deref(&self) -> &Flow<Asyncio> {
        &self.flow
    }
}

impl DerefMut for State {
    #[inline]
    fn deref_mut(&mut self) -> &mut Flow<Asyncio> {
        &mut self.flow
    }
}

impl State {
    pub(super) fn new(drive: Drive<PyPayload>, limits: Limits, listens: bool) -> Self {
        Self::of(Flow::new(drive, limits, listens))
    }

    /// That of a connection that a thread has which there is not: it is over.
    pub(super) fn disowned(failure: Failure) -> Self {
        Self::of(Flow::disowned(failure))
    }

    fn of(flow: Flow<Asyncio>) -> Self {
        Self {
            flow,
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
        let drive = &mut self.flow.drive;
        let much = drive.link().queued() >= MUCH;
        handover::moving(py, much, || drive.flush())
    }

    /// As [`Flow::is_settled`]; and nobody has anything to be told.
    #[inline]
    pub(super) fn is_settled(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.notes.is_none() && self.flow.is_settled(now)
    }

    /// Whether somebody has something to be told.
    #[inline]
    pub(super) fn has_notes(&self) -> bool {
        self.notes.is_some()
    }

    /// Takes what has yet to be told.
    pub(super) fn take_notes(&mut self) -> Option<Box<Notes>> {
        self.notes.take()
    }

    /// Whether anything must keep this connection alive although the application may have dropped it: a task
    /// that waits on it.
    pub(super) fn is_awaited(&self) -> bool {
        self.turn_pending || self.notes.is_some() || self.flow.is_awaited()
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let flow = &self.flow;
        let receivers = flow.receivers.iter().chain(&flow.handed);
        for waiter in receivers.chain(flow.outbox.waiters()).chain(flow.watchers.enders()) {
            waiter.visit(visit)?;
        }
        let answered = self.notes.iter().flat_map(|notes| &notes.pongs).map(|(future, _)| future);
        for future in flow.watchers.futures().chain(answered) {
            visit.call(future)?;
        }
        if let Some(give_up) = &self.give_up {
            visit.call(give_up)?;
        }
        // An instance of a subclass of str has attributes.
        if let Some(large) = &flow.outbox.large {
            visit.call(&large.source)?;
        }
        // Its traceback knows the frames it went through, and they the connection.
        self.listener_error.as_ref().map_or(Ok(()), |error| visit.call(error))
    }

    /// Takes everything out that may lead back to here.
    pub(super) fn take_references(&mut self) -> impl Sized + use<> {
        let flow = &mut self.flow;
        (
            std::mem::take(&mut flow.receivers),
            flow.handed.take(),
            flow.outbox.take_all().collect::<Vec<_>>(),
            flow.outbox.take_flushes().collect::<Vec<_>>(),
            flow.watchers.take(),
            self.notes.take(),
            self.give_up.take(),
            self.listener_error.take(),
        )
    }
}
