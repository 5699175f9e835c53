//! What can go wrong with TLS.

use std::fmt;

// https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/
const UNSPECIFIED: i32 = 1;
const BAD_SIGNATURE: i32 = 7;
const NOT_YET_VALID: i32 = 9;
const HAS_EXPIRED: i32 = 10;
const SELF_SIGNED: i32 = 18;
const UNABLE_TO_GET_ISSUER: i32 = 20;
const REVOKED: i32 = 23;
const INVALID_PURPOSE: i32 = 26;
const HOSTNAME_MISMATCH: i32 = 62;

/// A failure of a TLS layer, or of making one.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The peer's certificate was not accepted.
    Certificate {
        /// Why, as OpenSSL numbers it (`X509_V_ERR_...`).
        code: i32,
        /// Why, in words.
        reason: String,
    },
    /// Anything else between the two ends.
    Protocol(String),
    /// The configuration is wrong: the argument at fault, and why.
    Configuration {
        /// As the configuration names it.
        argument: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The layer is not ours: an error of its own.
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    pub(crate) fn configuration(argument: &'static str, reason: impl fmt::Display) -> Self {
        Self::Configuration { argument, reason: reason.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate { reason, .. } => write!(f, "certificate verify failed: {reason}"),
            Self::Protocol(reason) => f.write_str(reason),
            Self::Configuration { argument, reason } => write!(f, "{argument}: {reason}"),
            Self::Other(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<rustls::Error> for Error {
    fn from(error: rustls::Error) -> Self {
        use rustls::CertificateError as C;
        match &error {
            rustls::Error::InvalidCertificate(reason) => {
                let (code, reason) = match reason {
                    C::UnknownIssuer => (
                        UNABLE_TO_GET_ISSUER,
                        "unknown issuer (self-signed, or signed by an authority that is not trusted: pass its certificate as ca=)".into(),
                    ),
                    C::Other(other) if matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity)) => (
                        SELF_SIGNED,
                        "unknown issuer (an authority's own certificate, such as a self-signed one: pass it as ca= to trust it)".into(),
                    ),
                    C::Expired | C::ExpiredContext { .. } => {
                        (HAS_EXPIRED, format!("the certificate has expired ({reason})"))
                    }
                    C::NotValidYet | C::NotValidYetContext { .. } => {
                        (NOT_YET_VALID, format!("the certificate is not yet valid ({reason})"))
                    }
                    C::NotValidForName | C::NotValidForNameContext { .. } => {
                        (HOSTNAME_MISMATCH, format!("the certificate is not valid for this host name ({reason})"))
                    }
                    C::Revoked => (REVOKED, reason.to_string()),
                    C::BadSignature => (BAD_SIGNATURE, reason.to_string()),
                    C::InvalidPurpose | C::InvalidPurposeContext { .. } => (INVALID_PURPOSE, reason.to_string()),
                    other => (UNSPECIFIED, other.to_string()),
                };
                Self::Certificate { code, reason }
            }
            rustls::Error::NoCertificatesPresented => {
                Self::Certificate { code: UNSPECIFIED, reason: "the peer sent no certificate".into() }
            }
            // What a server speaks that does not speak TLS.
            rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
                Self::Protocol("the peer does not speak TLS (is it a plain ws:// server?)".into())
            }
            rustls::Error::AlertReceived(alert) => Self::Protocol(format!("the peer refused: TLS alert {alert:?}")),
            _ => Self::Protocol(error.to_string()),
        }
    }
}
