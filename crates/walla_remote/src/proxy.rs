//! Proxies of encrypted connections.

use std::fmt;

use reqwest::{ClientBuilder, NoProxy, Url};

use crate::options::{OptionsError, is_loopback};

/// The proxy of a remote engine.
///
/// Only an encrypted connection (`https`) to another machine goes through a proxy, as a tunnel: the
/// proxy learns the server's name and no text or key. Plain HTTP and this machine (`localhost`,
/// loopback addresses) are always reached directly, because a proxy would read the texts.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proxy {
    /// No proxy.
    None,
    /// The first that is set of the environment variables `HTTPS_PROXY`, `https_proxy`, `ALL_PROXY`
    /// and `all_proxy`, except for the servers in `NO_PROXY` or `no_proxy`. Read once, when the
    /// engine starts.
    #[default]
    Environment,
    /// The proxy with this address: `http`, `https`, `socks4`, `socks4a`, `socks5` or `socks5h`,
    /// optionally with user name and password. `NO_PROXY` is not read.
    Url(String),
}

/// Without the address, which may contain a password.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Environment => "Environment",
            Self::Url(_) => "Url(..)",
        })
    }
}

impl Proxy {
    /// Sets the proxy of a client for `server`.
    pub(crate) fn apply(
        &self,
        client: ClientBuilder,
        server: &Url,
    ) -> Result<ClientBuilder, OptionsError> {
        // Also ends the client's own use of the environment.
        let client = client.no_proxy();
        if server.scheme() != "https" || server.host().is_none_or(|host| is_loopback(&host)) {
            return Ok(client);
        }
        let (url, exceptions) = match self {
            Self::None => return Ok(client),
            Self::Environment => match of_environment() {
                None => return Ok(client),
                Some((variable, url)) => {
                    (checked(&url, &format!(" in {variable}"))?, NoProxy::from_env())
                }
            },
            Self::Url(url) => (checked(url, "")?, None),
        };
        // Without the error's text, which has the address.
        let proxy =
            reqwest::Proxy::https(url).map_err(|_| refused("its address", "cannot be used"))?;
        Ok(client.proxy(proxy.no_proxy(exceptions)))
    }
}

/// The variable that names the proxy, and its value.
fn of_environment() -> Option<(&'static str, String)> {
    ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"].into_iter().find_map(|name| {
        let value = std::env::var(name).ok().filter(|value| !value.trim().is_empty())?;
        Some((name, value))
    })
}

/// An address; without a scheme it is one of HTTP, as usual in the environment.
fn checked(address: &str, place: &str) -> Result<Url, OptionsError> {
    let what = format!("its address{place}");
    let address = address.trim();
    let with_scheme =
        if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let url = Url::parse(&with_scheme).map_err(|error| refused(&what, &error.to_string()))?;
    if !["http", "https", "socks4", "socks4a", "socks5", "socks5h"].contains(&url.scheme()) {
        return Err(refused(&what, "is neither of HTTP nor of SOCKS"));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(refused(&what, "has no host"));
    }
    Ok(url)
}

fn refused(what: &str, defect: &str) -> OptionsError {
    OptionsError::Proxy { reason: format!("{what}: {defect}") }
}
