//! `wirespeed.engine.JWT`: token verification, configured from Python.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use wirespeed_engine::auth::{Algorithm, Error, Jwt, JwtOptions, Key, Source};

use super::arguments::count;

/// Verifies tokens for the engines and routes that use it.
#[pyclass(frozen, name = "JWT", module = "wirespeed.engine")]
pub(crate) struct PyJwt {
    pub(crate) jwt: Arc<Jwt>,
}

/// Converts a key argument: a secret, or a public key as PEM.
fn key(object: &Bound<'_, PyAny>) -> PyResult<Key> {
    let bytes = match object.extract::<String>() {
        Ok(text) => text.into_bytes(),
        Err(_) => object
            .extract::<Vec<u8>>()
            .map_err(|_| PyTypeError::new_err("key must be str or bytes: a secret, or a public key as PEM"))?,
    };
    let pem = bytes.windows(10).any(|window| window == b"-----BEGIN");
    Ok(if pem { Key::Pem(bytes) } else { Key::Secret(bytes) })
}

fn names(name: &str, object: Option<Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let Some(object) = object else { return Ok(Vec::new()) };
    if let Ok(one) = object.extract::<String>() {
        return Ok(vec![one]);
    }
    object.extract().map_err(|_| PyTypeError::new_err(format!("{name} must be a str or several")))
}

fn error(error: &Error) -> PyErr {
    match error {
        Error::Option { .. } => PyValueError::new_err(error.to_string()),
        _ => PyOSError::new_err(error.to_string()),
    }
}

#[pymethods]
impl PyJwt {
    #[new]
    #[pyo3(signature = (key = None, algorithms = None, *, jwks = None, previous_key = None, key_id = None, previous_key_id = None, issuer = None, audience = None, leeway = 30, required = None, max_token = 8192, cookie = None, header = true, query = None, subprotocol = None))]
    #[allow(clippy::too_many_arguments)] // keyword-only but for the first two
    fn new(
        key: Option<Bound<'_, PyAny>>,
        algorithms: Option<Bound<'_, PyAny>>,
        jwks: Option<PathBuf>,
        previous_key: Option<Bound<'_, PyAny>>,
        key_id: Option<String>,
        previous_key_id: Option<String>,
        issuer: Option<String>,
        audience: Option<Bound<'_, PyAny>>,
        leeway: i128,
        required: Option<Vec<String>>,
        max_token: i128,
        cookie: Option<String>,
        header: bool,
        query: Option<String>,
        subprotocol: Option<String>,
    ) -> PyResult<Self> {
        let algorithms = names("algorithms", algorithms)?
            .iter()
            .map(|name| name.parse::<Algorithm>().map_err(|failed| PyValueError::new_err(failed.to_string())))
            .collect::<PyResult<Vec<_>>>()?;
        let key = match (key, jwks) {
            (Some(given), None) => self::key(&given)?,
            (None, Some(path)) => Key::Jwks(path),
            _ => {
                return Err(PyTypeError::new_err(
                    "JWT needs a key, or the path of a set of keys as jwks, and not both",
                ));
            }
        };
        let mut options = JwtOptions::new(algorithms, key);
        options.previous_key = previous_key.as_ref().map(self::key).transpose()?;
        options.key_id = key_id;
        options.previous_key_id = previous_key_id;
        options.issuer = issuer;
        options.audience = names("audience", audience)?;
        options.leeway = count("leeway", leeway, 0)?;
        options.max_token = usize::try_from(count("max_token", max_token, 1)?).unwrap_or(usize::MAX);
        if let Some(required) = required {
            options.required = required;
        }
        options.sources = [
            cookie.map(Source::Cookie),
            header.then_some(Source::Bearer),
            query.map(Source::Query),
            subprotocol.map(Source::Subprotocol),
        ]
        .into_iter()
        .flatten()
        .collect();
        if options.sources.is_empty() {
            return Err(PyValueError::new_err(
                "there is nowhere to look for a token: header, cookie, query or subprotocol",
            ));
        }
        let jwt = Jwt::new(options).map_err(|failed| error(&failed))?;
        Ok(Self { jwt: Arc::new(jwt) })
    }

    // Shows neither keys nor their paths.
    fn __repr__(&self) -> &'static str {
        "<JWT>"
    }
}
