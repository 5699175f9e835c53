//! Limits on received messages, with the reasons for their defaults.

/// Limits on each received message. `None` disables a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of a message in bytes, after decompression. Default: 1 MiB, as in the `websockets` library.
    pub message_size: Option<usize>,
    /// Maximum size of a frame's payload in bytes, before and after decompression. Default: no limit of its own.
    pub fragment_size: Option<usize>,
    /// Maximum number of frames of a message. Default: 4096. Without a limit, a peer could keep a message open
    /// forever by sending empty fragments.
    pub fragments: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { message_size: Some(1 << 20), fragment_size: None, fragments: Some(4096) }
    }
}

/// [`Limits`] in half the memory, as each connection holds one. The largest value of a type stands for no limit.
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
