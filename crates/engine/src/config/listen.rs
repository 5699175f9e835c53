//! Where an engine listens, and its certificates.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use wirespeed_driver::tls::server::ServerConfig as TlsConfig;

/// A listener of the engine.
#[derive(Clone)]
pub struct Listen {
    /// The address to listen at.
    pub at: Place,
    /// The TLS configuration; `None` for plain connections.
    pub tls: Option<Arc<TlsConfig>>,
}

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// TCP. With port 0 the system chooses a free port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Builds a configuration from the current files. Its error text must not contain secrets.
pub type Load = dyn Fn() -> Result<Arc<TlsConfig>, String> + Send + Sync;

/// The source of a configuration, from which it is rebuilt when the files change.
#[derive(Clone)]
pub struct Renewal {
    /// The certificate, its key, and the certificate authorities for clients.
    pub files: Vec<PathBuf>,
    /// Reads the files.
    pub load: Arc<Load>,
}

impl std::fmt::Debug for Renewal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewal").field("files", &self.files).finish_non_exhaustive()
    }
}
