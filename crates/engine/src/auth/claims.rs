//! Parses the header and the claims of a token, and checks the claims.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::Identity;
use super::options::JwtOptions;
use crate::reasons::Denied;

/// The relevant members of a token's header (RFC 7515 section 4.1). `jku`, `jwk`, `x5u` and `x5c` are ignored: they
/// would let the token choose the key that verifies it. A duplicate of one of these members is an error.
#[derive(Deserialize)]
pub(super) struct Header<'a> {
    #[serde(borrow)]
    pub(super) alg: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) kid: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(super) crit: Present,
}

/// Whether a member is present, with any value.
#[derive(Default)]
pub(super) struct Present(pub(super) bool);

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self(true))
    }
}

/// The claims of a token, without duplicates.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    /// Parses the payload of a token. The caller has verified the signature.
    pub(super) fn parse(payload: &[u8]) -> Result<Self, Denied> {
        serde_json::from_slice(payload).map_err(|_| Denied::Malformed)
    }

    /// Checks the claims at the unix second `now` and returns the client's identity.
    pub(super) fn check(self, options: &JwtOptions, now: u64) -> Result<Identity, Denied> {
        let expires = self.date("exp")?.map(|at| at.saturating_add(options.leeway));
        // RFC 7519 section 4.1.4: the current time MUST be before it.
        if expires.is_some_and(|at| now >= at) {
            return Err(Denied::Expired);
        }
        // Section 4.1.5: the current time MUST be after it or equal.
        if self.date("nbf")?.is_some_and(|at| now.saturating_add(options.leeway) < at) {
            return Err(Denied::NotYet);
        }
        if let Some(wanted) = &options.issuer {
            match self.text("iss")? {
                None => return Err(Denied::MissingClaim("iss".to_owned())),
                Some(issuer) if issuer != wanted => return Err(Denied::Issuer),
                Some(_) => {}
            }
        }
        self.check_audience(&options.audience)?;
        for name in &options.required {
            if self.claim(name).is_none() {
                return Err(Denied::MissingClaim(name.clone()));
            }
        }
        let user = self.text("sub")?.unwrap_or_default().to_owned();
        if user.is_empty() && options.required.iter().any(|name| name == "sub") {
            return Err(Denied::BadClaim("sub".to_owned()));
        }
        Ok(Identity { user, claims: self.0, expires, source: None })
    }

    /// RFC 7519 section 4.1.3: `aud` is a string or a list. A recipient that it does not name MUST reject the token.
    fn check_audience(&self, ours: &[String]) -> Result<(), Denied> {
        let bad = || Denied::BadClaim("aud".to_owned());
        let named = match self.claim("aud") {
            None if ours.is_empty() => return Ok(()),
            None => return Err(Denied::MissingClaim("aud".to_owned())),
            Some(Value::String(one)) => ours.contains(one),
            Some(Value::Array(several)) => {
                let names: Option<Vec<&str>> = several.iter().map(Value::as_str).collect();
                names.ok_or_else(bad)?.iter().any(|name| ours.iter().any(|our| our == name))
            }
            Some(_) => return Err(bad()),
        };
        if named { Ok(()) } else { Err(Denied::Audience) }
    }

    /// Returns a claim; `None` if it is missing or `null`.
    fn claim(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn text(&self, name: &str) -> Result<Option<&str>, Denied> {
        match self.claim(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Denied::BadClaim(name.to_owned())),
        }
    }

    /// Returns a `NumericDate` (RFC 7519 section 2). A fraction is rounded up to the next whole second.
    fn date(&self, name: &str) -> Result<Option<u64>, Denied> {
        match self.claim(name) {
            None => Ok(None),
            Some(Value::Number(number)) => match (number.as_u64(), number.as_f64()) {
                (Some(seconds), _) => Ok(Some(seconds)),
                // The conversion saturates: times before 1970 become 0, times out of range the maximum.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                (None, Some(seconds)) => Ok(Some(seconds.ceil() as u64)),
                (None, None) => Err(Denied::BadClaim(name.to_owned())),
            },
            Some(_) => Err(Denied::BadClaim(name.to_owned())),
        }
    }
}

impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ClaimsVisitor;

        impl<'de> Visitor<'de> for ClaimsVisitor {
            type Value = Claims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            // RFC 7519 section 4: claim names MUST be unique. The parser rejects duplicates, because another reader of
            // the token could use the other value.
            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Claims, A::Error> {
                let mut claims = Map::new();
                while let Some((name, value)) = access.next_entry::<String, Value>()? {
                    if claims.insert(name, value).is_some() {
                        return Err(A::Error::custom("duplicate claim"));
                    }
                }
                Ok(Claims(claims))
            }
        }

        deserializer.deserialize_map(ClaimsVisitor)
    }
}
