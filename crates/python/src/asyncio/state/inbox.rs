//! Receiving: converts parsed messages to Python objects for waiting tasks, the receive queue, or a listener.

use pyo3::prelude::*;
use wirespeed_driver::connection::{Item, RECEIVED_COST, Receiver, YIELD_BYTES};
use wirespeed_driver::endpoint::payload_len;
use wirespeed_driver::protocol::{Delivery, Event, MessageKind, Payload};

use super::State;
use crate::payload::{self, PyPayload};

/// The next event for a listener.
pub(in crate::asyncio) enum Arrival {
    Message(Py<PyAny>),
    /// Pointer to and length of a binary message in the read buffer.
    View(*const u8, usize),
    Control(Control),
}

/// A control frame for a listener.
pub(in crate::asyncio) enum Control {
    Ping(Vec<u8>),
    Pong(Vec<u8>),
}

/// Notifications found while receiving messages, to be delivered outside the lock. They stay in the connection
/// until then, so an exception that ends a call loses none.
#[derive(Default)]
pub(in crate::asyncio) struct PendingNotifications {
    /// Futures of answered pings, and the latency in seconds.
    pub(in crate::asyncio) pongs: Vec<(Py<PyAny>, f64)>,
    /// Pings and pongs for a listener that does not take messages.
    pub(in crate::asyncio) controls: Vec<Control>,
}

/// Creates the Python objects of one call, and collects control frames.
struct ObjectReceiver<'a, 'py> {
    py: Python<'py>,
    /// The argument of `recv(decode=...)`.
    decode: Option<bool>,
    notifications: &'a mut Option<Box<PendingNotifications>>,
    wants_controls: bool,
}

impl Receiver<PyPayload> for ObjectReceiver<'_, '_> {
    type Message = Py<PyAny>;
    type Error = PyErr;

    #[inline]
    fn message(&mut self, kind: MessageKind, payload: Payload<'_, PyPayload>, whole: bool) -> PyResult<Py<PyAny>> {
        payload::message(self.py, kind, payload, if whole { self.decode } else { Some(false) })
    }

    fn join(&mut self, kind: MessageKind, fragments: Vec<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        payload::join(self.py, kind, &fragments)
    }

    fn ping(&mut self, payload: &[u8]) {
        if self.wants_controls {
            self.notifications.get_or_insert_default().controls.push(Control::Ping(payload.to_vec()));
        }
    }

    fn pong(&mut self, payload: &[u8]) {
        if self.wants_controls {
            self.notifications.get_or_insert_default().controls.push(Control::Pong(payload.to_vec()));
        }
    }
}

impl State {
    /// Takes the next message or fragment that has arrived. The conversion cannot fail because of the bytes, so
    /// a caller that gives the message up can put it back. Therefore the receiver itself decodes binary
    /// messages for `decode=True`.
    #[inline]
    pub(in crate::asyncio) fn take(
        &mut self,
        py: Python<'_>,
        decode: Option<bool>,
        delivery: Delivery,
    ) -> PyResult<Option<Item<Py<PyAny>>>> {
        let (notifications, wants_controls) = (&mut self.notifications, self.wants_controls);
        let decode = decode.filter(|text| !text);
        let mut receiver = ObjectReceiver { py, decode, notifications, wants_controls };
        let taken = self.wait_state.take(delivery, &mut receiver);
        self.record_answered_pings();
        taken
    }

    /// Moves read messages to the queue, up to its limit. Returns whether the rest is left for the next turn of
    /// the loop, which the caller must request.
    pub(in crate::asyncio) fn fill_queue(&mut self, py: Python<'_>) -> PyResult<bool> {
        let (notifications, wants_controls) = (&mut self.notifications, self.wants_controls);
        let mut receiver = ObjectReceiver { py, decode: None, notifications, wants_controls };
        let filled = self.wait_state.fill(&mut receiver);
        self.record_answered_pings();
        filled
    }

    /// Collects the futures of pings that pongs have answered.
    #[inline]
    fn record_answered_pings(&mut self) {
        let answered = self.wait_state.take_answered_pings();
        if !answered.is_empty() {
            let answered = answered.into_iter().map(|(future, latency)| (future, latency.as_secs_f64()));
            self.notifications.get_or_insert_default().pongs.extend(answered);
        }
    }

    /// Returns the next event for a listener. With `zero_copy`, a whole binary message is returned as its place
    /// in the read buffer.
    pub(in crate::asyncio) fn next_arrival(&mut self, py: Python<'_>, zero_copy: bool) -> PyResult<Option<Arrival>> {
        loop {
            let (arrival, len) = match self.wait_state.driver_mut().poll_event() {
                None => (None, 0),
                Some(Event::Message { kind: MessageKind::Binary, payload: Payload::Slice(slice) }) if zero_copy => {
                    (Some(Arrival::View(slice.as_ptr(), slice.len())), slice.len())
                }
                Some(Event::Message { kind, payload } | Event::Fragment { kind, payload, .. }) => {
                    let len = payload_len(&payload);
                    (Some(Arrival::Message(payload::message(py, kind, payload, None)?)), len)
                }
                Some(Event::Ping(payload)) => (Some(Arrival::Control(Control::Ping(payload.as_slice().to_vec()))), 0),
                Some(Event::Pong(payload)) => (Some(Arrival::Control(Control::Pong(payload.as_slice().to_vec()))), 0),
                Some(_) => continue,
            };
            self.wait_state.inbox_mut().count(RECEIVED_COST + len);
            self.record_answered_pings();
            return Ok(arrival);
        }
    }

    /// Returns whether the loop is due a turn, because so many bytes were received since a task was last
    /// suspended, and more have arrived.
    #[inline]
    pub(in crate::asyncio) fn is_receive_turn_due(&mut self, iteration: u64) -> bool {
        if std::mem::replace(&mut self.received_in, iteration) != iteration {
            self.wait_state.inbox_mut().reset_received();
        }
        if self.wait_state.inbox().received() < YIELD_BYTES || !self.driver().endpoint().has_input() {
            return false;
        }
        self.wait_state.inbox_mut().reset_received();
        true
    }

    /// Leaves the read bytes for the next turn of the loop if possible. The caller must request that turn if
    /// this returns true.
    pub(in crate::asyncio) fn postpone(&mut self) -> bool {
        self.wait_state.postpone_parsing()
    }
}
