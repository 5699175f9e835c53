//! Implements `verify=False`: any certificate is accepted, and only its key is used.

use aws_lc_rs::signature::RsaParameters;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{
    AlgorithmIdentifier, CertificateDer, InvalidSignature, ServerName, SignatureVerificationAlgorithm, UnixTime,
};
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved, SignatureScheme};

/// Accepts every certificate with a readable key, regardless of its other content.
///
/// The server must have signed the handshake with that key. So the certificate that an application gets, and may
/// compare with a known one, is the server's own and not a copy.
#[derive(Debug)]
pub(super) struct AcceptAny(pub(super) WebPkiSupportedAlgorithms);

impl AcceptAny {
    fn verify(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
        most: usize,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some((_, algorithms)) = self.0.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme) else {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        };
        // Parsed as an authority's certificate: this also accepts version 1, and ignores unknown extensions.
        let anchor = webpki::anchor_from_trusted_cert(certificate).map_err(|_| CertificateError::BadEncoding)?;
        let key = webpki::spki_for_anchor(&anchor);
        let key = webpki::RawPublicKeyEntity::try_from(&key).map_err(|_| CertificateError::BadEncoding)?;
        let is_valid = |algorithm: &&dyn SignatureVerificationAlgorithm| {
            key.verify_signature(&AnyKeyLength(*algorithm), message, signed.signature()).is_ok()
        };
        if algorithms.iter().take(most).any(is_valid) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        Err(CertificateError::BadSignature.into())
    }
}

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, certificate, signed, usize::MAX)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        use SignatureScheme as S;
        // Not allowed for the handshake (RFC 8446, section 4.2.3).
        if matches!(signed.scheme, S::RSA_PKCS1_SHA256 | S::RSA_PKCS1_SHA384 | S::RSA_PKCS1_SHA512) {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        }
        // In TLS 1.3, unlike 1.2, a scheme determines the curve of the key: that of the first algorithm.
        self.verify(message, certificate, signed, 1)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// A signature algorithm that accepts any signature by an RSA key of a length that aws-lc does not support. The
/// documentation of `verify` states that such a key proves nothing.
#[derive(Debug)]
struct AnyKeyLength<'a>(&'a dyn SignatureVerificationAlgorithm);

impl SignatureVerificationAlgorithm for AnyKeyLength<'_> {
    fn verify_signature(&self, key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let is_rsa = self.public_key_alg_id() == rustls::pki_types::alg_id::RSA_ENCRYPTION;
        match is_rsa.then(|| RsaParameters::public_modulus_len(key)) {
            Some(Ok(bits)) if !(2048..=8192).contains(&bits) => Ok(()),
            _ => self.0.verify_signature(key, message, signature),
        }
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.0.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.0.signature_alg_id()
    }
}
