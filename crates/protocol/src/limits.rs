//! What a peer may cost us, with the reasons for the defaults.

/// Bounds on what one message may be. `None` switches a bound off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one message, after inflation. Default 1 MiB, as in the `websockets` library.
    pub message_size: Option<usize>,
    /// Bytes of one frame's payload, as it comes and inflated. Default: no bound but the message's.
    pub fragment_size: Option<usize>,
    /// Frames that one message may be split into. Default 4096: without a bound, endless empty fragments keep
    /// a message open for ever at no cost to the sender.
    pub fragments: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { message_size: Some(1 << 20), fragment_size: None, fragments: Some(4096) }
    }
}

/// The same in half the room, for as many connections as there are: what has no bound has the largest.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) message_size: usize,
    pub(crate) fragment_size: usize,
    pub(crate) fragments: u32,
}

impl From<Limits> for Bounds {
    fn from(limits: Limits) -> Self {
        Self {
            message_size: limits.message_size.unwrap_or(usize::MAX),
            fragment_size: limits.fragment_size.unwrap_or(usize::MAX),
            fragments: limits.fragments.unwrap_or(u32::MAX),
        }
    }
}
