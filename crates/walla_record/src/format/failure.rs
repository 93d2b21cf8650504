//! Reasons why replies fail.
//!
//! Errors of constraints, actions and chat templates are written as their texts and read back as
//! [`ReplyError::Text`], because their types belong to the engine.

use std::sync::Arc;

use walla_runtime::{ConstraintKind, RemoteError, ReplyError, TimeLimit, Unsupported};

use super::spec::{get_kind, put_kind};
use super::wire::{Defect, Reader, Writer};

pub(super) fn put_failure(writer: &mut Writer<'_>, error: &ReplyError) {
    match error {
        ReplyError::UnknownAgent => writer.u8(1),
        ReplyError::TooManyAgents { max_agents } => {
            writer.u8(2);
            writer.number(*max_agents);
        }
        ReplyError::Busy { waiting } => {
            writer.u8(3);
            writer.number(*waiting);
        }
        ReplyError::TooManyAsks { asks, max_asks, bytes, max_bytes } => {
            writer.u8(4);
            writer.number(*asks);
            writer.number(*max_asks);
            writer.number(*bytes);
            writer.number(*max_bytes);
        }
        ReplyError::PromptTooLong { prompt_tokens, context_tokens } => {
            writer.u8(5);
            writer.number(*prompt_tokens);
            writer.number(*context_tokens);
        }
        ReplyError::NoPages { wanted_pages, free_pages } => {
            writer.u8(6);
            writer.number(*wanted_pages);
            writer.number(*free_pages);
        }
        ReplyError::NothingAllowed => writer.u8(7),
        ReplyError::NoReply => writer.u8(8),
        ReplyError::NotFinite => writer.u8(9),
        ReplyError::Device(reason) => {
            writer.u8(10);
            writer.text(reason);
        }
        ReplyError::NoEngine { name } => {
            writer.u8(11);
            writer.text(name);
        }
        ReplyError::Unsupported(what) if is_known(*what) => {
            writer.u8(12);
            put_unsupported(writer, *what);
        }
        ReplyError::Remote { server, error } => {
            writer.u8(13);
            writer.text(server);
            put_remote(writer, error);
        }
        ReplyError::EngineGone(reason) => {
            writer.u8(14);
            writer.text(reason);
        }
        ReplyError::NotRecorded { expected, asked } => {
            writer.u8(15);
            writer.option(expected.as_deref(), Writer::text);
            writer.text(asked);
        }
        error => {
            writer.u8(0);
            writer.text(&error.to_string());
        }
    }
}

pub(super) fn get_failure(reader: &mut Reader<'_>) -> Result<ReplyError, Defect> {
    Ok(match reader.u8()? {
        0 => ReplyError::Text(reader.text()?.to_owned()),
        1 => ReplyError::UnknownAgent,
        2 => ReplyError::TooManyAgents { max_agents: reader.u32()? },
        3 => ReplyError::Busy { waiting: reader.u32()? },
        4 => ReplyError::TooManyAsks {
            asks: reader.u32()?,
            max_asks: reader.u32()?,
            bytes: reader.number()?,
            max_bytes: reader.number()?,
        },
        5 => ReplyError::PromptTooLong {
            prompt_tokens: reader.u32()?,
            context_tokens: reader.u32()?,
        },
        6 => ReplyError::NoPages { wanted_pages: reader.u32()?, free_pages: reader.u32()? },
        7 => ReplyError::NothingAllowed,
        8 => ReplyError::NoReply,
        9 => ReplyError::NotFinite,
        10 => ReplyError::Device(reader.text()?.to_owned()),
        11 => ReplyError::NoEngine { name: reader.text()?.into() },
        12 => ReplyError::Unsupported(get_unsupported(reader)?),
        13 => ReplyError::Remote { server: Arc::from(reader.text()?), error: get_remote(reader)? },
        14 => ReplyError::EngineGone(reader.text()?.to_owned()),
        15 => ReplyError::NotRecorded {
            expected: reader.option(|reader| Ok(reader.text()?.to_owned()))?,
            asked: reader.text()?.to_owned(),
        },
        tag => return Err(Defect::Tag { what: "failure", tag: tag.into() }),
    })
}

/// Features without content. Positions never change; a constraint is 0.
const FEATURES: [Unsupported; 9] = [
    Unsupported::Actions,
    Unsupported::RawPrompts,
    Unsupported::TokenPrompts,
    Unsupported::Openings,
    Unsupported::Biases,
    Unsupported::AllowedTokens,
    Unsupported::StopTokens,
    Unsupported::LogProbabilities,
    Unsupported::Scores,
];

fn is_known(what: Unsupported) -> bool {
    matches!(what, Unsupported::Constraint(_)) || FEATURES.contains(&what)
}

fn put_unsupported(writer: &mut Writer<'_>, what: Unsupported) {
    let tag = FEATURES.iter().position(|known| *known == what).map_or(0, |at| at + 1);
    writer.u8(tag as u8);
    if let Unsupported::Constraint(kind) = what {
        put_kind(writer, kind);
    }
}

fn get_unsupported(reader: &mut Reader<'_>) -> Result<Unsupported, Defect> {
    let tag = reader.u8()?;
    let Some(at) = usize::from(tag).checked_sub(1) else {
        let kind: ConstraintKind = get_kind(reader)?;
        return Ok(Unsupported::Constraint(kind));
    };
    FEATURES.get(at).copied().ok_or(Defect::Tag { what: "feature", tag: tag.into() })
}

fn put_remote(writer: &mut Writer<'_>, error: &RemoteError) {
    let mut answer = |tag, status: u16, message: &str| {
        writer.u8(tag);
        writer.number(status);
        writer.text(message);
    };
    match error {
        RemoteError::Busy { status, message } => answer(1, *status, message),
        RemoteError::Unauthorized { status, message } => answer(2, *status, message),
        RemoteError::Refused { status, message } => answer(3, *status, message),
        RemoteError::ContextExceeded { status, message } => answer(4, *status, message),
        RemoteError::Failed { status, message } => answer(5, *status, message),
        RemoteError::Connect(reason) => {
            writer.u8(6);
            writer.text(reason);
        }
        RemoteError::Interrupted(reason) => {
            writer.u8(7);
            writer.text(reason);
        }
        RemoteError::NoKey(reason) => {
            writer.u8(8);
            writer.text(reason);
        }
        RemoteError::TimedOut(limit) => {
            writer.u8(9);
            writer.u8(match limit {
                TimeLimit::Connect => 0,
                TimeLimit::FirstToken => 1,
                TimeLimit::NextToken => 2,
                TimeLimit::Reply => 3,
            });
        }
        RemoteError::TooLarge { limit } => {
            writer.u8(10);
            writer.len(*limit);
        }
        RemoteError::Filtered => writer.u8(11),
        RemoteError::Protocol(reason) => {
            writer.u8(0);
            writer.text(reason);
        }
        error => {
            writer.u8(0);
            writer.text(&error.to_string());
        }
    }
}

fn get_remote(reader: &mut Reader<'_>) -> Result<RemoteError, Defect> {
    let tag = reader.u8()?;
    if (1..=5).contains(&tag) {
        let status = u16::try_from(reader.number()?).map_err(|_| Defect::Number)?;
        let message = reader.text()?.to_owned();
        return Ok(match tag {
            1 => RemoteError::Busy { status, message },
            2 => RemoteError::Unauthorized { status, message },
            3 => RemoteError::Refused { status, message },
            4 => RemoteError::ContextExceeded { status, message },
            _ => RemoteError::Failed { status, message },
        });
    }
    Ok(match tag {
        0 => RemoteError::Protocol(reader.text()?.to_owned()),
        6 => RemoteError::Connect(reader.text()?.to_owned()),
        7 => RemoteError::Interrupted(reader.text()?.to_owned()),
        8 => RemoteError::NoKey(reader.text()?.to_owned()),
        9 => RemoteError::TimedOut(match reader.u8()? {
            0 => TimeLimit::Connect,
            1 => TimeLimit::FirstToken,
            2 => TimeLimit::NextToken,
            3 => TimeLimit::Reply,
            tag => return Err(Defect::Tag { what: "time limit", tag: tag.into() }),
        }),
        10 => {
            let limit = usize::try_from(reader.number()?).map_err(|_| Defect::Number)?;
            RemoteError::TooLarge { limit }
        }
        11 => RemoteError::Filtered,
        tag => return Err(Defect::Tag { what: "error of a server", tag: tag.into() }),
    })
}
