//! Detects whether files have changed since they were read.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The identity, size and modification time of files. Two stamps of the same files differ if a file was replaced,
/// written, created or removed in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp(Vec<Option<[i64; 5]>>);

impl Stamp {
    /// Examines the files, following links.
    ///
    /// Take the stamp before reading the files: a later stamp then differs if they changed meanwhile.
    pub fn of<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Self {
        let of_one = |path: P| path.as_ref().metadata().ok().as_ref().map(of);
        Self(paths.into_iter().map(of_one).collect())
    }
}

fn of(file: &Metadata) -> [i64; 5] {
    // The numbers are only compared, so wrapping is harmless.
    [file.dev().cast_signed(), file.ino().cast_signed(), file.len().cast_signed(), file.mtime(), file.mtime_nsec()]
}
