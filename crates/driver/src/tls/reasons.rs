//! Describes each TLS failure in words: its cause, and what to do.
//!
//! The texts are for both ends and for native TLS: `ca=` and the like are arguments of `wirespeed.TLS`.

use std::fmt::Debug;

use rustls::{AlertDescription as Alert, CertificateError, InvalidMessage, PeerIncompatible};

// https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/
pub(super) const UNSPECIFIED: i32 = 1;
pub(super) const UNABLE_TO_GET_ISSUER: i32 = 20;
const BAD_SIGNATURE: i32 = 7;
const NOT_YET_VALID: i32 = 9;
const HAS_EXPIRED: i32 = 10;
const SELF_SIGNED: i32 = 18;
const REVOKED: i32 = 23;
const INVALID_CA: i32 = 24;
const PATH_LENGTH_EXCEEDED: i32 = 25;
const INVALID_PURPOSE: i32 = 26;
const UNHANDLED_CRITICAL_EXTENSION: i32 = 34;
const PERMITTED_VIOLATION: i32 = 47;
const HOSTNAME_MISMATCH: i32 = 62;

/// Returns why a certificate was rejected: OpenSSL's number, and a description.
pub(super) fn describe_certificate(fault: &CertificateError) -> (i32, String) {
    use CertificateError as C;
    let (code, reason) = match fault {
        C::UnknownIssuer => (
            UNABLE_TO_GET_ISSUER,
            "unknown issuer (self-signed, or signed by an authority that is not trusted: pass its certificate as ca=)",
        ),
        C::BadSignature => (
            BAD_SIGNATURE,
            "the signature does not match the issuer's key: the certificate is forged or damaged, another authority \
             of the same name has issued it, or the key is RSA of less than 2048 bits, which is too short: have it \
             issued anew",
        ),
        C::Revoked => (REVOKED, "the certificate was revoked: have it issued anew"),
        C::BadEncoding => (UNSPECIFIED, "the certificate cannot be parsed; an ssl.SSLContext may accept it"),
        C::UnhandledCriticalExtension => describe_x509(&webpki::Error::UnsupportedCriticalExtension),
        C::Other(other) => match other.0.downcast_ref() {
            Some(fault) => describe_x509(fault),
            None => return (UNSPECIFIED, other.to_string()),
        },
        C::Expired | C::ExpiredContext { .. } => return (HAS_EXPIRED, expired(fault)),
        C::NotValidYet | C::NotValidYetContext { .. } => return (NOT_YET_VALID, not_yet_valid(fault)),
        C::NotValidForName | C::NotValidForNameContext { .. } => return (HOSTNAME_MISMATCH, wrong_name(fault)),
        C::InvalidPurpose | C::InvalidPurposeContext { .. } => {
            let reason = format!("the certificate is for another purpose: have it issued for this one ({fault})");
            return (INVALID_PURPOSE, reason);
        }
        C::UnsupportedSignatureAlgorithmContext { signature_algorithm_id: name, .. }
        | C::UnsupportedSignatureAlgorithmForPublicKeyContext { signature_algorithm_id: name, .. } => {
            let reason = format!(
                "a certificate is signed with {}, which native TLS does not support: have it issued with SHA-256, or \
                 pass an ssl.SSLContext, which supports more",
                algorithm(name)
            );
            return (UNSPECIFIED, reason);
        }
        other => return (UNSPECIFIED, words(other)),
    };
    (code, reason.to_owned())
}

/// Returns why a certificate was rejected, for errors of webpki that rustls passes on.
fn describe_x509(fault: &webpki::Error) -> (i32, &'static str) {
    use webpki::Error as X;
    match fault {
        X::CaUsedAsEndEntity => (
            SELF_SIGNED,
            "unknown issuer (an authority's own certificate, such as a self-signed one: pass it as ca= to trust it)",
        ),
        X::UnsupportedCertVersion => (
            UNSPECIFIED,
            "a certificate of X.509 version 1 or 2, which native TLS does not support: have it issued as version 3, \
             with subjectAltName, or pass an ssl.SSLContext, which accepts it",
        ),
        X::UnsupportedCriticalExtension => (
            UNHANDLED_CRITICAL_EXTENSION,
            "a certificate has an extension that is critical and that native TLS does not know: have it issued \
             without it, or with the extension not critical",
        ),
        X::EndEntityUsedAsCa => (
            INVALID_CA,
            "the certificate of an issuer is not one of an authority: have the issuer's certificate issued with the \
             extension basicConstraints=CA:TRUE",
        ),
        X::NameConstraintViolation => (
            PERMITTED_VIOLATION,
            "an authority has issued a certificate for a name outside its nameConstraints: have it issued by another \
             authority",
        ),
        X::PathLenConstraintViolated => (
            PATH_LENGTH_EXCEEDED,
            "the chain between the certificate and the trusted authority is longer than that authority's pathlen \
             allows: have it issued by an authority closer to it",
        ),
        X::MaximumPathDepthExceeded
        | X::MaximumPathBuildCallsExceeded
        | X::MaximumSignatureChecksExceeded
        | X::MaximumNameConstraintComparisonsExceeded => (
            UNSPECIFIED,
            "the chain of certificates is too long or too complicated: let the peer send its certificate and those of \
             the authorities in between, and nothing else",
        ),
        _ => (
            UNSPECIFIED,
            "a certificate breaks the rules of X.509 (RFC 5280): have it issued anew; an ssl.SSLContext may accept it",
        ),
    }
}

fn expired(fault: &CertificateError) -> String {
    let ago = match fault {
        CertificateError::ExpiredContext { time, not_after } => {
            format!(", {} ago", span(time.as_secs().saturating_sub(not_after.as_secs())))
        }
        _ => String::new(),
    };
    format!("the certificate has expired{ago}: it must be renewed, unless the clock of this machine is wrong")
}

fn not_yet_valid(fault: &CertificateError) -> String {
    let left = match fault {
        CertificateError::NotValidYetContext { time, not_before } => {
            format!(", but will be in {}", span(not_before.as_secs().saturating_sub(time.as_secs())))
        }
        _ => String::new(),
    };
    format!("the certificate is not yet valid{left}: the clock of this machine, or that of its authority, is wrong")
}

fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn wrong_name(fault: &CertificateError) -> String {
    let CertificateError::NotValidForNameContext { expected, presented } = fault else {
        return "the certificate is not valid for this host name".to_owned();
    };
    let expected = expected.to_str();
    if presented.is_empty() {
        return format!(
            "the certificate is not valid for the host name {expected}: it has no subjectAltName, and its common name \
             does not count (RFC 9525); have it issued with one, or pass an ssl.SSLContext, which takes host names \
             from the common name"
        );
    }
    // webpki formats a name as `DnsName("localhost")`.
    let names: Vec<_> = presented.iter().map(|name| name.split('"').nth(1).unwrap_or(name)).collect();
    format!(
        "the certificate is not valid for the host name {expected}, only for {}: check the URI, or pass the \
         expected name as server_hostname=",
        names.join(", ")
    )
}

/// Returns the name of a signature algorithm (RFC 5912). `identifier` begins with the tag and length of its OID.
fn algorithm(identifier: &[u8]) -> String {
    const NAMES: [(&[u8], &str); 6] = [
        (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x04", "MD5 and RSA"),
        (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x05", "SHA-1 and RSA"),
        (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0a", "RSA-PSS with unusual parameters"),
        (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0e", "SHA-224 and RSA"),
        (b"\x06\x07\x2a\x86\x48\xce\x3d\x04\x01", "SHA-1 and ECDSA"),
        (b"\x06\x03\x2b\x65\x71", "Ed448"),
    ];
    match NAMES.iter().find(|(oid, _)| identifier.starts_with(oid)) {
        Some((_, name)) => (*name).to_owned(),
        None => {
            let hex: String = identifier.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("an unknown algorithm ({hex})")
        }
    }
}

const NOTHING_IN_COMMON: &str = "no cipher suite, key exchange or signature in common: native TLS has AES-GCM and \
     ChaCha20-Poly1305, X25519, P-256 and P-384, keys for ECDSA, Ed25519 and RSA; CBC suites, P-521 and X448 for the \
     key exchange, RSA-PSS and Ed448 keys need an ssl.SSLContext";
const NO_VERSION: &str = "no version of TLS in common: native TLS has 1.2 and 1.3, as far as minimum_version and \
     maximum_version allow; older ones, which are broken (RFC 8996), need an ssl.SSLContext";

/// Describes why a handshake or connection has failed.
pub(super) fn describe_handshake(error: &rustls::Error) -> String {
    use PeerIncompatible as P;
    use rustls::Error as E;
    match error {
        E::AlertReceived(alert) => describe_alert(*alert),
        E::PeerIncompatible(
            P::NoCipherSuitesInCommon
            | P::NoKxGroupsInCommon
            | P::NoSignatureSchemesInCommon
            | P::NamedGroupsExtensionRequired,
        ) => NOTHING_IN_COMMON.to_owned(),
        E::PeerIncompatible(
            P::ServerDoesNotSupportTls12Or13
            | P::ServerTlsVersionIsDisabledByOurConfig
            | P::SupportedVersionsExtensionRequired
            | P::Tls12NotOffered
            | P::Tls12NotOfferedOrEnabled,
        ) => NO_VERSION.to_owned(),
        E::PeerIncompatible(P::NoCertificateRequestSignatureSchemesInCommon) => {
            "the server accepts no signature by the key of this client: give it a certificate with another kind of key"
                .to_owned()
        }
        E::PeerIncompatible(lack) => {
            format!(
                "the peer lacks a feature that native TLS requires ({}); an ssl.SSLContext may not require it",
                words(lack)
            )
        }
        // A server that does not speak TLS sends this.
        E::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the peer does not speak TLS (is it a plain ws:// server?)".to_owned()
        }
        E::InvalidMessage(fault) => format!("the peer has sent an invalid TLS message ({})", words(fault)),
        E::PeerMisbehaved(fault) => format!("the peer violates the TLS protocol ({})", words(fault)),
        E::InappropriateMessage { .. } | E::InappropriateHandshakeMessage { .. } => {
            "the peer has sent an unexpected TLS message".to_owned()
        }
        E::PeerSentOversizedRecord => "the peer has sent a TLS record that is too long".to_owned(),
        E::DecryptError => "a TLS record was modified in transit, or belongs to another connection".to_owned(),
        E::NoApplicationProtocol => "the peer supports none of the protocols in alpn=".to_owned(),
        _ => error.to_string(),
    }
}

/// Describes why a certificate or key of this end cannot be used.
pub(super) fn describe_own(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => "the private key is not that of the certificate".to_owned(),
        rustls::Error::InvalidCertificate(fault) => describe_certificate(fault).1,
        rustls::Error::General(reason) => {
            format!("{reason}; an ssl.SSLContext supports more kinds of keys, such as RSA-PSS and Ed448")
        }
        _ => error.to_string(),
    }
}

fn describe_alert(alert: Alert) -> String {
    let reason = match alert {
        Alert::HandshakeFailure | Alert::InsufficientSecurity => {
            let missing = "a client certificate is missing (pass cert= and key=), or there is ";
            return refused(alert, &[missing, NOTHING_IN_COMMON].concat());
        }
        Alert::ProtocolVersion => NO_VERSION,
        Alert::UnrecognisedName => {
            "it has no certificate for this host name: check the URI, or pass the name as server_hostname="
        }
        Alert::CertificateRequired | Alert::NoCertificate => "it requires a client certificate: pass cert= and key=",
        Alert::UnknownCA => "it does not trust the authority that has issued the certificate of this end",
        Alert::CertificateExpired => "the certificate of this end has expired: renew it",
        Alert::CertificateRevoked => "the certificate of this end was revoked: have it issued anew",
        Alert::BadCertificate | Alert::UnsupportedCertificate | Alert::CertificateUnknown | Alert::AccessDenied => {
            "it does not accept the certificate of this end, or that there is none: its logs may show why"
        }
        Alert::NoApplicationProtocol => "it supports none of the protocols in alpn=",
        Alert::BadRecordMac | Alert::DecryptError => "a record or signature was modified in transit",
        _ => "its logs may show why",
    };
    refused(alert, reason)
}

fn refused(alert: Alert, reason: &str) -> String {
    format!("the peer refused (TLS alert: {}): {reason}", words(&alert))
}

/// Converts the name of an enum variant, such as `UnknownCA`, to words.
fn words(case: &impl Debug) -> String {
    let name = format!("{case:?}");
    let mut words: Vec<String> = Vec::new();
    let mut last = ' ';
    for letter in name.chars() {
        match words.last_mut() {
            Some(word) if !letter.is_uppercase() || last.is_uppercase() => word.push(letter),
            _ => words.push(letter.into()),
        }
        last = letter;
    }
    let is_initials = |word: &String| word.len() > 1 && word.chars().all(|letter| letter.is_uppercase());
    let plain = words.iter().map(|word| if is_initials(word) { word.clone() } else { word.to_lowercase() });
    plain.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Checks that a text contains no name of a type or variant, such as `UnknownIssuer` or `Other(OtherError)`.
    fn check(text: &str) {
        let is_name = |word: &str| {
            let mut letters = word.chars().skip_while(|letter| !letter.is_lowercase());
            word.starts_with(char::is_uppercase) && letters.any(char::is_uppercase) && !word.starts_with("ChaCha")
        };
        assert!(!text.split(|letter: char| !letter.is_alphanumeric()).any(is_name), "{text}");
    }

    #[test]
    fn variant_names_become_words() {
        for (name, expected) in
            [("HandshakeFailure", "handshake failure"), ("UnknownCA", "unknown CA"), ("Unknown(99)", "unknown(99)")]
        {
            struct Case(&'static str);
            impl Debug for Case {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str(self.0)
                }
            }
            assert_eq!(words(&Case(name)), expected);
        }
    }

    #[test]
    fn every_certificate_error_has_a_description() {
        use webpki::Error as X;
        for fault in [
            X::BadDerTime,
            X::CaUsedAsEndEntity,
            X::EndEntityUsedAsCa,
            X::ExtensionValueInvalid,
            X::MalformedExtensions,
            X::MaximumPathDepthExceeded,
            X::MaximumSignatureChecksExceeded,
            X::NameConstraintViolation,
            X::PathLenConstraintViolated,
            X::SignatureAlgorithmMismatch,
            X::UnsupportedCertVersion,
            X::UnsupportedCriticalExtension,
        ] {
            let (_, text) = describe_certificate(&CertificateError::Other(rustls::OtherError(Arc::new(fault))));
            check(&text);
            assert!(text.contains("issued") || text.contains("ca=") || text.contains("send"), "{text}");
        }
        for fault in [
            CertificateError::BadEncoding,
            CertificateError::BadSignature,
            CertificateError::Expired,
            CertificateError::NotValidYet,
            CertificateError::Revoked,
            CertificateError::UnknownRevocationStatus,
            CertificateError::ApplicationVerificationFailure,
        ] {
            check(&describe_certificate(&fault).1);
        }
    }

    #[test]
    fn every_handshake_error_has_a_description() {
        use rustls::{ContentType, Error as E, PeerMisbehaved};
        for alert in 0..=u8::MAX {
            check(&describe_handshake(&E::AlertReceived(Alert::from(alert))));
        }
        for error in [
            E::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon),
            E::PeerIncompatible(PeerIncompatible::ExtendedMasterSecretExtensionRequired),
            E::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13),
            E::PeerMisbehaved(PeerMisbehaved::SelectedUnofferedKxGroup),
            E::InvalidMessage(InvalidMessage::InvalidContentType),
            E::InvalidMessage(InvalidMessage::MissingData("ServerHelloPayload")),
            E::InappropriateMessage { expect_types: vec![], got_type: ContentType::Alert },
            E::DecryptError,
            E::PeerSentOversizedRecord,
            E::NoApplicationProtocol,
        ] {
            check(&describe_handshake(&error));
        }
    }

    #[test]
    fn durations_use_a_suitable_unit() {
        let shown = [0, 119, 120, 7199, 7200, 172_799, 172_800].map(span);
        assert_eq!(shown, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 days"]);
    }
}
