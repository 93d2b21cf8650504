//! The body of a request, from an agent and its ask.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use walla_grammar::ActionSet;
use walla_model::chat::{Message, Role, WireForm, wire_messages};
use walla_runtime::{
    ActionPolicy, AgentSpec, Constraint, ConstraintError, ConstraintKind, ReplyError, Turn,
};

use crate::dialect::Dialect;
use crate::options::RemoteOptions;

/// Content of a request.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub spec: &'a AgentSpec,
    pub turns: &'a [Turn],
    /// Texts that the agent knows for this reply.
    pub note: Option<&'a str>,
    pub question: Option<&'a Turn>,
    pub constraint: Option<&'a Constraint>,
    /// When the reply may call actions. `None`: the request has no tools.
    pub policy: Option<ActionPolicy>,
    /// Instead of the seed of the sampling parameters.
    pub seed: Option<u64>,
    /// Names the conversation for the prefix cache of the server.
    pub cache_key: &'a str,
}

/// The JSON text of a request.
///
/// # Errors
/// [`ReplyError::Constraint`] if a schema is not JSON, [`ReplyError::PromptTooLong`] if the text
/// exceeds [`SizeLimits::request_bytes`](crate::SizeLimits::request_bytes).
pub(crate) fn body(options: &RemoteOptions, asked: &Asked<'_>) -> Result<Vec<u8>, ReplyError> {
    let spec = asked.spec;
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| _ = body.insert(name.to_owned(), value);
    set("model", options.model.as_str().into());
    set("messages", messages(options, asked).into());
    set("stream", true.into());
    set("stream_options", json!({"include_usage": true}));
    set_sampling(options.dialect, spec, &mut set);
    let seed = asked.seed.unwrap_or(spec.sampling.seed());
    set("seed", (seed & i64::MAX as u64).into());
    let tools = asked.policy.zip(spec.actions.as_ref()).filter(|(_, its)| !its.set.is_empty());
    if let Some((policy, actions)) = tools {
        set_tools(policy, &actions.set, &mut set);
    }
    if let Some(constraint) = asked.constraint {
        set_constraint(options.dialect, constraint, &mut set)?;
    }
    match options.dialect {
        Dialect::OpenAi => set("prompt_cache_key", asked.cache_key.into()),
        Dialect::LlamaServer => set("cache_prompt", true.into()),
        _ => {}
    }
    if options.dialect.has_thinking_switch() {
        set("chat_template_kwargs", json!({"enable_thinking": spec.thinking}));
    }
    let mut body = Value::Object(body);
    if let Some(field) = options.priority.clone().or_else(|| options.dialect.priority()) {
        put(&mut body, &field.pointer, field.value(spec.priority).into());
    }
    for (name, value) in &options.extra {
        body[name] = value.clone();
    }
    let text = body.to_string().into_bytes();
    let max_bytes = options.sizes.request_bytes;
    if text.len() > max_bytes {
        let tokens = |bytes: usize| u32::try_from(bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX);
        let (prompt_tokens, context_tokens) = (tokens(text.len()), tokens(max_bytes));
        return Err(ReplyError::PromptTooLong { prompt_tokens, context_tokens });
    }
    Ok(text)
}

/// Bytes per token, to estimate the tokens of a text.
pub(crate) const BYTES_PER_TOKEN: usize = 4;

fn messages(options: &RemoteOptions, asked: &Asked<'_>) -> Vec<Value> {
    let persona = Message::new(Role::System, &asked.spec.persona);
    let question = asked.question.map(Turn::message);
    let persona = Some(persona).filter(|persona| !persona.content.is_empty());
    let note = asked.note.map(|content| Message::new(Role::Observation, content));
    let turns = asked.turns.iter().map(Turn::message);
    let list: Vec<_> = persona.into_iter().chain(turns).chain(note).chain(question).collect();
    // Servers accept calls of earlier replies only in requests with tools.
    let tools = asked.policy.is_some() && asked.spec.actions.is_some();
    wire_messages(&list, WireForm { system_anywhere: options.system_anywhere, tools })
}

fn set_sampling(dialect: Dialect, spec: &AgentSpec, set: &mut impl FnMut(&str, Value)) {
    let sampling = &spec.sampling;
    set("temperature", number(sampling.temperature()));
    set("top_p", number(sampling.top_p()));
    // Servers read a signed number.
    let reasoning_tokens = if spec.thinking { spec.max_reasoning_tokens } else { 0 };
    let tokens = spec.max_reply_tokens.saturating_add(reasoning_tokens);
    // OpenAI's newer models accept only the first name, other servers only the second.
    let name = if dialect == Dialect::OpenAi { "max_completion_tokens" } else { "max_tokens" };
    set(name, tokens.into());
    if sampling.presence_penalty() != 0.0 {
        set("presence_penalty", number(sampling.presence_penalty()));
    }
    if sampling.frequency_penalty() != 0.0 {
        set("frequency_penalty", number(sampling.frequency_penalty()));
    }
    if dialect.has_samplers() {
        set("top_k", if sampling.top_k() == 0 { (-1).into() } else { sampling.top_k().into() });
        set("min_p", number(sampling.min_p()));
        let name =
            if dialect == Dialect::LlamaServer { "repeat_penalty" } else { "repetition_penalty" };
        if sampling.repetition_penalty() != 1.0 {
            set(name, number(sampling.repetition_penalty()));
        }
    }
    if sampling.candidates() > 0 {
        set("logprobs", true.into());
        set("top_logprobs", sampling.candidates().into());
        if dialect == Dialect::Vllm {
            set("return_tokens_as_token_ids", true.into());
        }
    }
    if !spec.stop_strings.is_empty() {
        let max_stop = if dialect == Dialect::OpenAi { 4 } else { usize::MAX };
        set("stop", spec.stop_strings.iter().take(max_stop).cloned().collect());
    }
}

/// A number as it is written, not the nearest f64 of an f32.
fn number(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn set_tools(policy: ActionPolicy, actions: &ActionSet, set: &mut impl FnMut(&str, Value)) {
    set("tools", actions.tools().into());
    let choice = match policy {
        ActionPolicy::Auto => "auto",
        ActionPolicy::Required => "required",
        ActionPolicy::Off => "none",
    };
    set("tool_choice", choice.into());
}

fn set_constraint(
    dialect: Dialect,
    constraint: &Constraint,
    set: &mut impl FnMut(&str, Value),
) -> Result<(), ReplyError> {
    let sources = constraint.sources();
    let source = sources.first().copied().unwrap_or_default();
    match (constraint.kind(), dialect) {
        (ConstraintKind::JsonSchema, _) => {
            let schema: Value = serde_json::from_str(source).map_err(|error| {
                let (line, column) = (error.line(), error.column());
                let message = error.to_string();
                ReplyError::Constraint(Arc::new(ConstraintError::Json { line, column, message }))
            })?;
            let schema = json!({"name": "reply", "strict": true, "schema": schema});
            set("response_format", json!({"type": "json_schema", "json_schema": schema}));
        }
        (ConstraintKind::Regex, Dialect::Sglang) => set("regex", source.into()),
        (ConstraintKind::Choice, Dialect::Sglang) => {
            let texts: Vec<_> = sources.iter().map(|text| escaped(text)).collect();
            set("regex", format!("({})", texts.join("|")).into());
        }
        (ConstraintKind::Choice, Dialect::LlamaServer) => {
            let texts: Vec<_> = sources.iter().map(|text| gbnf(text)).collect();
            set("grammar", format!("root ::= {}", texts.join(" | ")).into());
        }
        (ConstraintKind::Regex, _) => set("structured_outputs", json!({"regex": source})),
        (ConstraintKind::Choice, _) => set("structured_outputs", json!({"choice": sources})),
        (ConstraintKind::Lark, _) => set("structured_outputs", json!({"grammar": source})),
    }
    Ok(())
}

/// A text as a regular expression that matches only it.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if letter.is_ascii_punctuation() {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// A text as a literal of llama.cpp's GBNF (`grammars/README.md` there).
fn gbnf(text: &str) -> String {
    let mut literal = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => literal.extend(['\\', letter]),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            '\t' => literal.push_str("\\t"),
            letter => literal.push(letter),
        }
    }
    literal.push('"');
    literal
}

/// Sets the member at a JSON pointer; objects on the way are made.
fn put(body: &mut Value, pointer: &str, value: Value) {
    let mut place = body;
    for name in pointer.split('/').skip(1) {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        place = &mut place[name];
    }
    *place = value;
}
