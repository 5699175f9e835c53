//! A key and the algorithms that it may be used with. Made from an option here, and from a JWK in [`super::jwks`].

use aws_lc_rs::signature::{ECDSA_P521_SHA512_FIXED, VerificationAlgorithm as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::DecodingKey;
use jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER;

use super::algorithm::{Algorithm, Family};
use super::error::Error;

/// The sizes of RSA keys in bits that aws-lc supports. NIST and RFC 7518 section 3.3 require the lower bound.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A key and the algorithms of its own family that it is used with.
#[derive(Clone, Debug)]
pub(super) struct VerifyingKey {
    /// Not empty. All belong to the family of `key` and fit its size or curve.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl VerifyingKey {
    /// Makes a key for HMAC with these algorithms.
    pub(super) fn from_secret(option: &'static str, secret: &[u8], algorithms: &[Algorithm]) -> Result<Self, Error> {
        if let Some(other) = algorithms.iter().find(|algorithm| algorithm.family() != Family::Hmac) {
            return Err(Error::option(option, format!("{other} takes a public key and no secret")));
        }
        // With a public key as the secret, anyone could sign (RFC 8725 section 2.1).
        if secret.windows(10).any(|window| window == b"-----BEGIN") {
            return Err(Error::option(option, "the secret is a PEM file, which may be public"));
        }
        let fitting = fitting_secret(secret.len(), algorithms);
        if let Some(long) = algorithms.iter().find(|algorithm| !fitting.contains(algorithm)) {
            let (needed, len) = (long.secret_len(), secret.len());
            return Err(Error::option(option, format!("{long} needs {needed} bytes of secret at least, not {len}")));
        }
        let key = DecodingKey::from_secret(secret).map_err(|_| Error::option(option, "the secret is empty"))?;
        Ok(Self { algorithms: fitting, key })
    }

    /// Makes a key from the public key in a PEM file. It must fit all of these algorithms.
    pub(super) fn from_pem(option: &'static str, pem: &[u8], algorithms: &[Algorithm]) -> Result<Self, Error> {
        let refuse = |problem: &str| Err(Error::option(option, problem));
        let text = String::from_utf8_lossy(pem);
        let labels: Vec<&str> =
            text.split("-----BEGIN ").skip(1).filter_map(|rest| Some(rest.split_once("-----")?.0)).collect();
        match labels[..] {
            ["PUBLIC KEY" | "RSA PUBLIC KEY"] => {}
            [] => return refuse("not PEM"),
            [label] if label.ends_with("PRIVATE KEY") => {
                return refuse("a private key; verifying takes the public one, and nothing else should be here");
            }
            ["CERTIFICATE"] => return refuse("a certificate; give the public key: openssl x509 -pubkey -noout"),
            [_] => return refuse("not a public key"),
            _ => return refuse("several PEM blocks"),
        }
        let family = algorithms.first().map(|algorithm| algorithm.family());
        let key = match family {
            Some(Family::Rsa) => DecodingKey::from_rsa_pem(pem),
            Some(Family::Ec) => DecodingKey::from_ec_pem(pem),
            Some(Family::Ed) => DecodingKey::from_ed_pem(pem),
            Some(Family::Hmac) => return refuse("a public key is not a secret for HMAC: anyone could sign"),
            None => return refuse("for no algorithm"),
        };
        let Ok(key) = key else {
            return refuse("not a public key of the kind that the algorithms need");
        };
        let mut fitting = fitting_public(&key, algorithms);
        if family == Some(Family::Ec) {
            fitting.retain(|&algorithm| names_curve(&text, algorithm));
        }
        if let Some(other) = algorithms.iter().find(|algorithm| !fitting.contains(algorithm)) {
            let needed = match other {
                Algorithm::ES256 => "the curve P-256",
                Algorithm::ES384 => "the curve P-384",
                Algorithm::ES512 => "the curve P-521",
                Algorithm::EdDSA => "the curve Ed25519",
                _ => "an RSA key of 2048 to 8192 bits",
            };
            return Err(Error::option(option, format!("{other} needs {needed}")));
        }
        Ok(Self { algorithms: fitting, key })
    }

    /// Returns the key with the algorithms that fit it; `None` if none fits.
    pub(super) fn fitting(key: DecodingKey, algorithms: &[Algorithm]) -> Option<Self> {
        let fitting = match key.family() {
            jsonwebtoken::AlgorithmFamily::Hmac => fitting_secret(key.try_get_as_bytes().ok()?.len(), algorithms),
            _ => fitting_public(&key, algorithms),
        };
        (!fitting.is_empty()).then_some(Self { algorithms: fitting, key })
    }

    pub(super) fn fits(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    /// Whether the signature is valid. Always false for an algorithm that does not fit the key.
    pub(super) fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &Vec<u8>) -> bool {
        // Not `jsonwebtoken::crypto::verify`: it uses the provider of the process, which panics if another crate of the
        // program has enabled the other back end of the library as well.
        self.fits(algorithm)
            && match algorithm.library() {
                Some(algorithm) => (DEFAULT_PROVIDER.verifier_factory)(&algorithm, &self.key)
                    .is_ok_and(|verifier| verifier.verify(message, signature).is_ok()),
                None => self
                    .key
                    .try_get_as_bytes()
                    .is_ok_and(|point| ECDSA_P521_SHA512_FIXED.verify_sig(point, message, signature).is_ok()),
            }
    }
}

fn fitting_secret(len: usize, algorithms: &[Algorithm]) -> Vec<Algorithm> {
    let fits = |algorithm: &Algorithm| algorithm.family() == Family::Hmac && len >= algorithm.secret_len();
    algorithms.iter().copied().filter(fits).collect()
}

fn fitting_public(key: &DecodingKey, algorithms: &[Algorithm]) -> Vec<Algorithm> {
    let len = key.try_get_as_bytes().map_or(0, <[u8]>::len);
    let fits = |algorithm: &Algorithm| match (key.family(), algorithm.family()) {
        (jsonwebtoken::AlgorithmFamily::Rsa, Family::Rsa) => rsa_bits(key).is_some_and(|bits| RSA_BITS.contains(&bits)),
        (jsonwebtoken::AlgorithmFamily::Ec, Family::Ec) => len == algorithm.point_len(),
        (jsonwebtoken::AlgorithmFamily::Ed, Family::Ed) => len == 32,
        _ => false,
    };
    algorithms.iter().copied().filter(fits).collect()
}

/// Whether the PEM file names the algorithm's curve: other curves have points of the same length.
fn names_curve(pem: &str, algorithm: Algorithm) -> bool {
    // The object identifiers of RFC 5480 section 2.1.1.1, in DER.
    let curve: &[u8] = match algorithm {
        Algorithm::ES256 => &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
        Algorithm::ES384 => &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22],
        Algorithm::ES512 => &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23],
        _ => return false,
    };
    let body = pem.split("-----").nth(2).unwrap_or_default();
    let body: String = body.split_ascii_whitespace().collect();
    STANDARD.decode(body).is_ok_and(|der| der.windows(curve.len()).any(|window| window == curve))
}

/// Returns the length of the modulus in bits.
fn rsa_bits(key: &DecodingKey) -> Option<usize> {
    let der = match key.kind() {
        jsonwebtoken::DecodingKeyKind::RsaModulusExponent { n, .. } => return Some(bits(n)),
        jsonwebtoken::DecodingKeyKind::SecretOrDer(der) => der,
    };
    let (modulus, _) = (DEFAULT_PROVIDER.key_utils.rsa_pub_components_from_public_key)(der).ok()?;
    Some(bits(&modulus))
}

fn bits(number: &[u8]) -> usize {
    let zeros = number.iter().take_while(|&&byte| byte == 0).count();
    let top = number.get(zeros).map_or(8, |byte| byte.leading_zeros() as usize);
    (number.len() - zeros).saturating_mul(8).saturating_sub(top)
}
