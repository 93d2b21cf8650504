//! From an ask to the body of its request.

use std::sync::Arc;

use walla_runtime::{
    ActionPolicy, AgentId, AgentSpec, Ask, ContextPolicy, FinishReason, ReplyError, ReplyEvent,
    Turn, Usage,
};

use crate::agent::Agent;
use crate::http::Server;
use crate::parts::Rules;
use crate::request::{self, Asked, BYTES_PER_TOKEN};

/// The request of an ask, its rules and an estimate of its prompt tokens; otherwise the end of the
/// reply.
pub(super) fn prepare(
    server: &Server,
    id: AgentId,
    agent: &mut Agent,
    ask: &Ask,
) -> Result<(Vec<u8>, Rules, u32), ReplyEvent> {
    let failed = ReplyEvent::Failed;
    let options = &server.options;
    let can = options.dialect.capabilities();
    can.check(&agent.spec, &ask.prompt, &ask.options)
        .map_err(|missing| failed(ReplyError::Unsupported(missing)))?;
    let question = ask.prompt.question();
    let question = question.as_ref();
    let actions = agent.spec.actions.as_ref();
    let refused = |error| failed(ReplyError::Actions(error));
    if let Some(fault) = actions.and_then(|actions| actions.fault.clone()) {
        return Err(refused(fault));
    }
    let policy = agent.history.call_policy(&agent.spec, &ask.options, question.is_some());
    let policy = policy.map_err(|error| refused(Arc::new(error)))?;
    // Before the request is made from the history: it may drop turns.
    fit(options.context_tokens, agent, question)?;
    if agent.spec.max_reply_tokens == 0 {
        return Err(finished(FinishReason::Length));
    }
    let spec = &agent.spec;
    let tokens = |text: &str| (text.len() / BYTES_PER_TOKEN) as u32;
    let note = ask.options.notes.as_ref().and_then(|notes| notes.text(tokens));
    let asked = Asked {
        spec,
        turns: agent.history.turns(),
        note: note.as_deref(),
        question,
        constraint: ask.options.constraint.as_ref().or(spec.constraint.as_ref()),
        policy,
        seed: ask.options.seed,
        cache_key: &format!("walla-{}-{}", std::process::id(), id.0),
    };
    let body = request::body(options, &asked).map_err(failed)?;
    let actions = spec.actions.as_ref();
    let rules = Rules {
        actions: actions
            .filter(|_| policy.is_some_and(|policy| policy != ActionPolicy::Off))
            .map(|actions| actions.set.clone()),
        // Without a policy the reply is data of a constraint.
        unmarked: actions
            .filter(|_| policy.is_some())
            .map(|actions| (actions.set.clone(), actions.unmarked)),
        max_calls: actions.map_or(0, |actions| actions.max_calls),
        max_call_bytes: actions.map_or(4_096, |actions| actions.max_call_bytes as usize),
        max_reply_bytes: options.sizes.reply_bytes,
        stop_strings: spec.stop_strings.clone(),
        has_candidates: spec.sampling.candidates() > 0,
    };
    let prompt_tokens = u32::try_from(body.len() / BYTES_PER_TOKEN).unwrap_or(u32::MAX);
    Ok((body, rules, prompt_tokens))
}

/// The end of a reply without a token.
fn finished(reason: FinishReason) -> ReplyEvent {
    ReplyEvent::Finished { reason, usage: Usage::default() }
}

/// Drops the oldest turns until the conversation fits in the context, half of it at once; otherwise
/// the end of the reply.
fn fit(context_tokens: u32, agent: &mut Agent, question: Option<&Turn>) -> Result<(), ReplyEvent> {
    let AgentSpec { persona, max_reply_tokens, context_policy, .. } = &agent.spec;
    let bytes = |turn: &Turn| turn.text.len() + 4 * BYTES_PER_TOKEN;
    let reply_tokens = (*max_reply_tokens).min(context_tokens / 2);
    let max_bytes = (context_tokens - reply_tokens) as usize * BYTES_PER_TOKEN;
    let fixed = persona.len() + question.map_or(0, |question| question.text.len());
    let turns = agent.history.turns();
    let total = fixed + turns.iter().map(bytes).sum::<usize>();
    if total <= max_bytes {
        return Ok(());
    }
    let too_long = |bytes: usize| {
        let prompt_tokens = u32::try_from(bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX);
        ReplyEvent::Failed(ReplyError::PromptTooLong { prompt_tokens, context_tokens })
    };
    match context_policy {
        ContextPolicy::Refuse => return Err(too_long(total)),
        ContextPolicy::Stop => return Err(finished(FinishReason::ContextFull)),
        ContextPolicy::DropOldest => {}
    }
    if fixed > max_bytes {
        return Err(too_long(fixed));
    }
    // Half of the space, so that the beginning of the prompt stays the same for some asks.
    let goal = fixed + (max_bytes - fixed) / 2;
    let (mut left, mut dropped) = (total, 0);
    while dropped < turns.len() {
        // A conversation never begins with an answer or a result whose question is gone.
        let is_begin = |at: usize| {
            let speaker = turns[at].speaker;
            at == 0 || !speaker.continues(turns[at - 1].speaker)
        };
        if left <= goal && is_begin(dropped) {
            break;
        }
        left -= bytes(&turns[dropped]);
        dropped += 1;
    }
    agent.history.drop_oldest(dropped);
    Ok(())
}
