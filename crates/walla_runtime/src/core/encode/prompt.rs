//! From a conversation to the tokens of its prompt.

use std::sync::Arc;

use walla_model::chat::{
    ChatTemplate, Message, Prompt as RenderedPrompt, RenderOptions, ReplyStart, Role, Segment,
    TemplateError, Tools,
};
use walla_model::tokenizer::TokenizerError;
use walla_types::TokenId;

use super::fitting::{
    Fitting, TooLong, first_possible, last_exchange, offset, question_allowance, tokens_at_least,
};
use super::{Asked, Conversation, EncodeJob, Encoded, PromptSource};
use crate::api::{ContextPolicy, Notes, ReplyError, Speaker, Turn};
use crate::model_text::ModelText;

pub(super) fn encode(text: &ModelText, job: &EncodeJob) -> Result<Encoded, ReplyError> {
    let mut encoded = encode_prompt(text, job)?;
    let texts = job.score.iter().flat_map(|texts| texts.iter());
    let texts = texts.map(|part| text.tokenizer.encode_continuation(part).map_err(refused));
    encoded.texts = texts.collect::<Result<_, _>>()?;
    Ok(encoded)
}

fn refused(error: TokenizerError) -> ReplyError {
    ReplyError::Text(error.to_string())
}

fn encode_prompt(text: &ModelText, job: &EncodeJob) -> Result<Encoded, ReplyError> {
    let tokenizer = &text.tokenizer;
    match &job.source {
        PromptSource::Raw(raw) => {
            let mut tokens = tokenizer.encode_untrusted(raw).map_err(refused)?;
            // No EOS, even if the file adds one to texts, because the model must continue.
            if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos()) {
                tokens.insert(0, bos);
            }
            Ok(Encoded::of(tokens))
        }
        PromptSource::RawTrusted(raw) => {
            let prompt = RenderedPrompt { segments: vec![Segment::Template(raw.clone())] };
            let tokens = tokenizer.encode_prompt(&prompt).map_err(refused)?;
            Ok(Encoded::of(tokens))
        }
        PromptSource::Tokens(tokens) => Ok(Encoded::of(tokens.clone())),
        PromptSource::Chat { conversation, asked } => {
            let question = match asked {
                Asked::Question(question) => Some(question),
                Asked::Conversation => None,
            };
            encode_conversation(text, job, conversation, question)
        }
        PromptSource::Unasked(conversation) => {
            let [one, other] = QUESTIONS.map(|text| Turn::new(Speaker::User, text));
            let mut encoded = encode_conversation(text, job, conversation, Some(&one))?;
            let turns = conversation.turns.get(encoded.dropped..).unwrap_or_default();
            let template = text.template.as_ref();
            let template =
                template.ok_or_else(|| ReplyError::NoTemplate(Arc::clone(&text.state)))?;
            let messages = (conversation.persona.as_str(), turns, None, Some(&other));
            let tools = text.tools(&conversation.actions)?;
            let settings = (conversation.thinking, tools, None);
            let (different, _) = encode_chat(text, template, messages, settings)?;
            let same = encoded.tokens.iter().zip(&different).take_while(|(a, b)| a == b).count();
            encoded.tokens.truncate(same);
            Ok(encoded)
        }
    }
}

/// Two questions that begin differently: tokens that prompts with both have in common do not depend
/// on the question.
const QUESTIONS: [&str; 2] = ["Why?", "2"];

fn encode_conversation(
    text: &ModelText,
    job: &EncodeJob,
    conversation: &Conversation,
    question: Option<&Turn>,
) -> Result<Encoded, ReplyError> {
    let Conversation { persona, turns, dropped_size, seed, policy, actions, .. } = conversation;
    let opening = conversation.opening.as_ref().map(|opening| opening.as_str());
    let tools = text.tools(actions)?;
    let Some(template) = &text.template else {
        return Err(ReplyError::NoTemplate(Arc::clone(&text.state)));
    };
    let limit = job.context_tokens.saturating_sub(job.reply_tokens) as usize;
    let count = |part: &str| {
        text.tokenizer.encode_untrusted(part).map_or(usize::MAX, |tokens| tokens.len())
    };
    let note = conversation.notes.as_ref().and_then(|notes| {
        // The conversation needs room too.
        let max_tokens = notes.max_tokens.min(u32::try_from(limit / 4).unwrap_or(u32::MAX));
        let notes = Notes { max_tokens, ..Notes::clone(notes) };
        // A long one is not tokenised: other agents' prompts wait behind it.
        let max_bytes = (max_tokens as usize).saturating_mul(text.tokenizer.max_delta_bytes());
        notes.text(|part| {
            let tokens = if part.len() > max_bytes { usize::MAX } else { count(part) };
            u32::try_from(tokens).unwrap_or(u32::MAX)
        })
    });
    let note = note.as_deref();
    let mut start = None;
    let encode = &mut |from: usize| {
        let turns = turns.get(from..).unwrap_or_default();
        let messages = (persona.as_str(), turns, note, question);
        let settings = (conversation.thinking, tools.clone(), opening);
        let (tokens, begins) = encode_chat(text, template, messages, settings)?;
        start = begins;
        Ok(tokens)
    };
    // A conversation that cannot fit is not encoded: other agents' prompts wait behind it.
    let check_tokens = |turns: &[Turn]| {
        let tokens = tokens_at_least(turns, text.tokenizer.max_delta_bytes());
        let (prompt_tokens, context_tokens) = (u32::try_from(tokens), job.context_tokens);
        match prompt_tokens.unwrap_or(u32::MAX) {
            tokens if tokens < context_tokens => Ok(()),
            prompt_tokens => Err(ReplyError::PromptTooLong { prompt_tokens, context_tokens }),
        }
    };
    let (tokens, dropped) = match policy {
        ContextPolicy::DropOldest => {
            let question_tokens = question
                .map(|question| count(&question.text).saturating_add(note.map_or(0, count)));
            let fitting = Fitting {
                turns,
                dropped_size: *dropped_size,
                offset: offset(persona, *seed),
                possible: first_possible(turns, limit, text.tokenizer.max_delta_bytes()),
                limit,
                question_spare: question_tokens
                    .map_or(0, |tokens| question_allowance(limit).saturating_sub(tokens)),
                bytes_per_token: text.bytes_per_token,
            };
            match fitting.fit(encode)? {
                // Without a question, the agent replies to the latest turns. They are not left out,
                // even if less of the context remains for the reply.
                (_, from) if question.is_none() && from == turns.len() && from > 0 => {
                    let last = last_exchange(turns);
                    check_tokens(&turns[last..])?;
                    (encode(last)?, last)
                }
                fits => fits,
            }
        }
        ContextPolicy::Refuse | ContextPolicy::Stop => {
            check_tokens(turns)?;
            (encode(0)?, 0)
        }
    };
    let forgotten = if job.context_tokens < job.declared_tokens {
        let limit = job.declared_tokens.saturating_sub(job.reply_tokens) as usize;
        first_possible(turns, limit, text.tokenizer.max_delta_bytes()).min(dropped)
    } else {
        dropped
    };
    Ok(Encoded { dropped, forgotten, start, ..Encoded::of(tokens) })
}

fn encode_chat(
    text: &ModelText,
    template: &ChatTemplate,
    (persona, turns, note, question): (&str, &[Turn], Option<&str>, Option<&Turn>),
    (thinking, tools, opening): (bool, Option<Tools>, Option<&str>),
) -> Result<(Vec<TokenId>, Option<ReplyStart>), TooLong> {
    let system = (!persona.is_empty()).then_some(Message::new(Role::System, persona));
    let turns = turns.iter().map(Turn::message);
    let question = question.map(Turn::message);
    let note = note.map(|content| Message::new(Role::Observation, content));
    let messages: Vec<_> = system.into_iter().chain(turns).chain(note).chain(question).collect();
    let options = RenderOptions {
        add_generation_prompt: true,
        enable_thinking: thinking && opening.is_none(),
        tools,
        ..RenderOptions::default()
    };
    let prompt = template.render(&messages, &options).map_err(|error| match error {
        TemplateError::Runaway(_) | TemplateError::OutputTooLong => TooLong::Yes(error.to_string()),
        error => TooLong::No(error.to_string()),
    })?;
    let failed = |error: TokenizerError| match error {
        TokenizerError::TooLong { .. } => TooLong::Yes(error.to_string()),
        error => TooLong::No(error.to_string()),
    };
    let reasoning = text.reasoning.as_ref();
    let start = reasoning.map(|markers| markers.start_of(&text.tokenizer, &prompt));
    let Some(opening) = opening else {
        return Ok((text.tokenizer.encode_prompt(&prompt).map_err(failed)?, start));
    };
    // Behind a block of reasoning that the template has opened, the opening would be reasoning.
    let closing = match (reasoning, start) {
        (Some(markers), Some(ReplyStart::Reasoning(format) | ReplyStart::Header(format))) => {
            markers.closing(format)
        }
        _ => &[],
    };
    let tokens = if closing.is_empty() {
        let mut prompt = prompt;
        prompt.push_untrusted(opening);
        text.tokenizer.encode_prompt(&prompt).map_err(failed)?
    } else {
        let mut tokens = text.tokenizer.encode_prompt(&prompt).map_err(failed)?;
        tokens.extend_from_slice(closing);
        tokens.extend(text.tokenizer.encode_untrusted(opening).map_err(failed)?);
        tokens
    };
    Ok((tokens, start.map(|_| ReplyStart::Speech)))
}
