//! Accepts trusted certificates regardless of their issuer, such as a self-signed one of `openssl req -x509`,
//! passed as `ca=` or in `SSL_CERT_FILE`.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};

/// Verifies with the trusted authorities, and also accepts a server's certificate that is itself trusted.
#[derive(Debug)]
pub(super) struct Verifier {
    authorities: Arc<WebPkiServerVerifier>,
    trusted: Vec<Arc<[CertificateDer<'static>]>>,
}

impl Verifier {
    pub(super) fn new(authorities: Arc<WebPkiServerVerifier>, trusted: Vec<Arc<[CertificateDer<'static>]>>) -> Self {
        Self { authorities, trusted }
    }

    fn is_trusted(&self, certificate: &CertificateDer<'_>) -> bool {
        self.trusted.iter().any(|trusted| trusted.contains(certificate))
    }
}

/// Returns whether the certificate was rejected only for its issuer: its dates are checked before (webpki's
/// `check_issuer_independent_properties`).
fn is_issuer_error(error: &rustls::Error) -> bool {
    match error {
        // The signature is also bad if another authority of the same name is trusted.
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => true,
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) => {
            matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
        }
        _ => false,
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let result = self.authorities.verify_server_cert(certificate, intermediates, server_name, ocsp_response, now);
        match result {
            Err(error) if is_issuer_error(&error) && self.is_trusted(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}
