//! Events.

use serde_json::Value;
use walla_runtime::{
    Call, CallError, CallId, Event, FinishReason, FirstTokenTimes, InlineText, Logged,
    MalformedCall, RefusedCall, ReplyEvent, ReplyId, Score, TokenLogprobs, TokenRun, Usage,
};
use walla_types::TokenId;

use super::failure::{get_failure, put_failure};
use super::ids::Ids;
use super::spec::put_tokens;
use super::wire::{Defect, Reader, Writer};

/// The first byte of an event. It never changes its meaning.
mod tag {
    pub const STARTED: u8 = 32;
    pub const DELTA: u8 = 33;
    pub const REASONING: u8 = 34;
    pub const CALL: u8 = 35;
    pub const CALL_REFUSED: u8 = 36;
    pub const TOKEN: u8 = 37;
    pub const FINISHED: u8 = 38;
    pub const FAILED: u8 = 39;
    pub const BEGUN: u8 = 40;
    pub const TOKENS: u8 = 41;
    pub const APPLIED: u8 = 42;
    pub const SCORE: u8 = 43;
}

/// Writes an event. One that this version does not know is left out: it is no part of a reply.
pub(crate) fn put_event(writer: &mut Writer<'_>, ids: &mut Ids, event: &Event) {
    let Event { agent, reply_id, what } = event;
    let mut head = |writer: &mut Writer<'_>, tag| {
        writer.u8(tag);
        ids.put_agent(writer, *agent);
        // By the kind, as it is read: a host can give a reply this id too.
        if tag != tag::APPLIED {
            ids.put_reply(writer, *reply_id);
        }
    };
    match what {
        ReplyEvent::Started { prompt_tokens } => {
            head(writer, tag::STARTED);
            writer.number(*prompt_tokens);
        }
        ReplyEvent::Delta { text, tokens } => {
            head(writer, tag::DELTA);
            writer.number(*tokens);
            writer.text(text);
        }
        ReplyEvent::Reasoning { text, tokens } => {
            head(writer, tag::REASONING);
            writer.number(*tokens);
            writer.text(text);
        }
        ReplyEvent::Call(call) => {
            head(writer, tag::CALL);
            writer.number(call.id.index);
            writer.text(&call.name);
            writer.text(&Value::Object(call.arguments.clone()).to_string());
        }
        ReplyEvent::CallRefused(refused) => {
            head(writer, tag::CALL_REFUSED);
            writer.number(refused.id.index);
            writer.text(&refused.call.text);
            put_call_error(writer, &refused.call.error);
        }
        ReplyEvent::Token(token) => {
            head(writer, tag::TOKEN);
            writer.number(token.token.0);
            writer.float(token.log_probability);
            writer.list(token.candidates.iter(), |writer, (token, log_probability)| {
                writer.number(token.0);
                writer.float(*log_probability);
            });
        }
        ReplyEvent::Score(score) => {
            head(writer, tag::SCORE);
            writer.number(score.index);
            writer.number(score.tokens);
            writer.float(score.log_probability);
        }
        ReplyEvent::Finished { reason, usage } => {
            head(writer, tag::FINISHED);
            put_reason(writer, *reason);
            put_usage(writer, usage);
        }
        ReplyEvent::Failed(error) => {
            head(writer, tag::FAILED);
            put_failure(writer, error);
        }
        ReplyEvent::Logged(Logged::Begun) => head(writer, tag::BEGUN),
        ReplyEvent::Logged(Logged::Tokens(run)) => {
            head(writer, tag::TOKENS);
            put_tokens(writer, run.tokens());
        }
        ReplyEvent::Logged(Logged::Applied) => head(writer, tag::APPLIED),
        _ => {}
    }
}

/// Reads an event behind its tag. `None`: not the tag of an event.
pub(crate) fn get_event(
    reader: &mut Reader<'_>,
    ids: &mut Ids,
    tag: u8,
) -> Result<Option<Event>, Defect> {
    if !(tag::STARTED..=tag::SCORE).contains(&tag) {
        return Ok(None);
    }
    let agent = ids.get_agent(reader)?;
    let reply_id = if tag == tag::APPLIED { ReplyId::NONE } else { ids.get_reply(reader)? };
    let call_id = |index| CallId { reply_id, index };
    let what = match tag {
        tag::STARTED => ReplyEvent::Started { prompt_tokens: reader.u32()? },
        tag::DELTA => {
            let tokens = reader.u32()?;
            ReplyEvent::Delta { text: inline(reader)?, tokens }
        }
        tag::REASONING => {
            let tokens = reader.u32()?;
            ReplyEvent::Reasoning { text: inline(reader)?, tokens }
        }
        tag::CALL => {
            let (id, name) = (call_id(reader.u32()?), reader.text()?);
            reader.charge::<Call>(1)?;
            let Value::Object(arguments) = reader.json("arguments")? else {
                return Err(Defect::value("arguments", "not an object"));
            };
            ReplyEvent::Call(Box::new(Call { id, name: name.to_owned(), arguments }))
        }
        tag::CALL_REFUSED => {
            let (id, text) = (call_id(reader.u32()?), reader.text()?.to_owned());
            let call = MalformedCall { text, error: get_call_error(reader)? };
            ReplyEvent::CallRefused(Box::new(RefusedCall { id, call }))
        }
        tag::TOKEN => ReplyEvent::Token(Box::new(TokenLogprobs {
            token: TokenId(reader.u32()?),
            log_probability: reader.float()?,
            candidates: reader.list(|reader| Ok((TokenId(reader.u32()?), reader.float()?)))?,
        })),
        tag::SCORE => ReplyEvent::Score(Score {
            index: reader.u32()?,
            tokens: reader.u32()?,
            log_probability: reader.float()?,
        }),
        tag::FINISHED => {
            ReplyEvent::Finished { reason: get_reason(reader)?, usage: get_usage(reader)? }
        }
        tag::FAILED => ReplyEvent::Failed(get_failure(reader)?),
        tag::BEGUN => ReplyEvent::Logged(Logged::Begun),
        tag::TOKENS => {
            let mut run = TokenRun::new();
            let tokens = reader.len()?;
            if tokens > TokenRun::MAX_TOKENS {
                return Err(Defect::value("tokens", "too many"));
            }
            for _ in 0..tokens {
                let _is_full = run.push(TokenId(reader.u32()?));
            }
            ReplyEvent::Logged(Logged::Tokens(run))
        }
        _ => ReplyEvent::Logged(Logged::Applied),
    };
    Ok(Some(Event { agent, reply_id, what }))
}

fn inline<const N: usize>(reader: &mut Reader<'_>) -> Result<InlineText<N>, Defect> {
    let mut inline = InlineText::new();
    let rest = inline.push(reader.text()?);
    if rest.is_empty() { Ok(inline) } else { Err(Defect::value("text", "too long")) }
}

fn put_reason(writer: &mut Writer<'_>, reason: FinishReason) {
    writer.u8(match reason {
        FinishReason::EndOfTurn => 0,
        FinishReason::Stop { .. } => 1,
        FinishReason::StopToken => 2,
        FinishReason::Length => 3,
        FinishReason::ReasoningLength => 4,
        FinishReason::CallLimit => 5,
        FinishReason::ContextFull => 6,
        FinishReason::TimedOut => 8,
        FinishReason::Scored => 9,
        // `Cancelled`, and a reason that this format does not have.
        _ => 7,
    });
    if let FinishReason::Stop { index } = reason {
        writer.number(index);
    }
}

fn get_reason(reader: &mut Reader<'_>) -> Result<FinishReason, Defect> {
    Ok(match reader.u8()? {
        0 => FinishReason::EndOfTurn,
        1 => FinishReason::Stop { index: reader.u32()? },
        2 => FinishReason::StopToken,
        3 => FinishReason::Length,
        4 => FinishReason::ReasoningLength,
        5 => FinishReason::CallLimit,
        6 => FinishReason::ContextFull,
        7 => FinishReason::Cancelled,
        8 => FinishReason::TimedOut,
        9 => FinishReason::Scored,
        tag => return Err(Defect::Tag { what: "reason", tag: tag.into() }),
    })
}

fn put_usage(writer: &mut Writer<'_>, usage: &Usage) {
    let times = &usage.first_token;
    for number in [
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.reply_tokens,
        usage.reasoning_tokens,
        usage.call_tokens,
        usage.forced_tokens,
        usage.dropped_turns,
    ] {
        writer.number(number);
    }
    for micros in [
        usage.first_token_micros,
        times.waiting_micros,
        times.encoding_micros,
        times.prefill_micros,
        times.decode_micros,
        usage.total_micros,
    ] {
        writer.number(micros);
    }
}

fn get_usage(reader: &mut Reader<'_>) -> Result<Usage, Defect> {
    Ok(Usage {
        prompt_tokens: reader.u32()?,
        cached_tokens: reader.u32()?,
        reply_tokens: reader.u32()?,
        reasoning_tokens: reader.u32()?,
        call_tokens: reader.u32()?,
        forced_tokens: reader.u32()?,
        dropped_turns: reader.u32()?,
        first_token_micros: reader.number()?,
        first_token: FirstTokenTimes {
            waiting_micros: reader.number()?,
            encoding_micros: reader.number()?,
            prefill_micros: reader.number()?,
            decode_micros: reader.number()?,
        },
        total_micros: reader.number()?,
    })
}

/// Reasons of a defect are texts of the program; a text that is read back is this one.
const RECORDED: &str = "as recorded";

fn put_call_error(writer: &mut Writer<'_>, error: &CallError) {
    match error {
        CallError::UnknownAction { name } => {
            writer.u8(1);
            writer.text(name);
        }
        CallError::NotAllowed { name } => {
            writer.u8(2);
            writer.text(name);
        }
        CallError::InvalidArgument { property, .. } => {
            writer.u8(3);
            writer.text(property);
        }
        CallError::TooLong { max_bytes } => {
            writer.u8(4);
            writer.len(*max_bytes);
        }
        CallError::Unfinished => writer.u8(5),
        CallError::Unmarked => writer.u8(6),
        _ => writer.u8(0),
    }
}

fn get_call_error(reader: &mut Reader<'_>) -> Result<CallError, Defect> {
    Ok(match reader.u8()? {
        0 => CallError::Syntax { reason: RECORDED },
        1 => CallError::UnknownAction { name: reader.text()?.to_owned() },
        2 => CallError::NotAllowed { name: reader.text()?.to_owned() },
        3 => CallError::InvalidArgument { property: reader.text()?.to_owned(), reason: RECORDED },
        4 => {
            let max_bytes = usize::try_from(reader.number()?).map_err(|_| Defect::Number)?;
            CallError::TooLong { max_bytes }
        }
        5 => CallError::Unfinished,
        6 => CallError::Unmarked,
        tag => return Err(Defect::Tag { what: "defect of a call", tag: tag.into() }),
    })
}
