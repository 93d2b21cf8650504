//! Requests to a registry.

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_RANGE, HeaderValue, RANGE};
use reqwest::{Client, Response, Url, redirect};
use serde::Deserialize;

use super::file::{Hash, PartFile};
use super::name::Name;
use super::{Events, MAX_TEXT_BYTES, PullError, PullEvent, PullOptions};
use crate::http::{USER_AGENT, error_body, is_of, reason, retry_after};
use crate::key::ApiKey;
use crate::options::{OptionsError, Retries, is_loopback};
use crate::tls;

/// Docker's media type, which both registries answer with, and that of OCI.
const MANIFESTS: &str = "application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.oci.image.manifest.v1+json";
const MODEL: &str = "application/vnd.ollama.image.model";
const LICENSE: &str = "application/vnd.ollama.image.license";

const MAX_REDIRECTS: usize = 10;

/// A model of 400 MB would take five days.
const MIN_BYTES_PER_SECOND: f64 = 1024.0;

/// Longest pause that a server can request.
const MAX_SERVER_PAUSE: Duration = Duration::from_secs(60);

/// The manifest of a model; further members have no effect.
#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    layers: Vec<RawLayer>,
}

#[derive(Debug, Deserialize)]
struct RawLayer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
    size: u64,
}

/// A file of a model.
#[derive(Debug)]
pub(super) struct Layer {
    /// 64 hexadecimal digits in lower case.
    pub sha256: String,
    pub size: u64,
}

impl Manifest {
    /// The file of the weights.
    pub fn model(&self) -> Result<Layer, PullError> {
        match self.of(MODEL)?.as_mut_slice() {
            [Layer { size: 0, .. }] => Err(PullError::WrongContent("it is empty".into())),
            [model] => Ok(Layer { sha256: std::mem::take(&mut model.sha256), size: model.size }),
            models => Err(PullError::NumberOfFiles(models.len())),
        }
    }

    /// Texts of the licence.
    pub fn licenses(&self) -> Result<Vec<Layer>, PullError> {
        let licenses = self.of(LICENSE)?;
        if licenses.iter().map(|layer| layer.size).fold(0, u64::saturating_add)
            > MAX_TEXT_BYTES as u64
        {
            return Err(PullError::TooLong);
        }
        Ok(licenses)
    }

    fn of(&self, media_type: &str) -> Result<Vec<Layer>, PullError> {
        let layers = self.layers.iter().filter(|layer| layer.media_type == media_type);
        layers.map(RawLayer::checked).collect()
    }
}

impl RawLayer {
    fn checked(&self) -> Result<Layer, PullError> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let hex = self.digest.strip_prefix("sha256:");
        let hex = hex.filter(|hex| hex.len() == 64 && hex.bytes().all(is_digit));
        let unknown = || PullError::UnknownDigest(crate::chunk::shortened(&self.digest));
        Ok(Layer { sha256: hex.ok_or_else(unknown)?.to_owned(), size: self.size })
    }
}

/// A failed request.
#[derive(Debug)]
pub(super) struct Failure {
    error: PullError,
    is_temporary: bool,
    retry_after: Option<Duration>,
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Self {
        let is_temporary = matches!(error, PullError::Connection { .. });
        Self { error, is_temporary, retry_after: None }
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        let mut reason = reason(&error);
        // The second: a redirect to another scheme.
        let mut is_temporary = !error.is_redirect() && !error.is_builder();
        match tls_error(&error) {
            Some(rustls::Error::InvalidCertificate(_)) => is_temporary = false,
            Some(rustls::Error::InvalidMessage(_)) => {
                is_temporary = false;
                reason += " (a server without encryption? its address begins with http://)";
            }
            _ => {}
        }
        let host = error.url().map(|url| url.authority().to_owned()).unwrap_or_default();
        Self { error: PullError::Connection { host, reason }, is_temporary, retry_after: None }
    }
}

/// The cause of a failed request, if it is TLS.
fn tls_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(tls) = error.downcast_ref() {
            return Some(tls);
        }
        // The source of a wrapped error is that of the inner one, which would be left out.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = inner.map_or(error.source(), |inner| Some(inner));
    }
    None
}

/// Attempts that are left.
pub(super) struct Attempts(ExponentialBackoff);

impl Attempts {
    /// After this progress, the count begins again: a long download may be cut often.
    pub const NEW_COUNT_BYTES: u64 = 1 << 20;

    pub fn new(retries: &Retries) -> Self {
        let pauses = ExponentialBuilder::new()
            .with_min_delay(retries.pause_min)
            .with_max_delay(retries.max_pause)
            .with_max_times(retries.max_retries as usize)
            .with_jitter();
        Self(pauses.build())
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The failure, if no attempt is left.
    pub async fn pause(&mut self, failure: Failure, events: Events<'_>) -> Result<(), PullError> {
        let Failure { error, is_temporary, retry_after } = failure;
        let Some(pause) = self.0.next().filter(|_| is_temporary) else { return Err(error) };
        let pause = pause.max(retry_after.unwrap_or_default().min(MAX_SERVER_PAUSE));
        events(PullEvent::Retry(&error, pause));
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// A model at a registry.
pub(super) struct Registry<'a> {
    client: Client,
    /// Of the model: `{registry}/v2/{name}`.
    url: Url,
    /// Host and port.
    host: String,
    /// The warning about another machine without encryption was sent.
    has_warned: AtomicBool,
    options: &'a PullOptions,
    name: &'a Name,
}

impl<'a> Registry<'a> {
    pub fn new(options: &'a PullOptions, name: &'a Name) -> Result<Self, PullError> {
        let mut url = checked_url(&options.registry)?;
        let is_plain = url.scheme() == "http";
        if options.key.is_some() && is_exposed(&url) {
            return Err(PullError::PlainKey);
        }
        let host = url.authority().to_owned();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(["v2", &name.owner, &name.model]);
        }
        // Plain HTTP works on a machine without any root certificates.
        let tls = tls::config(&[]).or_else(|error| if is_plain { tls::none() } else { Err(error) });
        let client = options
            .proxy
            .apply(Client::builder(), &url)?
            .user_agent(USER_AGENT)
            .connect_timeout(options.stall)
            .read_timeout(options.stall)
            .redirect(redirect::Policy::custom(redirect_policy))
            .referer(false)
            .tls_backend_preconfigured(tls?)
            .build()
            .map_err(|error| OptionsError::Tls(reason(&error)))?;
        Ok(Self { client, url, host, has_warned: false.into(), options, name })
    }

    /// The manifest.
    pub async fn manifest(&self, events: Events<'_>) -> Result<Manifest, PullError> {
        let text = self.whole(["manifests", &self.name.tag], events).await?;
        serde_json::from_slice(&text).map_err(|error| PullError::NotAManifest {
            registry: self.host.clone(),
            reason: error.to_string(),
        })
    }

    /// The text of a layer.
    pub async fn text(&self, layer: &Layer, events: Events<'_>) -> Result<Vec<u8>, PullError> {
        let text = self.whole(["blobs", &format!("sha256:{}", layer.sha256)], events).await?;
        let found = Hash::of(&text);
        if found != layer.sha256 {
            return Err(PullError::WrongDigest { expected: layer.sha256.clone(), found });
        }
        Ok(text)
    }

    /// A short response.
    async fn whole(&self, path: [&str; 2], events: Events<'_>) -> Result<Vec<u8>, PullError> {
        let mut attempts = Attempts::new(&self.options.retries);
        loop {
            let read = async {
                let mut response = self.get(path, None, events).await?;
                let mut bytes = Vec::new();
                let mut pace = Pace::new(self.options);
                while let Some(chunk) = response.chunk().await? {
                    pace.check(chunk.len(), &response)?;
                    if bytes.len() + chunk.len() > MAX_TEXT_BYTES {
                        return Err(Failure::from(PullError::TooLong));
                    }
                    bytes.extend_from_slice(&chunk);
                }
                Ok(bytes)
            };
            match read.await {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => attempts.pause(failure, events).await?,
            }
        }
    }

    /// Appends to a partial file, until it has the size of the layer.
    pub async fn append(
        &self,
        layer: &Layer,
        part: &mut PartFile,
        events: Events<'_>,
    ) -> Result<(), Failure> {
        let begin = part.bytes();
        let digest = format!("sha256:{}", layer.sha256);
        let blob = ["blobs", digest.as_str()];
        let mut response = match self.get(blob, Some(begin).filter(|at| *at > 0), events).await {
            // A server that refuses the range: from the first byte.
            Err(Failure { error: PullError::Status { status: 416, .. }, .. }) if begin > 0 => {
                self.get(blob, None, events).await?
            }
            response => response?,
        };
        if begin > 0 && response.status() == 206 && !begins_at(&response, begin) {
            response = self.get(blob, None, events).await?;
        }
        let is_part = begin > 0 && response.status() == 206;
        let total = layer.size;
        let left = if is_part { total - begin } else { total };
        let wrong = |reason: String| Failure::from(PullError::WrongContent(reason));
        if is_part && !begins_at(&response, begin) {
            return Err(wrong("it begins at another byte than requested".into()));
        }
        // Before the partial file is emptied: a login page must not replace it.
        if is_of(&response, "text/html") {
            return Err(wrong("it is a web page".into()));
        }
        if let Some(length) = response.content_length().filter(|length| *length != left) {
            return Err(wrong(format!("{length} bytes instead of {left}")));
        }
        if !is_part && begin > 0 {
            part.restart()?; // the server has no ranges
        }
        let mut pace = Pace::new(self.options);
        while let Some(chunk) = response.chunk().await? {
            if chunk.len() as u64 > total - part.bytes() {
                part.restart()?;
                return Err(wrong(format!("it has more than {total} bytes")));
            }
            part.append(&chunk)?;
            events(PullEvent::Bytes { done: part.bytes(), total });
            pace.check(chunk.len(), &response)?;
        }
        if part.bytes() < total {
            return Err(connection(&response, "it ended too early").into());
        }
        Ok(())
    }

    /// A response with content; from a byte on if the server can.
    async fn get(
        &self,
        path: [&str; 2],
        from: Option<u64>,
        events: Events<'_>,
    ) -> Result<Response, Failure> {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path);
        }
        let mut request = self.client.get(url);
        if path[0] == "manifests" {
            request = request.header(ACCEPT, MANIFESTS);
        }
        if let Some(from) = from {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let key = self.options.key.as_ref().map(ApiKey::read).transpose();
        let key = key.map_err(|error| PullError::Key(error.to_string()))?;
        if let Some(key) = &key {
            let value = HeaderValue::try_from(format!("Bearer {key}"));
            let mut value = value.map_err(|_| PullError::Key("the key is no header".into()))?;
            value.set_sensitive(true); // dropped by a redirect to another host
            request = request.header(AUTHORIZATION, value);
        }
        let response = request.send().await?;
        if is_exposed(response.url()) && !self.has_warned.swap(true, Ordering::Relaxed) {
            events(PullEvent::Unencrypted);
        }
        match response.status().as_u16() {
            200 | 206 => Ok(response),
            status => Err(self.failure(status, response, key.as_deref()).await),
        }
    }

    async fn failure(&self, status: u16, response: Response, key: Option<&str>) -> Failure {
        let retry_after = retry_after(&response);
        let masked = |text: &str| key.map_or(text.to_owned(), |key| text.replace(key, "[key]"));
        let (name, registry) = (self.name.to_string(), self.host.clone());
        let host = response.url().authority().to_owned();
        let message = if (300..400).contains(&status) {
            "the redirect leads to no address of http or https".into()
        } else {
            error_body(response, masked).await.0
        };
        let error = match status {
            404 => PullError::NotFound { name, registry },
            401 | 403 => PullError::Unauthorized { name, registry, status, message },
            _ => PullError::Status { host, status, message },
        };
        let is_temporary = matches!(status, 408 | 429 | 500 | 502 | 503 | 504);
        Failure { error, is_temporary, retry_after }
    }
}

fn redirect_policy(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let was_encrypted = attempt.previous().iter().any(|url| url.scheme() == "https");
    if was_encrypted && attempt.url().scheme() != "https" {
        return attempt.error("a redirect leads from https to an address without encryption");
    }
    if attempt.previous().len() > MAX_REDIRECTS {
        return attempt.error("too many redirects");
    }
    attempt.follow()
}

/// Whether an address is of another machine and without encryption.
fn is_exposed(url: &Url) -> bool {
    url.scheme() == "http" && !url.host().is_some_and(|host| is_loopback(&host))
}

fn connection(response: &Response, reason: &str) -> PullError {
    PullError::Connection { host: response.url().authority().to_owned(), reason: reason.into() }
}

/// Ends a response whose bytes arrive, but so slowly that it would never end.
struct Pace {
    window: Duration,
    begin: Instant,
    bytes: usize,
}

impl Pace {
    fn new(options: &PullOptions) -> Self {
        Self { window: options.stall, begin: Instant::now(), bytes: 0 }
    }

    /// Counts bytes that have arrived.
    fn check(&mut self, bytes: usize, response: &Response) -> Result<(), PullError> {
        self.bytes += bytes;
        if self.begin.elapsed() < self.window {
            return Ok(());
        }
        if (self.bytes as f64) < MIN_BYTES_PER_SECOND * self.window.as_secs_f64() {
            return Err(connection(response, "less than 1 KiB arrives in a second"));
        }
        (self.begin, self.bytes) = (Instant::now(), 0);
        Ok(())
    }
}

/// Whether the content of a partial response begins at this byte.
fn begins_at(response: &Response, begin: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    range.is_some_and(|range| range.trim_start().starts_with(&format!("bytes {begin}-")))
}

/// The address of a registry.
fn checked_url(address: &str) -> Result<Url, PullError> {
    let refused = |reason: &str| PullError::Registry(reason.to_owned());
    let address = address.trim();
    let with_scheme =
        if address.contains("://") { address.to_owned() } else { format!("https://{address}") };
    let url = Url::parse(&with_scheme)
        .map_err(|error| PullError::Registry(format!("cannot be used: {error}")))?;
    if !["https", "http"].contains(&url.scheme()) {
        return Err(refused("begins with neither https:// nor http://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("has a password: keys have their own option"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refused("has a query"));
    }
    Ok(url)
}
