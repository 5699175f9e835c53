//! The grammar of Sec-WebSocket-Extensions (RFC 6455 9.1). What an extension means is not known here.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use super::error::HandshakeError;
use super::header_list::{HeaderList, is_token, is_token_byte};

/// The header that offers and accepts extensions.
pub const HEADER: &str = "Sec-WebSocket-Extensions";

/// One element of the list: `name; parameter; parameter=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// The extension's name.
    pub name: String,
    /// Its parameters in order, duplicates kept.
    pub parameters: Vec<Parameter>,
}

/// One parameter of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The parameter's name.
    pub name: String,
    /// Its value, unquoted; `None` if there is no `=`.
    pub value: Option<String>,
}

/// Every extension of a head, in order, over all occurrences of the header.
///
/// # Errors
/// A header does not follow the grammar. RFC 6455 9.1: the recipient "MUST immediately _Fail the WebSocket
/// Connection_".
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

/// What is left of one header's value. Each method returns `None` where the grammar is broken.
struct Parser<'a> {
    rest: &'a [u8],
}

impl Parser<'_> {
    /// `1#extension`: one element at least. RFC 9110 5.6.1.2: a recipient MUST ignore empty elements.
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

    /// `extension-token *( ";" extension-param )`, and the whitespace behind it.
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

    /// `token [ "=" (token | quoted-string) ]`; the grammar of RFC 2616, which RFC 6455 uses, allows
    /// whitespace around the sign.
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

    /// The rest of a quoted string. RFC 6455 9.1: "the value after quoted-string unescaping MUST conform to
    /// the 'token' ABNF".
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

    /// Steps over the byte if it is next.
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
