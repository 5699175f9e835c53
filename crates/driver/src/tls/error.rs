//! What can go wrong with TLS.

use std::fmt;

use super::reasons;

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

    /// A certificate or key of this end cannot be used.
    pub(crate) fn own(argument: &'static str, error: &rustls::Error) -> Self {
        Self::configuration(argument, reasons::of_own(error))
    }

    /// The system's authorities cannot be read, so that no certificate can be verified. It is no failure of the
    /// configuration: the files may be about to be replaced, and a client that connects again tries again.
    pub(crate) fn authorities(reason: impl fmt::Display) -> Self {
        let advice = "install ca-certificates, set SSL_CERT_FILE, or pass ca=";
        let reason = format!("the system has no trusted authorities: {reason} ({advice})");
        Self::Certificate { code: reasons::UNABLE_TO_GET_ISSUER, reason }
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
        match &error {
            rustls::Error::InvalidCertificate(fault) => {
                let (code, reason) = reasons::of_certificate(fault);
                Self::Certificate { code, reason }
            }
            rustls::Error::NoCertificatesPresented => {
                Self::Certificate { code: reasons::UNSPECIFIED, reason: "the peer sent no certificate".into() }
            }
            _ => Self::Protocol(reasons::of_handshake(&error)),
        }
    }
}
