//! The engine as a server of the chat completions protocol, for tools, for another program and for
//! a second machine (feature `serve`; the command `walla serve`).
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/chat/completions` | a reply, streamed or whole |
//! | `GET /v1/models` | the model |
//! | `GET /health` | 200 if agents can speak, otherwise 503 |
//!
//! Format: [OpenAI's reference](https://platform.openai.com/docs/api-reference/chat/create), with
//! members that other servers have too: `top_k`, `min_p`, `repetition_penalty`,
//! `structured_outputs` (regular expression, choice, Lark grammar), `priority` (lower first),
//! `chat_template_kwargs.enable_thinking`, `reasoning_content` and `stop_reason` of a reply, `id`
//! of a token. Members that would change the reply and that the engine does not have are refused
//! with status 400; unknown ones are ignored.
//!
//! Each request is a separate agent, and all of them run in one batch. An agent is kept for a
//! while after its reply, so that the next request of the same conversation finds its beginning in
//! the cache. A dropped connection cancels its reply.
//!
//! Clients cannot exhaust the server: the numbers of connections and requests, the bytes of
//! requests in progress and the time for a request are bounded ([`ServeOptions`]).

mod connections;
mod convert;
mod reply;
mod wire;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, extract::Request};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use walla_runtime::{EngineState, ReplyError};

use crate::{Agent, Engine};
use convert::Ask;

/// Options of a server.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Name of the model in answers. Requests may contain any name. Default: `walla`.
    pub model: String,
    /// The key that requests must have in `Authorization: Bearer …`. Default: none.
    pub key: Option<String>,
    /// Maximum number of requests in progress or waiting. Further ones are refused with status 429.
    /// Default: 256.
    pub requests_max: u32,
    /// Maximum bytes of a request. Default: 4 MiB.
    pub request_bytes_max: usize,
    /// Maximum bytes of all requests that are being received. Further ones are refused with status
    /// 429. Default: 64 MiB.
    pub received_bytes_max: usize,
    /// Maximum number of connections; further ones wait. Default: 512.
    pub connections_max: u32,
    /// Time for the head of a request, also for the next one of a connection, and time for its
    /// body. Slower connections are closed, slower bodies refused with status 408. Default: 30 s.
    pub request_time: Duration,
    /// Number of agents that are kept after their replies. Default: 16.
    pub agents_kept: usize,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            model: "walla".into(),
            key: None,
            requests_max: 256,
            request_bytes_max: 4 << 20,
            received_bytes_max: 64 << 20,
            connections_max: 512,
            request_time: Duration::from_secs(30),
            agents_kept: 16,
        }
    }
}

/// Without the key.
impl std::fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServeOptions")
            .field("model", &self.model)
            .field("has_key", &self.key.is_some())
            .field("requests_max", &self.requests_max)
            .finish_non_exhaustive()
    }
}

/// Shared by all requests.
pub(crate) struct Server {
    engine: Engine,
    options: ServeOptions,
    requests: Arc<Semaphore>,
    /// Memory of requests that are being received: a permit per KiB.
    received: Arc<Semaphore>,
    /// Agents whose replies have ended, the latest last.
    kept: Mutex<VecDeque<Agent>>,
}

impl Server {
    /// Keeps an agent for the next request of its conversation.
    fn keep(&self, agent: Agent) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(agent);
        while kept.len() > self.options.agents_kept {
            kept.pop_front();
        }
    }
}

/// Serves requests until the future is dropped, which closes all connections.
///
/// It never ends by itself, except with an error: a connection that cannot be accepted, for example
/// because the process has too many open files, is reported by tracing, and later ones are
/// accepted.
///
/// # Errors
/// The listener cannot be used by this runtime.
///
/// # Examples
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use walla::serve::{ServeOptions, serve};
///
/// let engine = walla::Engine::open("qwen3-0.6b-q8_0.gguf").start().await?;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
/// serve(listener, engine, ServeOptions::default()).await?;
/// # Ok(())
/// # }
/// ```
pub async fn serve(listener: TcpListener, engine: Engine, options: ServeOptions) -> io::Result<()> {
    connections::accept(listener, router(engine, options.clone()), &options).await
}

fn router(engine: Engine, options: ServeOptions) -> Router {
    let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
    let requests = semaphore(options.requests_max as usize);
    let received = semaphore(options.received_bytes_max / 1024);
    let server = Arc::new(Server { engine, options, requests, received, kept: Mutex::default() });
    Router::new()
        .route("/v1/chat/completions", post(completions))
        .route("/v1/models", get(models))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&server), authorized))
        .route("/health", get(health))
        .with_state(server)
}

/// A refusal, in the form of the protocol.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    message: String,
    /// A reason that the status does not name.
    code: Option<&'static str>,
}

impl Refusal {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), code: None }
    }

    fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }
}

impl From<&ReplyError> for Refusal {
    fn from(error: &ReplyError) -> Self {
        Self { code: code_of(error), ..Self::new(status_of(error), error.to_string()) }
    }
}

/// The code of an error that a client can treat in its own way.
fn code_of(error: &ReplyError) -> Option<&'static str> {
    match error {
        ReplyError::PromptTooLong { .. } => Some("context_length_exceeded"),
        // The request is sound and the reply has begun, but the same request fails again.
        ReplyError::ConstraintStopped(_) => Some(CONSTRAINT_STOPPED),
        _ => None,
    }
}

/// The reply was ended, because its grammar is too complex to continue after the text so far.
const CONSTRAINT_STOPPED: &str = "constraint_stopped";

/// The status of a failed reply.
fn status_of(error: &ReplyError) -> StatusCode {
    match error {
        ReplyError::TooManyAgents { .. }
        | ReplyError::Busy { .. }
        | ReplyError::TooManyAsks { .. } => StatusCode::TOO_MANY_REQUESTS,
        ReplyError::PromptTooLong { .. }
        | ReplyError::Text(_)
        | ReplyError::Constraint(_)
        | ReplyError::Actions(_)
        | ReplyError::Unsupported(_)
        | ReplyError::NoTemplate(_) => StatusCode::BAD_REQUEST,
        ReplyError::EngineGone(_) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self { status, message, code } = self;
        let body = Json(error_body(status, &message, code));
        if code == Some(CONSTRAINT_STOPPED) {
            // Clients of the protocol repeat a request with this status otherwise.
            return (status, [("x-should-retry", "false")], body).into_response();
        }
        if status == StatusCode::TOO_MANY_REQUESTS {
            return (status, [(header::RETRY_AFTER, "1")], body).into_response();
        }
        (status, body).into_response()
    }
}

fn error_body(status: StatusCode, message: &str, code: Option<&str>) -> Value {
    let kind = match code {
        Some(CONSTRAINT_STOPPED) => "constraint_error",
        _ if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    };
    let code = code.map_or_else(|| status.as_u16().into(), Value::from);
    json!({"error": {"message": message, "type": kind, "code": code}})
}

async fn authorized(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    request: Request,
    next: Next,
) -> Response {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    match &server.options.key {
        Some(key) if !is_equal(key.as_bytes(), given.trim().as_bytes()) => {
            Refusal::new(StatusCode::UNAUTHORIZED, "the key is missing or wrong").into_response()
        }
        _ => next.run(request).await,
    }
}

/// Compares keys in a time that does not depend on the place of a difference.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differences == 0
}

async fn health(State(server): State<Arc<Server>>) -> Response {
    match server.engine.state() {
        EngineState::Ready => Json(json!({"status": "ok"})).into_response(),
        EngineState::Loading { fraction } => {
            let body = json!({"status": "loading", "fraction": fraction});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
        EngineState::Failed(error) => {
            let body = json!({"status": "failed", "reason": error.to_string()});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
        EngineState::Stopped => {
            let body = json!({"status": "stopped"});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

async fn models(State(server): State<Arc<Server>>) -> Json<Value> {
    let mut model = json!({"id": server.options.model, "object": "model", "owned_by": "walla"});
    if let Some(card) = server.engine.model() {
        model["max_model_len"] = card.context_tokens.into();
    }
    Json(json!({"object": "list", "data": [model]}))
}

async fn completions(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    if !is_json(&headers) {
        let message = "the content type is not application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let received = connections::receive(body, &server.received, &server.options).await?;
    let Json(request) = Json::<wire::Request>::from_bytes(&received.bytes)
        .map_err(|error| Refusal::new(error.status(), error.body_text()))?;
    drop(received);
    // Behind the body: clients that send slowly do not count.
    let permit = Arc::clone(&server.requests).try_acquire_owned().map_err(|_| {
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too many requests are in progress")
    })?;
    let Ask { spec, prompt, shape } = convert::ask(request)?;
    let agent = server.engine.agent_with(spec);
    let reply = agent.try_ask_with(prompt).map_err(|refused| Refusal::from(&refused.reason))?;
    let open = reply::Open { server, agent: Some(agent), reply, _permit: permit };
    if shape.is_streamed {
        reply::streamed(open, shape).await
    } else {
        reply::whole(open, shape).await
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    let kind = kind.to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}
