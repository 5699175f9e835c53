//! Sec-WebSocket-Key and Sec-WebSocket-Accept.

use alloc::string::String;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use sha1::{Digest as _, Sha1};

/// The GUID that RFC 6455 1.3 appends to the key.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// RFC 4648 3.5 leaves it to the decoder whether unused bits must be zero. Our choice: they may have any value, as
/// nothing depends on the nonce and some clients generate random characters instead of encoding random bytes.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// Returns the value of Sec-WebSocket-Accept for the value of a Sec-WebSocket-Key (RFC 6455 4.2.2, 5.4).
///
/// `key` is the value as sent, without surrounding whitespace. It is not decoded or checked.
#[must_use]
pub fn accept_key(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(GUID);
    STANDARD.encode(hash.finalize())
}

/// Returns the key for a nonce: "a randomly selected 16-byte value that has been base64-encoded" (RFC 6455 4.1, 7).
pub(crate) fn encode_nonce(nonce: [u8; 16]) -> String {
    STANDARD.encode(nonce)
}

/// Returns whether the value is the base64 of exactly 16 bytes (RFC 6455 4.2.1, 5).
#[must_use]
pub fn is_key(value: &[u8]) -> bool {
    let mut nonce = [0; 18]; // 24 characters of base64 without padding are 18 bytes
    value.len() == 24 && LENIENT.decode_slice(value, &mut nonce) == Ok(16)
}
