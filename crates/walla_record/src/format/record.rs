//! Records: what happened, and when.

use walla_runtime::{Command, Event, ModelCard};

use super::command::{get_command, put_command};
use super::event::{get_event, put_event};
use super::ids::Ids;
use super::wire::{Defect, Reader, Writer};
use crate::recording::{EngineInfo, Record};

/// The first byte of other records. It never changes its meaning.
mod tag {
    pub const TICK: u8 = 0;
    pub const ENGINE: u8 = 1;
    pub const PAUSE: u8 = 2;
    pub const END: u8 = 3;
}

/// A record before it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Raw<'a> {
    Engine(&'a EngineInfo),
    Paused(bool),
    Command(&'a Command),
    Event(&'a Event),
    /// The end, with the reason if it is early.
    End(Option<&'a str>),
}

/// Frame and time of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Frames granted so far.
    pub frame: u64,
    /// Microseconds since the begin.
    pub micros: u64,
}

/// Writes a record, after its time if that has changed. Returns `false` for a command that this
/// version does not know.
#[must_use]
pub(crate) fn put_record(
    writer: &mut Writer<'_>,
    (ids, last): (&mut Ids, &mut Clock),
    now: Clock,
    record: Raw<'_>,
) -> bool {
    let micros = now.micros.saturating_sub(last.micros);
    let frames = now.frame.saturating_sub(last.frame);
    if frames > 0 || micros > 0 {
        writer.u8(tag::TICK);
        writer.number(frames);
        writer.number(micros);
        *last = Clock { frame: last.frame + frames, micros: last.micros + micros };
    }
    match record {
        Raw::Command(command) => return put_command(writer, ids, command),
        Raw::Event(event) => put_event(writer, ids, event),
        Raw::Paused(is_paused) => {
            writer.u8(tag::PAUSE);
            writer.bool(is_paused);
        }
        Raw::End(reason) => {
            writer.u8(tag::END);
            writer.option(reason, Writer::text);
        }
        Raw::Engine(engine) => {
            writer.u8(tag::ENGINE);
            put_engine(writer, engine);
        }
    }
    true
}

/// A record that was read.
#[derive(Debug)]
pub(crate) enum Got {
    Record(Record),
    End(Option<String>),
}

/// Reads a record and the times before it. `None` at the end of the bytes.
pub(crate) fn get_record(
    reader: &mut Reader<'_>,
    (ids, clock): (&mut Ids, &mut Clock),
) -> Result<Option<Got>, Defect> {
    while !reader.is_empty() {
        let tag = reader.u8()?;
        let record = match tag {
            tag::TICK => {
                clock.frame = add(clock.frame, reader.number()?)?;
                clock.micros = add(clock.micros, reader.number()?)?;
                continue;
            }
            tag::ENGINE => Record::Engine(Box::new(get_engine(reader)?)),
            tag::PAUSE => Record::Paused(reader.bool()?),
            tag::END => {
                let reason = reader.option(|reader| Ok(reader.text()?.to_owned()))?;
                return Ok(Some(Got::End(reason)));
            }
            tag => {
                if let Some(command) = get_command(reader, ids, tag)? {
                    Record::Command(Box::new(command))
                } else if let Some(event) = get_event(reader, ids, tag)? {
                    Record::Event(event)
                } else {
                    return Err(Defect::Tag { what: "record", tag: tag.into() });
                }
            }
        };
        return Ok(Some(Got::Record(record)));
    }
    Ok(None)
}

fn add(sum: u64, more: u64) -> Result<u64, Defect> {
    sum.checked_add(more).ok_or(Defect::Number)
}

fn put_engine(writer: &mut Writer<'_>, engine: &EngineInfo) {
    writer.text(&engine.version);
    writer.option(engine.model.as_deref(), Writer::text);
    writer.number(engine.fingerprint);
    writer.text(&engine.architecture);
    writer.number(engine.vocab);
    writer.text(&engine.device);
    writer.text(&engine.variant);
    writer.number(engine.context_tokens);
    writer.number(engine.kv_tokens);
    writer.text(&engine.kv_type);
    writer.bool(engine.context_shift);
    writer.option(engine.pre_tokenizer.as_deref(), Writer::text);
    writer.option(engine.template.as_deref(), Writer::text);
    writer.bool(engine.has_tokens);
}

fn get_engine(reader: &mut Reader<'_>) -> Result<EngineInfo, Defect> {
    let owned = |reader: &mut Reader<'_>| Ok(reader.text()?.to_owned());
    Ok(EngineInfo {
        version: owned(reader)?,
        model: reader.option(owned)?,
        fingerprint: reader.number()?,
        architecture: owned(reader)?,
        vocab: reader.u32()?,
        device: owned(reader)?,
        variant: owned(reader)?,
        context_tokens: reader.u32()?,
        kv_tokens: reader.u32()?,
        kv_type: owned(reader)?,
        context_shift: reader.bool()?,
        pre_tokenizer: reader.option(owned)?,
        template: reader.option(owned)?,
        has_tokens: reader.bool()?,
    })
}

impl EngineInfo {
    pub(crate) fn new(card: &ModelCard, has_tokens: bool) -> Self {
        let settings = &card.settings;
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model: card.name.clone(),
            fingerprint: card.fingerprint,
            architecture: card.architecture.to_owned(),
            vocab: card.vocab,
            device: card.device.name.clone(),
            variant: card.device.variant.clone(),
            context_tokens: card.context_tokens,
            kv_tokens: settings.kv_tokens,
            kv_type: format!("{:?}", settings.kv_type).to_lowercase(),
            context_shift: settings.context_shift,
            pre_tokenizer: settings.pre_tokenizer.clone(),
            template: settings.template.clone(),
            has_tokens,
        }
    }
}
