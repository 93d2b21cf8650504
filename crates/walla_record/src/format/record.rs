//! Records: what happened, and when.

use std::borrow::Cow;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use walla_runtime::{
    AgentId, AgentSpec, Command, Event, InlineText, Logged, MAX_DELTA_BYTES, ReplyError,
    ReplyEvent, ReplyId, TokenRun,
};

use super::MAX_RECORD_BYTES;
use super::wire::{Defect, Reader, Writer};
use crate::error::RecordError;
use crate::recording::{End, EngineInfo, Record};

/// A record as it is written. Events begin with the differences of agent and reply to the last
/// event: most have one byte, and repetitions compress well. The most frequent events have
/// separate variants, which save a byte or two.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Item<'a> {
    /// Frames and microseconds since the last one.
    Tick(u64, u64),
    Engine(Cow<'a, EngineInfo>),
    Paused(bool),
    Command(Cow<'a, Command>),
    Applied(i64),
    Begun(i64, i64),
    Tokens(i64, i64, TokenRun),
    Delta(i64, i64, u32, InlineText<MAX_DELTA_BYTES>),
    Event(i64, i64, Cow<'a, ReplyEvent>),
    /// The end, with the reason if it is early.
    End(Option<Cow<'a, str>>),
}

impl<'a> From<&'a Record> for Item<'a> {
    fn from(record: &'a Record) -> Self {
        match record {
            Record::Engine(engine) => Self::Engine(Cow::Borrowed(engine)),
            Record::Paused(is_paused) => Self::Paused(*is_paused),
            Record::Command(command) => Self::Command(Cow::Borrowed(command)),
            Record::Event(event) => event.into(),
        }
    }
}

/// With the ids in place of the differences: [`put_record`] subtracts.
impl<'a> From<&'a Event> for Item<'a> {
    fn from(event: &'a Event) -> Self {
        let (agent, reply) = (event.agent.0 as i64, event.reply_id.0 as i64);
        match &event.what {
            ReplyEvent::Logged(Logged::Applied) => Self::Applied(agent),
            ReplyEvent::Logged(Logged::Begun) => Self::Begun(agent, reply),
            ReplyEvent::Logged(Logged::Tokens(run)) => Self::Tokens(agent, reply, *run),
            ReplyEvent::Delta { text, tokens } => Self::Delta(agent, reply, *tokens, *text),
            what => Self::Event(agent, reply, Cow::Borrowed(what)),
        }
    }
}

/// What differences refer to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Last {
    pub clock: Clock,
    /// Ids of an event.
    agent: i64,
    reply: i64,
}

impl Last {
    /// Replaces ids by differences.
    fn subtract(&mut self, item: &mut Item<'_>) {
        let subtract = |id: &mut i64, last: &mut i64| {
            let before = std::mem::replace(last, *id);
            *id = id.wrapping_sub(before);
        };
        match item {
            Item::Applied(agent) => subtract(agent, &mut self.agent),
            Item::Begun(agent, reply)
            | Item::Tokens(agent, reply, _)
            | Item::Delta(agent, reply, ..)
            | Item::Event(agent, reply, _) => {
                subtract(agent, &mut self.agent);
                subtract(reply, &mut self.reply);
            }
            _ => {}
        }
    }

    /// An event with these differences.
    fn add(&mut self, agent: i64, reply: i64, what: ReplyEvent) -> Record {
        self.agent = self.agent.wrapping_add(agent);
        self.reply = self.reply.wrapping_add(reply);
        let reply_id = match what {
            ReplyEvent::Logged(Logged::Applied) => ReplyId::NONE,
            _ => ReplyId(self.reply as u64),
        };
        Record::Event(Event { agent: AgentId(self.agent as u64), reply_id, what })
    }
}

/// Frame and time of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Frames granted so far.
    pub frame: u64,
    /// Microseconds since the begin.
    pub micros: u64,
}

/// Writes a record, after its time if that has changed.
///
/// # Errors
/// [`RecordError::UnknownCommand`], [`RecordError::TooLarge`].
pub(crate) fn put_record(
    bytes: &mut Vec<u8>,
    last: &mut Last,
    now: Clock,
    mut item: Item<'_>,
) -> Result<(), RecordError> {
    let Clock { frame, micros } = last.clock;
    let (frames, micros_after) =
        (now.frame.saturating_sub(frame), now.micros.saturating_sub(micros));
    let before = bytes.len();
    let unknown = |_| RecordError::UnknownCommand;
    if frames > 0 || micros_after > 0 {
        Item::Tick(frames, micros_after).serialize(&mut Writer(bytes)).map_err(unknown)?;
        last.clock = Clock { frame: frame + frames, micros: micros + micros_after };
    }
    last.subtract(&mut item);
    let begin = bytes.len();
    let mut written = item.serialize(&mut Writer(bytes));
    if written.is_err()
        && let Item::Event(_, _, what) = &mut item
        && let ReplyEvent::Failed(error) = &**what
    {
        // Errors of constraints, actions and templates have no form but their text.
        bytes.truncate(begin);
        *what = Cow::Owned(ReplyEvent::Failed(ReplyError::Text(error.to_string())));
        written = item.serialize(&mut Writer(bytes));
    }
    written.map_err(unknown)?;
    let (bytes, max_bytes) = (bytes.len() - before, MAX_RECORD_BYTES);
    if bytes > max_bytes { Err(RecordError::TooLarge { bytes, max_bytes }) } else { Ok(()) }
}

/// Reads a record and the times before it, or the end: of the recording, or of the bytes
/// ([`End::CutOff`]).
pub(crate) fn get_record(
    reader: &mut Reader<'_>,
    last: &mut Last,
) -> Result<ControlFlow<End, Record>, Defect> {
    while !reader.is_empty() {
        let record = match Item::deserialize(&mut *reader)? {
            Item::Tick(frames, micros) => {
                let clock = &mut last.clock;
                clock.frame = clock.frame.checked_add(frames).ok_or(Defect::Number)?;
                clock.micros = clock.micros.checked_add(micros).ok_or(Defect::Number)?;
                continue;
            }
            Item::Engine(engine) => Record::Engine(Box::new(engine.into_owned())),
            Item::Paused(is_paused) => Record::Paused(is_paused),
            Item::Command(command) => {
                reader.charge::<Command>(1)?;
                if let Command::AddAgent { .. }
                | Command::ChangeAgent { .. }
                | Command::ForkAgent { spec: Some(_), .. } = &*command
                {
                    reader.charge::<AgentSpec>(1)?;
                }
                Record::Command(Box::new(command.into_owned()))
            }
            Item::Applied(agent) => last.add(agent, 0, ReplyEvent::Logged(Logged::Applied)),
            Item::Begun(agent, reply) => last.add(agent, reply, ReplyEvent::Logged(Logged::Begun)),
            Item::Tokens(agent, reply, run) => {
                // They are in the event, and no longer in a list.
                reader.memory_left += size_of_val(run.tokens()) as u64;
                last.add(agent, reply, ReplyEvent::Logged(Logged::Tokens(run)))
            }
            Item::Delta(agent, reply, tokens, text) => {
                last.add(agent, reply, ReplyEvent::Delta { text, tokens })
            }
            Item::Event(agent, reply, what) => last.add(agent, reply, what.into_owned()),
            Item::End(reason) => {
                let end = reason.map_or(End::Complete, |reason| End::GivenUp(reason.into_owned()));
                return Ok(ControlFlow::Break(end));
            }
        };
        return Ok(ControlFlow::Continue(record));
    }
    Ok(ControlFlow::Break(End::CutOff))
}
