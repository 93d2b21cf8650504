//! A request as an agent and its ask.

use std::sync::Arc;

use serde_json::{Value, json};
use walla_runtime::{
    ActionPolicy, ActionSet, ActionSpec, Actions, AgentSpec, AskOptions, Constraint, ContextPolicy,
    Prompt, Speaker,
};
use walla_types::{MAX_CANDIDATES, Sampling, TokenId};

use super::Refusal;
use super::history::conversation;
use super::wire::{Request, StructuredOutputs, Texts, Tool};

/// An agent, its ask, and the form of the answer.
#[derive(Debug)]
pub(super) struct Ask {
    pub spec: AgentSpec,
    pub prompt: Prompt,
    pub options: AskOptions,
    pub shape: Shape,
}

/// Form of the answer.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub is_streamed: bool,
    pub has_usage: bool,
    /// Number of alternatives of each token. `None`: no log-probabilities.
    pub logprobs: Option<usize>,
    /// Without a call the request has failed.
    pub must_call: bool,
    pub stop_strings: Arc<[String]>,
}

/// Default of `max_tokens`, for the speech alone.
const REPLY_TOKENS: u32 = 1_024;

/// Maximum of `top_logprobs`, as in OpenAI's reference. The engine has [`MAX_CANDIDATES`].
const MAX_TOP_LOGPROBS: u32 = 20;

/// Refuses members that would change the reply and that are not supported.
fn refuse_unsupported(request: &Request) -> Result<(), Refusal> {
    let structured = "not supported: use `structured_outputs`";
    for (name, member, instead) in [
        ("functions", &request.functions, "not supported: use `tools`"),
        ("function_call", &request.function_call, "not supported: use `tool_choice`"),
        ("audio", &request.audio, "only text is supported"),
        ("grammar", &request.grammar, structured),
        ("guided_json", &request.guided_json, structured),
        ("guided_regex", &request.guided_regex, structured),
        ("guided_choice", &request.guided_choice, structured),
        ("guided_grammar", &request.guided_grammar, structured),
    ] {
        if member.is_some() {
            return Err(Refusal::of(name, instead));
        }
    }
    match request.modalities.iter().flatten().any(|kind| kind != "text") {
        true => Err(Refusal::of("modalities", "only text is supported")),
        false => Ok(()),
    }
}

/// Reads a request.
pub(super) fn ask(mut request: Request) -> Result<Ask, Refusal> {
    if request.n.is_some_and(|n| n != 1) {
        return Err(Refusal::of("n", "only one choice is supported"));
    }
    refuse_unsupported(&request)?;
    let stop_strings: Vec<String> = match request.stop.take() {
        None => Vec::new(),
        Some(Texts::One(text)) => vec![text],
        Some(Texts::Several(texts)) => texts,
    };
    let thinking = request.chat_template_kwargs.as_ref().and_then(|its| its.get("enable_thinking"));
    let thinking = thinking.and_then(Value::as_bool).unwrap_or(false);
    let max_tokens = request.max_completion_tokens.or(request.max_tokens);
    let (persona, mut turns) = conversation(&request.messages)?;
    let prompt = match turns.pop() {
        Some(last) if last.speaker == Speaker::User => Prompt::of_question(Some(last)),
        Some(last) => {
            turns.push(last);
            Prompt::Continue
        }
        None if persona.is_empty() => return Err(Refusal::of("messages", "no message with text")),
        // The agent speaks first.
        None => Prompt::Continue,
    };
    let (actions, policy) = actions(&mut request)?;
    let is_streamed = request.stream == Some(true);
    let has_usage = request.stream_options.as_ref().and_then(|its| its.include_usage);
    let shape = Shape {
        is_streamed,
        has_usage: has_usage == Some(true),
        logprobs: (request.logprobs == Some(true))
            .then(|| request.top_logprobs.unwrap_or(0) as usize),
        must_call: policy == Some(ActionPolicy::Required),
        stop_strings: stop_strings.clone().into(),
    };
    let spec = AgentSpec {
        sampling: sampling(&request)?,
        max_reply_tokens: max_tokens.unwrap_or(REPLY_TOKENS),
        thinking,
        // Lower numbers are served earlier, as in vLLM.
        priority: request.priority.unwrap_or(0).saturating_neg(),
        context_policy: ContextPolicy::Refuse,
        stop_strings,
        constraint: constraint(&request)?,
        actions,
        turns,
        ..AgentSpec::new(persona)
    };
    // Of the ask: the policy of an agent does not hold behind results, and excludes no constraint.
    let options = AskOptions { actions: policy, max_tokens, ..AskOptions::default() };
    Ok(Ask { spec, prompt, options, shape })
}

fn sampling(request: &Request) -> Result<Sampling, Refusal> {
    let top = request.top_logprobs.unwrap_or(0);
    if top > MAX_TOP_LOGPROBS {
        return Err(Refusal::of("top_logprobs", format!("{top}, at most {MAX_TOP_LOGPROBS}")));
    }
    // One candidate at least, so that the engine reports the token.
    let candidates = if request.logprobs == Some(true) { top.clamp(1, MAX_CANDIDATES) } else { 0 };
    // Only the likeliest token is within 0.
    let top_p = request.top_p.unwrap_or(1.0);
    let (temperature, top_p) =
        if top_p == 0.0 { (0.0, 1.0) } else { (request.temperature.unwrap_or(1.0), top_p) };
    let penalty = request.repetition_penalty.or(request.repeat_penalty);
    let mut builder = Sampling::builder()
        .temperature(temperature)
        .top_p(top_p)
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
            .map_err(|_| Refusal::of("logit_bias", format!("{token:?} is not a token id")))?;
        // 100 and -100 mean always and never in OpenAI's reference.
        let bias = if *bias <= -100.0 { f32::NEG_INFINITY } else { *bias };
        builder = builder.bias(TokenId(token), bias);
    }
    builder.build().map_err(|error| Refusal::bad(error.to_string()))
}

/// A number that differs from request to request.
pub(super) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
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
            (Some(_), Some(_)) => Err(Refusal::of("structured_outputs", "more than one kind")),
            (given, _) => Ok(given),
        };
    }
    let Some(format) = &request.response_format else { return Ok(None) };
    match (format.kind.as_str(), &format.json_schema) {
        ("text", _) => Ok(None),
        ("json_object", _) => Ok(Some(Constraint::json_schema(r#"{"type": "object"}"#))),
        ("json_schema", Some(named)) => {
            let schema = named.schema.as_ref();
            let schema = schema.ok_or_else(|| Refusal::of("response_format", "no schema"))?;
            Ok(Some(Constraint::json_schema_value(schema)))
        }
        (kind, _) => Err(Refusal::of("response_format", format!("type {kind:?} is not supported"))),
    }
}

/// The tools, and the policy of the ask. A tool that cannot be used is named, unless another one
/// is chosen.
fn actions(request: &mut Request) -> Result<(Option<Actions>, Option<ActionPolicy>), Refusal> {
    let refused = |reason: String| Refusal::of("tool_choice", reason);
    let (mut policy, mut chosen) = (None, None);
    match &request.tool_choice {
        None => {}
        Some(Value::String(choice)) => {
            policy = Some(match choice.as_str() {
                "auto" => ActionPolicy::Auto,
                "required" => ActionPolicy::Required,
                "none" => ActionPolicy::Off,
                other => return Err(refused(format!("unknown {other:?}"))),
            });
        }
        Some(choice) => {
            let name = choice["function"]["name"].as_str();
            let name = name.ok_or_else(|| refused("no name of a function".into()))?;
            (policy, chosen) = (Some(ActionPolicy::Required), Some(name.to_owned()));
        }
    }
    let mut specs = Vec::new();
    for (at, tool) in request.tools.take().into_iter().flatten().enumerate() {
        let is_chosen = |name: &String| tool.function.as_ref().is_some_and(|its| its.name == *name);
        if chosen.as_ref().is_none_or(is_chosen) {
            specs.push(action(at, tool)?);
        }
    }
    if let Some(name) = chosen.as_ref().filter(|_| specs.is_empty()) {
        return Err(refused(format!("no tool {name:?}")));
    }
    if specs.is_empty() {
        // A call is possible only with tools.
        return Ok((None, policy.filter(|policy| *policy == ActionPolicy::Required)));
    }
    let set = ActionSet::new(specs).map_err(|error| Refusal::of("tools", error))?;
    let mut actions = Actions::new(set);
    // A named function is called once, as OpenAI's models do.
    if request.parallel_tool_calls == Some(false) || chosen.is_some() {
        actions.max_calls = 1;
    }
    Ok((Some(actions), policy))
}

fn action(at: usize, tool: Tool) -> Result<ActionSpec, Refusal> {
    let Some(function) = tool.function.filter(|_| tool.kind == "function") else {
        let reason = format!("type {:?} is not supported", tool.kind);
        return Err(Refusal::of(format!("tools[{at}]"), reason));
    };
    let nothing = || json!({"type": "object", "properties": {}, "additionalProperties": false});
    let is_given =
        |its: &Value| !its.is_null() && its.as_object().is_none_or(|its| !its.is_empty());
    let parameters = function.parameters.filter(is_given).unwrap_or_else(nothing);
    let description = function.description.unwrap_or_default();
    let name = function.name;
    ActionSpec::new(name.as_str(), &description, &parameters)
        .map_err(|error| Refusal::of(format!("tools[{at}].function"), format!("{name:?}: {error}")))
}
