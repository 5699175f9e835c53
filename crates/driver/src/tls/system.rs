//! The operating system's authorities, which are read again when their files have changed.

use std::env;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;

use super::{Error, Stamp};

/// Between two looks at what is in the folders: some systems have hundreds of files there.
const LOOK: Duration = Duration::from_secs(1);

type Roots = Arc<[CertificateDer<'static>]>;

/// The files and folders with the certificates of authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Places {
    file: Option<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Places {
    /// Where rustls-native-certs reads.
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

    /// A folder changes when a file in it is made, removed or replaced.
    fn stamp(&self) -> Stamp {
        Stamp::of(self.file.iter().chain(&self.folders))
    }

    /// A file in a folder may be written, or may be a link to one that is.
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
    /// `None`: to be read.
    roots: Option<Roots>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// Returns a number that is another one once the files of the system's authorities have changed: at once for a file or
/// folder itself, within a second for what is in a folder.
pub fn authorities() -> u64 {
    look().0
}

/// Compares the files with those of the last look. It does not hold the lock meanwhile: in a child that another thread
/// has forked then, nothing would unlock it.
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

/// The system's authorities, as their files have them now.
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
