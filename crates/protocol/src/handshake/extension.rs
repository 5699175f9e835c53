//! Parsing of Sec-WebSocket-Extensions (RFC 6455 9.1). It does not know any extension.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use super::error::HandshakeError;
use super::header_list::{HeaderList, is_token, is_token_byte};

/// The name of the header field that offers and accepts extensions.
pub const HEADER: &str = "Sec-WebSocket-Extensions";

/// An element of the list: `name; parameter; parameter=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// The name of the extension.
    pub name: String,
    /// Its parameters in order, including duplicates.
    pub parameters: Vec<Parameter>,
}

/// A parameter of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The name of the parameter.
    pub name: String,
    /// Its value without quotes; `None` if there is no `=`.
    pub value: Option<String>,
}

/// Returns all extensions of a head, in order, over all occurrences of the field.
///
/// # Errors
/// A field does not match the grammar. RFC 6455 9.1: the recipient "MUST immediately _Fail the WebSocket Connection_".
pub fn parse_extensions(headers: &HeaderList) -> Result<Vec<Extension>, HandshakeError> {
    let mut extensions = Vec::new();
    for value in headers.all(HEADER) {
        let mut parser = Parser { rest: value };
        parser.parse_list(&mut extensions).ok_or_else(|| HandshakeError::InvalidHeader {
            name: HEADER,
            value: String::from_utf8_lossy(value).into_owned(),
            expected: "a list of extensions with their parameters",
        })?;
    }
    Ok(extensions)
}

/// The unparsed rest of a field's value. Each method returns `None` if the value does not match the grammar.
struct Parser<'a> {
    rest: &'a [u8],
}

impl Parser<'_> {
    /// Parses `1#extension`: at least one element. RFC 9110 5.6.1.2: a recipient MUST ignore empty elements.
    fn parse_list(&mut self, extensions: &mut Vec<Extension>) -> Option<()> {
        let before = extensions.len();
        loop {
            self.skip_whitespace();
            if self.skip(b',') {
                continue;
            }
            if self.rest.is_empty() {
                return (extensions.len() > before).then_some(());
            }
            extensions.push(self.parse_extension()?);
            if self.rest.first().is_some_and(|byte| *byte != b',') {
                return None;
            }
        }
    }

    /// Parses `extension-token *( ";" extension-param )` and the whitespace after it.
    fn parse_extension(&mut self) -> Option<Extension> {
        let name = self.parse_token()?;
        let mut parameters = Vec::new();
        self.skip_whitespace();
        while self.skip(b';') {
            self.skip_whitespace();
            parameters.push(self.parse_parameter()?);
            self.skip_whitespace();
        }
        Some(Extension { name, parameters })
    }

    /// Parses `token [ "=" (token | quoted-string) ]`. RFC 6455 uses the grammar of RFC 2616, which allows whitespace
    /// around the equals sign.
    fn parse_parameter(&mut self) -> Option<Parameter> {
        let name = self.parse_token()?;
        self.skip_whitespace();
        if !self.skip(b'=') {
            return Some(Parameter { name, value: None });
        }
        self.skip_whitespace();
        let value = if self.skip(b'"') { self.parse_quoted()? } else { self.parse_token()? };
        Some(Parameter { name, value: Some(value) })
    }

    fn parse_token(&mut self) -> Option<String> {
        let length = self.rest.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(length);
        self.rest = rest;
        if token.is_empty() { None } else { core::str::from_utf8(token).ok().map(ToOwned::to_owned) }
    }

    /// Parses a quoted string after its first quote. RFC 6455 9.1: "the value after quoted-string unescaping MUST
    /// conform to the 'token' ABNF".
    fn parse_quoted(&mut self) -> Option<String> {
        let mut value = Vec::new();
        loop {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            match byte {
                b'"' => break,
                b'\\' => {
                    let (&escaped, rest) = self.rest.split_first()?;
                    self.rest = rest;
                    value.push(escaped);
                }
                _ => value.push(byte),
            }
        }
        if is_token(&value) { String::from_utf8(value).ok() } else { None }
    }

    fn skip_whitespace(&mut self) {
        while let [b' ' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// Skips the next byte if it equals `byte`. Returns whether it does.
    fn skip(&mut self, byte: u8) -> bool {
        match self.rest.split_first() {
            Some((&first, rest)) if first == byte => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }
}
