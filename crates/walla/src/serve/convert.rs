//! A request as an agent and its ask.

use std::sync::Arc;

use serde_json::{Value, json};
use walla_runtime::{
    ActionPolicy, ActionSet, ActionSpec, Actions, AgentSpec, Call, CallId, Constraint,
    ContextPolicy, Prompt, ReplyId, Speaker, Turn,
};
use walla_types::{Sampling, TokenId};

use super::Refusal;
use super::wire::{Content, Message, Request, StructuredOutputs, Texts, Tool};

/// An agent, its ask, and the form of the answer.
#[derive(Debug)]
pub(super) struct Ask {
    pub spec: AgentSpec,
    pub prompt: Prompt,
    pub shape: Shape,
}

/// Form of the answer.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub is_streamed: bool,
    pub has_usage: bool,
    pub has_logprobs: bool,
    pub stop_strings: Arc<[String]>,
}

/// Default of `max_tokens`.
const REPLY_TOKENS: u32 = 1_024;

/// Reads a request.
pub(super) fn ask(mut request: Request) -> Result<Ask, Refusal> {
    if request.n.is_some_and(|n| n != 1) {
        return Err(Refusal::bad("n: only one choice is supported"));
    }
    let stop_strings: Vec<String> = match request.stop.take() {
        None => Vec::new(),
        Some(Texts::One(text)) => vec![text],
        Some(Texts::Several(texts)) => texts,
    };
    let has_logprobs = request.logprobs == Some(true);
    let shape = Shape {
        is_streamed: request.stream == Some(true),
        has_usage: request
            .stream_options
            .as_ref()
            .is_some_and(|its| its.include_usage == Some(true)),
        has_logprobs,
        stop_strings: stop_strings.clone().into(),
    };
    let thinking = request.chat_template_kwargs.as_ref().and_then(|its| its.get("enable_thinking"));
    let tokens = request.max_completion_tokens.or(request.max_tokens);
    let (persona, mut turns) = conversation(&request.messages)?;
    let prompt = match turns.pop() {
        Some(Turn { speaker: Speaker::User, text, .. }) => Prompt::Chat(text),
        Some(last) => {
            turns.push(last);
            Prompt::Continue
        }
        None => return Err(Refusal::bad("messages: no message of a user")),
    };
    let spec = AgentSpec {
        sampling: sampling(&request)?,
        reply_tokens_max: tokens.unwrap_or(REPLY_TOKENS),
        thinking: thinking.and_then(Value::as_bool).unwrap_or(false),
        // Lower numbers are served earlier, as in vLLM.
        priority: request.priority.unwrap_or(0).saturating_neg(),
        context_policy: ContextPolicy::Refuse,
        stop_strings,
        constraint: constraint(&request)?,
        actions: actions(request.tools.take(), request.tool_choice.as_ref())?,
        turns,
        ..AgentSpec::new(persona)
    };
    Ok(Ask { spec, prompt, shape })
}

fn sampling(request: &Request) -> Result<Sampling, Refusal> {
    let candidates = match (request.logprobs, request.top_logprobs) {
        // One candidate, so that the engine reports the token.
        (Some(true), top) => top.unwrap_or(0).max(1),
        _ => 0,
    };
    let penalty = request.repetition_penalty.or(request.repeat_penalty);
    let mut builder = Sampling::builder()
        .temperature(request.temperature.unwrap_or(1.0))
        .top_p(request.top_p.unwrap_or(1.0))
        .top_k(request.top_k.and_then(|k| u32::try_from(k).ok()).unwrap_or(0))
        .min_p(request.min_p.unwrap_or(0.0))
        .repetition_penalty(penalty.unwrap_or(1.0))
        .presence_penalty(request.presence_penalty.unwrap_or(0.0))
        .frequency_penalty(request.frequency_penalty.unwrap_or(0.0))
        .seed(request.seed.map_or_else(random_seed, |seed| seed as u64))
        .candidates(candidates);
    for (token, bias) in request.logit_bias.iter().flatten() {
        let token = token
            .parse()
            .map_err(|_| Refusal::bad(format!("logit_bias: {token:?} is not a token id")))?;
        // 100 and -100 mean always and never in OpenAI's reference.
        let bias = if *bias <= -100.0 { f32::NEG_INFINITY } else { *bias };
        builder = builder.bias(TokenId(token), bias);
    }
    builder.build().map_err(|error| Refusal::bad(error.to_string()))
}

/// A seed that differs from request to request.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// Persona and turns.
fn conversation(messages: &[Message]) -> Result<(String, Vec<Turn>), Refusal> {
    let (mut persona, mut turns) = (String::new(), Vec::new());
    for message in messages {
        let text = text(message)?;
        let turn = |speaker| Turn::new(speaker, text.clone());
        match message.role.as_str() {
            "system" | "developer" if turns.is_empty() => {
                if !persona.is_empty() {
                    persona.push_str("\n\n");
                }
                persona.push_str(&text);
            }
            "system" | "developer" => turns.push(turn(Speaker::Observation)),
            "user" => turns.push(turn(Speaker::User)),
            "assistant" => {
                let calls = message.tool_calls.as_deref().unwrap_or_default();
                if !text.is_empty() || calls.is_empty() {
                    turns.push(turn(Speaker::Agent));
                }
                for call in calls {
                    let arguments = match &call.function.arguments {
                        None => json!({}),
                        Some(Value::String(text)) => {
                            serde_json::from_str(text).map_err(|error| {
                                Refusal::bad(format!("tool_calls: arguments are not JSON: {error}"))
                            })?
                        }
                        Some(value) => value.clone(),
                    };
                    let Value::Object(arguments) = arguments else {
                        return Err(Refusal::bad("tool_calls: arguments are no JSON object"));
                    };
                    let id = CallId { reply_id: ReplyId(0), index: 0 };
                    let call = Call { id, name: call.function.name.clone(), arguments };
                    turns.push(Turn::new(Speaker::Action, call.text()));
                }
            }
            "tool" | "function" => turns.push(turn(Speaker::ActionResult)),
            role => return Err(Refusal::bad(format!("messages: unknown role {role:?}"))),
        }
    }
    Ok((persona, turns))
}

fn text(message: &Message) -> Result<String, Refusal> {
    match &message.content {
        None => Ok(String::new()),
        Some(Content::Text(text)) => Ok(text.clone()),
        Some(Content::Parts(parts)) => {
            let mut all = String::new();
            for part in parts {
                match (part.kind.as_str(), &part.text) {
                    ("text", Some(text)) => all.push_str(text),
                    (kind, _) => {
                        let message =
                            format!("messages: content of type {kind:?} is not supported");
                        return Err(Refusal::bad(message));
                    }
                }
            }
            Ok(all)
        }
    }
}

fn constraint(request: &Request) -> Result<Option<Constraint>, Refusal> {
    if let Some(StructuredOutputs { json, regex, choice, grammar }) = &request.structured_outputs {
        let json = json.as_ref().map(|schema| match schema {
            Value::String(text) => Constraint::json_schema(text.as_str()),
            schema => Constraint::json_schema_value(schema),
        });
        let regex = regex.as_deref().map(Constraint::regex);
        let choice = choice.clone().map(Constraint::choice);
        let grammar = grammar.as_deref().map(Constraint::lark);
        let mut given = [json, regex, choice, grammar].into_iter().flatten();
        return match (given.next(), given.next()) {
            (Some(_), Some(_)) => Err(Refusal::bad("structured_outputs: more than one kind")),
            (given, _) => Ok(given),
        };
    }
    let Some(format) = &request.response_format else { return Ok(None) };
    match (format.kind.as_str(), &format.json_schema) {
        ("text", _) => Ok(None),
        ("json_object", _) => Ok(Some(Constraint::json_schema(r#"{"type": "object"}"#))),
        ("json_schema", Some(named)) => {
            let schema = named.schema.as_ref();
            let schema = schema.ok_or_else(|| Refusal::bad("response_format: no schema"))?;
            Ok(Some(Constraint::json_schema_value(schema)))
        }
        (kind, _) => Err(Refusal::bad(format!("response_format: type {kind:?} is not supported"))),
    }
}

fn actions(tools: Option<Vec<Tool>>, choice: Option<&Value>) -> Result<Option<Actions>, Refusal> {
    let Some(tools) = tools.filter(|tools| !tools.is_empty()) else { return Ok(None) };
    let mut specs = Vec::new();
    for tool in tools {
        let Some(function) = tool.function.filter(|_| tool.kind == "function") else {
            let kind = tool.kind;
            return Err(Refusal::bad(format!("tools: type {kind:?} is not supported")));
        };
        let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
        let parameters = function.parameters.unwrap_or(nothing);
        let description = function.description.unwrap_or_default();
        let spec = ActionSpec::new(function.name, &description, &parameters)
            .map_err(|error| Refusal::bad(format!("tools: {error}")))?;
        specs.push(spec);
    }
    let policy = match choice {
        None => ActionPolicy::Auto,
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => ActionPolicy::Auto,
            "required" => ActionPolicy::Required,
            "none" => ActionPolicy::Off,
            other => return Err(Refusal::bad(format!("tool_choice: unknown {other:?}"))),
        },
        Some(choice) => {
            let name = choice["function"]["name"].as_str();
            let name = name.ok_or_else(|| Refusal::bad("tool_choice: no name of a function"))?;
            specs.retain(|spec| spec.name() == name);
            if specs.is_empty() {
                return Err(Refusal::bad(format!("tool_choice: no tool {name:?}")));
            }
            ActionPolicy::Required
        }
    };
    let set = ActionSet::new(specs).map_err(|error| Refusal::bad(format!("tools: {error}")))?;
    Ok(Some(Actions { policy, ..Actions::new(set) }))
}
