//! Layers between the socket and the WebSocket: TLS by rustls, or a layer that a binding supplies.

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

/// Encrypts and decrypts the bytes of a socket, without I/O.
///
/// 1. Call [`Self::receive`] with no bytes to begin the handshake, then with the bytes of the socket.
/// 2. Once [`Self::is_handshaking`] returns false, [`Self::send`] encrypts.
/// 3. At the end, call [`Self::close`].
pub trait Layer: Send {
    /// Decrypts bytes from the front of `incoming` into `plain`, and appends replies to the peer to `outgoing`.
    /// Returns the number of bytes consumed. The caller keeps the rest, and passes it again with more bytes after
    /// it.
    fn receive(&mut self, incoming: &mut [u8], plain: &mut Vec<u8>, outgoing: &mut Vec<u8>) -> Result<usize, Error>;

    /// Encrypts `plain` and appends it to `outgoing`, only after the handshake. `pending` are the bytes that
    /// [`Self::receive`] did not consume, which a layer may refer to.
    fn send(&mut self, pending: &mut [u8], plain: &[u8], outgoing: &mut Vec<u8>) -> Result<(), Error>;

    /// Appends the close_notify alert.
    fn close(&mut self, pending: &mut [u8], outgoing: &mut Vec<u8>);

    /// Returns whether the handshake is in progress.
    fn is_handshaking(&self) -> bool;

    /// Returns whether the peer sent close_notify. A stream that ends without it may have been truncated.
    fn is_peer_closed(&self) -> bool;

    /// Returns the protocol negotiated by ALPN.
    fn alpn(&self) -> Option<Vec<u8>>;

    /// Returns the protocol version, such as `TLSv1.3`.
    fn version(&self) -> Option<String>;

    /// Returns the negotiated parameters and the peer's certificates after the handshake; `None` if the layer has
    /// an object of its own for them.
    fn session(&self) -> Option<Session> {
        None
    }

    /// Returns the layer itself, for the binding that has supplied it.
    fn as_any(&self) -> &dyn Any;

    /// Calls `to` with each layer that this one consists of, for a binding that looks for its own.
    fn visit(&self, to: &mut dyn FnMut(&dyn Any)) {
        to(self.as_any());
    }
}

/// The result of a TLS handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The IANA name of the cipher suite, such as `TLS_AES_128_GCM_SHA256`.
    pub cipher: String,
    /// The key length in bits.
    pub secret_bits: u16,
    /// The peer's certificate and the chain that it sent, DER; empty if it sent none.
    pub peer_certificates: Vec<Vec<u8>>,
    /// Whether the certificates were verified.
    pub verified: bool,
}
