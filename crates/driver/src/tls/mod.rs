//! Layers between the socket and the WebSocket: TLS by rustls, or whatever else a binding supplies.

pub mod client;
mod error;
mod pinned;
mod reasons;
mod rustls_layer;
pub mod server;
mod stacked;
mod stamp;
mod system;
mod unverified;

use std::any::Any;

pub use error::Error;
pub use rustls_layer::RustlsLayer;
pub use stacked::Stacked;
pub use stamp::Stamp;
pub use system::authorities;

/// Turns bytes of the socket into plain bytes and back. No I/O: buffers in, buffers out.
pub trait Layer: Send {
    /// Consumes from the front of `incoming`, appends plain bytes to `plain` and what the peer must be told
    /// to `outgoing`; how many bytes were consumed: the caller keeps the rest and brings it again with more
    /// behind it.
    ///
    /// Called with no bytes once to begin the handshake.
    fn receive(&mut self, incoming: &mut [u8], plain: &mut Vec<u8>, outgoing: &mut Vec<u8>) -> Result<usize, Error>;

    /// Appends `plain`, encrypted, to `outgoing`. Only after the handshake. `pending` are the bytes that
    /// [`Self::receive`] did not consume, which a layer may refer to.
    fn send(&mut self, pending: &mut [u8], plain: &[u8], outgoing: &mut Vec<u8>) -> Result<(), Error>;

    /// Appends the notice that nothing more will be sent.
    fn close(&mut self, pending: &mut [u8], outgoing: &mut Vec<u8>);

    /// Whether the handshake goes on.
    fn is_handshaking(&self) -> bool;

    /// Whether the peer said that it will send nothing more. The end of the stream without it is a
    /// truncation.
    fn is_peer_closed(&self) -> bool;

    /// The protocol that was agreed on by ALPN.
    fn alpn(&self) -> Option<Vec<u8>>;

    /// The version of the protocol, such as `TLSv1.3`.
    fn version(&self) -> Option<String>;

    /// What was negotiated and who the peer is, once the handshake is over; `None`: the layer has an object
    /// of its own that tells.
    fn session(&self) -> Option<Session> {
        None
    }

    /// The layer itself, for a binding that has put it there.
    fn as_any(&self) -> &dyn Any;

    /// Shows each layer that this one consists of, for a binding that looks for its own ones.
    fn show(&self, to: &mut dyn FnMut(&dyn Any)) {
        to(self.as_any());
    }
}

/// What a handshake has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The name of the cipher suite, as IANA has it: `TLS_AES_128_GCM_SHA256`.
    pub cipher: String,
    /// The length of its key.
    pub secret_bits: u16,
    /// The peer's certificate and those that it sent with it, DER; empty: it sent none.
    pub peer_certificates: Vec<Vec<u8>>,
    /// Whether these were verified.
    pub verified: bool,
}
