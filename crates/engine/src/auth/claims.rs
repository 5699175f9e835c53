//! The two JSON texts of a token: its header, and its claims with the checks on them.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::Identity;
use super::error::Denied;
use super::options::JwtOptions;

/// The members of a token's header (RFC 7515 section 4.1) that matter. `jku`, `jwk`, `x5u` and `x5c` do not: they
/// would let the token choose the key that verifies it. One of these that stands twice is an error.
#[derive(Deserialize)]
pub(super) struct Header<'a> {
    #[serde(borrow)]
    pub(super) alg: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) kid: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(super) crit: Present,
}

/// Whether a member is there, whatever its value.
#[derive(Default)]
pub(super) struct Present(pub(super) bool);

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self(true))
    }
}

/// The claims of a token, each there once.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    /// The claims in the payload of a token whose signature is right.
    pub(super) fn parse(payload: &[u8]) -> Result<Self, Denied> {
        serde_json::from_slice(payload).map_err(|_| Denied::Malformed)
    }

    /// Checks them at this time; whom they tell of.
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

    /// RFC 7519 section 4.1.3: one string or a list of them; whoever is not named in it MUST reject the token.
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

    /// The claim, unless it is not there or `null`.
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

    /// A `NumericDate` (RFC 7519 section 2), which may have a fraction: rounded up, for whole seconds reach it then.
    fn date(&self, name: &str) -> Result<Option<u64>, Denied> {
        match self.claim(name) {
            None => Ok(None),
            Some(Value::Number(number)) => match (number.as_u64(), number.as_f64()) {
                (Some(seconds), _) => Ok(Some(seconds)),
                // Converting saturates: what is before 1970 becomes 0, what is out of reach the greatest number.
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
        struct Once;

        impl<'de> Visitor<'de> for Once {
            type Value = Claims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            // RFC 7519 section 4: names of claims MUST be unique. Of the two ways out, rejecting leaves no room for
            // another reader of the token to see another value.
            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Claims, A::Error> {
                let mut claims = Map::new();
                while let Some((name, value)) = access.next_entry::<String, Value>()? {
                    if claims.insert(name, value).is_some() {
                        return Err(A::Error::custom("a claim stands twice"));
                    }
                }
                Ok(Claims(claims))
            }
        }

        deserializer.deserialize_map(Once)
    }
}
