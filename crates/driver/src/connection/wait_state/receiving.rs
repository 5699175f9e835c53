//! Receiving: input, the order of receivers, and which of them gets the next message.

use wirespeed_protocol::Delivery;

use super::{Environment, WaitState};
use crate::connection::inbox::{Item, Receiver, Unparsed};

impl<E: Environment> WaitState<E> {
    /// Takes bytes that an external transport has read.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.driver.receive(bytes);
        self.inbox.set_unparsed(Unparsed::New);
    }

    /// Takes the next message or fragment that has arrived: see [`Inbox::take`](crate::connection::Inbox::take). Call
    /// it for the task of [`Self::next_receiver`], or for another one unless [`Self::has_receivers`] returns true.
    #[inline]
    pub fn take<R: Receiver<E::Buffer, Message = E::Message>>(
        &mut self,
        delivery: Delivery,
        receiver: &mut R,
    ) -> Result<Option<Item<E::Message>>, R::Error> {
        self.inbox.take(self.driver.endpoint_mut(), delivery, receiver)
    }

    /// Moves parsed messages to the inbox, up to its limits, when no task receives. Returns whether parsing of the rest
    /// is postponed to the next turn of the loop, which the caller must then request.
    pub fn fill<R: Receiver<E::Buffer, Message = E::Message>>(&mut self, receiver: &mut R) -> Result<bool, R::Error> {
        self.inbox.fill(self.driver.endpoint_mut(), true, receiver)
    }

    /// Postpones parsing to the next turn of the loop, once for each read. Returns whether it is postponed: the caller
    /// must then request that turn.
    pub fn postpone_parsing(&mut self) -> bool {
        self.inbox.postpone(self.driver.endpoint())
    }

    /// Adds a task that waits for a message, after all others.
    #[inline]
    pub fn add_receiver(&mut self, waiter: E::Waiter) {
        self.receivers.push_back(waiter);
    }

    /// Removes a task that no longer waits for a message.
    pub fn remove_receiver(&mut self, waiter: &E::Waiter) {
        self.receivers.retain(|other| other != waiter);
    }

    /// Returns whether a task waits for a message, or was cancelled since it began to wait.
    #[must_use]
    #[inline]
    pub fn may_have_receivers(&self) -> bool {
        !self.receivers.is_empty()
    }

    /// Returns the receiver at a position of [`Self::next_receiver`].
    #[must_use]
    #[inline]
    pub fn receiver(&self, position: usize) -> Option<&E::Waiter> {
        self.receivers.get(position)
    }

    /// Removes and returns the receiver at a position of [`Self::next_receiver`], which gets a message or an error.
    #[inline]
    pub fn take_receiver(&mut self, position: usize) -> Option<E::Waiter> {
        self.receivers.remove(position)
    }

    /// Records that `waiter` was assigned a message that it will take later. Until then, other receivers get
    /// nothing: if `waiter` is cancelled, the message returns to the front of the queue, which must not be in
    /// the middle of another.
    pub fn assign(&mut self, waiter: E::Waiter) {
        self.in_delivery = Some(waiter);
    }

    /// Returns whether an assigned message was not taken yet. After the end, none counts.
    #[inline]
    fn has_delivery(&self, cx: E::Context<'_>) -> bool {
        !self.is_finished() && self.in_delivery.as_ref().is_some_and(|waiter| E::has_assigned_message(cx, waiter))
    }

    /// Records that the assigned message was taken or put back. Returns whether a task waits for the next
    /// message.
    pub fn release_assigned(&mut self, cx: E::Context<'_>) -> bool {
        self.in_delivery = None;
        self.has_receivers(cx)
    }

    /// Returns whether another receiver comes first for the next message.
    #[inline]
    pub fn has_receivers(&mut self, cx: E::Context<'_>) -> bool {
        self.has_delivery(cx) || self.has_waiting(cx)
    }

    #[inline]
    fn has_waiting(&mut self, cx: E::Context<'_>) -> bool {
        while self.receivers.front().is_some_and(|waiter| !E::is_waiting(cx, waiter)) {
            self.receivers.pop_front();
        }
        !self.receivers.is_empty()
    }

    /// Returns the position of the receiver for the next message: the first. In the middle of a message that is
    /// received in fragments, it is the task that receives fragments.
    #[inline]
    pub fn next_receiver(&mut self, cx: E::Context<'_>) -> Option<usize> {
        if self.has_delivery(cx) || !self.has_waiting(cx) {
            return None;
        }
        if self.inbox.is_streaming() { self.fragment_receiver(cx) } else { Some(0) }
    }

    pub(super) fn fragment_receiver(&self, cx: E::Context<'_>) -> Option<usize> {
        self.receivers.iter().position(|waiter| E::delivery(waiter) == Delivery::Fragments && E::is_waiting(cx, waiter))
    }

    /// Returns whether paused reading can resume because enough messages were taken.
    #[inline]
    pub fn is_resumable(&self) -> bool {
        self.paused && self.inbox.is_low(self.driver.endpoint())
    }

    /// Returns whether reading must stop until messages are taken.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.inbox.is_full(self.driver.endpoint())
    }
}
