//! Keys from a file that holds a JWK set (RFC 7517), and the watch over it.

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

/// A hundred times the size of the sets that large providers publish.
const MAX_FILE: u64 = 1 << 20;
/// A key of a set.
#[derive(Debug)]
pub(super) struct SetKey {
    pub(super) id: Option<String>,
    pub(super) key: VerifyingKey,
}

/// The keys in a file. Those that were read last are used until others can be read.
#[derive(Debug)]
pub(super) struct KeyFile {
    path: PathBuf,
    algorithms: Vec<Algorithm>,
    keys: RwLock<Arc<[SetKey]>>,
    watch: Mutex<Watch>,
}

#[derive(Debug, Default)]
struct Watch {
    /// When the file was looked at last, unix seconds.
    looked: Option<u64>,
    /// What the file was like when `keys` were read from it; `None`: the last attempt failed.
    stamp: Option<Stamp>,
    /// Why the last attempt failed.
    error: Option<Error>,
}

impl KeyFile {
    /// Reads the file, whose keys may be used with these algorithms.
    pub(super) fn open(path: &Path, algorithms: &[Algorithm]) -> Result<Self, Error> {
        let (keys, stamp) = read(path, algorithms)?;
        if keys.is_empty() {
            return Err(Error::key_file(path, "there are no keys in it"));
        }
        Ok(Self {
            path: path.to_owned(),
            algorithms: algorithms.to_owned(),
            keys: RwLock::new(keys.into()),
            watch: Mutex::new(Watch { looked: None, stamp: Some(stamp), error: None }),
        })
    }

    pub(super) fn keys(&self) -> Arc<[SetKey]> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks at the file unless that was done in this second, reads it if it has changed; whether there are new
    /// keys. After a failure the file is read at each look.
    pub(super) fn refresh(&self, now: u64) -> Result<bool, Error> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.looked == Some(now) {
            return watch.error.clone().map_or(Ok(false), Err);
        }
        watch.looked = Some(now);
        // Where that fails, so does reading, which says why.
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

    /// Why the keys in use are not those of the file.
    pub(super) fn error(&self) -> Option<Error> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).error.clone()
    }
}

/// What tells one content of a file from another without reading it.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
    /// Device, inode and the time of the last change: a file that was replaced, or written to with its old time of
    /// modification put back.
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
    // Before it is opened: opening a pipe would wait for a writer.
    if !fs::metadata(path).map_err(|error| refuse(error.to_string()))?.is_file() {
        return Err(refuse("not a regular file".to_owned()));
    }
    let file = File::open(path).map_err(|error| refuse(error.to_string()))?;
    // Of the open file and before reading: a change meanwhile gives another stamp at the next look.
    let stamp = Stamp::of(&file.metadata().map_err(|error| refuse(error.to_string()))?);
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| refuse(error.to_string()))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(refuse(format!("longer than {MAX_FILE} bytes")));
    }
    Ok((parse(&bytes, algorithms).map_err(refuse)?, stamp))
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

/// The keys of a set that may be used. Others are passed over, as RFC 7517 section 5 has it; but a set of which
/// nothing can be used is a mistake, whereas an empty one withdraws all keys.
fn parse(bytes: &[u8], algorithms: &[Algorithm]) -> Result<Vec<SetKey>, String> {
    // Not the text of the error, which may show a value: of a key, that is.
    let set: Set = serde_json::from_slice(bytes).map_err(|error| {
        format!("not a JWK set: {:?} error in line {}, column {}", error.classify(), error.line(), error.column())
    })?;
    let given = set.keys.len();
    let keys: Vec<SetKey> = set.keys.into_iter().filter_map(|value| usable(value, algorithms)).collect();
    if keys.is_empty() && given > 0 {
        return Err("no key in it is for verifying with the configured algorithms".to_owned());
    }
    Ok(keys)
}

/// How many keys of a set may be used.
#[cfg(feature = "fuzzing")]
pub(crate) fn count(bytes: &[u8], algorithms: &[Algorithm]) -> Result<usize, String> {
    parse(bytes, algorithms).map(|keys| keys.len())
}

fn usable(mut value: Value, algorithms: &[Algorithm]) -> Option<SetKey> {
    // RFC 7517 section 4.4: the algorithm that the key is intended for. Taken out, as the library knows fewer names.
    let own = match value.as_object_mut()?.remove("alg") {
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
        .filter(|&algorithm| own.is_none_or(|own| own == algorithm) && curve_fits(algorithm))
        .collect();
    let key = VerifyingKey::fitting(DecodingKey::from_jwk(&jwk).ok()?, &allowed)?;
    Some(SetKey { id: jwk.common.key_id, key })
}
