//! The server's TLS configuration.

use std::sync::Arc;

use rustls::RootCertStore;
pub use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;

use super::Error;
use super::client::{Version, certificates, private_key, provider, versions};

/// The TLS options of a server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The server's certificate chain, PEM.
    pub certificate: Vec<u8>,
    /// The server's private key, PEM, not encrypted.
    pub key: Vec<u8>,
    /// Authorities whose client certificates are required, PEM; empty: clients need none.
    pub client_ca: Vec<Vec<u8>>,
    /// Protocols to accept by ALPN, in order of preference.
    pub alpn: Vec<Vec<u8>>,
    /// The allowed versions; empty: 1.2 and 1.3.
    pub versions: Vec<Version>,
}

impl Options {
    /// Creates the configuration that connections share.
    pub fn build(&self) -> Result<Arc<ServerConfig>, Error> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&versions(&self.versions))
            .map_err(|error| Error::configuration("minimum_version", error))?;
        let builder = if self.client_ca.is_empty() {
            builder.with_no_client_auth()
        } else {
            let mut roots = RootCertStore::empty();
            for pem in &self.client_ca {
                for certificate in certificates("client_ca", pem)? {
                    roots.add(certificate).map_err(|error| Error::own("client_ca", &error))?;
                }
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
                .build()
                .map_err(|error| Error::configuration("client_ca", error))?;
            builder.with_client_cert_verifier(verifier)
        };
        let mut config = builder
            .with_single_cert(certificates("cert", &self.certificate)?, private_key("key", &self.key)?)
            .map_err(|error| Error::own("cert", &error))?;
        config.alpn_protocols.clone_from(&self.alpn);
        Ok(Arc::new(config))
    }
}
