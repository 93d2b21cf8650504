//! Keys of servers.

use std::fmt;
use std::sync::Arc;

use walla_runtime::RemoteError;

/// Where the key of a server comes from. It is read before each request, and sent only to the
/// server, in the header `Authorization`. No log, trace, error or saved game contains it.
#[derive(Clone)]
pub struct ApiKey {
    /// For `Debug`.
    source: Arc<str>,
    read: Arc<dyn Fn() -> Result<String, String> + Send + Sync>,
}

impl ApiKey {
    /// The value of an environment variable.
    pub fn from_env(variable: impl Into<Arc<str>>) -> Self {
        let variable = variable.into();
        let source = format!("from_env({variable:?})").into();
        let read = move || {
            std::env::var(&*variable).map_err(|error| {
                let reason = match error {
                    std::env::VarError::NotPresent => "is not set",
                    std::env::VarError::NotUnicode(_) => "is not UTF-8",
                };
                format!("the environment variable {variable} {reason}")
            })
        };
        Self { source, read: Arc::new(read) }
    }

    /// The result of a function, for instance one that reads a file or a key store. It runs on the
    /// thread of the remote engine, and delays its replies while it runs.
    pub fn from_fn(key: impl Fn() -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self { source: "from_fn(..)".into(), read: Arc::new(key) }
    }

    /// The key, for the header.
    ///
    /// # Errors
    /// [`RemoteError::NoKey`] with the reason, without the key.
    pub(crate) fn read(&self) -> Result<String, RemoteError> {
        let key = (self.read)().map_err(RemoteError::NoKey)?;
        if key.is_empty() || key.bytes().any(|byte| !(b'!'..=b'~').contains(&byte)) {
            let reason = "the key is empty, or contains white space or control characters";
            return Err(RemoteError::NoKey(reason.into()));
        }
        Ok(key)
    }
}

/// Without the key.
impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey::{}", self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked_and_not_shown() {
        let key = ApiKey::from_fn(|| Ok("sk-secret".into()));
        assert_eq!(key.read(), Ok("sk-secret".into()));
        assert!(!format!("{key:?}").contains("secret"));
        for bad in ["", "sk secret", "sk-secret\n", "sk-\u{e9}"] {
            let error = ApiKey::from_fn(|| Ok(bad.into())).read().unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let missing = ApiKey::from_env("WALLA_TEST_NO_SUCH_KEY").read().unwrap_err();
        let expected = "no key: the environment variable WALLA_TEST_NO_SUCH_KEY is not set";
        assert_eq!(missing.to_string(), expected);
        let failed = ApiKey::from_fn(|| Err("the key store is locked".into())).read();
        assert_eq!(failed, Err(RemoteError::NoKey("the key store is locked".into())));
    }
}
