//! Close codes and close frames (RFC 6455 7.4).

use alloc::string::{String, ToString};
use core::fmt;

use crate::error::Fault;

/// A close code (RFC 6455 7.4.1). Any number is a value of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CloseCode(pub u16);

#[allow(missing_docs)] // the names are those of the IANA registry
impl CloseCode {
    pub const NORMAL_CLOSURE: Self = Self(1000);
    pub const GOING_AWAY: Self = Self(1001);
    pub const PROTOCOL_ERROR: Self = Self(1002);
    pub const UNSUPPORTED_DATA: Self = Self(1003);
    pub const NO_STATUS_RCVD: Self = Self(1005);
    pub const ABNORMAL_CLOSURE: Self = Self(1006);
    pub const INVALID_DATA: Self = Self(1007);
    pub const POLICY_VIOLATION: Self = Self(1008);
    pub const MESSAGE_TOO_BIG: Self = Self(1009);
    pub const MANDATORY_EXTENSION: Self = Self(1010);
    pub const INTERNAL_ERROR: Self = Self(1011);
    pub const SERVICE_RESTART: Self = Self(1012);
    pub const TRY_AGAIN_LATER: Self = Self(1013);
    pub const BAD_GATEWAY: Self = Self(1014);
    pub const TLS_HANDSHAKE: Self = Self(1015);

    /// Returns whether a close frame may carry this code.
    ///
    /// RFC 6455 7.4: 1004 is reserved, 1005, 1006 and 1015 must not be sent, 1016 to 2999 are not assigned, 3000 to
    /// 3999 are registered by libraries, and 4000 to 4999 are private. IANA has registered 1012 to 1014 since.
    #[must_use]
    pub const fn is_sendable(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The content of a close frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseFrame {
    /// The close code. `None`: the frame has no code, which APIs report as 1005.
    pub code: Option<CloseCode>,
    /// The reason, at most 123 bytes.
    pub reason: String,
}

impl CloseFrame {
    /// Maximum size of the reason in bytes: a control frame has at most 125 bytes, and the code takes two.
    pub const MAX_REASON: usize = 123;

    /// Decodes the payload of a close frame (RFC 6455 5.5.1).
    pub fn decode(payload: &[u8]) -> Result<Self, Fault> {
        match payload {
            [] => Ok(Self { code: None, reason: String::new() }),
            // "If there is a body, the first two bytes of the body MUST be a 2-byte unsigned integer."
            [_] => Err(Fault::ClosePayloadTooShort),
            [high, low, reason @ ..] => {
                let code = CloseCode(u16::from_be_bytes([*high, *low]));
                if !code.is_sendable() {
                    return Err(Fault::InvalidCloseCode(code.0));
                }
                // "the body MAY contain UTF-8-encoded data"
                let reason = core::str::from_utf8(reason).map_err(|_| Fault::InvalidUtf8)?;
                Ok(Self { code: Some(code), reason: reason.to_string() })
            }
        }
    }
}
