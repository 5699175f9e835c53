//! The states of a connection and the transitions between them (RFC 6455 7.1).
//!
//! | state           | close received  | close sent      | failed   |
//! |-----------------|-----------------|-----------------|----------|
//! | `Open`          | `CloseReceived` | `CloseSent`     | `Failed` |
//! | `CloseReceived` | (ignored)       | `Closed`        | `Failed` |
//! | `CloseSent`     | `Closed`        | (refused)       | `Failed` |
//! | `Closed`        | (ignored)       | (refused)       | `Closed` |
//! | `Failed`        | (ignored)       | (see below)     | `Failed` |
//!
//! A failed connection may send one close frame with the reason, if it has sent none before; it stays `Failed`.
//! `Closed` means that both close frames were exchanged. Then TCP is closed, by the server first (7.1.1).

/// The state of a connection after its opening handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Both endpoints may send messages.
    Open,
    /// The peer began the closing handshake. A reply is due, and no further frames are received.
    CloseReceived,
    /// This endpoint began the closing handshake. It still receives messages, but may not send any.
    CloseSent,
    /// Both close frames were exchanged.
    Closed,
    /// The peer violated the protocol, or the stream ended early. No further frames are received.
    Failed,
}

/// An event that changes the state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    CloseReceived,
    CloseSent,
    Failed,
}

impl State {
    /// Returns the state after `transition`, by the table in the module's documentation.
    pub(crate) const fn after(self, transition: Transition) -> Self {
        match (self, transition) {
            (Self::Open, Transition::CloseReceived) => Self::CloseReceived,
            (Self::Open, Transition::CloseSent) => Self::CloseSent,
            (Self::CloseReceived, Transition::CloseSent) | (Self::CloseSent, Transition::CloseReceived) => Self::Closed,
            (Self::Open | Self::CloseReceived | Self::CloseSent, Transition::Failed) => Self::Failed,
            (state, _) => state,
        }
    }

    /// Returns whether messages may be sent.
    #[must_use]
    pub const fn can_send(self) -> bool {
        matches!(self, Self::Open)
    }

    /// Returns whether frames are still received.
    #[must_use]
    pub const fn can_receive(self) -> bool {
        matches!(self, Self::Open | Self::CloseSent)
    }
}

#[cfg(test)]
mod tests {
    use super::{State, Transition};

    #[test]
    fn a_clean_close_ends_in_closed_on_either_side() {
        let ours = State::Open.after(Transition::CloseSent).after(Transition::CloseReceived);
        let theirs = State::Open.after(Transition::CloseReceived).after(Transition::CloseSent);
        assert_eq!((ours, theirs), (State::Closed, State::Closed));
    }

    #[test]
    fn failure_is_final_except_after_a_clean_close() {
        for state in [State::Open, State::CloseReceived, State::CloseSent, State::Failed] {
            let failed = state.after(Transition::Failed);
            assert_eq!(failed, State::Failed);
            assert_eq!(failed.after(Transition::CloseReceived), State::Failed);
            assert_eq!(failed.after(Transition::CloseSent), State::Failed);
        }
        assert_eq!(State::Closed.after(Transition::Failed), State::Closed);
    }
}
