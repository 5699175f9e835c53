//! The life of a connection: every state, every event, every transition, in one table (RFC 6455 7.1).
//!
//! | state           | close received  | close sent      | failed   |
//! |-----------------|-----------------|-----------------|----------|
//! | `Open`          | `CloseReceived` | `CloseSent`     | `Failed` |
//! | `CloseReceived` | (ignored)       | `Closed`        | `Failed` |
//! | `CloseSent`     | `Closed`        | (refused)       | `Failed` |
//! | `Closed`        | (ignored)       | (refused)       | `Closed` |
//! | `Failed`        | (ignored)       | (see below)     | `Failed` |
//!
//! A failed connection may send one close frame, which tells the peer why, if none was sent before; it stays
//! `Failed`. `Closed` means that both close frames have passed: what remains is TCP, the server's part first
//! (7.1.1).

/// Where the connection is between its first frame and its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Messages flow both ways.
    Open,
    /// The peer began the closing handshake: a reply is due, nothing more is received.
    CloseReceived,
    /// We began the closing handshake: messages still arrive, none may be sent.
    CloseSent,
    /// Both close frames have passed.
    Closed,
    /// The peer broke the protocol or vanished: nothing is received any more.
    Failed,
}

/// What moves a connection from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    CloseReceived,
    CloseSent,
    Failed,
}

impl State {
    /// The table above.
    pub(crate) const fn after(self, transition: Transition) -> Self {
        match (self, transition) {
            (Self::Open, Transition::CloseReceived) => Self::CloseReceived,
            (Self::Open, Transition::CloseSent) => Self::CloseSent,
            (Self::CloseReceived, Transition::CloseSent) | (Self::CloseSent, Transition::CloseReceived) => Self::Closed,
            (Self::Open | Self::CloseReceived | Self::CloseSent, Transition::Failed) => Self::Failed,
            (state, _) => state,
        }
    }

    /// Whether messages may be sent.
    #[must_use]
    pub const fn can_send(self) -> bool {
        matches!(self, Self::Open)
    }

    /// Whether frames are still received.
    #[must_use]
    pub const fn can_receive(self) -> bool {
        matches!(self, Self::Open | Self::CloseSent)
    }
}

#[cfg(test)]
mod tests {
    use super::{State, Transition};

    #[test]
    fn a_clean_close_ends_in_closed_whoever_begins() {
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
