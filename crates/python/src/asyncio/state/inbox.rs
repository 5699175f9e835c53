//! The receiving half: what was read becomes objects, for whoever receives, or the queue.

use std::time::Duration;

use pyo3::prelude::*;
use wirespeed_driver::connection::{Item, LazyBox, RECEIVED_COST, Receiver, WaitState, Watchers, YIELD_BYTES};
use wirespeed_driver::endpoint::{PeerEvent, payload_len};
use wirespeed_driver::protocol::{Delivery, MessageKind, Payload};

use super::{Asyncio, State};
use crate::payload::{self, PyPayload};

/// What a listener is told.
pub(in crate::asyncio) enum Arrival {
    Message(Py<PyAny>),
    /// A binary message that lies in the read buffer, for a view of it.
    View(*const u8, usize),
    Control(Control),
}

/// A control frame, for a listener.
pub(in crate::asyncio) enum Control {
    Ping(Vec<u8>),
    Pong(Vec<u8>),
}

/// What was found beside messages, to be told outside the lock: kept with the connection until it is, so that whatever
/// ends a call loses nothing of it.
#[derive(Default)]
pub(in crate::asyncio) struct PendingNotifications {
    /// Futures of pings that were answered, and the latency in seconds.
    pub(in crate::asyncio) pongs: Vec<(Py<PyAny>, f64)>,
    /// For a listener that leaves the messages to `recv`.
    pub(in crate::asyncio) controls: Vec<Control>,
}

/// How the objects of one call are made, and where what else is found is written down.
struct Objects<'a, 'py> {
    py: Python<'py>,
    /// As in `recv(decode=...)`.
    decode: Option<bool>,
    notes: &'a mut Option<Box<PendingNotifications>>,
    watchers: &'a mut LazyBox<Watchers<Asyncio>>,
    tell_controls: bool,
}

impl Receiver<PyPayload> for Objects<'_, '_> {
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
        if self.tell_controls {
            self.notes.get_or_insert_default().controls.push(Control::Ping(payload.to_vec()));
        }
    }

    fn pong(&mut self, payload: &[u8], answered: Option<(Vec<u64>, Duration)>) {
        note_pong(self.watchers, answered, self.notes);
        if self.tell_controls {
            self.notes.get_or_insert_default().controls.push(Control::Pong(payload.to_vec()));
        }
    }
}

/// Writes down which futures a pong answers: that of its ping, and all before (RFC 6455 5.5.3).
fn note_pong(
    watchers: &mut LazyBox<Watchers<Asyncio>>,
    answered: Option<(Vec<u64>, Duration)>,
    notes: &mut Option<Box<PendingNotifications>>,
) {
    let Some((answered, latency)) = answered else { return };
    let latency = latency.as_secs_f64();
    for future in watchers.take_answered(&answered) {
        notes.get_or_insert_default().pongs.push((future, latency));
    }
}

impl State {
    /// The next message or fragment that is there. Nothing is done to it that its bytes could make fail, so that whoever
    /// gives up what was taken can put it back: text of a binary message, `decode=True`, is made by who has it.
    #[inline]
    pub(in crate::asyncio) fn take(
        &mut self,
        py: Python<'_>,
        decode: Option<bool>,
        delivery: Delivery,
    ) -> PyResult<Option<Item<Py<PyAny>>>> {
        let WaitState { inbox, driver, watchers, .. } = &mut self.wait_state;
        let (notes, tell_controls) = (&mut self.notes, self.tell_controls);
        let decode = decode.filter(|text| !text);
        let mut objects = Objects { py, decode, notes, watchers, tell_controls };
        inbox.take(&mut driver.endpoint, delivery, &mut objects)
    }

    /// Moves what was read to the queue, as far as it goes. True: the rest is left for the next turn of the
    /// loop, which the caller must ask for.
    pub(in crate::asyncio) fn fill_queue(&mut self, py: Python<'_>) -> PyResult<bool> {
        let WaitState { inbox, driver, watchers, .. } = &mut self.wait_state;
        let (notes, tell_controls) = (&mut self.notes, self.tell_controls);
        let mut objects = Objects { py, decode: None, notes, watchers, tell_controls };
        inbox.fill(&mut driver.endpoint, true, &mut objects)
    }

    /// What to tell a listener next; `zero_copy`: of whole binary messages, where they lie.
    pub(in crate::asyncio) fn next_arrival(&mut self, py: Python<'_>, zero_copy: bool) -> PyResult<Option<Arrival>> {
        let WaitState { inbox, driver, watchers, .. } = &mut self.wait_state;
        loop {
            inbox.count(RECEIVED_COST);
            let arrival = match driver.poll_event() {
                None => return Ok(None),
                Some(PeerEvent::Message { kind: MessageKind::Binary, payload: Payload::Slice(slice) }) if zero_copy => {
                    inbox.count(slice.len());
                    Arrival::View(slice.as_ptr(), slice.len())
                }
                Some(PeerEvent::Message { kind, payload } | PeerEvent::Fragment { kind, payload, .. }) => {
                    inbox.count(payload_len(&payload));
                    Arrival::Message(payload::message(py, kind, payload, None)?)
                }
                Some(PeerEvent::Ping(payload)) => Arrival::Control(Control::Ping(payload.as_slice().to_vec())),
                Some(PeerEvent::Pong { payload, answered }) => {
                    note_pong(watchers, answered, &mut self.notes);
                    Arrival::Control(Control::Pong(payload.as_slice().to_vec()))
                }
                Some(PeerEvent::Closing) => continue,
            };
            return Ok(Some(arrival));
        }
    }

    /// Whether so much was received since a task was last suspended that the loop is due a turn, although
    /// more is there.
    #[inline]
    pub(in crate::asyncio) fn is_receive_turn_due(&mut self, iteration: u64) -> bool {
        let WaitState { inbox, driver, .. } = &mut self.wait_state;
        let received = inbox.received();
        if std::mem::replace(&mut self.received_in, iteration) != iteration {
            *received = 0;
        }
        if *received < YIELD_BYTES || !driver.endpoint.has_input() {
            return false;
        }
        *received = 0;
        true
    }

    /// Leaves what was read for the next turn of the loop, if it may be; the caller must ask for that.
    pub(in crate::asyncio) fn postpone(&mut self) -> bool {
        self.wait_state.inbox.postpone(&self.wait_state.driver.endpoint)
    }
}
