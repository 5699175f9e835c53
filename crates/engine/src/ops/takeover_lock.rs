//! Serializes the start of engines with the same handoff path: only one engine can take the listeners of the old one,
//! and the next one then takes over from that.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The maximum time for the start of another engine, which waits for the previous engine and for its broker's thread.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The time between two attempts to take the lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// While this exists, no other engine with the same handoff path starts.
#[derive(Debug)]
pub(crate) struct TakeoverLock {
    /// The locked file. The system unlocks it when this process dies.
    file: File,
    path: PathBuf,
}

/// Waits until no other engine with this handoff path is starting. Calls `check` between two attempts.
///
/// # Errors
/// Another engine takes too long to start, the lock file cannot be created, or `check` fails.
pub(crate) fn acquire(handoff: &Path, check: impl Fn() -> io::Result<()>) -> io::Result<TakeoverLock> {
    acquire_within(handoff, TIMEOUT, check)
}

fn acquire_within(handoff: &Path, timeout: Duration, check: impl Fn() -> io::Result<()>) -> io::Result<TakeoverLock> {
    let mut name = handoff.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    let deadline = Instant::now() + timeout;
    loop {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(NO_FOLLOW)
            .open(&path)?;
        match file.try_lock() {
            // Unless the previous engine has removed the file meanwhile.
            Ok(()) if is_same_file(&file, &path) => return Ok(TakeoverLock { file, path }),
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) | Err(TryLockError::WouldBlock) => {}
        }
        if Instant::now() >= deadline {
            let text =
                format!("handoff: another engine has been starting for {timeout:?}: {} is locked", path.display());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        check()?;
        std::thread::sleep(RETRY_INTERVAL);
    }
}

/// Refuses symbolic links, because another user could create one that points to any file.
#[allow(clippy::cast_possible_wrap, reason = "flags of open(2) are an `int` current")]
const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;

fn is_same_file(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(current)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (current.dev(), current.ino())
}

impl Drop for TakeoverLock {
    fn drop(&mut self) {
        if is_same_file(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path); // on failure an unlocked file remains
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;

    #[test]
    fn second_engine_waits_for_the_first() {
        let path = std::env::temp_dir().join(format!("wirespeed-{}-turn", std::process::id()));
        let first = acquire(&path, || Ok(())).unwrap();
        let refused = acquire_within(&path, Duration::from_millis(50), || Ok(())).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        assert!(refused.to_string().contains("another engine has been starting"), "{refused}");
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || acquire(&path, || Ok(()))
        });
        drop(first);
        let second = waiting.join().unwrap().unwrap();
        assert!(second.path.exists());
        drop(second);
        assert!(!path.with_extension("lock").exists());
    }

    #[test]
    fn error_of_the_check_ends_the_wait() {
        let path = std::env::temp_dir().join(format!("wirespeed-{}-checked", std::process::id()));
        let first = acquire(&path, || Ok(())).unwrap();
        let error = acquire(&path, || Err(io::ErrorKind::Interrupted.into())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
        drop(first);
    }

    #[test]
    fn symbolic_link_as_lock_file_is_refused() {
        let path = std::env::temp_dir().join(format!("wirespeed-{}-linked", std::process::id()));
        let (lock, target) = (path.with_extension("lock"), path.with_extension("target"));
        for exists in [false, true] {
            if exists {
                std::fs::write(&target, "kept").unwrap();
            }
            std::os::unix::fs::symlink(&target, &lock).unwrap();
            let refused = acquire(&path, || Ok(())).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::LOOP.raw_os_error()), "{refused}");
            assert_eq!(std::fs::read_to_string(&target).ok(), exists.then(|| "kept".to_owned()));
            std::fs::remove_file(&lock).unwrap();
        }
        std::fs::remove_file(&target).unwrap();
    }
}
