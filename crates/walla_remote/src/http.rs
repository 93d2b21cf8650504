//! One reply over HTTP: the request, its retries and its time limits.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use futures_util::StreamExt;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use walla_runtime::{AgentId, RemoteError, ReplyId, TimeLimit};

use crate::chunk::{error_message, shortened};
use crate::options::{Checked, OptionsError, RemoteOptions};
use crate::parts::{End, Part, Reader, Rules};
use crate::stream::{events, whole};
use crate::tls;

/// Maximum bytes of an error's body that are read.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Time for the body of an error: the status is known, and decides.
const ERROR_BODY_TIME: Duration = Duration::from_secs(2);

/// Keys that are remembered, of a callback that changes them.
const MAX_KEYS: usize = 8;

/// Bytes of the shortest text that is masked: shorter ones are words.
const SECRET_BYTES_MIN: usize = 8;

/// Name in `User-Agent`.
pub(crate) const USER_AGENT: &str = concat!("walla/", env!("CARGO_PKG_VERSION"));

/// A server.
pub(crate) struct Server {
    client: Client,
    pub options: RemoteOptions,
    url: Url,
    /// Host and port.
    name: Arc<str>,
    /// Values of headers, and the latest keys.
    secrets: Mutex<Vec<String>>,
}

/// What arrives of a reply.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The server has accepted the request.
    Accepted,
    Part(Part),
    /// The last one.
    Ended(Result<End, RemoteError>),
}

/// The hub has ended.
pub(crate) struct Gone;

/// Sends the progress of a reply to the hub.
pub(crate) struct Reporter {
    pub agent: AgentId,
    pub reply_id: ReplyId,
    pub sender: mpsc::Sender<Report>,
}

/// Progress of a reply of an agent.
pub(crate) type Report = (AgentId, ReplyId, Progress);

impl Reporter {
    /// Waits for capacity.
    async fn send(&self, progress: Progress) -> Result<(), Gone> {
        let report = (self.agent, self.reply_id, progress);
        self.sender.send(report).await.map_err(|_| Gone)
    }
}

/// Failure of an attempt.
struct Failure {
    error: RemoteError,
    /// Another attempt may succeed.
    is_temporary: bool,
    /// The server requests this pause.
    retry_after: Option<Duration>,
}

impl Failure {
    fn of(error: RemoteError) -> Self {
        let is_temporary = matches!(error, RemoteError::Connect(_) | RemoteError::Interrupted(_));
        Self { error, is_temporary, retry_after: None }
    }
}

impl Server {
    pub fn new(options: RemoteOptions) -> Result<Self, OptionsError> {
        let Checked { url, server, headers } = options.check()?;
        // Plain HTTP works on a machine without any root certificates.
        let tls = match url.scheme() {
            "https" => tls::config(&options.root_certificates)?,
            _ => tls::none()?,
        };
        let client = options
            .proxy
            .apply(Client::builder(), &url)?
            .user_agent(USER_AGENT)
            .connect_timeout(options.limits.connect)
            .redirect(redirect::Policy::none())
            .pool_max_idle_per_host(options.max_requests as usize)
            .default_headers(headers.into_iter().collect())
            .tls_backend_preconfigured(tls)
            .build()
            .map_err(|error| OptionsError::Tls(reason(&error)))?;
        // Values of headers may be keys too.
        let secrets = options.headers.iter().map(|(_, value)| value.clone()).collect();
        Ok(Self { client, options, url, name: server, secrets: Mutex::new(secrets) })
    }

    /// Host and port.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Requests a reply and passes on its parts. Dropping the future drops the connection.
    pub async fn reply(&self, body: Bytes, rules: Rules, reporter: &Reporter) -> Result<(), Gone> {
        let end = self.attempts(body, rules, reporter).await?;
        reporter.send(Progress::Ended(end)).await
    }

    async fn attempts(
        &self,
        body: Bytes,
        rules: Rules,
        reporter: &Reporter,
    ) -> Result<Result<End, RemoteError>, Gone> {
        let RemoteOptions { limits, retries, .. } = &self.options;
        let begin = Instant::now();
        let deadline = begin + limits.first_token.min(limits.reply);
        let mut pauses = ExponentialBuilder::new()
            .with_min_delay(retries.pause_min)
            .with_max_delay(retries.max_pause)
            .with_max_times(retries.max_retries as usize)
            .with_jitter()
            .build();
        let mut is_accepted = false;
        loop {
            let failure = match timeout_at(deadline, self.send(&body)).await {
                Err(_) => Failure::of(RemoteError::TimedOut(TimeLimit::FirstToken)),
                Ok(Err(failure)) => failure,
                Ok(Ok(response)) => {
                    if !std::mem::replace(&mut is_accepted, true) {
                        reporter.send(Progress::Accepted).await?;
                    }
                    match self.read(response, rules.clone(), begin, reporter).await? {
                        Read::Ended(end) => return Ok(end),
                        Read::Nothing(error) => Failure::of(error),
                    }
                }
            };
            let pause = pauses.next().filter(|_| failure.is_temporary);
            let pause = pause.map(|pause| pause.max(failure.retry_after.unwrap_or_default()));
            match pause.filter(|pause| Instant::now() + *pause < deadline) {
                Some(pause) => {
                    let error = &failure.error;
                    tracing::debug!(target: "walla::remote", server = %self.name(), %error, ?pause, "retry");
                    tokio::time::sleep(pause).await;
                }
                None => return Ok(Err(failure.error)),
            }
        }
    }

    /// Remembers a key, so that no error repeats it.
    fn sent_key(&self, key: &str) {
        let mut sent = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.iter().any(|known| known == key) {
            return;
        }
        // Values of headers stay; of changing keys the latest.
        let headers = self.options.headers.len();
        if sent.len() >= headers + MAX_KEYS {
            sent.remove(headers);
        }
        sent.push(key.to_owned());
    }

    /// A text of the server without keys and values of headers that were sent to it.
    fn masked(&self, text: &str) -> String {
        let secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        let secrets = secrets.iter().filter(|secret| secret.len() >= SECRET_BYTES_MIN);
        secrets.fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "[key]"))
    }

    /// The error of an event, as of an event without secrets: a message may have been shortened
    /// within a key.
    fn masked_error(&self, error: RemoteError, event: &str, rules: &Rules) -> RemoteError {
        let masked = self.masked(event);
        if masked == event {
            return error;
        }
        let read = Reader::new(rules.clone()).push(&masked, &mut Vec::new());
        read.err().unwrap_or_else(|| RemoteError::Protocol("an event is no chunk".into()))
    }

    /// Sends the request; returns the response if it has a reply: events, or a whole one, which
    /// servers without streaming send.
    async fn send(&self, body: &Bytes) -> Result<Response, Failure> {
        let mut request = self
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, EVENTS)
            .body(body.clone());
        if let Some(key) = &self.options.key {
            let key = key.read().map_err(Failure::of)?;
            self.sent_key(&key);
            let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                .map_err(|_| Failure::of(RemoteError::NoKey("it is no header".into())))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let response = request.send().await.map_err(|error| {
            let timed_out = error.is_connect() && error.is_timeout();
            Failure::of(if timed_out {
                RemoteError::TimedOut(TimeLimit::Connect)
            } else if error.is_connect() {
                RemoteError::Connect(reason(&error))
            } else {
                RemoteError::Interrupted(reason(&error))
            })
        })?;
        let status = response.status();
        let retry_after = retry_after(&response);
        if status == StatusCode::OK
            && (is_of(&response, EVENTS) || is_of(&response, "application/json"))
        {
            return Ok(response);
        }
        let (message, is_context) = error_body(response, |text| self.masked(text)).await;
        let code = status.as_u16();
        let error = match code {
            200 => RemoteError::Protocol(format!("no stream of events: {message}")),
            401 | 403 => RemoteError::Unauthorized { status: code, message },
            400..500 if is_context => RemoteError::ContextExceeded { status: code, message },
            408 | 429 | 503 => RemoteError::Busy { status: code, message },
            500.. => RemoteError::Failed { status: code, message },
            _ => RemoteError::Refused { status: code, message },
        };
        let is_temporary = matches!(code, 408 | 429 | 500 | 502 | 503 | 504);
        Err(Failure { error, is_temporary, retry_after })
    }

    /// Passes on the parts of a response.
    async fn read(
        &self,
        response: Response,
        rules: Rules,
        begin: Instant,
        reporter: &Reporter,
    ) -> Result<Read, Gone> {
        let RemoteOptions { limits, sizes, .. } = &self.options;
        let reply_end = begin + limits.reply;
        let mut events = if is_of(&response, EVENTS) {
            events(response, *sizes)
        } else {
            whole(response, *sizes)
        };
        let mut reader = Reader::new(rules.clone());
        let mut parts = Vec::new();
        let (mut latest_token, mut has_parts, mut bytes) = (None, false, 0);
        loop {
            let (token_end, limit) = match latest_token {
                None => (begin + limits.first_token, TimeLimit::FirstToken),
                Some(latest) => (latest + limits.next_token, TimeLimit::NextToken),
            };
            let limit = if reply_end < token_end { TimeLimit::Reply } else { limit };
            let next = timeout_at(token_end.min(reply_end), events.next()).await;
            let read = match next {
                Err(_) => Err(RemoteError::TimedOut(limit)),
                Ok(Some(Err(error))) => Err(error),
                Ok(None) => {
                    reader.end_of_stream(false, &mut parts);
                    Err(RemoteError::Interrupted("the connection was closed".into()))
                }
                Ok(Some(Ok(event))) if event.data.trim_end() == "[DONE]" => {
                    reader.end_of_stream(true, &mut parts);
                    Err(RemoteError::Protocol("the stream is done without a reply".into()))
                }
                Ok(Some(Ok(event))) => {
                    let read = reader.push(&event.data, &mut parts);
                    read.map_err(|error| self.masked_error(error, &event.data, &rules))
                }
            };
            // Also of a call, which is passed on at its end.
            // An event without content does not extend the time to the next token.
            if reader.bytes() > bytes {
                bytes = reader.bytes();
                latest_token = Some(Instant::now());
            }
            // With an end, only counts are missing.
            let is_ended = read.is_err() && reader.is_finished();
            if read.is_err() && bytes > 0 && !is_ended {
                reader.flush(true, &mut parts);
            }
            has_parts |= !parts.is_empty();
            for part in parts.drain(..) {
                reporter.send(Progress::Part(part)).await?;
            }
            match read {
                Err(_) if is_ended => return Ok(ended(&reader)),
                // The host has seen nothing of it, so it can be repeated.
                Err(error @ RemoteError::Interrupted(_)) if !has_parts => {
                    return Ok(Read::Nothing(error));
                }
                Err(error) => return Ok(Read::Ended(Err(error))),
                Ok(()) if reader.is_complete() => return Ok(ended(&reader)),
                Ok(()) => {}
            }
        }
    }
}

fn ended(reader: &Reader) -> Read {
    let missing = || RemoteError::Protocol("the reply has no end".into());
    Read::Ended(reader.end().ok_or_else(missing))
}

/// Result of reading a response.
enum Read {
    /// The reply has ended.
    Ended(Result<End, RemoteError>),
    /// The connection ended before the first token: the request can be repeated.
    Nothing(RemoteError),
}

/// Media type of a streamed reply.
const EVENTS: &str = "text/event-stream";

pub(crate) fn is_of(response: &Response, media_type: &str) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with(media_type))
}

/// The pause that a server requests, in seconds or as a date (RFC 9110, section 10.2.3).
pub(crate) fn retry_after(response: &Response) -> Option<Duration> {
    let value = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds.min(u64::from(u32::MAX))));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    Some(at.duration_since(SystemTime::now()).unwrap_or_default())
}

/// The message in the body of an error: what arrives of it in a short time.
pub(crate) async fn error_body(
    mut response: Response,
    masked: impl Fn(&str) -> String,
) -> (String, bool) {
    let mut body = Vec::new();
    let end = Instant::now() + ERROR_BODY_TIME;
    while let Ok(Ok(Some(bytes))) = timeout_at(end, response.chunk()).await {
        let left = MAX_ERROR_BYTES - body.len();
        body.extend_from_slice(&bytes[..bytes.len().min(left)]);
        if body.len() >= MAX_ERROR_BYTES {
            break;
        }
    }
    // Before it is shortened: a part of a key is secret too.
    let body = masked(&String::from_utf8_lossy(&body));
    match serde_json::from_str::<Value>(&body) {
        Ok(json) => (error_message(&json), is_context_error(&json)),
        Err(_) => (shortened(&body), false),
    }
}

/// Whether the conversation exceeds the context: by OpenAI's code, llama.cpp's type, or the text of
/// vLLM and SGLang, which have neither (documentation and sources of November 2026).
fn is_context_error(json: &Value) -> bool {
    let error = json.get("error").unwrap_or(json);
    let is = |field: &str, value: &str| error[field].as_str() == Some(value);
    let message = error["message"].as_str().unwrap_or_default();
    is("code", "context_length_exceeded")
        || is("type", "exceed_context_size_error")
        || ["maximum context length", "model's context length"]
            .iter()
            .any(|text| message.contains(text))
}

/// An error with its causes, without the address, which may contain secrets.
pub(crate) fn reason(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        cause = error.source();
    }
    if text.is_empty() { "the request failed".into() } else { shortened(&text) }
}
