//! The operating system's authorities, read again when their files have changed.

use std::env;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;

use super::{Error, Stamp};

/// Minimum time between two checks of the files in the folders, of which some systems have hundreds.
const LOOK: Duration = Duration::from_secs(1);

type Roots = Arc<[CertificateDer<'static>]>;

/// The files and folders with the certificates of authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Places {
    file: Option<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Places {
    /// Returns the places that rustls-native-certs reads.
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
        if names.is_empty() { "any place that is known".to_owned() } else { names.join(", ") }
    }
}

struct Known {
    places: Places,
    stamp: Stamp,
    inside: Stamp,
    looked_inside: Instant,
    number: u64,
    /// `None`: not read yet.
    roots: Option<Roots>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// Returns a number that changes when the files of the system's authorities change: immediately for a file or
/// folder itself, within a second for a file in a folder.
pub fn authorities() -> u64 {
    look().0
}

/// Compares the files with the last check. The lock is not held during the system calls: in a child process that
/// another thread forks meanwhile, it would never be released.
fn look() -> (u64, Option<Roots>) {
    let (places, now) = (Places::now(), Instant::now());
    let stamp = places.stamp();
    let is_same = |known: &&mut Known| known.places == places && known.stamp == stamp;
    if let Some(known) = lock().as_mut().filter(is_same)
        && now.duration_since(known.looked_inside) < LOOK
    {
        return (known.number, known.roots.clone());
    }
    let inside = places.stamp_inside();
    let mut known = lock();
    if let Some(known) = known.as_mut().filter(is_same).filter(|known| known.inside == inside) {
        known.looked_inside = now;
        return (known.number, known.roots.clone());
    }
    let number = known.as_ref().map_or(1, |known| known.number + 1);
    *known = Some(Known { places, stamp, inside, looked_inside: now, number, roots: None });
    (number, None)
}

/// Returns the system's current authorities.
pub(super) fn roots() -> Result<Roots, Error> {
    let (number, roots) = look();
    if let Some(roots) = roots {
        return Ok(roots);
    }
    let loaded = rustls_native_certs::load_native_certs();
    if loaded.certs.is_empty() {
        let faults: String = loaded.errors.iter().take(3).map(|error| format!("; {error}")).collect();
        return Err(Error::authorities(format_args!("there is no certificate in {}{faults}", Places::now().names())));
    }
    let roots: Roots = loaded.certs.into();
    if let Some(known) = lock().as_mut().filter(|known| known.number == number) {
        known.roots = Some(Arc::clone(&roots));
    }
    Ok(roots)
}

fn lock() -> std::sync::MutexGuard<'static, Option<Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}
