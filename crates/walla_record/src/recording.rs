//! A recording in memory.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use walla_runtime::{
    AgentId, Command, ConversationEdit, Event, Logged, Prompt, ReplyEvent, ReplyId, Turn,
};

use crate::error::{ReadError, RecordError};
use crate::file::ChunkWriter;
use crate::format::{
    CHUNK_HEAD_BYTES, ChunkHead, Clock, Defect, Got, Ids, MAGIC, MAX_CHUNK_BYTES, Numbers, Raw,
    Reader, VERSION, Writer, checksum, get_record, put_record,
};

/// The engine of a session: its model, and the settings that its replies depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineInfo {
    /// Version of walla.
    pub version: String,
    /// Name of the model in its file.
    pub model: Option<String>,
    /// Identifies the model file ([`ModelCard::fingerprint`](walla_runtime::ModelCard)).
    pub fingerprint: u64,
    /// Architecture of the model, as named in GGUF.
    pub architecture: String,
    /// Tokens in the vocabulary.
    pub vocab: u32,
    /// Name of the device: `cpu`, `cuda:0`.
    pub device: String,
    /// Variant of the kernels on this device.
    pub variant: String,
    /// Context length per agent, in tokens.
    pub context_tokens: u32,
    /// Tokens of one agent that the KV pool can hold.
    pub kv_tokens: u32,
    /// Number format of keys and values: `f32`, `f16` or `q8`.
    pub kv_type: String,
    /// [`EngineOptions::context_shift`](walla_runtime::EngineOptions::context_shift).
    pub context_shift: bool,
    /// [`EngineOptions::pre_tokenizer`](walla_runtime::EngineOptions::pre_tokenizer).
    pub pre_tokenizer: Option<String>,
    /// The chosen chat template, by name or path; `None`: the model file's.
    pub template: Option<String>,
    /// Whether the recording has the ids of all tokens, and the engine's order of work.
    pub has_tokens: bool,
}

/// Something that happened in a session.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Record {
    /// The engine is ready, or another device has taken over.
    Engine(Box<EngineInfo>),
    /// The host began or ended a pause.
    Paused(bool),
    /// The host sent a command, and the engine accepted it.
    Command(Box<Command>),
    /// The host received an event, or the recorder alone did ([`ReplyEvent::Logged`]).
    Event(Event),
}

/// A record with its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Number of frames that the host had granted.
    pub frame: u64,
    /// Microseconds since the begin, with a precision of a millisecond.
    pub micros: u64,
    /// What happened.
    pub record: Record,
}

/// How a recording ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The session was recorded to its end.
    Complete,
    /// The recorder gave up, for this reason. The session went on.
    GivenUp(String),
    /// The program ended without a word (a crash, a power cut): the last second may be missing.
    CutOff,
}

/// Limits of memory for a recording that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of records. Default: `8_000_000`: four hours of 64 agents. Each takes about
    /// 130 bytes and its text.
    pub max_records: u64,
    /// Maximum bytes of all chunks, not compressed, and, separately, of the commands, lists and
    /// arguments in memory, which are larger there. Default: 512 MiB.
    pub max_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_records: 8_000_000, max_bytes: 512 << 20 }
    }
}

/// A recorded session. Agents are numbered from 0 and replies from 1, in the order of their
/// appearance.
///
/// It contains personas, conversations, notes and questions of players. It contains no API keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// All records, in the order in which the host sent and received.
    pub entries: Vec<Entry>,
    /// How it ends.
    pub end: End,
    /// Time of the end, in microseconds since the begin.
    pub micros: u64,
}

impl Recording {
    /// Reads a recording.
    ///
    /// A chunk that was not written completely is the end of the recording, and no error
    /// ([`is_complete`](Self::is_complete)). So is a damaged last chunk, unless it is the first
    /// one: then nothing can be read.
    ///
    /// # Errors
    /// [`ReadError`]. Any bytes are a recording or an error.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        let in_file = |error| match error {
            ReadError::Io { source, .. } => ReadError::Io { path: path.to_owned(), source },
            error => error,
        };
        let io = |source| in_file(io_error(source));
        // Before it is opened: to open a FIFO waits for a writer.
        let kind = std::fs::metadata(path).map_err(io)?;
        if !kind.is_file() && !kind.is_dir() {
            return Err(ReadError::NotARecording);
        }
        let file = File::open(path).map_err(io)?;
        Self::read(BufReader::new(file), Limits::default()).map_err(in_file)
    }

    /// Reads a recording from any source, within limits.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn read(source: impl Read, limits: Limits) -> Result<Self, ReadError> {
        let mut chunks = Chunks { source, number: 0, at: 0, max_bytes: limits.max_bytes };
        chunks.begin()?;
        let (mut ids, mut clock, mut numbers) =
            (Ids::default(), Clock::default(), Numbers::default());
        let (mut entries, mut bytes_left) = (Vec::new(), limits.max_bytes);
        let mut memory_left = limits.max_bytes;
        let mut end = End::CutOff;
        loop {
            let place = chunks.next_place();
            let Some(chunk) = chunks.next_chunk(bytes_left)? else { break };
            bytes_left = bytes_left.saturating_sub(chunk.len() as u64);
            let mut reader = Reader::new(&chunk, memory_left);
            let bad = |defect| match defect {
                Defect::Memory => {
                    ReadError::TooLarge { what: "bytes in memory", max: limits.max_bytes }
                }
                defect => damaged(place, defect),
            };
            loop {
                let got = get_record(&mut reader, (&mut ids, &mut clock));
                let mut record = match got.map_err(bad)? {
                    Some(Got::Record(record)) => record,
                    Some(Got::End(reason)) => {
                        end = reason.map_or(End::Complete, End::GivenUp);
                        break;
                    }
                    None => break,
                };
                if entries.len() as u64 >= limits.max_records {
                    return Err(ReadError::TooLarge { what: "records", max: limits.max_records });
                }
                record.number(&mut numbers);
                entries.push(Entry { frame: clock.frame, micros: clock.micros, record });
            }
            memory_left = reader.memory_left();
            if end != End::CutOff {
                break;
            }
        }
        Ok(Self { entries, end, micros: clock.micros })
    }

    /// Writes the recording, for instance after a change of its entries.
    ///
    /// # Errors
    /// [`RecordError::Io`], [`RecordError::TooLarge`] for an entry beyond 8 MiB.
    pub fn write(&self, target: impl Write) -> Result<(), RecordError> {
        let mut chunks = ChunkWriter::new(target);
        let failed = |source| RecordError::Io { path: PathBuf::new(), source };
        let (mut ids, mut clock, mut bytes) = (Ids::default(), Clock::default(), Vec::new());
        let mut chunk_micros = 0;
        for Entry { frame, micros, record } in &self.entries {
            let age = micros.saturating_sub(chunk_micros);
            if age >= 1_000_000 && !bytes.is_empty() {
                chunks.write(&bytes).map_err(failed)?;
                bytes.clear();
                chunk_micros = *micros;
            }
            let before = bytes.len();
            let raw = match record {
                Record::Engine(engine) => Raw::Engine(engine),
                Record::Paused(is_paused) => Raw::Paused(*is_paused),
                Record::Command(command) => Raw::Command(command),
                Record::Event(event) => Raw::Event(event),
            };
            let now = Clock { frame: *frame, micros: *micros };
            if !put_record(&mut Writer(&mut bytes), (&mut ids, &mut clock), now, raw) {
                return Err(RecordError::UnknownCommand);
            }
            check_size(bytes.len() - before)?;
            if bytes.len() > MAX_CHUNK_BYTES / 2 {
                chunks.write(&bytes).map_err(failed)?;
                bytes.clear();
            }
        }
        let reason = match &self.end {
            End::Complete => None,
            End::GivenUp(reason) => Some(reason.as_str()),
            End::CutOff => return chunks.finish(&bytes).map_err(failed),
        };
        let now = Clock { frame: clock.frame, micros: self.micros };
        let _known =
            put_record(&mut Writer(&mut bytes), (&mut ids, &mut clock), now, Raw::End(reason));
        chunks.finish(&bytes).map_err(failed)
    }

    /// Whether the session was recorded to its end.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.end == End::Complete
    }

    /// The engine; the first one, if another device has taken over.
    #[must_use]
    pub fn engine(&self) -> Option<&EngineInfo> {
        self.entries.iter().find_map(|entry| match &entry.record {
            Record::Engine(engine) => Some(&**engine),
            _ => None,
        })
    }

    /// Whether the recording has the ids of all tokens, and the engine's order of work.
    #[must_use]
    pub fn has_tokens(&self) -> bool {
        self.events().any(|event| matches!(event.what, ReplyEvent::Logged(Logged::Begun)))
    }

    /// Whether the host granted frames.
    #[must_use]
    pub fn has_frames(&self) -> bool {
        self.entries.last().is_some_and(|last| last.frame > 0)
    }

    /// Duration of the session.
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_micros(self.micros)
    }

    /// The events of all replies.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.entries.iter().filter_map(|entry| match &entry.record {
            Record::Event(event) => Some(event),
            _ => None,
        })
    }

    /// The commands of the host.
    pub fn commands(&self) -> impl Iterator<Item = &Command> {
        self.entries.iter().filter_map(|entry| match &entry.record {
            Record::Command(command) => Some(&**command),
            _ => None,
        })
    }
}

/// # Errors
/// [`RecordError::TooLarge`].
pub(crate) fn check_size(bytes: usize) -> Result<(), RecordError> {
    let max_bytes = crate::format::MAX_RECORD_BYTES;
    if bytes > max_bytes { Err(RecordError::TooLarge { bytes, max_bytes }) } else { Ok(()) }
}

impl Record {
    /// Replaces ids by their numbers.
    fn number(&mut self, numbers: &mut Numbers) {
        match self {
            Self::Engine(_) | Self::Paused(_) => {}
            Self::Event(event) => {
                numbers.agent(&mut event.agent);
                numbers.reply(&mut event.reply_id);
                let reply_id = event.reply_id;
                match &mut event.what {
                    ReplyEvent::Call(call) => call.id.reply_id = reply_id,
                    ReplyEvent::CallRefused(refused) => refused.id.reply_id = reply_id,
                    _ => {}
                }
            }
            Self::Command(command) => {
                each_id(command, &mut |agent| numbers.agent(agent), &mut |_| {});
                each_id(command, &mut |_| {}, &mut |reply_id| numbers.reply(reply_id));
            }
        }
    }
}

/// Calls `of_agent` with each agent and `of_reply` with each reply of a command.
pub(crate) fn each_id(
    command: &mut Command,
    of_agent: &mut dyn FnMut(&mut AgentId),
    of_reply: &mut dyn FnMut(&mut ReplyId),
) {
    let mut of_turns = |turns: &mut [Turn]| {
        let calls = turns.iter_mut().filter_map(|turn| turn.call.as_mut());
        calls.for_each(|call| of_reply(&mut call.reply_id));
    };
    match command {
        Command::ForkAgent { agent, source, spec } => {
            of_agent(agent);
            of_agent(source);
            spec.iter_mut().for_each(|spec| of_turns(&mut spec.turns));
        }
        Command::EditConversation { agent, edit } => {
            of_agent(agent);
            if let ConversationEdit::CopyOf { source } = edit {
                of_agent(source);
            }
        }
        Command::Ask { agent, reply_id, prompt, .. } => {
            of_agent(agent);
            of_reply(reply_id);
            if let Prompt::Results(results) = prompt {
                results.iter_mut().for_each(|result| of_reply(&mut result.id.reply_id));
            }
        }
        Command::Cancel { agent, reply_id } | Command::CancelHeard { agent, reply_id, .. } => {
            of_agent(agent);
            of_reply(reply_id);
        }
        Command::AddAgent { agent, spec } | Command::ChangeAgent { agent, spec } => {
            of_agent(agent);
            of_turns(&mut spec.turns);
        }
        Command::SetConversation { agent, turns } | Command::AppendTurns { agent, turns } => {
            of_agent(agent);
            of_turns(turns);
        }
        Command::SetDetail { agent, .. }
        | Command::CopyCache { agent, .. }
        | Command::RemoveAgent { agent } => of_agent(agent),
    }
}

fn io_error(source: io::Error) -> ReadError {
    ReadError::Io { path: PathBuf::new(), source }
}

/// Reads chunks.
struct Chunks<R> {
    source: R,
    /// Number of the next chunk.
    number: u32,
    /// Position of the next chunk.
    at: u64,
    max_bytes: u64,
}

impl<R: Read> Chunks<R> {
    /// Reads the begin of the file.
    fn begin(&mut self) -> Result<(), ReadError> {
        let mut begin = [0; MAGIC.len() + 2];
        if read_full(&mut self.source, &mut begin).map_err(io_error)? < begin.len() {
            return Err(ReadError::NotARecording);
        }
        let [magic @ .., low, high] = begin;
        if magic != *MAGIC {
            return Err(ReadError::NotARecording);
        }
        let found = u16::from_le_bytes([low, high]);
        if found != VERSION {
            return Err(ReadError::Version { found: found.into(), known: VERSION.into() });
        }
        self.at = begin.len() as u64;
        Ok(())
    }

    /// The records of the next chunk. `None` behind the last complete one.
    fn next_chunk(&mut self, bytes_left: u64) -> Result<Option<Vec<u8>>, ReadError> {
        let mut head = [0; CHUNK_HEAD_BYTES];
        if read_full(&mut self.source, &mut head).map_err(io_error)? < head.len() {
            return Ok(None);
        }
        if head == [0; CHUNK_HEAD_BYTES] && self.rest_is_zero()? {
            // A file system may lengthen a file before it stores the data.
            return Ok(None);
        }
        let head = ChunkHead::from_bytes(head);
        let data = match self.chunk_data(head, bytes_left) {
            Ok(data) => data,
            // Behind a first chunk nothing can be read, whether another one follows or not.
            Err(ReadError::Damaged { .. }) if self.number > 0 && self.is_at_end()? => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if data.is_some() {
            self.at += CHUNK_HEAD_BYTES as u64 + u64::from(head.deflated);
            self.number += 1;
        }
        Ok(data)
    }

    fn chunk_data(
        &mut self,
        head: ChunkHead,
        bytes_left: u64,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let [deflated, inflated] = [head.deflated, head.inflated].map(|bytes| bytes as usize);
        // Incompressible data grows by a few bytes per 64 KiB.
        for (bytes, max_bytes) in
            [(deflated, MAX_CHUNK_BYTES + MAX_CHUNK_BYTES / 64), (inflated, MAX_CHUNK_BYTES)]
        {
            if bytes == 0 || bytes > max_bytes {
                return Err(self.next_damaged(Defect::ChunkLength { bytes: bytes as u64 }));
            }
        }
        let mut data = Vec::new();
        let read = (&mut self.source).take(deflated as u64).read_to_end(&mut data);
        if read.map_err(io_error)? < deflated {
            return Ok(None);
        }
        if checksum(self.number, [head.deflated, head.inflated], &data) != head.checksum {
            return Err(self.next_damaged(Defect::Checksum));
        }
        if inflated as u64 > bytes_left {
            return Err(ReadError::TooLarge { what: "bytes", max: self.max_bytes });
        }
        let records = miniz_oxide::inflate::decompress_to_vec_with_limit(&data, inflated)
            .map_err(|_| self.next_damaged(Defect::Compression))?;
        if records.len() != inflated {
            return Err(self.next_damaged(Defect::Compression));
        }
        Ok(Some(records))
    }

    fn rest_is_zero(&mut self) -> Result<bool, ReadError> {
        let mut buffer = [0; 4_096];
        loop {
            let read = read_full(&mut self.source, &mut buffer).map_err(io_error)?;
            let read = buffer.get(..read).unwrap_or_default();
            if read.is_empty() || read.iter().any(|byte| *byte != 0) {
                return Ok(read.is_empty());
            }
        }
    }

    /// Whether nothing follows. A chunk that was written in a power cut may be damaged.
    fn is_at_end(&mut self) -> Result<bool, ReadError> {
        Ok(read_full(&mut self.source, &mut [0]).map_err(io_error)? == 0)
    }

    /// Number and position of the next chunk.
    fn next_place(&self) -> (u32, u64) {
        (self.number, self.at)
    }

    fn next_damaged(&self, defect: Defect) -> ReadError {
        damaged(self.next_place(), defect)
    }
}

fn damaged((chunk, at): (u32, u64), defect: Defect) -> ReadError {
    ReadError::Damaged { chunk, at, defect }
}

/// Reads until the buffer is full or the source ends. Returns the number of bytes.
fn read_full(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
