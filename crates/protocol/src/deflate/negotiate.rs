//! Negotiation of permessage-deflate (RFC 7692 5 and 7.1) for both sides.
//!
//! The opening handshake calls it with a [`Config`] and the peer's Sec-WebSocket-Extensions. The result are [`Params`],
//! with which the codec works.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString as _};
use core::fmt::Write as _;
use core::ops::RangeInclusive;

use crate::handshake::error::HandshakeError;
use crate::handshake::extension::{Extension, parse_extensions};
use crate::handshake::header_list::HeaderList;

/// The name of the extension (RFC 7692 7).
pub const NAME: &str = "permessage-deflate";

/// The window sizes that RFC 7692 7.1.2 allows, as base-2 logarithms of bytes.
pub const WINDOW_BITS: RangeInclusive<u8> = 8..=15;

/// The window size if none is negotiated: 32 KiB (RFC 7692 7.1.2).
const MAX_WINDOW_BITS: u8 = 15;

const SERVER_NO_CONTEXT_TAKEOVER: &str = "server_no_context_takeover";
const CLIENT_NO_CONTEXT_TAKEOVER: &str = "client_no_context_takeover";
const SERVER_MAX_WINDOW_BITS: &str = "server_max_window_bits";
const CLIENT_MAX_WINDOW_BITS: &str = "client_max_window_bits";

/// The configuration of permessage-deflate of either side. [`Config::client`] and [`Config::server`] have the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Compression level, 0 (no compression) to 9 (smallest output). Default: 6, as in zlib.
    pub level: u8,
    /// Memory level of the compressor, 1 to 9: it takes 2^(level + 9) bytes in addition to its window. Default: 5, as
    /// in the `websockets` library, which is 16 KiB.
    pub memory_level: u8,
    /// Messages with a payload shorter than `threshold` bytes are sent uncompressed. Default: 32. Shorter payloads
    /// seldom shrink by more than the overhead of a deflate block, and compression takes time.
    pub threshold: usize,
    /// Whether the server compresses each message independently. A client requires it in its offer.
    pub server_no_context_takeover: bool,
    /// Whether the client compresses each message independently. A client announces it; a server requires it.
    pub client_no_context_takeover: bool,
    /// Maximum window of the server's compressor, 8 to 15. `None`: no limit from this side. A client requires it in its
    /// offer.
    pub server_max_window_bits: Option<u8>,
    /// Maximum window of the client's compressor, 8 to 15. `None`: no limit from this side; a client then offers to
    /// accept any limit of the server. A server can set a limit only if the client offers to accept one.
    pub client_max_window_bits: Option<u8>,
}

/// The negotiated parameters from the point of view of one side, and the settings of its compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Whether our compressor resets its window after each message.
    pub local_no_context_takeover: bool,
    /// Whether the peer's compressor resets its window after each message. Our decompressor then does the same.
    pub remote_no_context_takeover: bool,
    /// Window of our compressor, 8 to 15. Sent data may refer back at most 2^bits bytes. For 8, zlib's compressor runs
    /// with 9: it reserves 262 bytes of its window, so it refers back at most 250 bytes.
    pub local_window_bits: u8,
    /// Window of the peer's compressor, 8 to 15, and so of our decompressor.
    pub remote_window_bits: u8,
    /// As [`Config::level`].
    pub level: u8,
    /// As [`Config::memory_level`].
    pub memory_level: u8,
    /// As [`Config::threshold`].
    pub threshold: usize,
}

impl Config {
    /// Returns the defaults of a client: context takeover in both directions, windows of 32 KiB, or smaller ones if the
    /// server requires them.
    #[must_use]
    pub const fn client() -> Self {
        Self {
            level: 6,
            memory_level: 5,
            threshold: 32,
            server_no_context_takeover: false,
            client_no_context_takeover: false,
            server_max_window_bits: None,
            client_max_window_bits: None,
        }
    }

    /// Returns the defaults of a server: those of a client, with windows of 4 KiB in both directions, as in the
    /// `websockets` library. For many connections, larger windows cost more memory than they save in traffic.
    #[must_use]
    pub const fn server() -> Self {
        Self { server_max_window_bits: Some(12), client_max_window_bits: Some(12), ..Self::client() }
    }

    /// Checks that each number is in its valid range.
    ///
    /// # Errors
    /// [`HandshakeError::InvalidArgument`] names the first number out of range.
    pub fn validate(&self) -> Result<(), HandshakeError> {
        let invalid = |argument, value: u8, expected| {
            Err(HandshakeError::InvalidArgument { argument, value: value.to_string(), expected })
        };
        if self.level > 9 {
            return invalid("compression level", self.level, "0 to 9");
        }
        if !(1..=9).contains(&self.memory_level) {
            return invalid("compression memory level", self.memory_level, "1 to 9");
        }
        match (self.server_max_window_bits, self.client_max_window_bits) {
            (Some(bits), _) if !WINDOW_BITS.contains(&bits) => invalid(SERVER_MAX_WINDOW_BITS, bits, "8 to 15"),
            (_, Some(bits)) if !WINDOW_BITS.contains(&bits) => invalid(CLIENT_MAX_WINDOW_BITS, bits, "8 to 15"),
            _ => Ok(()),
        }
    }

    /// Returns the client's offer, an element of Sec-WebSocket-Extensions.
    #[must_use]
    pub fn offer(&self) -> String {
        // RFC 7692 7.1.2.2: client_max_window_bits announces that the client accepts a limit; without a value it
        // suggests none. Our choice: always send it, as our compressor supports every limit.
        let client_max_window_bits = self.client_max_window_bits.map_or(ClientBits::Any, ClientBits::AtMost);
        Agreed {
            server_no_context_takeover: self.server_no_context_takeover,
            client_no_context_takeover: self.client_no_context_takeover,
            server_max_window_bits: self.server_max_window_bits,
            client_max_window_bits,
        }
        .to_text()
    }

    /// Returns the server's answer to the offers in a request: the parameters and the element of
    /// Sec-WebSocket-Extensions. `None` if there is no acceptable offer of permessage-deflate.
    ///
    /// # Errors
    /// Sec-WebSocket-Extensions is malformed, or this configuration is invalid.
    pub fn accept_offers(&self, headers: &HeaderList) -> Result<Option<(Params, String)>, HandshakeError> {
        self.validate()?;
        // RFC 7692 5.1: offers are in order of preference. RFC 6455 9.1: a server ignores unknown extensions.
        for extension in parse_extensions(headers)?.iter().filter(|extension| extension.name == NAME) {
            // RFC 7692 7.1: a server MUST decline an offer with a parameter that is unknown, invalid or
            // repeated. The client may have added a second offer as a fallback.
            let Ok(offer) = Agreed::parse(extension, Message::Offer) else { continue };
            let agreed = self.answer(&offer);
            let params = Params {
                local_no_context_takeover: agreed.server_no_context_takeover,
                remote_no_context_takeover: agreed.client_no_context_takeover,
                local_window_bits: agreed.server_max_window_bits.unwrap_or(MAX_WINDOW_BITS),
                remote_window_bits: agreed.client_max_window_bits.bound().unwrap_or(MAX_WINDOW_BITS),
                level: self.level,
                memory_level: self.memory_level,
                threshold: self.threshold,
            };
            return Ok(Some((params, agreed.to_text())));
        }
        Ok(None)
    }

    /// Returns the server's answer to a valid offer. Every valid offer can be accepted.
    fn answer(&self, offer: &Agreed) -> Agreed {
        Agreed {
            // RFC 7692 7.1.1.1: a server accepts the parameter by including it, and may include it without an offer.
            server_no_context_takeover: offer.server_no_context_takeover || self.server_no_context_takeover,
            // RFC 7692 7.1.1.2: in an offer it is a hint. Our choice: follow it, as this saves the decompressor's
            // window. Without an offer, the answer requires it of the client.
            client_no_context_takeover: offer.client_no_context_takeover || self.client_no_context_takeover,
            // RFC 7692 7.1.2.1: a server accepts with the same or a smaller value, and may include one without an
            // offer.
            server_max_window_bits: min(offer.server_max_window_bits, self.server_max_window_bits),
            client_max_window_bits: match offer.client_max_window_bits {
                // RFC 7692 7.1.2.2: without the parameter in the offer, the server MUST NOT include it. Our choice:
                // accept the large window, rather than not compress at all.
                ClientBits::Unbounded => ClientBits::Unbounded,
                ClientBits::Any => self.client_max_window_bits.map_or(ClientBits::Unbounded, ClientBits::AtMost),
                // The value is a hint too. Echoing it saves memory in the decompressor.
                ClientBits::AtMost(bits) => {
                    ClientBits::AtMost(self.client_max_window_bits.map_or(bits, |bound| bound.min(bits)))
                }
            },
        }
    }

    /// Checks the server's answer to [`Config::offer`] and returns the parameters, or `None` if the server declined.
    ///
    /// # Errors
    /// Sec-WebSocket-Extensions is malformed. Or it accepts an extension that was not offered, accepts one twice, or
    /// has parameters that the offer does not allow. The client must then fail the connection (RFC 7692 7.1).
    pub fn accept_response(&self, headers: &HeaderList) -> Result<Option<Params>, HandshakeError> {
        let mut params = None;
        for extension in parse_extensions(headers)? {
            // RFC 6455 4.1: an extension that was not present in the client's handshake fails the connection.
            if extension.name != NAME {
                return Err(HandshakeError::ExtensionNotOffered { extension: extension.name });
            }
            // RFC 7692 5: an answer accepts one configuration. RSV1 cannot mark a second compression.
            if params.is_some() {
                return Err(HandshakeError::DuplicateExtension { extension: extension.name });
            }
            params = Some(self.check_answer(&Agreed::parse(&extension, Message::Answer)?)?);
        }
        Ok(params)
    }

    /// Checks an answer against our offer.
    fn check_answer(&self, answer: &Agreed) -> Result<Params, HandshakeError> {
        // RFC 7692 7.1.1.1: a server that accepts this parameter includes it.
        if self.server_no_context_takeover && !answer.server_no_context_takeover {
            return Err(HandshakeError::MissingParameter { parameter: SERVER_NO_CONTEXT_TAKEOVER });
        }
        // RFC 7692 7.1.2.1: a server accepts this parameter by including it "with the same or smaller value".
        if let Some(asked) = self.server_max_window_bits {
            match answer.server_max_window_bits {
                None => return Err(HandshakeError::MissingParameter { parameter: SERVER_MAX_WINDOW_BITS }),
                Some(bits) if bits > asked => return Err(over_the_offer(SERVER_MAX_WINDOW_BITS, bits, asked)),
                Some(_) => {}
            }
        }
        // RFC 7692 7.1.2.2: the answer to a value is "equal to or smaller than" it. The parameter itself was offered,
        // as our offers always have it.
        let answered = answer.client_max_window_bits.bound();
        if let (Some(asked), Some(bits)) = (self.client_max_window_bits, answered)
            && bits > asked
        {
            return Err(over_the_offer(CLIENT_MAX_WINDOW_BITS, bits, asked));
        }
        Ok(Params {
            // RFC 7692 7.1.1.2: the server may require it without an offer. If we announced it, we do it anyway.
            local_no_context_takeover: answer.client_no_context_takeover || self.client_no_context_takeover,
            remote_no_context_takeover: answer.server_no_context_takeover,
            local_window_bits: min(answered, self.client_max_window_bits).unwrap_or(MAX_WINDOW_BITS),
            remote_window_bits: answer.server_max_window_bits.unwrap_or(MAX_WINDOW_BITS),
            level: self.level,
            memory_level: self.memory_level,
            threshold: self.threshold,
        })
    }
}

/// The parameters of an offer or an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Agreed {
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    server_max_window_bits: Option<u8>,
    client_max_window_bits: ClientBits,
}

/// The three forms of client_max_window_bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ClientBits {
    /// The parameter is absent: the client accepts no limit.
    #[default]
    Unbounded,
    /// The parameter has no value: the client accepts any limit. Only in offers.
    Any,
    /// The parameter has this value.
    AtMost(u8),
}

impl ClientBits {
    const fn bound(self) -> Option<u8> {
        match self {
            Self::AtMost(bits) => Some(bits),
            Self::Unbounded | Self::Any => None,
        }
    }
}

/// The message that has the parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    Offer,
    Answer,
}

impl Agreed {
    /// Parses the parameters. Fails if one is not defined for the message, has an invalid value or is repeated (RFC
    /// 7692 7.1).
    fn parse(extension: &Extension, message: Message) -> Result<Self, HandshakeError> {
        let mut agreed = Self::default();
        for parameter in &extension.parameters {
            let value = parameter.value.as_deref();
            match parameter.name.as_str() {
                SERVER_NO_CONTEXT_TAKEOVER => {
                    set_flag(&mut agreed.server_no_context_takeover, SERVER_NO_CONTEXT_TAKEOVER, value)?;
                }
                CLIENT_NO_CONTEXT_TAKEOVER => {
                    set_flag(&mut agreed.client_no_context_takeover, CLIENT_NO_CONTEXT_TAKEOVER, value)?;
                }
                SERVER_MAX_WINDOW_BITS => {
                    if agreed.server_max_window_bits.is_some() {
                        return Err(HandshakeError::DuplicateParameter { parameter: SERVER_MAX_WINDOW_BITS });
                    }
                    agreed.server_max_window_bits = Some(parse_bits(SERVER_MAX_WINDOW_BITS, value)?);
                }
                CLIENT_MAX_WINDOW_BITS => {
                    if agreed.client_max_window_bits != ClientBits::Unbounded {
                        return Err(HandshakeError::DuplicateParameter { parameter: CLIENT_MAX_WINDOW_BITS });
                    }
                    // RFC 7692 7.1.2.2: in an offer it "has no value or" a number; in an answer it has a number.
                    agreed.client_max_window_bits = match (value, message) {
                        (None, Message::Offer) => ClientBits::Any,
                        _ => ClientBits::AtMost(parse_bits(CLIENT_MAX_WINDOW_BITS, value)?),
                    };
                }
                unknown => return Err(HandshakeError::UnknownParameter { parameter: unknown.to_owned() }),
            }
        }
        Ok(agreed)
    }

    fn to_text(self) -> String {
        let mut text = String::from(NAME);
        let mut add = |name: &str, value: Option<u8>| {
            text.push_str("; ");
            text.push_str(name);
            if let Some(value) = value {
                // Writing to a String cannot fail.
                let _ = write!(text, "={value}");
            }
        };
        if self.server_no_context_takeover {
            add(SERVER_NO_CONTEXT_TAKEOVER, None);
        }
        if self.client_no_context_takeover {
            add(CLIENT_NO_CONTEXT_TAKEOVER, None);
        }
        if let Some(bits) = self.server_max_window_bits {
            add(SERVER_MAX_WINDOW_BITS, Some(bits));
        }
        if self.client_max_window_bits != ClientBits::Unbounded {
            add(CLIENT_MAX_WINDOW_BITS, self.client_max_window_bits.bound());
        }
        text
    }
}

/// Sets a context takeover parameter, which has no value (RFC 7692 7.1.1).
fn set_flag(flag: &mut bool, parameter: &'static str, value: Option<&str>) -> Result<(), HandshakeError> {
    if *flag {
        return Err(HandshakeError::DuplicateParameter { parameter });
    }
    if let Some(value) = value {
        let (value, expected) = (Some(value.to_owned()), "no value".to_owned());
        return Err(HandshakeError::InvalidParameter { parameter, value, expected });
    }
    *flag = true;
    Ok(())
}

/// Parses a window size: "a decimal integer value without leading zeroes between 8 to 15, inclusive" (RFC 7692 7.1.2).
fn parse_bits(parameter: &'static str, value: Option<&str>) -> Result<u8, HandshakeError> {
    value
        .filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()) && !value.starts_with('0'))
        .and_then(|value| value.parse().ok())
        .filter(|bits| WINDOW_BITS.contains(bits))
        .ok_or_else(|| HandshakeError::InvalidParameter {
            parameter,
            value: value.map(ToOwned::to_owned),
            expected: "an integer from 8 to 15".to_owned(),
        })
}

fn over_the_offer(parameter: &'static str, bits: u8, asked: u8) -> HandshakeError {
    HandshakeError::InvalidParameter {
        parameter,
        value: Some(bits.to_string()),
        expected: format!("an integer from 8 to {asked}, as offered"),
    }
}

/// Returns the smaller of two limits; `None` stands for no limit.
fn min(one: Option<u8>, other: Option<u8>) -> Option<u8> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (bound, None) | (None, bound) => bound,
    }
}
