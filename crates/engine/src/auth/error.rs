//! The error of a wrong configuration. Its text contains no secret.

use std::fmt;
use std::path::{Path, PathBuf};

/// An invalid configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An option has an invalid value.
    Option {
        /// The option's name.
        name: &'static str,
        /// The reason.
        problem: String,
    },
    /// The file of keys cannot be used.
    KeyFile {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
}

impl Error {
    pub(super) fn option(name: &'static str, problem: impl Into<String>) -> Self {
        Self::Option { name, problem: problem.into() }
    }

    pub(super) fn key_file(path: &Path, problem: impl Into<String>) -> Self {
        Self::KeyFile { path: path.to_owned(), problem: problem.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option { name, problem } => write!(f, "{name}: {problem}"),
            Self::KeyFile { path, problem } => write!(f, "key file {}: {problem}", path.display()),
        }
    }
}

impl std::error::Error for Error {}
