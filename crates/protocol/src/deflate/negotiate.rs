//! Negotiation of permessage-deflate (RFC 7692 5 and 7.1), both sides.
//!
//! Turns a [`Config`] and the peer's Sec-WebSocket-Extensions into [`Params`]. Compresses nothing. Called by
//! the opening handshake; the codec works from the [`Params`].

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

/// Window sizes that RFC 7692 7.1.2 allows, as base-2 logarithms of bytes.
pub const WINDOW_BITS: RangeInclusive<u8> = 8..=15;

/// A window of 32 KiB: what holds where nothing is negotiated (RFC 7692 7.1.2).
const MAX_WINDOW_BITS: u8 = 15;

const SERVER_NO_CONTEXT_TAKEOVER: &str = "server_no_context_takeover";
const CLIENT_NO_CONTEXT_TAKEOVER: &str = "client_no_context_takeover";
const SERVER_MAX_WINDOW_BITS: &str = "server_max_window_bits";
const CLIENT_MAX_WINDOW_BITS: &str = "client_max_window_bits";

/// What one side wants of permessage-deflate. The same type serves both sides; [`Config::client`] and
/// [`Config::server`] have the defaults of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Effort of our compressor, 0 (store) to 9 (smallest). Default 6, zlib's own.
    pub level: u8,
    /// Memory of our compressor, 1 to 9: it takes 2^(level + 9) bytes beside its window. Default 5, as in the
    /// `websockets` library: 16 KiB.
    pub memory_level: u8,
    /// Messages whose payload is shorter than this many bytes are sent uncompressed. Default 32: what is
    /// shorter seldom shrinks by more than the bytes that end a deflate block, and still costs a run of the
    /// compressor.
    pub threshold: usize,
    /// The server compresses each message by itself. A client makes it a condition of its offer.
    pub server_no_context_takeover: bool,
    /// The client compresses each message by itself. A client does so and says so; a server demands it.
    pub client_no_context_takeover: bool,
    /// The largest window of the server's compressor, 8 to 15. `None`: no bound of ours. A client makes it a
    /// condition of its offer.
    pub server_max_window_bits: Option<u8>,
    /// The largest window of the client's compressor, 8 to 15. `None`: no bound of ours; a client then offers
    /// to obey any bound of the server. A server can only set a bound if the client offers to obey one.
    pub client_max_window_bits: Option<u8>,
}

/// What both sides agreed on, seen from one of them, and how that side's compressor is to be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Our compressor forgets its window after each message.
    pub local_no_context_takeover: bool,
    /// The peer's compressor forgets its window after each message, so our decompressor can, too.
    pub remote_no_context_takeover: bool,
    /// The window of our compressor, 8 to 15. Nothing that we send may reach back further than 2^bits bytes.
    /// For 8, zlib's compressor is run with 9: it keeps 262 bytes of its window in reserve, and so reaches
    /// back 250 at most.
    pub local_window_bits: u8,
    /// The window of the peer's compressor, 8 to 15: what our decompressor needs.
    pub remote_window_bits: u8,
    /// As [`Config::level`].
    pub level: u8,
    /// As [`Config::memory_level`].
    pub memory_level: u8,
    /// As [`Config::threshold`].
    pub threshold: usize,
}

impl Config {
    /// The defaults of a client: context takeover both ways, windows of 32 KiB, smaller ones if the server
    /// asks.
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

    /// The defaults of a server: as the client's, but windows of 4 KiB both ways, as in the `websockets`
    /// library. A server holds many connections, and beyond 4 KiB memory grows faster than messages shrink.
    #[must_use]
    pub const fn server() -> Self {
        Self { server_max_window_bits: Some(12), client_max_window_bits: Some(12), ..Self::client() }
    }

    /// Checks that each number is in its range.
    ///
    /// # Errors
    /// [`HandshakeError::InvalidArgument`] names the first that is not.
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

    /// The client's offer: an element for Sec-WebSocket-Extensions.
    #[must_use]
    pub fn offer(&self) -> String {
        // RFC 7692 7.1.2.2: with client_max_window_bits the client says that it will obey a bound, and
        // without a value that it suggests none. Our choice: always there, as our compressor can obey any.
        let client_max_window_bits = self.client_max_window_bits.map_or(ClientBits::Any, ClientBits::AtMost);
        Agreed {
            server_no_context_takeover: self.server_no_context_takeover,
            client_no_context_takeover: self.client_no_context_takeover,
            server_max_window_bits: self.server_max_window_bits,
            client_max_window_bits,
        }
        .to_text()
    }

    /// The server's answer to the offers in a request: the parameters and the element for
    /// Sec-WebSocket-Extensions, or `None` if permessage-deflate is not offered in a form that can be
    /// accepted.
    ///
    /// # Errors
    /// Sec-WebSocket-Extensions is malformed, or this configuration is invalid.
    pub fn accept_offers(&self, headers: &HeaderList) -> Result<Option<(Params, String)>, HandshakeError> {
        self.validate()?;
        // RFC 7692 5.1: offers stand in order of preference. RFC 6455 9.1: a server ignores what it does not
        // know.
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

    /// The server's answer to one valid offer; every such offer can be accepted.
    fn answer(&self, offer: &Agreed) -> Agreed {
        Agreed {
            // RFC 7692 7.1.1.1: a server accepts the parameter by including it, and may include it unasked.
            server_no_context_takeover: offer.server_no_context_takeover || self.server_no_context_takeover,
            // RFC 7692 7.1.1.2: in an offer it is a hint that the server may follow; ours does, as it saves
            // the decompressor's window. Unasked, it demands.
            client_no_context_takeover: offer.client_no_context_takeover || self.client_no_context_takeover,
            // RFC 7692 7.1.2.1: a server accepts with the same or a smaller value, and may include one
            // unasked.
            server_max_window_bits: min(offer.server_max_window_bits, self.server_max_window_bits),
            client_max_window_bits: match offer.client_max_window_bits {
                // RFC 7692 7.1.2.2: without the parameter in the offer, the server MUST NOT include it. Our
                // choice: to compress with the large window then, rather than not at all.
                ClientBits::Unbounded => ClientBits::Unbounded,
                ClientBits::Any => self.client_max_window_bits.map_or(ClientBits::Unbounded, ClientBits::AtMost),
                // It is a hint, too: echoed, it saves the decompressor memory.
                ClientBits::AtMost(bits) => {
                    ClientBits::AtMost(self.client_max_window_bits.map_or(bits, |bound| bound.min(bits)))
                }
            },
        }
    }

    /// The client's check of the server's answer to [`Config::offer`]: the parameters, or `None` if the
    /// server declined.
    ///
    /// # Errors Sec-WebSocket-Extensions is malformed, or it accepts what was not offered, or accepts it
    /// twice, or with parameters that the offer does not allow. The client then has to fail the connection
    /// (RFC 7692 7.1).
    pub fn accept_response(&self, headers: &HeaderList) -> Result<Option<Params>, HandshakeError> {
        let mut params = None;
        for extension in parse_extensions(headers)? {
            // RFC 6455 4.1: an extension that was not present in the client's handshake fails the connection.
            if extension.name != NAME {
                return Err(HandshakeError::ExtensionNotOffered { extension: extension.name });
            }
            // RFC 7692 5: an answer accepts one configuration; a second compression has no reserved bit left.
            if params.is_some() {
                return Err(HandshakeError::DuplicateExtension { extension: extension.name });
            }
            params = Some(self.check_answer(&Agreed::parse(&extension, Message::Answer)?)?);
        }
        Ok(params)
    }

    /// Holds one answer against our offer.
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
        // RFC 7692 7.1.2.2: in an answer to a value, the server's is "equal to or smaller than" it. The
        // parameter itself was offered: we always do.
        let answered = answer.client_max_window_bits.bound();
        if let (Some(asked), Some(bits)) = (self.client_max_window_bits, answered)
            && bits > asked
        {
            return Err(over_the_offer(CLIENT_MAX_WINDOW_BITS, bits, asked));
        }
        Ok(Params {
            // RFC 7692 7.1.1.2: the server may demand it unasked; what we announced we do in any case.
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

/// The parameters of one offer or one answer.
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
    /// The parameter is not there: the client obeys no bound.
    #[default]
    Unbounded,
    /// It has no value: the client obeys any bound. Only in offers.
    Any,
    /// It has a value.
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

/// Which of the two messages a parameter stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    Offer,
    Answer,
}

impl Agreed {
    /// RFC 7692 7.1: fails on a parameter that is not defined for the message, has an invalid value or is
    /// repeated.
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
                    // RFC 7692 7.1.2.2: in an offer it "has no value or" a number, in an answer it has a
                    // number.
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

/// RFC 7692 7.1.1: the context takeover parameters have no value.
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

/// RFC 7692 7.1.2: "a decimal integer value without leading zeroes between 8 to 15, inclusive".
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

/// The smaller of two bounds, where `None` is no bound.
fn min(one: Option<u8>, other: Option<u8>) -> Option<u8> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (bound, None) | (None, bound) => bound,
    }
}
