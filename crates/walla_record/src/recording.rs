//! A recording in memory.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use walla_runtime::{
    AgentId, Command, ConversationEdit, Event, Logged, ModelCard, Prompt, ReplyEvent, ReplyId,
};

use crate::error::{ReadError, RecordError};
use crate::file::ChunkWriter;
use crate::format::{
    CHUNK_HEAD_BYTES, Clock, Defect, Item, Last, MAGIC, MAX_CHUNK_BYTES, Reader, VERSION, checksum,
    chunk_head, get_record, put_record,
};

/// The engine of a session: its model, and the settings that its replies depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
        let (mut last, mut numbers) = (Last::default(), Numbers::default());
        let (mut entries, mut bytes_left) = (Vec::new(), limits.max_bytes);
        let mut memory_left = limits.max_bytes;
        let mut end = End::CutOff;
        loop {
            let (number, at) = (chunks.number, chunks.at);
            let Some(chunk) = chunks.next_chunk(bytes_left)? else { break };
            bytes_left = bytes_left.saturating_sub(chunk.len() as u64);
            let mut reader = Reader::new(&chunk, memory_left);
            let bad = |defect| match defect {
                Defect::Memory => {
                    ReadError::TooLarge { what: "bytes in memory", max: limits.max_bytes }
                }
                defect => ReadError::Damaged { chunk: number, at, defect },
            };
            loop {
                let mut record = match get_record(&mut reader, &mut last).map_err(bad)? {
                    ControlFlow::Continue(record) => record,
                    ControlFlow::Break(at_end) => {
                        end = at_end;
                        break;
                    }
                };
                if entries.len() as u64 >= limits.max_records {
                    return Err(ReadError::TooLarge { what: "records", max: limits.max_records });
                }
                record.number(&mut numbers);
                let Clock { frame, micros } = last.clock;
                entries.push(Entry { frame, micros, record });
            }
            // The limit is of the whole recording, and a reader has one chunk.
            memory_left = reader.memory_left;
            if end != End::CutOff {
                break;
            }
        }
        Ok(Self { entries, end, micros: last.clock.micros })
    }

    /// Writes the recording, for instance after a change of its entries.
    ///
    /// # Errors
    /// [`RecordError::Io`], [`RecordError::TooLarge`] for an entry beyond 8 MiB.
    pub fn write(&self, target: impl Write) -> Result<(), RecordError> {
        let mut chunks = ChunkWriter::new(target);
        let failed = |source| RecordError::Io { path: PathBuf::new(), source };
        let (mut last, mut bytes) = (Last::default(), Vec::new());
        let mut chunk_micros = 0;
        for Entry { frame, micros, record } in &self.entries {
            let age = micros.saturating_sub(chunk_micros);
            // As a recorder writes it: a chunk has a second at most.
            if age >= 1_000_000 && !bytes.is_empty() {
                chunks.write(&bytes).map_err(failed)?;
                bytes.clear();
                chunk_micros = *micros;
            }
            let now = Clock { frame: *frame, micros: *micros };
            put_record(&mut bytes, &mut last, now, record.into())?;
            if bytes.len() > MAX_CHUNK_BYTES / 2 {
                chunks.write(&bytes).map_err(failed)?;
                bytes.clear();
            }
        }
        let reason = match &self.end {
            End::Complete => None,
            End::GivenUp(reason) => Some(reason.into()),
            End::CutOff => return chunks.finish(&bytes).map_err(failed),
        };
        let now = Clock { micros: self.micros, ..last.clock };
        put_record(&mut bytes, &mut last, now, Item::End(reason))?;
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

/// Numbers ids in the order of their appearance: agents from 0, replies from 1, because 0 is
/// [`ReplyId::NONE`].
#[derive(Debug, Default)]
struct Numbers {
    agents: HashMap<AgentId, AgentId>,
    replies: HashMap<ReplyId, ReplyId>,
}

impl Numbers {
    fn agent(&mut self, agent: &mut AgentId) {
        let next = AgentId(self.agents.len() as u64);
        *agent = *self.agents.entry(*agent).or_insert(next);
    }

    fn reply(&mut self, reply_id: &mut ReplyId) {
        if *reply_id != ReplyId::NONE {
            let next = ReplyId(self.replies.len() as u64 + 1);
            *reply_id = *self.replies.entry(*reply_id).or_insert(next);
        }
    }
}

impl Record {
    /// Replaces ids by their numbers.
    fn number(&mut self, numbers: &mut Numbers) {
        match self {
            Self::Engine(_) | Self::Paused(_) => {}
            Self::Event(event) => {
                numbers.agent(&mut event.agent);
                numbers.reply(&mut event.reply_id);
                set_call_reply(event);
            }
            Self::Command(command) => {
                each_agent(command, |agent| numbers.agent(agent));
                each_reply(command, |reply_id| numbers.reply(reply_id));
            }
        }
    }
}

/// Gives the id of its reply to an event's call.
pub(crate) fn set_call_reply(event: &mut Event) {
    match &mut event.what {
        ReplyEvent::Call(call) => call.id.reply_id = event.reply_id,
        ReplyEvent::CallRefused(refused) => refused.id.reply_id = event.reply_id,
        _ => {}
    }
}

/// Calls `f` with each agent of a command.
pub(crate) fn each_agent(command: &mut Command, mut f: impl FnMut(&mut AgentId)) {
    match command {
        Command::ForkAgent { agent, source, .. }
        | Command::EditConversation { agent, edit: ConversationEdit::CopyOf { source } } => {
            f(agent);
            f(source);
        }
        Command::AddAgent { agent, .. }
        | Command::ChangeAgent { agent, .. }
        | Command::SetDetail { agent, .. }
        | Command::SetConversation { agent, .. }
        | Command::AppendTurns { agent, .. }
        | Command::EditConversation { agent, .. }
        | Command::CopyCache { agent, .. }
        | Command::RemoveAgent { agent }
        | Command::Ask { agent, .. }
        | Command::Cancel { agent, .. }
        | Command::CancelHeard { agent, .. } => f(agent),
    }
}

/// Calls `f` with each reply of a command.
pub(crate) fn each_reply(command: &mut Command, mut f: impl FnMut(&mut ReplyId)) {
    let turns = match command {
        Command::AddAgent { spec, .. }
        | Command::ChangeAgent { spec, .. }
        | Command::ForkAgent { spec: Some(spec), .. } => &mut spec.turns,
        Command::SetConversation { turns, .. } | Command::AppendTurns { turns, .. } => turns,
        Command::Ask { reply_id, prompt, .. } => {
            f(reply_id);
            let Prompt::Results(results) = prompt else { return };
            return results.iter_mut().for_each(|result| f(&mut result.id.reply_id));
        }
        Command::Cancel { reply_id, .. } | Command::CancelHeard { reply_id, .. } => {
            return f(reply_id);
        }
        _ => return,
    };
    turns.iter_mut().filter_map(|turn| turn.call.as_mut()).for_each(|call| f(&mut call.reply_id));
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
        const BYTES: usize = MAGIC.len() + 2;
        let begin = <[u8; BYTES]>::try_from(self.take(BYTES)?);
        let [magic @ .., low, high] = begin.map_err(|_| ReadError::NotARecording)?;
        if magic != *MAGIC {
            return Err(ReadError::NotARecording);
        }
        let found = u16::from_le_bytes([low, high]);
        if found != VERSION {
            return Err(ReadError::Version { found: found.into(), known: VERSION.into() });
        }
        self.at = BYTES as u64;
        Ok(())
    }

    /// The records of the next chunk. `None` behind the last complete one.
    fn next_chunk(&mut self, bytes_left: u64) -> Result<Option<Vec<u8>>, ReadError> {
        let head = <[u8; CHUNK_HEAD_BYTES]>::try_from(self.take(CHUNK_HEAD_BYTES)?);
        let Ok(head) = head else { return Ok(None) };
        if head == [0; CHUNK_HEAD_BYTES] && self.rest_is_zero()? {
            // A file system may lengthen a file before it stores the data.
            return Ok(None);
        }
        let (lengths, checksum) = chunk_head(head);
        let data = match self.chunk_data(lengths, checksum, bytes_left) {
            Ok(data) => data,
            // A power cut may damage the last chunk. Behind a first one nothing can be read,
            // whether another one follows or not.
            Err(ReadError::Damaged { .. }) if self.number > 0 && self.take(1)?.is_empty() => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if data.is_some() {
            self.at += CHUNK_HEAD_BYTES as u64 + u64::from(lengths[0]);
            self.number += 1;
        }
        Ok(data)
    }

    fn chunk_data(
        &mut self,
        lengths: [u32; 2],
        expected: u64,
        bytes_left: u64,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let [deflated, inflated] = lengths.map(|bytes| bytes as usize);
        // Incompressible data grows by a few bytes per 64 KiB.
        // Before anything is allocated for it: both lengths are claims of the file.
        for (bytes, max_bytes) in
            [(deflated, MAX_CHUNK_BYTES + MAX_CHUNK_BYTES / 64), (inflated, MAX_CHUNK_BYTES)]
        {
            if bytes == 0 || bytes > max_bytes {
                return Err(self.damaged(Defect::ChunkLength { bytes: bytes as u64 }));
            }
        }
        let data = self.take(deflated)?;
        if data.len() < deflated {
            return Ok(None);
        }
        if checksum(self.number, lengths, &data) != expected {
            return Err(self.damaged(Defect::Checksum));
        }
        if inflated as u64 > bytes_left {
            return Err(ReadError::TooLarge { what: "bytes", max: self.max_bytes });
        }
        let records = miniz_oxide::inflate::decompress_to_vec_with_limit(&data, inflated);
        let records = records.ok().filter(|records| records.len() == inflated);
        records.map(Some).ok_or_else(|| self.damaged(Defect::Compression))
    }

    fn rest_is_zero(&mut self) -> Result<bool, ReadError> {
        loop {
            let read = self.take(4_096)?;
            if read.is_empty() || read.iter().any(|byte| *byte != 0) {
                return Ok(read.is_empty());
            }
        }
    }

    /// The next bytes: fewer at the end.
    fn take(&mut self, bytes: usize) -> Result<Vec<u8>, ReadError> {
        let mut taken = Vec::new();
        let read = (&mut self.source).take(bytes as u64).read_to_end(&mut taken);
        read.map_err(io_error)?;
        Ok(taken)
    }

    /// The next chunk has a defect.
    fn damaged(&self, defect: Defect) -> ReadError {
        ReadError::Damaged { chunk: self.number, at: self.at, defect }
    }
}
