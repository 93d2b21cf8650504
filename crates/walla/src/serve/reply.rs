//! Replies as answers of the protocol.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use walla_runtime::{Call, FinishReason, ReplyError, ReplyEvent, ReplyId, TokenLogprobs, Usage};

use super::convert::Shape;
use super::{Refusal, Server, code_of, error_body, status_of};
use crate::{Agent, Reply};

/// A comment is sent after this time without events, so that a closed connection is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A reply in progress. Dropping it cancels the reply.
pub(super) struct Open {
    pub server: Arc<Server>,
    pub agent: Option<Agent>,
    pub reply: Reply,
    pub _permit: OwnedSemaphorePermit,
}

impl Open {
    /// The reply has ended: its agent is kept for the next request.
    fn keep_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            self.server.keep(agent);
        }
    }

    fn log_probabilities(&self, token: &TokenLogprobs) -> Value {
        let candidate = |(id, log_probability): &(walla_types::TokenId, f32)| {
            let bytes = self.server.engine.tokenizer().map(|its| its.text_bytes(*id).to_vec());
            let bytes = bytes.unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            json!({"id": id.0, "token": text, "logprob": log_probability, "bytes": bytes})
        };
        let mut entry = candidate(&(token.token, token.log_probability));
        entry["top_logprobs"] = token.candidates.iter().map(candidate).collect();
        entry
    }
}

/// Members that all parts of an answer have.
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn new(server: &Server) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = format!("chatcmpl-{}", ReplyId::unique().0);
        Self { id, created: since.as_secs(), model: server.options.model.clone() }
    }

    fn object(&self, kind: &str, choices: Value) -> Value {
        let Self { id, created, model } = self;
        json!({"id": id, "object": kind, "created": created, "model": model, "choices": choices})
    }

    fn chunk(&self, delta: Value) -> Value {
        self.object(
            "chat.completion.chunk",
            json!([{"index": 0, "delta": delta, "finish_reason": null}]),
        )
    }
}

fn usage(usage: &Usage) -> Value {
    let completion = usage.reply_tokens + usage.reasoning_tokens + usage.call_tokens;
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": usage.prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    })
}

/// `finish_reason`, and the stop string that ended the reply.
fn finish(reason: FinishReason, has_called: bool, shape: &Shape) -> (&'static str, Value) {
    match reason {
        FinishReason::Stop { index } => {
            let text = shape.stop_strings.get(index as usize);
            ("stop", text.map_or(Value::Null, |text| json!(text)))
        }
        _ if has_called => ("tool_calls", Value::Null),
        FinishReason::EndOfTurn | FinishReason::StopToken | FinishReason::CallLimit => {
            ("stop", Value::Null)
        }
        _ => ("length", Value::Null),
    }
}

fn tool_call(call: &Call, index: Option<usize>) -> Value {
    let arguments = Value::Object(call.arguments.clone()).to_string();
    let id = format!("call{:05}", call.id.index);
    let mut value = json!({
        "id": id, "type": "function", "function": {"name": call.name, "arguments": arguments},
    });
    if let Some(index) = index {
        value["index"] = index.into();
    }
    value
}

/// The answer as one object.
pub(super) async fn whole(mut open: Open, shape: Shape) -> Result<Response, Refusal> {
    let (mut text, mut reasoning, mut tokens) = (String::new(), String::new(), Vec::new());
    let mut calls = Vec::new();
    loop {
        match open.reply.next_event().await {
            Some(ReplyEvent::Delta { text: more, .. }) => text.push_str(&more),
            Some(ReplyEvent::Reasoning { text: more, .. }) => reasoning.push_str(&more),
            Some(ReplyEvent::Token(token)) if shape.has_logprobs => {
                tokens.push(open.log_probabilities(&token));
            }
            Some(ReplyEvent::Call(call)) => calls.push(tool_call(&call, None)),
            Some(ReplyEvent::Finished { reason, usage: counts }) => {
                open.keep_agent();
                let (finish_reason, stop_reason) = finish(reason, !calls.is_empty(), &shape);
                let mut message = json!({"role": "assistant", "content": text});
                if !reasoning.is_empty() {
                    message["reasoning_content"] = reasoning.into();
                }
                if !calls.is_empty() {
                    message["tool_calls"] = calls.into();
                }
                let mut choice = json!({
                    "index": 0, "message": message,
                    "finish_reason": finish_reason, "stop_reason": stop_reason,
                });
                if shape.has_logprobs {
                    choice["logprobs"] = json!({"content": tokens});
                }
                let head = Head::new(&open.server);
                let mut answer = head.object("chat.completion", json!([choice]));
                answer["usage"] = usage(&counts);
                return Ok(Json(answer).into_response());
            }
            Some(ReplyEvent::Failed(error)) => return Err(Refusal::from(&error)),
            Some(_) => {}
            None => return Err(Refusal::from(&gone())),
        }
    }
}

fn gone() -> ReplyError {
    ReplyError::EngineGone("its event loop has ended".into())
}

/// The answer as a stream of events. An ask that fails at once is a status.
pub(super) async fn streamed(mut open: Open, shape: Shape) -> Result<Response, Refusal> {
    let first = match open.reply.next_event().await {
        Some(ReplyEvent::Failed(error)) => return Err(Refusal::from(&error)),
        Some(first) => first,
        None => return Err(Refusal::from(&gone())),
    };
    let head = Head::new(&open.server);
    let begin = head.chunk(json!({"role": "assistant", "content": ""}));
    let state = Stream {
        open,
        shape,
        head,
        calls: 0,
        tokens: Vec::new(),
        next: Some(first),
        left: vec![begin],
        is_done: false,
    };
    let events = stream::unfold(state, |mut state| async {
        let event = state.next_event().await?;
        Some((Ok::<_, Infallible>(event), state))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

struct Stream {
    open: Open,
    shape: Shape,
    head: Head,
    calls: usize,
    /// Log-probabilities that belong to the next text.
    tokens: Vec<Value>,
    /// An event that was received already.
    next: Option<ReplyEvent>,
    /// Objects that are sent next, the last one first.
    left: Vec<Value>,
    /// Nothing follows these objects.
    is_done: bool,
}

impl Stream {
    async fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some(object) = self.left.pop() {
                let text = match object {
                    Value::String(text) => text,
                    object => object.to_string(),
                };
                return Some(Event::default().data(text));
            }
            if self.is_done {
                return None;
            }
            let event = match self.next.take() {
                Some(event) => Some(event),
                None => self.open.reply.next_event().await,
            };
            self.take(event.unwrap_or_else(|| ReplyEvent::Failed(gone())));
        }
    }

    fn take(&mut self, event: ReplyEvent) {
        match event {
            ReplyEvent::Started { .. } | ReplyEvent::CallRefused(_) | ReplyEvent::Logged(_) => {}
            ReplyEvent::Delta { text, .. } => self.send(json!({"content": &*text})),
            ReplyEvent::Reasoning { text, .. } => self.send(json!({"reasoning_content": &*text})),
            ReplyEvent::Token(token) => {
                if self.shape.has_logprobs {
                    let entry = self.open.log_probabilities(&token);
                    self.tokens.push(entry);
                }
            }
            ReplyEvent::Call(call) => {
                let call = tool_call(&call, Some(self.calls));
                self.calls += 1;
                self.send(json!({"tool_calls": [call]}));
            }
            ReplyEvent::Finished { reason, usage: counts } => {
                self.open.keep_agent();
                let (finish_reason, stop_reason) = finish(reason, self.calls > 0, &self.shape);
                let mut choice = json!({
                    "index": 0, "delta": {},
                    "finish_reason": finish_reason, "stop_reason": stop_reason,
                });
                self.add_tokens(&mut choice);
                let end = self.head.object("chat.completion.chunk", json!([choice]));
                self.left.push("[DONE]".into());
                if self.shape.has_usage {
                    let mut counted = self.head.object("chat.completion.chunk", json!([]));
                    counted["usage"] = usage(&counts);
                    self.left.push(counted);
                }
                self.left.push(end);
                self.is_done = true;
            }
            ReplyEvent::Failed(error) => {
                self.left.push(error_body(status_of(&error), &error.to_string(), code_of(&error)));
                self.is_done = true;
            }
        }
    }

    fn send(&mut self, delta: Value) {
        let mut chunk = self.head.chunk(delta);
        if let Some(choice) = chunk["choices"].get_mut(0) {
            self.add_tokens(choice);
        }
        self.left.push(chunk);
    }

    fn add_tokens(&mut self, choice: &mut Value) {
        if !self.tokens.is_empty() {
            choice["logprobs"] = json!({"content": std::mem::take(&mut self.tokens)});
        }
    }
}
