//! The errors of TLS layers.

use std::fmt;

use super::reasons;

/// An error of a TLS layer or of its configuration.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The peer's certificate was not accepted.
    Certificate {
        /// OpenSSL's number of the error (`X509_V_ERR_...`).
        code: i32,
        /// The reason in words.
        reason: String,
    },
    /// Another error between the two ends, in words.
    Protocol(String),
    /// An invalid configuration.
    Configuration {
        /// The name of the invalid argument.
        argument: &'static str,
        /// The reason in words.
        reason: String,
    },
    /// An error of a layer that a binding supplies.
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    pub(crate) fn configuration(argument: &'static str, reason: impl fmt::Display) -> Self {
        Self::Configuration { argument, reason: reason.to_string() }
    }

    /// Creates the error of an unusable certificate or key of this end.
    pub(crate) fn own(argument: &'static str, error: &rustls::Error) -> Self {
        Self::configuration(argument, reasons::describe_own(error))
    }

    /// Creates the error of unreadable system authorities, without which no certificate can be verified. It is not
    /// a configuration error: the files may be about to be replaced, and a reconnecting client tries again.
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
                let (code, reason) = reasons::describe_certificate(fault);
                Self::Certificate { code, reason }
            }
            rustls::Error::NoCertificatesPresented => {
                Self::Certificate { code: reasons::UNSPECIFIED, reason: "the peer sent no certificate".into() }
            }
            _ => Self::Protocol(reasons::describe_handshake(&error)),
        }
    }
}
