//! The client's TLS configuration.

use std::sync::{Arc, OnceLock};

pub use rustls::ClientConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{KeyLog, KeyLogFile, NoKeyLog, RootCertStore, SupportedProtocolVersion};

use super::pinned::Verifier;
use super::unverified::AcceptAny;
use super::{Error, system};

/// The TLS options of a client.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// PEM files of trusted authorities, each with any number of certificates.
    pub ca: Vec<Vec<u8>>,
    /// Whether to trust the operating system's authorities too.
    pub system_roots: bool,
    /// The client's certificate chain, PEM.
    pub certificate: Option<Vec<u8>>,
    /// The client's private key, PEM, not encrypted.
    pub key: Option<Vec<u8>>,
    /// Whether to accept any certificate with a readable key. The connection is encrypted, but the peer is not
    /// authenticated.
    pub insecure: bool,
    /// Protocols to offer by ALPN, in order of preference.
    pub alpn: Vec<Vec<u8>>,
    /// The allowed versions; empty: 1.2 and 1.3.
    pub versions: Vec<Version>,
    /// Whether to append the secrets of each connection to the file in the variable `SSLKEYLOGFILE`, if it is set.
    pub key_log: bool,
}

/// A version of TLS. Older ones are broken (RFC 8996).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

pub(super) fn versions(versions: &[Version]) -> Vec<&'static SupportedProtocolVersion> {
    let wanted = |version| versions.is_empty() || versions.contains(&version);
    let mut result = Vec::new();
    if wanted(Version::Tls13) {
        result.push(&rustls::version::TLS13);
    }
    if wanted(Version::Tls12) {
        result.push(&rustls::version::TLS12);
    }
    result
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(aws_lc_rs::default_provider())).clone()
}

/// Parses the certificates in a PEM file.
pub(super) fn certificates(argument: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(Error::configuration(argument, "no certificate in it (PEM expected)"))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(Error::configuration(argument, format_args!("not valid PEM: {error}"))),
    }
}

/// Parses the first private key in a PEM file.
pub(super) fn private_key(argument: &'static str, pem: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    if pem.windows(9).any(|window| window == b"ENCRYPTED") {
        return Err(Error::configuration(
            argument,
            "the private key is encrypted: decrypt it, or pass an ssl.SSLContext",
        ));
    }
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|error| Error::configuration(argument, format_args!("no usable private key in it: {error}")))
}

impl Options {
    /// Creates the configuration. Connections that share it also share resumed sessions.
    pub fn build(&self) -> Result<Arc<ClientConfig>, Error> {
        let identity = match (&self.certificate, &self.key) {
            (Some(chain), key) => {
                let key = private_key("key", key.as_ref().unwrap_or(chain))?;
                Some((certificates("cert", chain)?, key))
            }
            (None, Some(_)) => {
                return Err(Error::configuration("key", "a private key needs a certificate: pass cert= too"));
            }
            (None, None) => None,
        };
        let provider = provider();
        let algorithms = provider.signature_verification_algorithms;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions(&self.versions))
            .map_err(|error| Error::configuration("minimum_version", error))?;
        let builder = if self.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAny(algorithms)))
        } else {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(self.verifier(provider)?))
        };
        let mut config = match identity {
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain, key).map_err(|error| Error::own("cert", &error))?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols.clone_from(&self.alpn);
        if self.key_log {
            config.key_log = key_log()?;
        }
        Ok(Arc::new(config))
    }

    fn verifier(&self, provider: Arc<CryptoProvider>) -> Result<Verifier, Error> {
        let mut roots = RootCertStore::empty();
        let mut trusted = Vec::new();
        if self.system_roots {
            let certificates = system::roots()?;
            // Some systems ship certificates that are too old for the parser. They are skipped, as in browsers.
            roots.add_parsable_certificates(certificates.iter().cloned());
            trusted.push(certificates);
        }
        for pem in &self.ca {
            let certificates = certificates("ca", pem)?;
            for certificate in &certificates {
                roots.add(certificate.clone()).map_err(|error| Error::own("ca", &error))?;
            }
            trusted.push(certificates.into());
        }
        let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| Error::configuration("ca", error))?;
        Ok(Verifier::new(authorities, trusted))
    }
}

fn key_log() -> Result<Arc<dyn KeyLog>, Error> {
    const VARIABLE: &str = "SSLKEYLOGFILE";
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
        return Ok(Arc::new(NoKeyLog));
    };
    // `KeyLogFile` of rustls does not report that it cannot open the file.
    if let Err(error) = std::fs::OpenOptions::new().append(true).create(true).open(&path) {
        return Err(Error::configuration(VARIABLE, format_args!("{}: {error}", path.display())));
    }
    Ok(Arc::new(KeyLogFile::new()))
}

/// Parses the name for which the server's certificate must be valid: a DNS name or an IP address.
pub fn server_name(name: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(name.to_owned()).map_err(|_| {
        Error::configuration("server_hostname", format_args!("{name:?} is neither a DNS name nor an IP address"))
    })
}
