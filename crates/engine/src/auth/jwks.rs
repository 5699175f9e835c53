//! Reads keys from a file with a JWK set (RFC 7517), again when the file changes.

use std::fs::{self, File, Metadata};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use serde::Deserialize;
use serde_json::Value;

use super::algorithm::Algorithm;
use super::error::Error;
use super::keys::VerifyingKey;

/// The maximum size of the file in bytes: a hundred times the sets that large providers publish.
const MAX_FILE_SIZE: u64 = 1 << 20;
/// A key of a set.
#[derive(Debug)]
pub(super) struct SetKey {
    pub(super) id: Option<String>,
    pub(super) key: VerifyingKey,
}

/// The keys of a file. The last keys that could be read stay in use until newer ones can be read.
#[derive(Debug)]
pub(super) struct KeyFile {
    path: PathBuf,
    algorithms: Vec<Algorithm>,
    keys: RwLock<Arc<[SetKey]>>,
    watch: Mutex<Watch>,
}

#[derive(Debug, Default)]
struct Watch {
    /// The unix second of the last check.
    checked_at: Option<u64>,
    /// The state of the file from which `keys` were read; `None` if the last attempt failed.
    stamp: Option<Stamp>,
    /// The error of the last attempt.
    error: Option<Error>,
}

impl KeyFile {
    /// Reads the file. Its keys are used with these algorithms only.
    pub(super) fn open(path: &Path, algorithms: &[Algorithm]) -> Result<Self, Error> {
        let (keys, stamp) = read(path, algorithms)?;
        if keys.is_empty() {
            return Err(Error::key_file(path, "there are no keys in it"));
        }
        Ok(Self {
            path: path.to_owned(),
            algorithms: algorithms.to_owned(),
            keys: RwLock::new(keys.into()),
            watch: Mutex::new(Watch { checked_at: None, stamp: Some(stamp), error: None }),
        })
    }

    pub(super) fn keys(&self) -> Arc<[SetKey]> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the file if it has changed, and returns whether there are new keys. Checks at most once per second. After
    /// a failure each check reads the file.
    pub(super) fn refresh(&self, now: u64) -> Result<bool, Error> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.checked_at == Some(now) {
            return watch.error.clone().map_or(Ok(false), Err);
        }
        watch.checked_at = Some(now);
        // If this fails, reading fails too and returns the reason.
        let current = fs::metadata(&self.path).ok().map(|metadata| Stamp::of(&metadata));
        if watch.stamp.is_some() && watch.stamp == current {
            return Ok(false);
        }
        match read(&self.path, &self.algorithms) {
            Ok((keys, stamp)) => {
                watch.stamp = Some(stamp);
                watch.error = None;
                *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys.into();
                Ok(true)
            }
            Err(error) => {
                watch.stamp = None;
                watch.error = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Returns the error of the last attempt to read the file, if it failed.
    pub(super) fn error(&self) -> Option<Error> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).error.clone()
    }
}

/// The metadata by which a change of the file is detected.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
    /// Device, inode and ctime. They detect a file that was replaced, or written to with its old modification time
    /// restored.
    #[cfg(unix)]
    inode: (u64, u64, i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt as _;
        Self {
            len: metadata.len(),
            modified: metadata.modified().ok(),
            #[cfg(unix)]
            inode: (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

fn read(path: &Path, algorithms: &[Algorithm]) -> Result<(Vec<SetKey>, Stamp), Error> {
    let refuse = |problem: String| Error::key_file(path, problem);
    // Checked before opening, because opening a pipe would block until a writer opens it.
    if !fs::metadata(path).map_err(|error| refuse(error.to_string()))?.is_file() {
        return Err(refuse("not a regular file".to_owned()));
    }
    let file = File::open(path).map_err(|error| refuse(error.to_string()))?;
    // Taken from the open file and before reading: a change during the read gives another stamp at the next check.
    let stamp = Stamp::of(&file.metadata().map_err(|error| refuse(error.to_string()))?);
    let mut bytes = Vec::new();
    file.take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes).map_err(|error| refuse(error.to_string()))?;
    if bytes.len() as u64 > MAX_FILE_SIZE {
        return Err(refuse(format!("longer than {MAX_FILE_SIZE} bytes")));
    }
    Ok((parse(&bytes, algorithms).map_err(refuse)?, stamp))
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

/// Returns the usable keys of a set and ignores the others, as RFC 7517 section 5 requires. A set without any usable
/// key is an error, but an empty set is valid and withdraws all keys.
fn parse(bytes: &[u8], algorithms: &[Algorithm]) -> Result<Vec<SetKey>, String> {
    // The text of the error is left out, because it may contain parts of a key.
    let set: Set = serde_json::from_slice(bytes).map_err(|error| {
        format!("not a JWK set: {:?} error in line {}, column {}", error.classify(), error.line(), error.column())
    })?;
    let key_count = set.keys.len();
    let keys: Vec<SetKey> = set.keys.into_iter().filter_map(|value| usable(value, algorithms)).collect();
    if keys.is_empty() && key_count > 0 {
        return Err("no key in it is for verifying with the configured algorithms".to_owned());
    }
    Ok(keys)
}

/// Returns the number of usable keys of a set.
#[cfg(feature = "fuzzing")]
pub(crate) fn count(bytes: &[u8], algorithms: &[Algorithm]) -> Result<usize, String> {
    parse(bytes, algorithms).map(|keys| keys.len())
}

fn usable(mut value: Value, algorithms: &[Algorithm]) -> Option<SetKey> {
    // RFC 7517 section 4.4: the algorithm for which the key is intended. Removed, because the library knows fewer
    // names.
    let intended = match value.as_object_mut()?.remove("alg") {
        None | Some(Value::Null) => None,
        Some(named) => Some(Algorithm::named(named.as_str()?)?),
    };
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    let common = &jwk.common;
    if !matches!(common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    if common.key_operations.as_ref().is_some_and(|allowed| !allowed.contains(&KeyOperations::Verify)) {
        return None;
    }
    let curve_fits = |algorithm: Algorithm| match &jwk.algorithm {
        AlgorithmParameters::EllipticCurve(key) => match algorithm {
            Algorithm::ES256 => key.curve == EllipticCurve::P256,
            Algorithm::ES384 => key.curve == EllipticCurve::P384,
            Algorithm::ES512 => key.curve == EllipticCurve::P521,
            _ => false,
        },
        AlgorithmParameters::OctetKeyPair(key) => key.curve == EllipticCurve::Ed25519,
        _ => true,
    };
    let allowed: Vec<Algorithm> = algorithms
        .iter()
        .copied()
        .filter(|&algorithm| intended.is_none_or(|intended| intended == algorithm) && curve_fits(algorithm))
        .collect();
    let key = VerifyingKey::fitting(DecodingKey::from_jwk(&jwk).ok()?, &allowed)?;
    Some(SetKey { id: jwk.common.key_id, key })
}
