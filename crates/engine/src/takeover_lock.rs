//! Engines with the same handoff path start one after the other: of two that ask the same engine for its listeners only
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

/// No other engine with this handoff path starts, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Locked: the system unlocks it if this process dies.
    file: File,
    path: PathBuf,
}

/// Waits until no other engine with this handoff path is starting, and calls `check` between two looks.
///
/// # Errors
/// One is, for too long; there can be no file beside the path; or the error of `check`.
pub(crate) fn take(handoff: &Path, check: impl Fn() -> io::Result<()>) -> io::Result<Turn> {
    take_within(handoff, PATIENCE, check)
}

fn take_within(handoff: &Path, most: Duration, check: impl Fn() -> io::Result<()>) -> io::Result<Turn> {
    let mut name = handoff.as_os_str().to_owned();
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
            let text = format!("handoff: another engine has been starting for {most:?}: {} is locked", path.display());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        check()?;
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
        let first = take(&path, || Ok(())).unwrap();
        let refused = take_within(&path, Duration::from_millis(50), || Ok(())).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        assert!(refused.to_string().contains("another engine has been starting"), "{refused}");
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || take(&path, || Ok(()))
        });
        drop(first);
        let second = waiting.join().unwrap().unwrap();
        assert!(second.path.exists());
        drop(second);
        assert!(!path.with_extension("lock").exists());
    }

    #[test]
    fn the_wait_ends_with_the_error_of_the_check() {
        let path = std::env::temp_dir().join(format!("wirespeed-{}-checked", std::process::id()));
        let first = take(&path, || Ok(())).unwrap();
        let error = take(&path, || Err(io::ErrorKind::Interrupted.into())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
        drop(first);
    }

    #[test]
    fn a_lock_file_that_is_a_symbolic_link_is_refused() {
        let path = std::env::temp_dir().join(format!("wirespeed-{}-linked", std::process::id()));
        let (lock, target) = (path.with_extension("lock"), path.with_extension("target"));
        for exists in [false, true] {
            if exists {
                std::fs::write(&target, "kept").unwrap();
            }
            std::os::unix::fs::symlink(&target, &lock).unwrap();
            let refused = take(&path, || Ok(())).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::LOOP.raw_os_error()), "{refused}");
            assert_eq!(std::fs::read_to_string(&target).ok(), exists.then(|| "kept".to_owned()));
            std::fs::remove_file(&lock).unwrap();
        }
        std::fs::remove_file(&target).unwrap();
    }
}
