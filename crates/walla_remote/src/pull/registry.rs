//! Requests to a registry.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_RANGE, HeaderValue, RANGE};
use reqwest::{Client, Response, Url, redirect};
use serde::Deserialize;

use super::file::{Hash, PartFile};
use super::name::Name;
use super::{Events, MAX_TEXT_BYTES, PullError, PullEvent, PullOptions};
use crate::http::{USER_AGENT, error_body, is_of, reason, retry_after};
use crate::key::ApiKey;
use crate::options::{Retries, is_loopback};
use crate::tls;

/// Docker's media type, which both registries answer with, and that of OCI.
const MANIFESTS: &str = "application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.oci.image.manifest.v1+json";
const MODEL: &str = "application/vnd.ollama.image.model";
const LICENSE: &str = "application/vnd.ollama.image.license";

const MAX_REDIRECTS: usize = 10;

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
        let is_temporary = matches!(error, PullError::Connection(_));
        Self { error, is_temporary, retry_after: None }
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        let is_final = error.is_redirect();
        let error = PullError::Connection(reason(&error));
        Self { error, is_temporary: !is_final, retry_after: None }
    }
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
    /// Another machine, without encryption.
    pub is_exposed: bool,
    name: &'a Name,
    key: Option<&'a ApiKey>,
    retries: &'a Retries,
}

impl<'a> Registry<'a> {
    pub fn new(options: &'a PullOptions, name: &'a Name) -> Result<Self, PullError> {
        let mut url = checked_url(&options.registry)?;
        let is_plain = url.scheme() == "http";
        let is_exposed = is_plain && !url.host().is_some_and(|host| is_loopback(&host));
        if options.key.is_some() && is_exposed {
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
            .map_err(|error| PullError::Connection(reason(&error)))?;
        let PullOptions { key, retries, .. } = options;
        Ok(Self { client, url, host, is_exposed, name, key: key.as_ref(), retries })
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
        let mut attempts = Attempts::new(self.retries);
        loop {
            let read = async {
                let mut response = self.get(path, None).await?;
                let mut bytes = Vec::new();
                while let Some(chunk) = response.chunk().await? {
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
        let mut response = match self.get(blob, Some(begin).filter(|at| *at > 0)).await {
            // A server that refuses the range: from the first byte.
            Err(Failure { error: PullError::Status { status: 416, .. }, .. }) if begin > 0 => {
                self.get(blob, None).await?
            }
            response => response?,
        };
        if begin > 0 && response.status() == 206 && !begins_at(&response, begin) {
            response = self.get(blob, None).await?;
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
        while let Some(chunk) = response.chunk().await? {
            if chunk.len() as u64 > total - part.bytes() {
                part.restart()?;
                return Err(wrong(format!("it has more than {total} bytes")));
            }
            part.append(&chunk)?;
            events(PullEvent::Bytes { done: part.bytes(), total });
        }
        if part.bytes() < total {
            return Err(PullError::Connection("it ended too early".into()).into());
        }
        Ok(())
    }

    /// A response with content; from a byte on if the server can.
    async fn get(&self, path: [&str; 2], from: Option<u64>) -> Result<Response, Failure> {
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
        let key = self.key.map(ApiKey::read).transpose();
        let key = key.map_err(|error| PullError::Key(error.to_string()))?;
        if let Some(key) = &key {
            let value = HeaderValue::try_from(format!("Bearer {key}"));
            let mut value = value.map_err(|_| PullError::Key("the key is no header".into()))?;
            value.set_sensitive(true); // dropped by a redirect to another host
            request = request.header(AUTHORIZATION, value);
        }
        let response = request.send().await?;
        match response.status().as_u16() {
            200 | 206 => Ok(response),
            status => Err(self.failure(status, response, key.as_deref()).await),
        }
    }

    async fn failure(&self, status: u16, response: Response, key: Option<&str>) -> Failure {
        let retry_after = retry_after(&response);
        let masked = |text: &str| key.map_or(text.to_owned(), |key| text.replace(key, "[key]"));
        let (message, _) = error_body(response, masked).await;
        let (name, registry) = (self.name.to_string(), self.host.clone());
        let error = match status {
            404 => PullError::NotFound { name, registry },
            401 | 403 => PullError::Unauthorized { name, registry, status, message },
            _ => PullError::Status { status, message },
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
