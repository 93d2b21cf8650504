//! The engine as a server of the chat completions protocol, for tools, for another program and for
//! a second machine (feature `serve`; the command `walla serve`).
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/chat/completions` | a reply, streamed or whole |
//! | `POST /v1/embeddings` | vectors of texts ([`ServeOptions::embedder`]) |
//! | `GET /v1/models`, `GET /v1/models/{id}` | the models |
//! | `GET /health` | 200 if agents can speak, otherwise 503 |
//!
//! Format: [OpenAI's reference](https://platform.openai.com/docs/api-reference/chat/create), with
//! members that other servers have too: `top_k`, `min_p`, `repetition_penalty`,
//! `structured_outputs` (regular expression, choice, Lark grammar), `priority` (lower first),
//! `chat_template_kwargs.enable_thinking`, `reasoning_content` and `stop_reason` of a reply, `id`
//! of a token. Members of the protocol that would change the reply and that the engine does not
//! have are refused with status 400; members that the protocol does not have are ignored. An error
//! has the form of the protocol too, and names the member: `messages[2].tool_call_id`.
//!
//! Each request is a separate agent, and all of them run in one batch. An agent is kept for a
//! while after its reply, so that the next request of the same conversation finds its beginning in
//! the cache. A dropped connection cancels its reply. A client that closes only its sending side
//! gets its answer, and before it an interim answer (status 100).
//!
//! # Calls
//! - Each call before the last message needs its result. Results belong to calls by
//!   `tool_call_id`, in any order; without an id, to the only call that has none. Ids count within
//!   the latest message with calls.
//! - Arguments of earlier calls that are empty or `null` are `{}`. Damaged ones, for instance cut
//!   ones, are text of the assistant, and their results are observations.
//! - `tool_choice` `required` and a named function (called once) hold for the reply, also behind
//!   results. Together with a constraint, or without tools, they are refused. A constraint with
//!   other choices excludes calls.
//! - A call of the model that is not valid is reported by tracing. If a call is required and there
//!   is no valid one, the request fails with status 500, a stream with an error event, and the
//!   reason. Otherwise, and where a limit has cut the call, its text is content of the reply.
//! - `max_tokens` and `max_completion_tokens` count reasoning, speech and calls.
//!
//! # Vectors
//! Inputs are one text or up to 2,048, not tokens. `dimensions` keeps the first numbers of a
//! vector, with length 1 again: useful with models that were trained for it. A text that is longer
//! than the model's context is refused or cut: [`long_texts`](crate::EmbedderOptions::long_texts).
//!
//! # Limits
//! Clients cannot exhaust the server: the numbers of connections and requests, the bytes of
//! requests in progress and the time for a request are bounded ([`ServeOptions`]). If all
//! connections are in use, the oldest one without a request in progress is closed for a new one.
//! Connections without any answer so far are closed first.
//!
//! At most 16 `top_logprobs` are in an answer; up to 20 may be requested.

mod connections;
mod convert;
mod cors;
mod embeddings;
mod history;
mod refusal;
mod reply;
mod table;
mod wire;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Json, Path, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use walla_runtime::EngineState;

use crate::{Agent, Embedder, Engine};
use connections::Busy;
use convert::Ask;
use refusal::Refusal;
use table::Connection;

/// Options of a server.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Name of the model in answers. Requests may contain any name. Default: `walla`.
    pub model: String,
    /// The model of `POST /v1/embeddings`. Default: none.
    pub embedder: Option<Embedder>,
    /// Its name in answers. Default: `walla-embedding`.
    pub embedding_model: String,
    /// Origins of web pages whose scripts may send requests (CORS), such as
    /// `http://localhost:3000`; `*` is any. Default: none.
    pub cors_origins: Vec<String>,
    /// The key that requests must have in `Authorization: Bearer …`. Default: none.
    pub key: Option<String>,
    /// Maximum number of requests in progress or waiting. Further ones are refused with status 429.
    /// Default: 256.
    pub max_requests: u32,
    /// Maximum bytes of a request. Default: 4 MiB.
    pub max_request_bytes: usize,
    /// Maximum bytes of all requests that are being received. Further ones are refused with status
    /// 429. Default: 64 MiB.
    pub max_received_bytes: usize,
    /// Maximum number of connections. For a further one the oldest without a request in progress
    /// is closed; it waits while all have one. Default: 512.
    pub max_connections: u32,
    /// Maximum number of connections of one address, with the same rule, but a further one is
    /// refused with status 429. Behind a proxy all clients have its address: set it to
    /// `max_connections`. Default: 256.
    pub max_connections_per_peer: u32,
    /// Time for the first byte of a connection. Default: 5 s.
    pub first_byte_time: Duration,
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
            embedder: None,
            embedding_model: "walla-embedding".into(),
            cors_origins: Vec::new(),
            key: None,
            max_requests: 256,
            max_request_bytes: 4 << 20,
            max_received_bytes: 64 << 20,
            max_connections: 512,
            max_connections_per_peer: 256,
            first_byte_time: Duration::from_secs(5),
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
            .field("max_requests", &self.max_requests)
            .finish_non_exhaustive()
    }
}

/// Shared by all requests.
pub(crate) struct Server {
    engine: Engine,
    /// Random, so that ids of calls and answers do not repeat in another run.
    run: String,
    /// Seconds since 1970.
    started: u64,
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
/// let engine = walla::Engine::start(walla::EngineOptions::model("qwen3-0.6b-q8_0.gguf")).await?;
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
    let requests = semaphore(options.max_requests as usize);
    let received = semaphore(options.max_received_bytes / 1024);
    let run = format!("{:016x}", convert::random_seed());
    let (started, kept) = (unix_seconds(), Mutex::default());
    let server = Server { engine, run, started, options, requests, received, kept };
    let server = Arc::new(server);
    Router::new()
        .route("/v1/chat/completions", post(completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&server), authorized))
        .route("/health", get(health))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&server), cors::cors))
        .with_state(server)
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

async fn unknown_path(method: Method, uri: Uri) -> Refusal {
    let message = format!("unknown path: {method} {}", uri.path());
    Refusal::new(StatusCode::NOT_FOUND, message).with_code("unknown_url")
}

async fn wrong_method(method: Method, uri: Uri) -> Refusal {
    let message = format!("{} does not take {method}", uri.path());
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message).with_code("method_not_supported")
}

async fn authorized(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    request: Request,
    next: Next,
) -> Response {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // The name of a scheme has no case.
    let given = given.and_then(|value| value.trim().split_once(' '));
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let given = given.map_or("", |(_, key)| key.trim());
    match &server.options.key {
        Some(key) if !is_equal(key.as_bytes(), given.as_bytes()) => {
            let message = "the key is missing or wrong";
            let refusal = Refusal::new(StatusCode::UNAUTHORIZED, message);
            refusal.with_code("invalid_api_key").into_response()
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
    let body = match server.engine.state() {
        EngineState::Ready => return Json(json!({"status": "ok"})).into_response(),
        EngineState::Loading { fraction } => json!({"status": "loading", "fraction": fraction}),
        EngineState::Failed(error) => json!({"status": "failed", "reason": error.to_string()}),
        EngineState::Stopped => json!({"status": "stopped"}),
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

impl Server {
    /// The models as objects of the protocol.
    fn models(&self) -> Vec<Value> {
        let object = |id: &str| json!({"id": id, "object": "model", "created": self.started, "owned_by": "walla"});
        let mut model = object(&self.options.model);
        if let Some(card) = self.engine.model() {
            model["max_model_len"] = card.context_tokens.into();
        }
        let embedder = self.options.embedder.as_ref();
        let embedder = embedder.map(|_| object(&self.options.embedding_model));
        std::iter::once(model).chain(embedder).collect()
    }
}

async fn models(State(server): State<Arc<Server>>) -> Json<Value> {
    Json(json!({"object": "list", "data": server.models()}))
}

async fn model(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refusal> {
    let found = server.models().into_iter().find(|model| model["id"] == *id);
    found.map(Json).ok_or_else(|| no_model(format!("the model {id:?} does not exist")))
}

fn no_model(message: String) -> Refusal {
    let refusal = Refusal::new(StatusCode::NOT_FOUND, message).with_code("model_not_found");
    Refusal { param: Some("model".into()), ..refusal }
}

/// Receives a request.
async fn receive<T: DeserializeOwned>(
    server: &Server,
    connection: &Arc<Connection>,
    headers: &HeaderMap,
    body: Body,
) -> Result<(T, Busy), Refusal> {
    if !is_json(headers) {
        let message = "the content type is not application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let received = connections::receive(body, &server.received, &server.options).await?;
    let Json(request) = Json::<T>::from_bytes(&received.bytes)?;
    drop(received);
    // Behind the body: clients that send slowly do not count.
    Ok((request, Busy::new(connection, &server.requests)?))
}

async fn completions(
    State(server): State<Arc<Server>>,
    Extension(connection): Extension<Arc<Connection>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let (request, busy) = receive(&server, &connection, &headers, body).await?;
    let Ask { spec, prompt, options, shape } = convert::ask(request)?;
    let agent = server.engine.agent_with(spec);
    let reply = agent.try_ask_with(prompt, options);
    let reply = reply.map_err(|refused| Refusal::from(&refused.reason))?;
    let open = reply::Open { server, agent: Some(agent), reply, _busy: busy };
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
