//! A certificate for 127.0.0.1, made at start.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use wirespeed_driver::tls::server::{Options, ServerConfig};

/// A certificate, and the file with the authority that signed it.
pub(crate) struct Certificate {
    chain: Vec<u8>,
    key: Vec<u8>,
    path: PathBuf,
}

impl Certificate {
    pub(crate) fn generate() -> Result<Self, Box<dyn Error>> {
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

        let path = std::env::temp_dir().join(format!("wirespeed-bench-{}.pem", std::process::id()));
        fs::write(&path, authority.pem())?;
        Ok(Self { chain: certificate.pem().into_bytes(), key: key.serialize_pem().into_bytes(), path })
    }

    /// The PEM file of the authority.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn config(&self) -> Result<Arc<ServerConfig>, Box<dyn Error>> {
        let options = Options { certificate: self.chain.clone(), key: self.key.clone(), ..Options::default() };
        Ok(options.build()?)
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // somebody else may have tidied up
    }
}
