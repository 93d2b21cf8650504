//! Replies as answers of the protocol.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};
use walla_runtime::{
    Call, FinishReason, RefusedCall, ReplyError, ReplyEvent, ReplyId, TokenLogprobs, Usage,
};

use super::connections::Busy;
use super::convert::Shape;
use super::{Refusal, Server, unix_seconds};
use crate::{Agent, Reply};

/// A comment is sent after this time without events, so that a closed connection is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A reply in progress. Dropping it cancels the reply.
pub(super) struct Open {
    pub server: Arc<Server>,
    pub agent: Option<Agent>,
    pub reply: Reply,
    pub _busy: Busy,
}

impl Open {
    /// The next event of a reply that has not ended: a reply has an end in any case.
    async fn next_event(&mut self) -> ReplyEvent {
        let gone = || ReplyError::EngineGone("its event loop has ended".into());
        self.reply.next_event().await.unwrap_or_else(|| ReplyEvent::Failed(gone()))
    }

    /// The reply has ended: its agent is kept for the next request.
    fn keep_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            self.server.keep(agent);
        }
    }

    fn log_probabilities(&self, token: &TokenLogprobs, top: usize) -> Value {
        let candidate = |(id, log_probability): &(walla_types::TokenId, f32)| {
            let bytes = self.server.engine.tokenizer().map(|its| its.text_bytes(*id).to_vec());
            let bytes = bytes.unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            json!({"id": id.0, "token": text, "logprob": log_probability, "bytes": bytes})
        };
        let mut entry = candidate(&(token.token, token.log_probability));
        entry["top_logprobs"] = token.candidates.iter().take(top).map(candidate).collect();
        entry
    }

    /// The call as an object of the protocol. Its id is unique, also in other runs of the server.
    fn tool_call(&self, call: &Call, index: Option<usize>) -> Value {
        let arguments = Value::Object(call.arguments.clone()).to_string();
        let (run, reply_id, number) = (&self.server.run, call.id.reply_id.0, call.id.index);
        let mut value = json!({
            "id": format!("call_{run}_{reply_id:x}_{number}"),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        });
        if let Some(index) = index {
            value["index"] = index.into();
        }
        value
    }
}

/// Calls of a reply.
#[derive(Default)]
struct Calls {
    made: usize,
    refused: Vec<RefusedCall>,
}

impl Calls {
    /// A call was refused. Returns its text, which the client sees as speech unless it must be a
    /// call.
    fn refuse(&mut self, call: RefusedCall, shape: &Shape) -> Option<String> {
        let (reply_id, error) = (call.id.reply_id.0, &call.call);
        tracing::warn!(target: "walla::serve", reply_id, %error, "a call was refused");
        let text = (!shape.must_call).then(|| call.call.text.clone());
        self.refused.push(call);
        text
    }

    /// The end of the reply, with the text of refused calls if a limit has cut them.
    ///
    /// # Errors
    /// A call is required, and the reply has no valid one.
    fn end(&self, reason: FinishReason, shape: &Shape) -> Result<String, Refusal> {
        if !shape.must_call || self.made > 0 {
            return Ok(String::new());
        }
        if is_cut(reason) {
            return Ok(self.refused.iter().map(|call| call.call.text.as_str()).collect());
        }
        let reason = match self.refused.first() {
            Some(refused) => format!("the model's call is not valid: {}", refused.call),
            None => "the model has ended its turn without a call".to_owned(),
        };
        Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, reason).with_code("invalid_call"))
    }
}

/// Whether a limit has ended a reply.
fn is_cut(reason: FinishReason) -> bool {
    use FinishReason::{CallLimit, EndOfTurn, Stop, StopToken};
    !matches!(reason, EndOfTurn | StopToken | CallLimit | Stop { .. })
}

/// Members that all parts of an answer have.
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn new(server: &Server) -> Self {
        let id = format!("chatcmpl-{}-{:x}", server.run, ReplyId::unique().0);
        Self { id, created: unix_seconds(), model: server.options.model.clone() }
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
        reason if is_cut(reason) => ("length", Value::Null),
        _ if has_called => ("tool_calls", Value::Null),
        _ => ("stop", Value::Null),
    }
}

/// The answer as one object.
pub(super) async fn whole(mut open: Open, shape: Shape) -> Result<Response, Refusal> {
    let (mut text, mut reasoning, mut tokens) = (String::new(), String::new(), Vec::new());
    let (mut calls, mut tool_calls) = (Calls::default(), Vec::new());
    loop {
        match open.next_event().await {
            ReplyEvent::Delta { text: more, .. } => text.push_str(&more),
            ReplyEvent::Reasoning { text: more, .. } => reasoning.push_str(&more),
            ReplyEvent::Token(token) => {
                tokens.extend(shape.logprobs.map(|top| open.log_probabilities(&token, top)));
            }
            ReplyEvent::Call(call) => {
                calls.made += 1;
                tool_calls.push(open.tool_call(&call, None));
            }
            ReplyEvent::CallRefused(call) => {
                text.push_str(&calls.refuse(*call, &shape).unwrap_or_default());
            }
            ReplyEvent::Finished { reason, usage: counts } => {
                open.keep_agent();
                text.push_str(&calls.end(reason, &shape)?);
                let (finish_reason, stop_reason) = finish(reason, calls.made > 0, &shape);
                let has_content = !text.is_empty() || tool_calls.is_empty();
                let content = has_content.then_some(text);
                let mut message = json!({"role": "assistant", "content": content});
                if !reasoning.is_empty() {
                    message["reasoning_content"] = reasoning.into();
                }
                if !tool_calls.is_empty() {
                    message["tool_calls"] = tool_calls.into();
                }
                let mut choice = json!({
                    "index": 0, "message": message,
                    "finish_reason": finish_reason, "stop_reason": stop_reason,
                });
                if shape.logprobs.is_some() {
                    choice["logprobs"] = json!({"content": tokens});
                }
                let head = Head::new(&open.server);
                let mut answer = head.object("chat.completion", json!([choice]));
                answer["usage"] = usage(&counts);
                return Ok(Json(answer).into_response());
            }
            ReplyEvent::Failed(error) => return Err(Refusal::from(&error)),
            _ => {}
        }
    }
}

/// The answer as a stream of events. An ask that fails at once is a status.
pub(super) async fn streamed(mut open: Open, shape: Shape) -> Result<Response, Refusal> {
    let first = match open.next_event().await {
        ReplyEvent::Failed(error) => return Err(Refusal::from(&error)),
        first => first,
    };
    let head = Head::new(&open.server);
    let begin = head.chunk(json!({"role": "assistant", "content": ""}));
    let state = Stream {
        open,
        shape,
        head,
        calls: Calls::default(),
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
    calls: Calls,
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
                Some(event) => event,
                None => self.open.next_event().await,
            };
            self.take(event);
        }
    }

    fn take(&mut self, event: ReplyEvent) {
        match event {
            ReplyEvent::Delta { text, .. } => self.send(json!({"content": &*text})),
            ReplyEvent::Reasoning { text, .. } => self.send(json!({"reasoning_content": &*text})),
            ReplyEvent::Token(token) => {
                let top = self.shape.logprobs;
                self.tokens.extend(top.map(|top| self.open.log_probabilities(&token, top)));
            }
            ReplyEvent::Call(call) => {
                let call = self.open.tool_call(&call, Some(self.calls.made));
                self.calls.made += 1;
                self.send(json!({"tool_calls": [call]}));
            }
            ReplyEvent::CallRefused(call) => {
                if let Some(text) = self.calls.refuse(*call, &self.shape) {
                    self.send(json!({"content": text}));
                }
            }
            ReplyEvent::Finished { reason, usage: counts } => {
                self.open.keep_agent();
                let text = match self.calls.end(reason, &self.shape) {
                    Ok(text) => text,
                    Err(refusal) => return self.fail(&refusal),
                };
                let (finish_reason, stop_reason) = finish(reason, self.calls.made > 0, &self.shape);
                let delta = if text.is_empty() { json!({}) } else { json!({"content": text}) };
                let mut choice = json!({
                    "index": 0, "delta": delta,
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
            ReplyEvent::Failed(error) => self.fail(&Refusal::from(&error)),
            _ => {}
        }
    }

    fn fail(&mut self, refusal: &Refusal) {
        self.left.push(refusal.body());
        self.is_done = true;
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

#[cfg(test)]
mod tests {
    use walla_runtime::{CallError, CallId, MalformedCall};

    use super::*;

    fn shape(must_call: bool) -> Shape {
        Shape {
            is_streamed: false,
            has_usage: false,
            logprobs: None,
            must_call,
            stop_strings: Arc::new([]),
        }
    }

    fn refused() -> RefusedCall {
        let id = CallId { reply_id: ReplyId(1), index: 0 };
        let reason = "below its minimum";
        let error = CallError::InvalidArgument { property: "speed".into(), reason };
        let text = r#"{"name": "drive", "arguments": {"speed": 0}}"#.into();
        RefusedCall { id, call: MalformedCall { text, error } }
    }

    #[test]
    fn a_refused_call_fails_a_request_that_requires_one() {
        let shape = shape(true);
        let mut calls = Calls::default();
        assert_eq!(calls.refuse(refused(), &shape), None);
        let refusal = calls.end(FinishReason::EndOfTurn, &shape).unwrap_err();
        assert_eq!(refusal.status, StatusCode::INTERNAL_SERVER_ERROR);
        for part in ["below its minimum", "speed", "drive"] {
            assert!(refusal.message.contains(part), "{refusal:?}");
        }
        // A limit has cut it: its text is seen with the finish reason "length".
        let text = calls.end(FinishReason::Length, &shape).unwrap();
        assert_eq!(text, refused().call.text);
        // Without any call.
        assert!(Calls::default().end(FinishReason::EndOfTurn, &shape).is_err());
        assert_eq!(Calls::default().end(FinishReason::ContextFull, &shape).unwrap(), "");
        // With a valid one.
        calls.made = 1;
        assert_eq!(calls.end(FinishReason::CallLimit, &shape).unwrap(), "");
    }

    #[test]
    fn a_refused_call_that_was_not_required_is_text() {
        let shape = shape(false);
        let mut calls = Calls::default();
        assert_eq!(calls.refuse(refused(), &shape), Some(refused().call.text));
        assert_eq!(calls.end(FinishReason::EndOfTurn, &shape).unwrap(), "");
    }

    #[test]
    fn a_reply_that_a_limit_has_cut_is_not_finished_by_its_calls() {
        let shape = shape(false);
        for (reason, has_called, expected) in [
            (FinishReason::EndOfTurn, false, "stop"),
            (FinishReason::EndOfTurn, true, "tool_calls"),
            (FinishReason::CallLimit, true, "tool_calls"),
            (FinishReason::Length, true, "length"),
            (FinishReason::ContextFull, true, "length"),
            (FinishReason::ReasoningLength, false, "length"),
        ] {
            assert_eq!(finish(reason, has_called, &shape).0, expected, "{reason:?}");
        }
    }
}
