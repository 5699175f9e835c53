//! TLS to a server whose authority is in a file.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use wirespeed_driver::tls::client::{ClientConfig, Options, server_name};
use wirespeed_driver::tls::{Error, Layer, RustlsLayer};

/// The TLS configuration of all connections, which share it to resume sessions.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    /// The name that the certificate must contain.
    name: String,
}

impl Tls {
    /// Reads the PEM file of the authority.
    pub(crate) fn new(authority: &Path, address: SocketAddr) -> Result<Self, String> {
        let pem = fs::read(authority).map_err(|error| format!("{}: {error}", authority.display()))?;
        let options = Options { ca: vec![pem], ..Options::default() };
        Ok(Self { config: options.build().map_err(super::text)?, name: address.ip().to_string() })
    }

    /// Returns the TLS layer of one connection.
    pub(crate) fn layer(&self) -> Result<Box<dyn Layer>, Error> {
        Ok(Box::new(RustlsLayer::client(Arc::clone(&self.config), server_name(&self.name)?)?))
    }
}
