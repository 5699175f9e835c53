//! TLS by rustls' unbuffered API: it decrypts in place and encrypts directly into the write queue. Between records
//! it holds no buffer.

use std::any::Any;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, ServerConfig};
use rustls_pki_types::ServerName;

use super::{Error, Layer, Session};

enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// One end of a TLS connection.
pub struct RustlsLayer {
    connection: Connection,
    handshaking: bool,
    peer_closed: bool,
    verified: bool,
    /// Number of bytes at the front of the unconsumed input that [`Layer::send`] has consumed since, and their
    /// plaintext in `early`, for the next receive. Usually empty, because only an incomplete record is left over.
    skip: usize,
    early: Vec<u8>,
}

/// Whether the caller must process another state.
enum Step {
    Again,
    Done,
}

impl RustlsLayer {
    /// Creates the client's end. The certificate must be valid for `server_name`, which SNI also contains.
    pub fn client(config: Arc<ClientConfig>, server_name: ServerName<'static>) -> Result<Self, Error> {
        let connection = UnbufferedClientConnection::new(config, server_name)?;
        Ok(Self::new(Connection::Client(connection)))
    }

    /// Creates the server's end.
    pub fn server(config: Arc<ServerConfig>) -> Result<Self, Error> {
        let connection = UnbufferedServerConnection::new(config)?;
        Ok(Self::new(Connection::Server(connection)))
    }

    fn new(connection: Connection) -> Self {
        Self { connection, handshaking: true, peer_closed: false, verified: true, skip: 0, early: Vec::new() }
    }

    /// Marks the configuration as accepting any certificate: [`Layer::session`] then reports them as not verified.
    #[must_use]
    pub fn unverified(mut self) -> Self {
        self.verified = false;
        self
    }

    fn common(&self) -> &CommonState {
        match &self.connection {
            Connection::Client(connection) => connection,
            Connection::Server(connection) => connection,
        }
    }

    /// Encrypts `plain`, or close_notify without it. Returns false if another state must be processed first.
    fn encrypt(&mut self, pending: &mut [u8], outgoing: &mut Vec<u8>, plain: Option<&[u8]>) -> Result<bool, Error> {
        let pending = pending.get_mut(self.skip..).unwrap_or_default();
        let (discard, done) = match &mut self.connection {
            Connection::Client(connection) => encrypt(connection.process_tls_records(pending), outgoing, plain),
            Connection::Server(connection) => encrypt(connection.process_tls_records(pending), outgoing, plain),
        };
        self.skip += discard;
        done
    }

    /// Processes one state of the connection. Returns the number of bytes consumed, and whether more states may
    /// follow.
    fn step(
        &mut self,
        incoming: &mut [u8],
        plain: &mut Vec<u8>,
        outgoing: &mut Vec<u8>,
    ) -> (usize, Result<Step, Error>) {
        let (handshaking, peer_closed) = (&mut self.handshaking, &mut self.peer_closed);
        match &mut self.connection {
            Connection::Client(connection) => {
                handle(connection.process_tls_records(incoming), plain, outgoing, handshaking, peer_closed)
            }
            Connection::Server(connection) => {
                handle(connection.process_tls_records(incoming), plain, outgoing, handshaking, peer_closed)
            }
        }
    }
}

fn handle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plain: &mut Vec<u8>,
    outgoing: &mut Vec<u8>,
    handshaking: &mut bool,
    peer_closed: &mut bool,
) -> (usize, Result<Step, Error>) {
    let mut discard = status.discard;
    let state = match status.state {
        Ok(state) => state,
        Err(error) => return (discard, Err(error.into())),
    };
    let step = match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = match record {
                    Ok(record) => record,
                    Err(error) => return (discard, Err(error.into())),
                };
                discard += record.discard;
                plain.extend_from_slice(record.payload);
            }
            Step::Again
        }
        ConnectionState::EncodeTlsData(mut data) => {
            append(outgoing, 1024, |room| match data.encode(room) {
                Ok(written) => Ok(Some(written)),
                Err(EncodeError::InsufficientSize(needed)) => Err(needed.required_size),
                Err(EncodeError::AlreadyEncoded) => Ok(None),
            });
            Step::Again
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done(); // the encoded bytes are in `outgoing`, which keeps their order
            Step::Again
        }
        ConnectionState::WriteTraffic(_) => {
            *handshaking = false;
            Step::Done
        }
        ConnectionState::PeerClosed => {
            *peer_closed = true;
            Step::Again
        }
        ConnectionState::Closed => {
            *peer_closed = true;
            Step::Done
        }
        // BlockedHandshake: more bytes are needed. ReadEarlyData: not offered, so it cannot occur.
        _ => Step::Done,
    };
    (discard, Ok(step))
}

/// Appends the bytes that `write` puts into the given room. If the room is too small, `write` returns the size that
/// it needs.
fn append(outgoing: &mut Vec<u8>, guess: usize, mut write: impl FnMut(&mut [u8]) -> Result<Option<usize>, usize>) {
    let start = outgoing.len();
    let mut room = guess;
    loop {
        outgoing.resize(start + room, 0);
        match write(outgoing.get_mut(start..).unwrap_or_default()) {
            Ok(written) => {
                outgoing.truncate(start + written.unwrap_or(0));
                return;
            }
            Err(needed) => room = needed.max(room + 1),
        }
    }
}

/// Encrypts in the state that a connection reaches between records. Returns the number of bytes consumed, and false
/// in any other state, which [`RustlsLayer::step`] processes.
fn encrypt<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outgoing: &mut Vec<u8>,
    plain: Option<&[u8]>,
) -> (usize, Result<bool, Error>) {
    (status.discard, encrypt_in(status.state, outgoing, plain))
}

fn encrypt_in<Data>(
    state: Result<ConnectionState<'_, '_, Data>, rustls::Error>,
    outgoing: &mut Vec<u8>,
    plain: Option<&[u8]>,
) -> Result<bool, Error> {
    /// Maximum overhead of a record: header, explicit nonce or content type, tag.
    const OVERHEAD: usize = 5 + 8 + 1 + 16;
    const RECORD: usize = 16 * 1024;
    let ConnectionState::WriteTraffic(mut traffic) = state? else { return Ok(false) };
    let len = plain.map_or(2, <[u8]>::len);
    let guess = len + (len / RECORD + 1) * OVERHEAD;
    let mut exhausted = false;
    append(outgoing, guess, |room| {
        let result = match plain {
            Some(plain) => traffic.encrypt(plain, room),
            None => traffic.queue_close_notify(room),
        };
        match result {
            Ok(written) => Ok(Some(written)),
            Err(EncryptError::InsufficientSize(needed)) => Err(needed.required_size),
            Err(EncryptError::EncryptExhausted) => {
                exhausted = true;
                Ok(None)
            }
        }
    });
    if exhausted { Err(Error::Protocol("the TLS keys of this connection are used up".into())) } else { Ok(true) }
}

impl Layer for RustlsLayer {
    fn receive(&mut self, incoming: &mut [u8], plain: &mut Vec<u8>, outgoing: &mut Vec<u8>) -> Result<usize, Error> {
        wirespeed_protocol::failpoint::hit("driver.tls_receive");
        let mut consumed = std::mem::take(&mut self.skip);
        plain.append(&mut self.early);
        loop {
            let (discard, step) = self.step(incoming.get_mut(consumed..).unwrap_or_default(), plain, outgoing);
            consumed += discard;
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Done) => return Ok(consumed),
                Err(error) => {
                    // An alert with the reason is waiting to be sent; nothing else may be processed after an error.
                    while self.common().wants_write() {
                        let (discard, step) =
                            self.step(incoming.get_mut(consumed..).unwrap_or_default(), plain, outgoing);
                        consumed += discard;
                        if step.is_err() {
                            break;
                        }
                    }
                    return Err(error);
                }
            }
        }
    }

    fn send(&mut self, pending: &mut [u8], plain: &[u8], outgoing: &mut Vec<u8>) -> Result<(), Error> {
        wirespeed_protocol::failpoint::hit("driver.tls_send");
        // Messages of rustls itself, such as the answer to a key update, come first.
        loop {
            if self.encrypt(pending, outgoing, Some(plain))? {
                return Ok(());
            }
            let before = outgoing.len();
            let mut early = std::mem::take(&mut self.early);
            let (discard, step) = self.step(pending.get_mut(self.skip..).unwrap_or_default(), &mut early, outgoing);
            self.skip += discard;
            self.early = early;
            if matches!(step?, Step::Done) && outgoing.len() == before && (self.handshaking || self.peer_closed) {
                return Err(Error::Protocol("the TLS connection is closed".into()));
            }
        }
    }

    fn close(&mut self, pending: &mut [u8], outgoing: &mut Vec<u8>) {
        // A failure is ignored: the connection is over either way.
        let _ = self.encrypt(pending, outgoing, None);
    }

    fn is_handshaking(&self) -> bool {
        self.handshaking
    }

    fn is_peer_closed(&self) -> bool {
        self.peer_closed
    }

    fn alpn(&self) -> Option<Vec<u8>> {
        self.common().alpn_protocol().map(<[u8]>::to_vec)
    }

    fn version(&self) -> Option<String> {
        match self.common().protocol_version()? {
            rustls::ProtocolVersion::TLSv1_2 => Some("TLSv1.2".into()),
            rustls::ProtocolVersion::TLSv1_3 => Some("TLSv1.3".into()),
            other => Some(format!("{other:?}")),
        }
    }

    fn session(&self) -> Option<Session> {
        let common = self.common();
        let suite = format!("{:?}", common.negotiated_cipher_suite()?.suite());
        Some(Session {
            // rustls adds a prefix to the names of TLS 1.3 suites.
            cipher: suite.replacen("TLS13_", "TLS_", 1),
            secret_bits: if suite.contains("_128_") { 128 } else { 256 },
            peer_certificates: common.peer_certificates().unwrap_or_default().iter().map(|der| der.to_vec()).collect(),
            verified: self.verified,
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
