//! A certificate for 127.0.0.1: for the echo server, made at start, or in files for others.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use wirespeed_driver::tls::server::{Options, ServerConfig};

/// A certificate, and the file with the authority that signed it.
pub(crate) struct Certificate {
    /// What a server needs that shows it.
    pub(crate) config: Arc<ServerConfig>,
    /// The PEM file of the authority.
    pub(crate) path: PathBuf,
}

impl Certificate {
    /// One whose authority is in a file of its own until it is dropped.
    pub(crate) fn generate() -> Result<Self, Box<dyn Error>> {
        let Issued { authority, chain, key } = issue()?;
        let options = Options { certificate: chain.into_bytes(), key: key.into_bytes(), ..Options::default() };
        let path = std::env::temp_dir().join(format!("wirespeed-bench-{}.pem", std::process::id()));
        fs::write(&path, authority)?;
        Ok(Self { config: options.build()?, path })
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // somebody else may have tidied up
    }
}

/// All of it, as PEM.
struct Issued {
    authority: String,
    chain: String,
    key: String,
}

fn issue() -> Result<Issued, Box<dyn Error>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "wirespeed-bench authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let authority_key = KeyPair::generate()?;
    let authority = params.self_signed(&authority_key)?;
    let issuer = Issuer::new(params, authority_key);

    let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()])?;
    params.distinguished_name.push(DnType::CommonName, "wirespeed-bench");
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Issued { authority: authority.pem(), chain: certificate.pem(), key: key.serialize_pem() })
}

/// Writes one into a folder: `server.pem` with its key, and `authority.pem`.
pub(crate) fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    let Issued { authority, chain, key } = issue()?;
    for (name, pem) in [("server.pem", chain + &key), ("authority.pem", authority)] {
        let path = folder.join(name);
        fs::write(&path, pem).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}
