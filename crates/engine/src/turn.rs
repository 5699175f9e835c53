//! Engines with the same handover path start one after the other: of two that ask the same engine for its listeners only
//! one can have them, and the other one takes over from that.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long another engine may take to start: it waits for the one before, and for its broker's thread.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between looks whether it has.
const PAUSE: Duration = Duration::from_millis(20);

/// No other engine with this handover path starts, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Locked: the system unlocks it if this process dies.
    file: File,
    path: PathBuf,
}

/// Waits until no other engine with this handover path is starting.
///
/// # Errors
/// One is, for too long; or there can be no file beside the path.
pub(crate) fn take(handover: &Path) -> io::Result<Turn> {
    take_within(handover, PATIENCE)
}

fn take_within(handover: &Path, most: Duration) -> io::Result<Turn> {
    let mut name = handover.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    let deadline = Instant::now() + most;
    loop {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(NO_LINK)
            .open(&path)?;
        match file.try_lock() {
            // Unless the engine before has removed it meanwhile.
            Ok(()) if is_at(&file, &path) => return Ok(Turn { file, path }),
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) | Err(TryLockError::WouldBlock) => {}
        }
        if Instant::now() >= deadline {
            let text = format!("handover: another engine has been starting for {most:?}: {} is locked", path.display());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Symbolic links are refused: another user could make one that names any file.
#[allow(clippy::cast_possible_wrap, reason = "flags of open(2) are an `int` there")]
const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

impl Drop for Turn {
    fn drop(&mut self) {
        if is_at(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path); // it may stay: it is unlocked with the file
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;

    #[test]
    fn engines_start_one_after_the_other() {
        let path = std::env::temp_dir().join(format!("wirespeed-{}-turn", std::process::id()));
        let first = take(&path).unwrap();
        let refused = take_within(&path, Duration::from_millis(50)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        assert!(refused.to_string().contains("another engine has been starting"), "{refused}");
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || take(&path)
        });
        drop(first);
        let second = waiting.join().unwrap().unwrap();
        assert!(second.path.exists());
        drop(second);
        assert!(!path.with_extension("lock").exists());
    }
}
