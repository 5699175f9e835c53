//! NATS credentials that sign a challenge of the server: a file with a JWT and a seed (`creds`), or with a seed
//! (`nkey`).
//! The file is read at each connection, because JWTs expire and tools replace the file.

use std::fs;

use async_nats::Auth;
use nkeys::KeyPair;

use crate::address::Credentials;

/// Returns the reply to a server's challenge.
///
/// # Errors
/// The file cannot be read or has no such credentials; the text names the file, and shows nothing of its content.
pub(super) fn answer(credentials: &Credentials, challenge: &[u8]) -> Result<Auth, String> {
    let (path, wants_jwt) = match credentials {
        Credentials::Creds(path) => (path, true),
        Credentials::Nkey(path) => (path, false),
    };
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lacks = |what: &str| format!("{}: it has no {what}", path.display());
    let pair =
        seed(&text).and_then(|seed| KeyPair::from_seed(seed).ok()).ok_or_else(|| lacks("seed of a user (SU...)"))?;
    let mut auth = Auth::new();
    match wants_jwt {
        true => auth.jwt = Some(jwt(&text).ok_or_else(|| lacks("JWT of a user"))?.to_owned()),
        false => auth.nkey = Some(pair.public_key()),
    }
    auth.signature = Some(pair.sign(challenge).map_err(|error| format!("{}: {error}", path.display()))?);
    Ok(auth)
}

/// Returns the line with the seed of a user, which begins with `S` (seed) and `U` (user), in base32.
fn seed(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| line.starts_with("SU"))
}

/// Returns the line with the JWT, which follows its header.
fn jwt(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.contains("BEGIN NATS USER JWT"))?;
    lines.find(|line| !line.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn written(name: &str, text: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("wirespeed-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn credentials_are_read_from_files() {
        let seed = KeyPair::new_user().seed().unwrap();
        let creds = format!(
            "-----BEGIN NATS USER JWT-----\nabc.def.ghi\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        let path = written("creds", &creds);
        let auth = answer(&Credentials::Creds(path.clone()), b"challenge").unwrap();
        let pair = KeyPair::from_seed(&seed).unwrap();
        assert_eq!((auth.jwt.as_deref(), auth.nkey), (Some("abc.def.ghi"), None));
        pair.verify(b"challenge", &auth.signature.unwrap()).unwrap();
        let nkey = answer(&Credentials::Nkey(path.clone()), b"challenge").unwrap();
        assert_eq!((nkey.jwt, nkey.nkey), (None, Some(pair.public_key())));
        for (text, part) in [("", "seed of a user"), (&seed[..10], "seed of a user"), (&seed[..], "JWT of a user")] {
            fs::write(&path, text).unwrap();
            let error = answer(&Credentials::Creds(path.clone()), b"").err().unwrap();
            assert!(error.contains(part) && !error.contains(&seed), "{error}");
        }
        fs::remove_file(&path).unwrap();
        assert!(answer(&Credentials::Nkey(path), b"").err().unwrap().contains("No such file"));
    }
}
