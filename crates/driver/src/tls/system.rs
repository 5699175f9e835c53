//! The operating system's authorities, read again when their files have changed.

use std::env;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;

use super::{Error, Stamp};

/// Minimum time between two checks of the files in the folders, of which some systems have hundreds.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

type Roots = Arc<[CertificateDer<'static>]>;

/// The files and folders with the certificates of authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CertificatePaths {
    file: Option<PathBuf>,
    folders: Vec<PathBuf>,
}

impl CertificatePaths {
    /// Returns the paths that rustls-native-certs reads.
    fn now() -> Self {
        let file = env::var_os("SSL_CERT_FILE").map(PathBuf::from);
        let folders = env::var_os("SSL_CERT_DIR").unwrap_or_default();
        let folders: Vec<_> = env::split_paths(&folders).filter(|path| !path.as_os_str().is_empty()).collect();
        if file.is_some() || !folders.is_empty() {
            return Self { file, folders };
        }
        let found = openssl_probe::probe();
        Self { file: found.cert_file, folders: found.cert_dir }
    }

    /// Stamps the file and the folders. A folder changes when a file in it is created, removed or replaced.
    fn stamp(&self) -> Stamp {
        Stamp::of(self.file.iter().chain(&self.folders))
    }

    /// Stamps the files in the folders, which may be written, or be links to files that are written.
    fn stamp_inside(&self) -> Stamp {
        let mut paths: Vec<_> = self
            .folders
            .iter()
            .filter_map(|folder| folder.read_dir().ok())
            .flat_map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())))
            .collect();
        paths.sort_unstable();
        Stamp::of(paths)
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.file.iter().chain(&self.folders).map(|path| path.display().to_string()).collect();
        if names.is_empty() { "any known place".to_owned() } else { names.join(", ") }
    }
}

struct CachedRoots {
    paths: CertificatePaths,
    stamp: Stamp,
    inside: Stamp,
    checked_inside: Instant,
    number: u64,
    /// `None`: not read yet.
    roots: Option<Roots>,
}

static CACHE: Mutex<Option<CachedRoots>> = Mutex::new(None);

/// Returns a number that changes when the files of the system's authorities change: immediately for a file or
/// folder itself, within a second for a file in a folder.
pub fn authorities() -> u64 {
    check().0
}

/// Compares the files with the last check. The lock is not held during the system calls: in a child process that
/// another thread forks meanwhile, it would never be released.
fn check() -> (u64, Option<Roots>) {
    let (paths, now) = (CertificatePaths::now(), Instant::now());
    let stamp = paths.stamp();
    let is_same = |cached: &&mut CachedRoots| cached.paths == paths && cached.stamp == stamp;
    if let Some(cached) = lock().as_mut().filter(is_same)
        && now.duration_since(cached.checked_inside) < CHECK_INTERVAL
    {
        return (cached.number, cached.roots.clone());
    }
    let inside = paths.stamp_inside();
    let mut cached = lock();
    if let Some(cached) = cached.as_mut().filter(is_same).filter(|cached| cached.inside == inside) {
        cached.checked_inside = now;
        return (cached.number, cached.roots.clone());
    }
    let number = cached.as_ref().map_or(1, |cached| cached.number + 1);
    *cached = Some(CachedRoots { paths, stamp, inside, checked_inside: now, number, roots: None });
    (number, None)
}

/// Returns the system's current authorities.
pub(super) fn roots() -> Result<Roots, Error> {
    let (number, roots) = check();
    if let Some(roots) = roots {
        return Ok(roots);
    }
    let loaded = rustls_native_certs::load_native_certs();
    if loaded.certs.is_empty() {
        let faults: String = loaded.errors.iter().take(3).map(|error| format!("; {error}")).collect();
        return Err(Error::authorities(format_args!(
            "there is no certificate in {}{faults}",
            CertificatePaths::now().names()
        )));
    }
    let roots: Roots = loaded.certs.into();
    if let Some(cached) = lock().as_mut().filter(|cached| cached.number == number) {
        cached.roots = Some(Arc::clone(&roots));
    }
    Ok(roots)
}

fn lock() -> std::sync::MutexGuard<'static, Option<CachedRoots>> {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}
