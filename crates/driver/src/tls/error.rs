//! What can go wrong with TLS.

use std::fmt;

/// A failure of a TLS layer, or of making one.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The peer's certificate was not accepted: why, in words.
    Certificate(String),
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
            Self::Certificate(reason) => write!(f, "certificate verify failed: {reason}"),
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
            rustls::Error::InvalidCertificate(reason) => Self::Certificate(match reason {
                C::UnknownIssuer => {
                    "unknown issuer (self-signed, or signed by an authority that is not trusted: pass its certificate as ca=)".into()
                }
                C::Expired | C::ExpiredContext { .. } => format!("the certificate has expired ({reason})"),
                C::NotValidYet | C::NotValidYetContext { .. } => format!("the certificate is not yet valid ({reason})"),
                C::NotValidForName | C::NotValidForNameContext { .. } => {
                    format!("the certificate is not valid for this host name ({reason})")
                }
                other => other.to_string(),
            }),
            rustls::Error::NoCertificatesPresented => Self::Certificate("the peer sent no certificate".into()),
            // What a server speaks that does not speak TLS.
            rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
                Self::Protocol("the peer does not speak TLS (is it a plain ws:// server?)".into())
            }
            rustls::Error::AlertReceived(alert) => Self::Protocol(format!("the peer refused: TLS alert {alert:?}")),
            _ => Self::Protocol(error.to_string()),
        }
    }
}
