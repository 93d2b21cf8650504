//! Commands.

use walla_runtime::{CallResult, Command, ConversationEdit, Prompt};

use super::ids::Ids;
use super::spec::{
    get_call, get_detail, get_options, get_spec, get_tokens, get_turns, put_call, put_detail,
    put_options, put_spec, put_tokens, put_turns,
};
use super::wire::{Defect, Reader, Writer};

/// The first byte of a command. It never changes its meaning.
mod tag {
    pub const ADD: u8 = 16;
    pub const CHANGE: u8 = 17;
    pub const DETAIL: u8 = 18;
    pub const SET: u8 = 19;
    pub const APPEND: u8 = 20;
    pub const EDIT: u8 = 21;
    pub const FORK: u8 = 22;
    pub const REMOVE: u8 = 23;
    pub const ASK: u8 = 24;
    pub const CANCEL: u8 = 25;
    pub const CANCEL_HEARD: u8 = 26;
}

/// Writes a command. Returns `false` for one that this version does not know.
#[must_use]
pub(crate) fn put_command(writer: &mut Writer<'_>, ids: &mut Ids, command: &Command) -> bool {
    let mut head = |writer: &mut Writer<'_>, tag| {
        writer.u8(tag);
        ids.put_agent(writer, command.agent());
    };
    match command {
        // Copies of a cache change no text.
        Command::CopyCache { .. } => return false,
        Command::AddAgent { spec, .. } => {
            head(writer, tag::ADD);
            put_spec(writer, ids, spec);
        }
        Command::ChangeAgent { spec, .. } => {
            head(writer, tag::CHANGE);
            put_spec(writer, ids, spec);
        }
        Command::SetDetail { detail, .. } => {
            head(writer, tag::DETAIL);
            put_detail(writer, *detail);
        }
        Command::SetConversation { turns, .. } => {
            head(writer, tag::SET);
            put_turns(writer, ids, turns);
        }
        Command::AppendTurns { turns, .. } => {
            head(writer, tag::APPEND);
            put_turns(writer, ids, turns);
        }
        Command::EditConversation { edit, .. } => {
            head(writer, tag::EDIT);
            match edit {
                ConversationEdit::Rewind { turns } => {
                    writer.u8(0);
                    writer.number(*turns);
                }
                ConversationEdit::Text { turns_after, text } => {
                    writer.u8(1);
                    writer.number(*turns_after);
                    writer.text(text);
                }
                ConversationEdit::CopyOf { source } => {
                    writer.u8(2);
                    ids.put_agent(writer, *source);
                }
                _ => return false,
            }
        }
        Command::ForkAgent { source, spec, .. } => {
            head(writer, tag::FORK);
            ids.put_agent(writer, *source);
            writer.option(spec.as_deref(), |writer, spec| put_spec(writer, ids, spec));
        }
        Command::RemoveAgent { .. } => head(writer, tag::REMOVE),
        Command::Ask { reply_id, prompt, options, .. } => {
            head(writer, tag::ASK);
            ids.put_reply(writer, *reply_id);
            put_prompt(writer, ids, prompt);
            put_options(writer, options);
        }
        Command::Cancel { reply_id, .. } => {
            head(writer, tag::CANCEL);
            ids.put_reply(writer, *reply_id);
        }
        Command::CancelHeard { reply_id, heard_bytes, .. } => {
            head(writer, tag::CANCEL_HEARD);
            ids.put_reply(writer, *reply_id);
            writer.number(*heard_bytes);
        }
    }
    true
}

/// Reads a command behind its tag. `None`: not the tag of a command.
pub(crate) fn get_command(
    reader: &mut Reader<'_>,
    ids: &mut Ids,
    tag: u8,
) -> Result<Option<Command>, Defect> {
    if !(tag::ADD..=tag::CANCEL_HEARD).contains(&tag) {
        return Ok(None);
    }
    reader.charge::<Command>(1)?;
    let agent = ids.get_agent(reader)?;
    Ok(Some(match tag {
        tag::ADD => Command::AddAgent { agent, spec: Box::new(get_spec(reader, ids)?) },
        tag::CHANGE => Command::ChangeAgent { agent, spec: Box::new(get_spec(reader, ids)?) },
        tag::DETAIL => Command::SetDetail { agent, detail: get_detail(reader)? },
        tag::SET => Command::SetConversation { agent, turns: get_turns(reader, ids)? },
        tag::APPEND => Command::AppendTurns { agent, turns: get_turns(reader, ids)? },
        tag::EDIT => {
            let edit = match reader.u8()? {
                0 => ConversationEdit::Rewind { turns: reader.u32()? },
                1 => ConversationEdit::Text {
                    turns_after: reader.u32()?,
                    text: reader.text()?.to_owned(),
                },
                2 => ConversationEdit::CopyOf { source: ids.get_agent(reader)? },
                tag => return Err(Defect::Tag { what: "edit", tag: tag.into() }),
            };
            Command::EditConversation { agent, edit }
        }
        tag::FORK => {
            let source = ids.get_agent(reader)?;
            let spec = reader.option(|reader| get_spec(reader, ids))?.map(Box::new);
            Command::ForkAgent { agent, source, spec }
        }
        tag::REMOVE => Command::RemoveAgent { agent },
        tag::ASK => Command::Ask {
            agent,
            reply_id: ids.get_reply(reader)?,
            prompt: get_prompt(reader, ids)?,
            options: get_options(reader)?,
        },
        tag::CANCEL => Command::Cancel { agent, reply_id: ids.get_reply(reader)? },
        _ => Command::CancelHeard {
            agent,
            reply_id: ids.get_reply(reader)?,
            heard_bytes: reader.u32()?,
        },
    }))
}

fn put_prompt(writer: &mut Writer<'_>, ids: &mut Ids, prompt: &Prompt) {
    let mut with_text = |tag, text: &str| {
        writer.u8(tag);
        writer.text(text);
    };
    match prompt {
        Prompt::Chat(text) => with_text(0, text),
        Prompt::Raw(text) => with_text(1, text),
        Prompt::RawTrusted(text) => with_text(2, text),
        Prompt::Continue => writer.u8(3),
        Prompt::Again => writer.u8(4),
        Prompt::Tokens(tokens) => {
            writer.u8(5);
            put_tokens(writer, tokens);
        }
        Prompt::Results(results) => {
            writer.u8(6);
            writer.list(results.iter(), |writer, CallResult { id, text }| {
                put_call(writer, ids, *id);
                writer.text(text);
            });
        }
    }
}

fn get_prompt(reader: &mut Reader<'_>, ids: &mut Ids) -> Result<Prompt, Defect> {
    Ok(match reader.u8()? {
        0 => Prompt::Chat(reader.text()?.to_owned()),
        1 => Prompt::Raw(reader.text()?.to_owned()),
        2 => Prompt::RawTrusted(reader.text()?.to_owned()),
        3 => Prompt::Continue,
        4 => Prompt::Again,
        5 => Prompt::Tokens(get_tokens(reader)?),
        6 => Prompt::Results(reader.list(|reader| {
            Ok(CallResult { id: get_call(reader, ids)?, text: reader.text()?.to_owned() })
        })?),
        tag => return Err(Defect::Tag { what: "prompt", tag: tag.into() }),
    })
}
