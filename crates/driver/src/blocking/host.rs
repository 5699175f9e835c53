//! What a blocking connection needs of the world that it runs in.

use std::io;
use std::ops::Range;
use std::time::Instant;

use wirespeed_protocol::{MessageKind, Payload, PayloadBuffer};

use crate::socket::{Readiness, Socket};

/// An interpreter, or none: what messages are to it, how it waits, and when it wants to stop.
pub trait Host {
    /// What messages are assembled in.
    type Buffer: PayloadBuffer + Send;
    /// What messages become.
    type Message: Send;
    /// Why a call is to be abandoned.
    type Interrupt;

    /// Makes a message, or a fragment of one unless it is `whole`: text may then end inside a character. Runs
    /// inside the connection's lock: it must not call back into the connection.
    fn message(
        &self,
        kind: MessageKind,
        payload: Payload<'_, Self::Buffer>,
        whole: bool,
    ) -> Result<Self::Message, Self::Interrupt>;

    /// Makes a message of the fragments that were made of it; likewise.
    fn join(&self, kind: MessageKind, fragments: Vec<Self::Message>) -> Result<Self::Message, Self::Interrupt>;

    /// Runs `f`, which may sleep, without the host's own lock.
    fn wait<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R;

    /// Waits in a way of the host's own, for hosts that run other code in the same thread meanwhile: until the socket, if
    /// one is given, is ready, or until a moment. `None`: the host has no such way, use [`Self::wait`]. An error of the kind
    /// `Interrupted`: [`Self::check_interrupt`] says why.
    #[inline]
    fn wait_aside(&self, _: Option<(&Socket, Readiness)>, _: Option<Instant>) -> Option<io::Result<Readiness>> {
        None
    }

    /// Runs `f`, which moves much and does not sleep: a chance to let others have the host's own lock.
    fn moving_much<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        f()
    }

    /// The same, before something that moves much and needs the host's own lock: what is sent may change now.
    fn before_much(&self) {}

    /// Whether the program ends: of its threads there may be no other any more.
    fn is_ending(&self) -> bool {
        false
    }

    /// Called after a signal, outside the connection's lock: may run anything, even calls on the same
    /// connection.
    fn check_interrupt(&self) -> Result<(), Self::Interrupt>;
}

/// The bytes of a message to send. Others may write to them while the host's lock is not held: so they are
/// looked at piece by piece, only while it is.
pub trait Source {
    /// How many.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some of them.
    fn piece(&self, range: Range<usize>) -> &[u8];
}

impl Source for [u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn piece(&self, range: Range<usize>) -> &[u8] {
        #[allow(clippy::indexing_slicing, reason = "our own ranges, of a source whose length was asked")]
        &self[range]
    }
}
