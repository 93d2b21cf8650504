//! Options of a remote engine.

use std::fmt;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::dialect::{Dialect, PriorityField};
use crate::key::ApiKey;
use crate::proxy::Proxy;

/// Options of a [`RemoteEngine`](crate::RemoteEngine).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use walla_remote::{ApiKey, Dialect, RemoteOptions};
///
/// let mut options = RemoteOptions::new("https://inference.example.com/v1", "qwen3-32b");
/// options.key = Some(ApiKey::from_env("INFERENCE_KEY"));
/// options.dialect = Dialect::Vllm;
/// options.limits.first_token = Duration::from_secs(2);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct RemoteOptions {
    /// Address of the protocol, up to and including `/v1`. `/chat/completions` is appended.
    pub url: String,
    /// Name of the model on the server.
    pub model: String,
    /// The key. Default: none.
    pub key: Option<ApiKey>,
    /// Software of the server. Default: [`Dialect::OpenAi`].
    pub dialect: Dialect,
    /// How priorities of agents are sent. Default: by the [dialect](Dialect::priority).
    pub priority: Option<PriorityField>,
    /// Further headers of each request. Values are not logged. Default: none.
    pub headers: Vec<(String, String)>,
    /// Further members of each request. They replace members of the same name. Default: none.
    pub extra: Map<String, Value>,
    /// Certificates in PEM, in addition to the system's: for servers with a certificate of
    /// their own. Default: none.
    pub root_certificates: Vec<String>,
    /// Whether plain HTTP is allowed to other machines. To this machine (loopback) it always is.
    /// Default: `false`, because texts and key would be readable on the way.
    pub allow_plain_http: bool,
    /// The proxy of encrypted connections to other machines. Plain HTTP and this machine never have
    /// one. Default: [`Proxy::Environment`].
    pub proxy: Proxy,
    /// Whether system messages may be anywhere, so that observations are system messages. Many
    /// templates refuse that. Default: `false`: observations are user messages with a prefix.
    pub system_anywhere: bool,
    /// Maximum number of requests in progress, each on a separate connection. Further asks wait, by
    /// priority and then by age. Default: 32.
    pub max_requests: u32,
    /// Maximum number of open asks of one client, in progress or waiting. Further ones fail with
    /// [`ReplyError::TooManyAsks`](walla_runtime::ReplyError::TooManyAsks). Default: 4,096.
    pub max_asks: u32,
    /// Maximum bytes of the questions and constraints of all open asks of one client. Default:
    /// 16 MiB.
    pub max_ask_bytes: u64,
    /// Maximum number of agents of one client. Asks of further ones fail with
    /// [`ReplyError::TooManyAgents`](walla_runtime::ReplyError::TooManyAgents). Default: 16,384.
    pub max_agents: u32,
    /// Tokens that a conversation and its reply may have, to decide when the oldest turns are
    /// dropped ([`ContextPolicy`](walla_runtime::ContextPolicy)). Tokens are estimated as a quarter
    /// of the bytes. Default: 8,192.
    pub context_tokens: u32,
    /// Limits of time.
    pub limits: TimeLimits,
    /// Retries of requests that failed before the first token.
    pub retries: Retries,
    /// Limits of size.
    pub sizes: SizeLimits,
}

/// Time limits of a request. Waiting for a free place among
/// [`max_requests`](RemoteOptions::max_requests) does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// Connection, with TLS. Default: 5 s.
    pub connect: Duration,
    /// From the first request of an ask, all retries included, to its first token. Default: 30 s.
    pub first_token: Duration,
    /// From one token to the next. Default: 15 s.
    pub next_token: Duration,
    /// The whole reply, from its first request. Default: 120 s.
    pub reply: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        let (connect, first_token) = (seconds(5), seconds(30));
        Self { connect, first_token, next_token: seconds(15), reply: seconds(120) }
    }
}

/// Retries. A request is repeated only if no token has arrived, after a failed connection and
/// after the status codes 408, 429, 500, 502, 503 and 504.
///
/// The pause before retry n (from 0) is at least `pause_min` 2ⁿ, at most twice that, by chance, so
/// that many programs do not retry at the same time. `Retry-After` of the server counts if it is
/// longer. A pause beyond [`TimeLimits::first_token`] is not made: the ask fails at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Number of retries. Default: 3.
    pub max_retries: u32,
    /// First pause. Default: 250 ms.
    pub pause_min: Duration,
    /// Maximum of the doubled pause. Default: 8 s.
    pub max_pause: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        let (pause_min, max_pause) = (Duration::from_millis(250), Duration::from_secs(8));
        Self { max_retries: 3, pause_min, max_pause }
    }
}

/// Limits of size, which bound the memory that a server can use here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeLimits {
    /// One event of the stream. Default: 256 KiB.
    pub event_bytes: usize,
    /// All bytes of a response. Default: 16 MiB.
    pub response_bytes: usize,
    /// Speech, reasoning and calls of a reply. Default: 256 KiB.
    pub reply_bytes: usize,
    /// A request: persona, conversation, actions, constraint. Default: 4 MiB.
    pub request_bytes: usize,
}

impl Default for SizeLimits {
    fn default() -> Self {
        Self {
            event_bytes: 256 << 10,
            response_bytes: 16 << 20,
            reply_bytes: 256 << 10,
            request_bytes: 4 << 20,
        }
    }
}

/// Options that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The address is not a URL of `http` or `https` with a host.
    #[error("{url:?} is not the address of a server: {reason}")]
    Url {
        /// The address, without user name and password.
        url: String,
        /// The defect.
        reason: String,
    },
    /// Plain HTTP to another machine.
    #[error(
        "{host} would be reached without encryption: use https, or set RemoteOptions::allow_plain_http"
    )]
    PlainHttp {
        /// Host name of the server.
        host: String,
    },
    /// A header that HTTP does not allow.
    #[error("the header {name:?} is not valid")]
    Header {
        /// Its name.
        name: String,
    },
    /// A proxy that cannot be used.
    #[error("the proxy cannot be used: {reason}")]
    Proxy {
        /// The defect, without the address of the proxy, which may contain a password.
        reason: String,
    },
    /// A root certificate that cannot be read.
    #[error("a root certificate cannot be read: {0}")]
    Certificate(String),
    /// No software of a server has this name.
    #[error(
        "unknown software {name:?}: open-ai, vllm, sglang, llama-server, dynamo and walla are known"
    )]
    Dialect {
        /// The name.
        name: String,
    },
    /// A limit is 0.
    #[error("{0} is 0")]
    Zero(&'static str),
    /// TLS cannot be set up.
    #[error("TLS is not available: {0}")]
    Tls(String),
    /// The operating system could not start a thread.
    #[error("a thread cannot be started: {0}")]
    Thread(String),
}

/// Without values of headers and further members, which may be secret.
impl fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteOptions")
            .field("url", &self.url)
            .field("model", &self.model)
            .field("key", &self.key)
            .field("dialect", &self.dialect)
            .field("proxy", &self.proxy)
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("extra", &self.extra.keys().collect::<Vec<_>>())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Checked options.
pub(crate) struct Checked {
    pub url: Url,
    /// Host and port, for errors and logs.
    pub server: std::sync::Arc<str>,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl RemoteOptions {
    /// A server with default options.
    #[must_use]
    pub fn new(url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            model: model.into(),
            key: None,
            dialect: Dialect::default(),
            priority: None,
            headers: Vec::new(),
            extra: Map::new(),
            root_certificates: Vec::new(),
            allow_plain_http: false,
            proxy: Proxy::default(),
            system_anywhere: false,
            max_requests: 32,
            max_asks: 4_096,
            max_ask_bytes: 16 << 20,
            max_agents: 16_384,
            context_tokens: 8_192,
            limits: TimeLimits::default(),
            retries: Retries::default(),
            sizes: SizeLimits::default(),
        }
    }

    pub(crate) fn check(&self) -> Result<Checked, OptionsError> {
        let url = self.checked_url()?;
        let host = url.host_str().unwrap_or_default();
        let server = match url.port_or_known_default() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let header = |(name, value): &(String, String)| {
            let invalid = || OptionsError::Header { name: name.clone() };
            let key = HeaderName::try_from(name.as_str()).map_err(|_| invalid())?;
            let mut value = HeaderValue::try_from(value.as_str()).map_err(|_| invalid())?;
            value.set_sensitive(true);
            Ok((key, value))
        };
        let zero = [
            ("max_requests", self.max_requests == 0),
            ("max_asks", self.max_asks == 0),
            ("max_agents", self.max_agents == 0),
            ("context_tokens", self.context_tokens == 0),
        ];
        if let Some((name, _)) = zero.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(OptionsError::Zero(name));
        }
        let headers = self.headers.iter().map(header).collect::<Result<_, _>>()?;
        Ok(Checked { url, server: server.into(), headers })
    }

    /// Address of the chat completions.
    fn checked_url(&self) -> Result<Url, OptionsError> {
        let invalid =
            |url: String, reason: &str| Err(OptionsError::Url { url, reason: reason.to_owned() });
        let mut url = match Url::parse(&self.url) {
            Ok(url) => url,
            // It may contain a password at any place.
            Err(url::ParseError::RelativeUrlWithoutBase) => {
                return invalid("…".into(), "it does not begin with https:// or http://");
            }
            Err(error) => return invalid("…".into(), &error.to_string()),
        };
        let mut shown = url.clone();
        let _ = shown.set_username("");
        let _ = shown.set_password(None);
        shown.set_query(None);
        let shown = shown.to_string();
        if !url.username().is_empty() || url.password().is_some() {
            return invalid(shown, "a key belongs in RemoteOptions::key, not in the address");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return invalid(shown, "it must not have a query");
        }
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(["chat", "completions"]);
        }
        match (url.scheme(), url.host()) {
            (_, None) => invalid(shown, "it has no host"),
            ("https", _) => Ok(url),
            ("http", Some(host)) => {
                if self.allow_plain_http || is_loopback(&host) {
                    Ok(url)
                } else {
                    Err(OptionsError::PlainHttp { host: host.to_string() })
                }
            }
            _ => invalid(shown, "it begins with neither https:// nor http://"),
        }
    }
}

pub(crate) fn is_loopback(host: &url::Host<&str>) -> bool {
    match host {
        url::Host::Domain(name) => name.eq_ignore_ascii_case("localhost"),
        url::Host::Ipv4(address) => address.is_loopback(),
        // Also an IPv4 address in the form of IPv6.
        url::Host::Ipv6(address) => address.to_canonical().is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str) -> Result<Checked, OptionsError> {
        RemoteOptions::new(url, "m").check()
    }

    #[test]
    fn only_encrypted_or_local_addresses_are_accepted() {
        for url in [
            "https://a.example/v1",
            "http://localhost:8000/v1/",
            "http://127.0.0.9/v1",
            "http://[::1]:1/v1",
            "http://[::ffff:127.0.0.1]/v1",
        ] {
            let checked = check(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert!(checked.url.path().ends_with("/v1/chat/completions"), "{}", checked.url);
        }
        for url in [
            "http://a.example/v1",
            "http://10.0.0.1/v1",
            "http://[::ffff:10.0.0.1]/v1",
            "http://localhost.example/v1",
        ] {
            assert!(matches!(check(url).err(), Some(OptionsError::PlainHttp { .. })), "{url}");
            let options = RemoteOptions { allow_plain_http: true, ..RemoteOptions::new(url, "m") };
            assert!(options.check().is_ok());
        }
        for url in
            ["", "a.example/v1", "ftp://a.example", "https://", "https://a/v1?x=1", "file:///etc"]
        {
            assert!(matches!(check(url).err(), Some(OptionsError::Url { .. })), "{url}");
        }
    }

    #[test]
    fn errors_do_not_contain_passwords() {
        for url in [
            "https://user:hunter2@a.example/v1",
            "https://hunter2@a.example/v1",
            "https://a:hunter2",
        ] {
            let error = check(url).err().expect("a password is refused").to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        let header = ("bad name".to_owned(), "hunter2".to_owned());
        let options =
            RemoteOptions { headers: vec![header], ..RemoteOptions::new("https://a", "m") };
        assert!(!options.check().err().unwrap().to_string().contains("hunter2"));
    }
}
