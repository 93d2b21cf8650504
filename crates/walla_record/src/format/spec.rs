//! Specifications of agents, and the settings of asks.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use walla_runtime::{
    ActionError, ActionPolicy, ActionSet, ActionSpec, Actions, AfterFailure, AgentSpec, AskOptions,
    CallId, CancelAfter, Constraint, ConstraintKind, ContextPolicy, Detail, Notes, ReplyInProgress,
    Route, Speaker, Turn, UnmarkedCalls,
};
use walla_types::{Sampling, TokenId, TokenMask};

use super::ids::Ids;
use super::wire::{Defect, Reader, Writer};

/// Converts an enum without content to a byte and back. Positions never change.
macro_rules! tags {
    ($put:ident, $get:ident, $type:ty, $what:literal, [$($variant:path),+ $(,)?]) => {
        pub(super) fn $put(writer: &mut Writer<'_>, value: $type) {
            const ALL: &[$type] = &[$($variant),+];
            // Every variant is in the list: the tests write all of them.
            let tag = ALL.iter().position(|known| *known == value).unwrap_or(0);
            writer.u8(tag as u8);
        }

        pub(super) fn $get(reader: &mut Reader<'_>) -> Result<$type, Defect> {
            const ALL: &[$type] = &[$($variant),+];
            let tag = reader.u8()?;
            let value = ALL.get(usize::from(tag)).copied();
            value.ok_or(Defect::Tag { what: $what, tag: tag.into() })
        }
    };
}

tags!(
    put_detail,
    get_detail,
    Detail,
    "detail",
    [Detail::Full, Detail::Reduced, Detail::Background,]
);
tags!(
    put_context_policy,
    get_context_policy,
    ContextPolicy,
    "context policy",
    [ContextPolicy::DropOldest, ContextPolicy::Refuse, ContextPolicy::Stop,]
);
tags!(
    put_speaker,
    get_speaker,
    Speaker,
    "speaker",
    [Speaker::User, Speaker::Agent, Speaker::Observation, Speaker::Action, Speaker::ActionResult,]
);
tags!(
    put_policy,
    get_policy,
    ActionPolicy,
    "action policy",
    [ActionPolicy::Auto, ActionPolicy::Required, ActionPolicy::Off,]
);
tags!(
    put_kind,
    get_kind,
    ConstraintKind,
    "constraint",
    [
        ConstraintKind::JsonSchema,
        ConstraintKind::Regex,
        ConstraintKind::Choice,
        ConstraintKind::Lark,
    ]
);
tags!(
    put_after_failure,
    get_after_failure,
    AfterFailure,
    "conduct after a failure",
    [AfterFailure::End, AfterFailure::Continue,]
);
tags!(
    put_in_progress,
    get_in_progress,
    ReplyInProgress,
    "conduct of a reply",
    [ReplyInProgress::Finish, ReplyInProgress::Cancel,]
);

pub(super) fn put_turns(writer: &mut Writer<'_>, ids: &mut Ids, turns: &[Turn]) {
    writer.list(turns.iter(), |writer, turn| {
        put_speaker(writer, turn.speaker);
        writer.text(&turn.text);
        writer.option(turn.call, |writer, call| put_call(writer, ids, call));
    });
}

pub(super) fn get_turns(reader: &mut Reader<'_>, ids: &mut Ids) -> Result<Vec<Turn>, Defect> {
    reader.list(|reader| {
        let turn = Turn::new(get_speaker(reader)?, reader.text()?);
        Ok(Turn { call: reader.option(|reader| get_call(reader, ids))?, ..turn })
    })
}

pub(super) fn put_call(writer: &mut Writer<'_>, ids: &mut Ids, call: CallId) {
    ids.put_reply(writer, call.reply_id);
    writer.number(call.index);
}

pub(super) fn get_call(reader: &mut Reader<'_>, ids: &mut Ids) -> Result<CallId, Defect> {
    Ok(CallId { reply_id: ids.get_reply(reader)?, index: reader.u32()? })
}

pub(super) fn put_spec(writer: &mut Writer<'_>, ids: &mut Ids, spec: &AgentSpec) {
    writer.text(&spec.persona);
    put_sampling(writer, &spec.sampling);
    writer.number(spec.max_reply_tokens);
    writer.bool(spec.thinking);
    writer.number(spec.max_reasoning_tokens);
    writer.option(spec.voice_rate, Writer::float);
    writer.signed(spec.priority.into());
    put_detail(writer, spec.detail);
    put_context_policy(writer, spec.context_policy);
    writer.list(spec.stop_strings.iter(), |writer, text| writer.text(text));
    put_tokens(writer, &spec.stop_tokens);
    writer.option(spec.constraint.as_ref(), put_constraint);
    writer.option(spec.actions.as_ref(), put_actions);
    put_route(writer, &spec.route);
    put_turns(writer, ids, &spec.turns);
}

pub(super) fn get_spec(reader: &mut Reader<'_>, ids: &mut Ids) -> Result<AgentSpec, Defect> {
    reader.charge::<AgentSpec>(1)?;
    Ok(AgentSpec {
        persona: reader.text()?.to_owned(),
        sampling: get_sampling(reader)?,
        max_reply_tokens: reader.u32()?,
        thinking: reader.bool()?,
        max_reasoning_tokens: reader.u32()?,
        voice_rate: reader.option(Reader::float)?,
        priority: i32::try_from(reader.signed()?).map_err(|_| Defect::Number)?,
        detail: get_detail(reader)?,
        context_policy: get_context_policy(reader)?,
        stop_strings: reader.list(|reader| Ok(reader.text()?.to_owned()))?,
        stop_tokens: get_tokens(reader)?,
        constraint: reader.option(get_constraint)?,
        actions: reader.option(get_actions)?,
        route: get_route(reader)?,
        turns: get_turns(reader, ids)?,
    })
}

pub(super) fn put_options(writer: &mut Writer<'_>, options: &AskOptions) {
    writer.option(options.constraint.as_ref(), put_constraint);
    writer.option(options.actions, put_policy);
    writer.option(options.opening.as_deref(), |writer, text| writer.text(text));
    writer.option(options.notes.as_deref(), |writer, notes| {
        writer.text(&notes.heading);
        writer.list(notes.texts.iter(), |writer, text| writer.text(text));
        writer.number(notes.max_tokens);
    });
    writer.option(options.seed, Writer::number);
    writer.bool(options.aside);
    writer.option(options.max_tokens, Writer::number);
    writer.option(options.score.as_deref(), |writer, texts| {
        writer.list(texts.iter(), |writer, text| writer.text(text));
    });
    writer.option(options.cancel_after.as_deref(), |writer, cancel| {
        writer.number(cancel.tokens);
        writer.number(cancel.heard_bytes);
    });
}

pub(super) fn get_options(reader: &mut Reader<'_>) -> Result<AskOptions, Defect> {
    Ok(AskOptions {
        constraint: reader.option(get_constraint)?,
        actions: reader.option(get_policy)?,
        opening: reader.option(|reader| Ok(Arc::new(reader.text()?.to_owned())))?,
        notes: reader.option(|reader| {
            let heading = reader.text()?.into();
            let texts = reader.list(|reader| Ok(Arc::from(reader.text()?)))?;
            Ok(Arc::new(Notes { heading, texts, max_tokens: reader.u32()? }))
        })?,
        seed: reader.option(Reader::number)?,
        aside: reader.bool()?,
        max_tokens: reader.option(Reader::u32)?,
        score: reader
            .option(|reader| Ok(Arc::new(reader.list(|reader| Ok(reader.text()?.to_owned()))?)))?,
        cancel_after: reader.option(|reader| {
            Ok(Box::new(CancelAfter { tokens: reader.u32()?, heard_bytes: reader.u32()? }))
        })?,
    })
}

pub(super) fn put_tokens(writer: &mut Writer<'_>, tokens: &[TokenId]) {
    writer.list(tokens.iter(), |writer, token| writer.number(token.0));
}

pub(super) fn get_tokens(reader: &mut Reader<'_>) -> Result<Vec<TokenId>, Defect> {
    reader.list(|reader| Ok(TokenId(reader.u32()?)))
}

fn put_sampling(writer: &mut Writer<'_>, sampling: &Sampling) {
    writer.float(sampling.temperature());
    writer.number(sampling.top_k());
    writer.float(sampling.top_p());
    writer.float(sampling.min_p());
    writer.float(sampling.repetition_penalty());
    writer.float(sampling.presence_penalty());
    writer.float(sampling.frequency_penalty());
    writer.number(sampling.penalty_window());
    writer.number(sampling.seed());
    writer.number(sampling.candidates());
    writer.list(sampling.biases().iter(), |writer, bias| {
        writer.number(bias.token.0);
        writer.float(bias.bias);
    });
    writer.option(sampling.allowed_tokens(), |writer, mask| {
        writer.list(mask.words().iter(), |writer, word| writer.number(*word));
    });
}

fn get_sampling(reader: &mut Reader<'_>) -> Result<Sampling, Defect> {
    let mut builder = Sampling::builder()
        .temperature(reader.float()?)
        .top_k(reader.u32()?)
        .top_p(reader.float()?)
        .min_p(reader.float()?)
        .repetition_penalty(reader.float()?)
        .presence_penalty(reader.float()?)
        .frequency_penalty(reader.float()?)
        .penalty_window(reader.u32()?)
        .seed(reader.number()?)
        .candidates(reader.u32()?);
    for (token, bias) in reader.list(|reader| Ok((TokenId(reader.u32()?), reader.float()?)))? {
        builder = builder.bias(token, bias);
    }
    let words = reader.option(|reader| reader.list(Reader::u32))?;
    if let Some(words) = words {
        let mask = TokenMask::from_words(words);
        let mask = mask.map_err(|error| Defect::value("allowed tokens", error))?;
        builder = builder.allowed_tokens(Arc::new(mask));
    }
    builder.build().map_err(|error| Defect::value("sampling", error))
}

fn put_constraint(writer: &mut Writer<'_>, constraint: &Constraint) {
    put_kind(writer, constraint.kind());
    writer.list(constraint.sources().into_iter(), Writer::text);
}

fn get_constraint(reader: &mut Reader<'_>) -> Result<Constraint, Defect> {
    let kind = get_kind(reader)?;
    let sources = reader.list(|reader| Ok(Arc::<str>::from(reader.text()?)))?;
    if kind == ConstraintKind::Choice {
        return Ok(Constraint::choice(sources));
    }
    let [source] = <[Arc<str>; 1]>::try_from(sources)
        .map_err(|_| Defect::value("constraint", "not one source"))?;
    Ok(match kind {
        ConstraintKind::Regex => Constraint::regex(source),
        ConstraintKind::Lark => Constraint::lark(source),
        ConstraintKind::JsonSchema | ConstraintKind::Choice => Constraint::json_schema(source),
    })
}

/// The key of unlisted choices in the parameters of an action: lists of texts by property. Schemas
/// have no such keyword.
const UNLISTED: &str = "unlistedChoices";

fn put_actions(writer: &mut Writer<'_>, actions: &Actions) {
    let Actions { set, policy, max_calls, max_call_bytes, unmarked, fault } = actions;
    writer.list(set.actions().iter(), |writer, action| {
        writer.text(action.name());
        writer.text(action.description());
        writer.bool(action.is_unit());
        let mut parameters = action.listed().parameters().clone();
        let unlisted = action.unlisted_choices();
        if let Some(parameters) = parameters.as_object_mut().filter(|_| !unlisted.is_empty()) {
            let choices: Map<String, Value> =
                unlisted.into_iter().map(|(name, texts)| (name, texts.into())).collect();
            parameters.insert(UNLISTED.to_owned(), choices.into());
        }
        writer.text(&parameters.to_string());
    });
    put_policy(writer, *policy);
    writer.number(*max_calls);
    writer.number(*max_call_bytes);
    writer.bool(*unmarked == UnmarkedCalls::Refuse);
    writer.option(fault.as_deref(), |writer, fault| writer.text(&fault.to_string()));
}

fn get_actions(reader: &mut Reader<'_>) -> Result<Actions, Defect> {
    let actions = reader.list(get_action)?;
    let set = ActionSet::new(actions).map_err(|error| Defect::value("actions", error))?;
    Ok(Actions {
        policy: get_policy(reader)?,
        max_calls: reader.u32()?,
        max_call_bytes: reader.u32()?,
        unmarked: match reader.bool()? {
            true => UnmarkedCalls::Refuse,
            false => UnmarkedCalls::Call,
        },
        fault: reader.option(|reader| {
            Ok(Arc::new(ActionError::Refused { reason: reader.text()?.to_owned() }))
        })?,
        ..Actions::new(set)
    })
}

fn get_action(reader: &mut Reader<'_>) -> Result<ActionSpec, Defect> {
    let defect = |error: &dyn ToString| Defect::value("action", error.to_string());
    let (name, description, is_unit) = (reader.text()?, reader.text()?, reader.bool()?);
    let mut parameters: Value = reader.json("action")?;
    let unlisted = parameters.as_object_mut().and_then(|fields| fields.remove(UNLISTED));
    if is_unit {
        parameters = json!({"type": "null"});
    }
    // A schema has no enumeration without values; a property without choices is made as such.
    let without_choices = fill_enumerations(&mut parameters);
    let mut action =
        ActionSpec::new(name, description, &parameters).map_err(|error| defect(&error))?;
    for property in without_choices {
        action = action.with_choices(&property, [""; 0]).map_err(|error| defect(&error))?;
    }
    let unlisted: Map<String, Value> =
        serde_json::from_value(unlisted.unwrap_or(json!({}))).map_err(|error| defect(&error))?;
    for (property, texts) in unlisted {
        let texts: Vec<String> = serde_json::from_value(texts).map_err(|error| defect(&error))?;
        action = action.with_unlisted_choices(&property, texts).map_err(|error| defect(&error))?;
    }
    Ok(action)
}

/// Gives a value to each enumeration without values. Returns the properties that have one.
fn fill_enumerations(parameters: &mut Value) -> Vec<String> {
    let properties = parameters.get_mut("properties").and_then(Value::as_object_mut);
    let properties = properties.into_iter().flatten();
    let filled = properties.filter_map(|(name, schema)| fill(schema).then(|| name.clone()));
    filled.collect()
}

fn fill(schema: &mut Value) -> bool {
    match schema {
        Value::Object(fields) => {
            let mut is_filled = false;
            for (key, value) in fields {
                is_filled |= match (key.as_str(), value) {
                    ("enum", Value::Array(values)) if values.is_empty() => {
                        values.push(json!("-"));
                        true
                    }
                    // Values, not schemas.
                    ("enum" | "const" | "default" | "examples", _) => false,
                    // The keys are names of the program.
                    ("properties", Value::Object(properties)) => {
                        properties.values_mut().fold(false, |any, schema| fill(schema) | any)
                    }
                    (_, value) => fill(value),
                };
            }
            is_filled
        }
        // Not short-circuiting: all are filled.
        Value::Array(items) => items.iter_mut().fold(false, |any, item| fill(item) | any),
        _ => false,
    }
}

fn put_route(writer: &mut Writer<'_>, route: &Route) {
    writer.option(route.engine.as_deref(), Writer::text);
    writer.option(route.substitute.as_deref(), Writer::text);
    writer.option(route.max_first_token, |writer, time| {
        writer.number(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    });
    put_after_failure(writer, route.after_failure);
    put_in_progress(writer, route.reply_in_progress);
}

fn get_route(reader: &mut Reader<'_>) -> Result<Route, Defect> {
    let mut route = Route::default();
    route.engine = reader.option(|reader| Ok(Arc::from(reader.text()?)))?;
    route.substitute = reader.option(|reader| Ok(Arc::from(reader.text()?)))?;
    route.max_first_token = reader.option(|reader| Ok(Duration::from_nanos(reader.number()?)))?;
    route.after_failure = get_after_failure(reader)?;
    route.reply_in_progress = get_in_progress(reader)?;
    Ok(route)
}
