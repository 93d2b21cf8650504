//! Templates and tokenizers on a separate thread: encoding a long prompt takes milliseconds, and no
//! step waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{JoinHandle, Thread};

use walla_action::ActionSet;
use walla_model::chat::{
    ChatTemplate, Message, Prompt as RenderedPrompt, RenderOptions, ReplyStart, Role, Segment,
    TemplateError, Tools,
};
use walla_model::tokenizer::TokenizerError;
use walla_types::TokenId;

use super::agents::{AgentState, Asked};
use crate::api::{AgentId, ContextPolicy, Notes, Prompt, ReplyError, ReplyId, Speaker, Turn};
use crate::hash::fnv1a;
use crate::model_text::ModelText;

/// Purpose of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The prompt of a reply.
    Reply(ReplyId),
    /// The part of an agent's next prompt that is known before the question, for a background
    /// prefill. The number is the version of the conversation.
    Background(u32),
}

/// A prompt to encode.
#[derive(Debug)]
pub(super) struct EncodeJob {
    pub agent: AgentId,
    pub purpose: Purpose,
    pub source: PromptSource,
    /// Capacity of the context in tokens.
    pub context_tokens: u32,
    /// Tokens of the context to keep free for the reply.
    pub reply_tokens: u32,
}

/// Source of a prompt.
#[derive(Debug)]
pub(super) enum PromptSource {
    /// Untrusted raw text.
    Raw(String),
    /// Raw text whose markers are parsed.
    RawTrusted(String),
    /// A conversation rendered by the template, and the subject of the reply.
    Chat { conversation: Box<Conversation>, asked: Asked },
    /// A conversation whose next turn is not known. The result is the part of the prompt that any
    /// next turn leaves as it is.
    Unasked(Box<Conversation>),
}

/// A conversation to render.
#[derive(Debug)]
pub(super) struct Conversation {
    pub persona: String,
    /// Shared with the agent, not copied.
    pub turns: Arc<Vec<Turn>>,
    /// [Size](Turn::size) of all earlier turns, which were dropped.
    pub dropped_size: u64,
    pub seed: u64,
    pub policy: ContextPolicy,
    pub thinking: bool,
    /// Empty: none.
    pub actions: ActionSet,
    /// Text with which the reply begins.
    pub opening: Option<Arc<String>>,
    /// Texts that the agent knows for this reply.
    pub notes: Option<Arc<Notes>>,
}

impl Conversation {
    pub fn of(agent: &AgentState) -> Box<Self> {
        Box::new(Self {
            persona: agent.spec.persona.clone(),
            turns: Arc::clone(agent.history.turns()),
            dropped_size: agent.history.dropped_size(),
            seed: agent.spec.sampling.seed(),
            policy: agent.spec.context_policy,
            thinking: agent.spec.thinking,
            actions: agent.spec.actions.as_ref().map(|a| a.set.clone()).unwrap_or_default(),
            opening: None,
            notes: None,
        })
    }
}

/// An encoded prompt.
#[derive(Debug)]
pub(super) struct EncodeResult {
    pub agent: AgentId,
    pub purpose: Purpose,
    /// Subject of the reply. The job took it from the ask.
    pub asked: Option<Asked>,
    /// The tokens, or the error.
    pub result: Result<Encoded, ReplyError>,
}

/// Tokens of a prompt.
#[derive(Debug)]
pub(super) struct Encoded {
    pub tokens: Vec<TokenId>,
    /// Number of oldest turns that were left out.
    pub dropped: usize,
    /// State at the start of the reply, if speech and reasoning are separated.
    pub start: Option<ReplyStart>,
}

/// Prompts for the worker: which agent is next, and whether the worker is full.
#[derive(Debug)]
pub(super) struct PromptEncoder {
    worker: EncodeWorker,
    /// Whether the worker had no capacity for an ask.
    is_full: bool,
    /// Round-robin cursor over agents with untokenised prompts: the slot after the last one served.
    next_slot: usize,
    /// Whether the worker holds a job for a background prefill. It holds at most one, because the
    /// prompts of asks wait behind it.
    has_background: bool,
}

impl PromptEncoder {
    pub fn new(worker: EncodeWorker) -> Self {
        Self { worker, is_full: false, next_slot: 0, has_background: false }
    }

    /// Begins a round over `slots` slots. Returns the order of the slots.
    pub fn begin_round(&mut self, slots: usize) -> impl Iterator<Item = usize> + use<> {
        self.is_full = false;
        (self.next_slot..slots).chain(0..self.next_slot)
    }

    /// Whether the worker has capacity for a prompt. Prompts of tokens need none.
    pub fn accepts(&mut self, prompt: &Prompt) -> bool {
        let accepts = self.worker.has_room() || matches!(prompt, Prompt::Tokens(_));
        self.is_full |= !accepts;
        accepts
    }

    /// Whether the worker had no capacity for an ask in this round.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Starts the job of the agent in `slot`, of `slots`. Returns the job if the worker has ended.
    pub fn submit(&mut self, job: EncodeJob, slot: usize, slots: usize) -> Result<(), EncodeJob> {
        self.next_slot = (slot + 1) % slots;
        self.worker.submit(job)
    }

    /// Whether the worker accepts a job for a background prefill: no ask waits for it.
    pub fn accepts_background(&self) -> bool {
        !self.has_background && !self.is_full && self.worker.has_room()
    }

    /// Starts a job for a background prefill. No effect if the worker has ended: the next ask
    /// reports that.
    pub fn submit_background(&mut self, job: EncodeJob) {
        self.has_background = self.worker.submit(job).is_ok();
    }

    /// Returns a finished job, if there is one.
    pub fn collect(&mut self) -> Option<EncodeResult> {
        let done = self.worker.collect()?;
        self.has_background &= !matches!(done.purpose, Purpose::Background(_));
        Some(done)
    }

    /// Begins the next round with the first slot.
    pub fn restart(&mut self) {
        self.next_slot = 0;
    }
}

/// Encodes in the background, or inline in tests that need identical runs.
#[derive(Debug)]
pub(super) struct EncodeWorker {
    mode: Mode,
    /// Jobs that it can take before one is collected.
    jobs_left: usize,
}

#[derive(Debug)]
enum Mode {
    Inline {
        text: Arc<ModelText>,
        done: Vec<EncodeResult>,
    },
    Thread {
        jobs: Option<SyncSender<EncodeJob>>,
        done: Receiver<EncodeResult>,
        thread: Option<JoinHandle<()>>,
    },
}

impl EncodeWorker {
    /// A worker that encodes inside [`EncodeWorker::submit`].
    pub fn inline(text: Arc<ModelText>, jobs_max: usize) -> Self {
        Self { mode: Mode::Inline { text, done: Vec::new() }, jobs_left: jobs_max }
    }

    /// A worker thread that holds up to `jobs_max` jobs, done or not, and unparks `waker` when a
    /// job is done.
    pub fn spawn(text: Arc<ModelText>, jobs_max: usize, waker: Thread) -> std::io::Result<Self> {
        let (jobs, jobs_in) = sync_channel::<EncodeJob>(jobs_max);
        let (done_out, done) = sync_channel(jobs_max);
        let work = move || {
            while let Ok(job) = jobs_in.recv() {
                if done_out.send(encode_caught(&text, job)).is_err() {
                    return;
                }
                waker.unpark();
            }
        };
        let thread = std::thread::Builder::new().name("walla-text".into()).spawn(work)?;
        let mode = Mode::Thread { jobs: Some(jobs), done, thread: Some(thread) };
        Ok(Self { mode, jobs_left: jobs_max })
    }

    /// Whether it can take another job. If not, it wakes the device thread when it can.
    pub fn has_room(&self) -> bool {
        self.jobs_left > 0
    }

    /// Starts a job. Returns the job if there is no capacity or the thread has ended.
    pub fn submit(&mut self, job: EncodeJob) -> Result<(), EncodeJob> {
        if !self.has_room() {
            return Err(job);
        }
        match &mut self.mode {
            Mode::Inline { text, done } => done.push(encode_caught(text, job)),
            Mode::Thread { jobs: Some(jobs), .. } => jobs.try_send(job).map_err(|error| {
                let (TrySendError::Full(job) | TrySendError::Disconnected(job)) = error;
                job
            })?,
            Mode::Thread { jobs: None, .. } => return Err(job),
        }
        self.jobs_left -= 1;
        Ok(())
    }

    /// Returns a finished job, if there is one.
    pub fn collect(&mut self) -> Option<EncodeResult> {
        let done = match &mut self.mode {
            Mode::Inline { done, .. } => done.pop(),
            Mode::Thread { done, .. } => done.try_recv().ok(),
        };
        self.jobs_left += usize::from(done.is_some());
        done
    }
}

impl Drop for EncodeWorker {
    /// Detaches the thread. A job in progress is bounded by the template's fuel and the tokenizer's
    /// byte limit: it encodes about ten prompts at most.
    fn drop(&mut self) {
        if let Mode::Thread { jobs, thread, .. } = &mut self.mode {
            drop(jobs.take());
            drop(thread.take());
        }
    }
}

/// A template or tokenizer that panics fails its prompt, not the engine.
fn encode_caught(text: &ModelText, job: EncodeJob) -> EncodeResult {
    let _stage = walla_trace::enter(walla_trace::Stage::Encode);
    let result = catch_unwind(AssertUnwindSafe(|| encode(text, &job))).unwrap_or_else(|_| {
        let reason = "the prompt could not be encoded: a defect in walla";
        Err(ReplyError::Text(reason.into()))
    });
    let EncodeJob { agent, purpose, source, .. } = job;
    let asked = match source {
        // Drops the shared turns, so that the agent can append its next turn without a copy.
        PromptSource::Chat { asked, .. } => Some(asked),
        PromptSource::Raw(_) | PromptSource::RawTrusted(_) | PromptSource::Unasked(_) => None,
    };
    EncodeResult { agent, purpose, asked, result }
}

fn encode(text: &ModelText, job: &EncodeJob) -> Result<Encoded, ReplyError> {
    let refused = |error: TokenizerError| ReplyError::Text(error.to_string());
    let tokenizer = &text.tokenizer;
    match &job.source {
        PromptSource::Raw(raw) => {
            let mut tokens = tokenizer.encode_untrusted(raw).map_err(refused)?;
            // No EOS, even if the file adds one to texts, because the model must continue.
            if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos()) {
                tokens.insert(0, bos);
            }
            Ok(Encoded { tokens, dropped: 0, start: None })
        }
        PromptSource::RawTrusted(raw) => {
            let prompt = RenderedPrompt { segments: vec![Segment::Template(raw.clone())] };
            let tokens = tokenizer.encode_prompt(&prompt).map_err(refused)?;
            Ok(Encoded { tokens, dropped: 0, start: None })
        }
        PromptSource::Chat { conversation, asked } => {
            let question = match asked {
                Asked::Question(question) => Some(question.as_str()),
                Asked::Conversation => None,
            };
            encode_conversation(text, job, conversation, question)
        }
        PromptSource::Unasked(conversation) => {
            let [one, other] = QUESTIONS;
            let mut encoded = encode_conversation(text, job, conversation, Some(one))?;
            let turns = conversation.turns.get(encoded.dropped..).unwrap_or_default();
            let template = text.template.as_ref();
            let template =
                template.ok_or_else(|| ReplyError::NoTemplate(Arc::clone(&text.state)))?;
            let messages = (conversation.persona.as_str(), turns, None, Some(other));
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
    question: Option<&str>,
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
        let tokens_max = notes.tokens_max.min(u32::try_from(limit / 4).unwrap_or(u32::MAX));
        let notes = Notes { tokens_max, ..Notes::clone(notes) };
        // A long one is not tokenised: other agents' prompts wait behind it.
        let bytes_max = (tokens_max as usize).saturating_mul(text.tokenizer.delta_bytes_max());
        notes.text(|part| {
            let tokens = if part.len() > bytes_max { usize::MAX } else { count(part) };
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
        let tokens = tokens_at_least(turns, text.tokenizer.delta_bytes_max());
        let (prompt_tokens, context_tokens) = (u32::try_from(tokens), job.context_tokens);
        match prompt_tokens.unwrap_or(u32::MAX) {
            tokens if tokens < context_tokens => Ok(()),
            prompt_tokens => Err(ReplyError::PromptTooLong { prompt_tokens, context_tokens }),
        }
    };
    let (tokens, dropped) = match policy {
        ContextPolicy::DropOldest => {
            let question_tokens =
                question.map(|question| count(question).saturating_add(note.map_or(0, count)));
            let fitting = Fitting {
                turns,
                dropped_size: *dropped_size,
                offset: offset(persona, *seed),
                possible: first_possible(turns, limit, text.tokenizer.delta_bytes_max()),
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
    Ok(Encoded { tokens, dropped, start })
}

/// Tokens that a question is counted as at least. So a prompt whose question is not known yet drops
/// the same turns as the prompt with a short question.
fn question_allowance(limit: usize) -> usize {
    (limit / 8).min(QUESTION_TOKENS)
}

/// Maximum of [`question_allowance`].
const QUESTION_TOKENS: usize = 128;

/// Reason why a conversation could not be encoded, and whether a shorter one may work.
#[derive(Debug, PartialEq)]
enum TooLong {
    Yes(String),
    No(String),
}

impl From<TooLong> for ReplyError {
    fn from(error: TooLong) -> Self {
        let (TooLong::Yes(reason) | TooLong::No(reason)) = error;
        Self::Text(reason)
    }
}

/// The first turn that a prompt of `limit` tokens can include. No token has more than
/// `token_bytes_max` bytes, and every turn has at least one token, unless it is blank. So only the
/// end of a long conversation is encoded.
fn first_possible(turns: &[Turn], limit: usize, token_bytes_max: usize) -> usize {
    let mut left = limit;
    let is_too_much = |turn: &Turn| {
        let fits = left.checked_sub(turn_tokens_min(turn, token_bytes_max));
        left = fits.unwrap_or(left);
        fits.is_none()
    };
    turns.iter().rposition(is_too_much).map_or(0, |last_left_out| last_left_out + 1)
}

/// Minimum number of tokens of a turn. Templates trim text, and blank turns may be left out.
fn turn_tokens_min(turn: &Turn, token_bytes_max: usize) -> usize {
    let bytes = turn.text.trim().len();
    usize::from(bytes > 0) + bytes / token_bytes_max.max(1)
}

/// Minimum number of tokens of these turns.
fn tokens_at_least(turns: &[Turn], token_bytes_max: usize) -> usize {
    turns.iter().map(|turn| turn_tokens_min(turn, token_bytes_max)).sum()
}

/// A conversation that may be too long for its prompt.
#[derive(Clone, Copy, Debug)]
struct Fitting<'a> {
    turns: &'a [Turn],
    /// See [`Conversation::dropped_size`].
    dropped_size: u64,
    /// See [`offset`].
    offset: f32,
    /// See [`first_possible`].
    possible: usize,
    /// Maximum tokens of the prompt.
    limit: usize,
    /// Tokens that the question lacks to its allowance.
    question_spare: usize,
    /// Bytes of text per token of this vocabulary.
    bytes_per_token: f32,
}

impl Fitting<'_> {
    /// Returns the prompt with all turns if it fits in the limit. Otherwise it drops the oldest
    /// turns. Also returns the number of dropped turns. If not even the last exchange fits, the
    /// prompt has only the question.
    ///
    /// A conversation may begin at every [`STARTS`]-th part of the tokens that turns can have. The
    /// possible beginnings are fixed points of the whole conversation, so that prompts begin with
    /// the same turn, and their cache stays valid, until the conversation has grown by such a part.
    /// All but this part is then evaluated again: `STARTS - 1` tokens for each token of the
    /// conversation. Fewer parts would evaluate less, and drop more of the conversation.
    ///
    /// The first turns are dropped earlier by [`offset`] parts, and fewer of them. So agents that
    /// began to talk together do not all evaluate their conversations in the same frames.
    ///
    /// `encode` makes the prompt that begins with the given turn. It is called O(log(turns)) times.
    fn fit(
        &self,
        encode: &mut dyn FnMut(usize) -> Result<Vec<TokenId>, TooLong>,
    ) -> Result<(Vec<TokenId>, usize), TooLong> {
        let limit = self.limit.saturating_sub(self.question_spare);
        let mut tokens_from = |turn: usize| match encode(turn) {
            Ok(tokens) => Ok(Some((tokens, turn)).filter(|(tokens, _)| tokens.len() <= limit)),
            Err(TooLong::Yes(_)) => Ok(None),
            Err(other) => Err(other),
        };
        let all = if self.possible == 0 { tokens_from(0)? } else { None };
        // The room is not known yet; it is less than the limit.
        let all = match all {
            Some(all) if all.0.len() <= limit - self.early_tokens(limit) => return Ok(all),
            all => all,
        };
        let bare = tokens_from(self.turns.len())?;
        let room = limit - bare.as_ref().map_or(limit, |(tokens, _)| tokens.len());
        match all {
            Some(all) if all.0.len() <= limit - self.early_tokens(room) => return Ok(all),
            _ => {}
        }
        let mut fitting = bare;
        let starts = self.starts(room);
        let (mut low, mut high) = (0, starts.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match tokens_from(starts[middle])? {
                Some(fits) => (fitting, high) = (Some(fits), middle),
                None => low = middle + 1,
            }
        }
        // The last exchange may have no fixed point.
        let last = last_exchange(self.turns);
        if fitting.as_ref().is_none_or(|(_, from)| *from == self.turns.len())
            && (self.possible..self.turns.len()).contains(&last)
            && let Some(fits) = tokens_from(last)?
        {
            return Ok(fits);
        }
        match fitting {
            // The question alone may exceed the limit. The caller reports that.
            None => encode(self.turns.len()).map(|tokens| (tokens, self.turns.len())),
            Some(fitting) => Ok(fitting),
        }
    }

    /// Tokens by which the first turns are dropped before the context is full, if turns can have
    /// `room` tokens.
    fn early_tokens(&self, room: usize) -> usize {
        let has_dropped = self.dropped_size > 0;
        if has_dropped { 0 } else { (room as f32 * self.offset / STARTS as f32) as usize }
    }

    /// Turns with which a shortened conversation may begin, if turns can have `room` tokens: the
    /// first turns behind multiples of a part of `room`, except for a reply whose question is
    /// dropped.
    fn starts(&self, room: usize) -> Vec<usize> {
        let part = (room as f32 * self.bytes_per_token / STARTS as f32).max(1.0) as u64;
        let offset = (part as f32 * self.offset) as u64;
        let (mut starts, mut before) = (Vec::new(), self.dropped_size);
        let point_behind = |before: u64| ((before + offset) / part + 1) * part - offset;
        let mut next = point_behind(before);
        for (turn, this) in self.turns.iter().enumerate() {
            if before >= next && !is_answer(self.turns, turn) {
                if turn >= self.possible {
                    starts.push(turn);
                }
                next = point_behind(before);
            }
            before += this.size();
        }
        starts
    }
}

/// Number of parts in which a conversation that fills its context is dropped. With two, an agent
/// remembers between half of its context and all of it, and each token of the conversation is
/// evaluated once more.
const STARTS: usize = 2;

/// Parts, from 0 to 1, by which an agent's fixed points precede the multiples of a part. Agents of
/// different personas or seeds have different offsets.
fn offset(persona: &str, seed: u64) -> f32 {
    // The upper bits are mixed best.
    let hash = fnv1a(persona.bytes().chain(seed.to_le_bytes()));
    (hash >> 40) as f32 / (1 << 24) as f32
}

/// Whether a turn belongs to the turn before it ([`Speaker::continues`]).
fn is_answer(turns: &[Turn], turn: usize) -> bool {
    let before = turn.checked_sub(1).and_then(|before| turns.get(before));
    let pair = turns.get(turn).zip(before);
    pair.is_some_and(|(turn, before)| turn.speaker.continues(before.speaker))
}

/// The last turn that belongs to no turn before it.
fn last_exchange(turns: &[Turn]) -> usize {
    (0..turns.len()).rev().find(|&turn| !is_answer(turns, turn)).unwrap_or(0)
}

fn encode_chat(
    text: &ModelText,
    template: &ChatTemplate,
    (persona, turns, note, question): (&str, &[Turn], Option<&str>, Option<&str>),
    (thinking, tools, opening): (bool, Option<Tools>, Option<&str>),
) -> Result<(Vec<TokenId>, Option<ReplyStart>), TooLong> {
    let system = (!persona.is_empty()).then_some(Message { role: Role::System, content: persona });
    let turns = turns.iter().map(|turn| Message {
        role: match turn.speaker {
            Speaker::User => Role::User,
            Speaker::Agent => Role::Assistant,
            Speaker::Observation => Role::Observation,
            Speaker::Action => Role::Action,
            Speaker::ActionResult => Role::ActionResult,
        },
        content: &turn.text,
    });
    let question = question.map(|content| Message { role: Role::User, content });
    let note = note.map(|content| Message { role: Role::Observation, content });
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Alternating questions and answers.
    fn talk(turns: usize) -> Vec<Turn> {
        let speakers = [Speaker::User, Speaker::Agent].into_iter().cycle();
        let turn = |speaker| Turn { speaker, text: "0123456789".into() };
        speakers.take(turns).map(turn).collect()
    }

    /// Turns of 10 tokens and 26 bytes.
    fn fitting(turns: &[Turn], limit: usize) -> Fitting<'_> {
        let (dropped_size, possible, question_spare, bytes_per_token) = (0, 0, 0, 2.6);
        let offset = 0.0;
        Fitting { turns, dropped_size, offset, possible, limit, question_spare, bytes_per_token }
    }

    /// Fits prompts of 10 tokens per turn and question; prompts above `tokens_max` tokens are too
    /// long to encode. Also returns the number of encodings.
    fn fit_counted(turns: usize, limit: usize, tokens_max: usize) -> (usize, usize, usize) {
        let mut encoded = 0;
        let mut encode = |from: usize| {
            encoded += 1;
            let tokens = 10 * (turns - from + 1);
            if tokens > tokens_max {
                return Err(TooLong::Yes("too long".into()));
            }
            Ok(vec![TokenId(0); tokens])
        };
        let fits = fitting(&talk(turns), limit).fit(&mut encode);
        let (tokens, dropped) = fits.expect("something fits");
        (tokens.len(), dropped, encoded)
    }

    #[test]
    fn a_prompt_that_fits_is_encoded_once() {
        assert_eq!(fit_counted(8, 90, usize::MAX), (90, 0, 1));
        assert_eq!(fit_counted(0, 90, usize::MAX), (10, 0, 1));
    }

    #[test]
    fn a_half_is_dropped_and_no_prompt_starts_with_an_answer() {
        let mut starts = Vec::new();
        for turns in 17..80 {
            let (tokens, dropped, _) = fit_counted(turns, 170, usize::MAX);
            assert!(dropped.is_multiple_of(2), "{turns}: {dropped}");
            assert!((90..=170).contains(&tokens), "{turns}: {tokens}");
            starts.push(dropped);
        }
        // Of 16 turns that fit, eight are dropped at once.
        starts.dedup();
        assert_eq!(starts, (1..=8).map(|part| 8 * part).collect::<Vec<_>>());
    }

    /// Whether dropped turns are still part of the conversation makes no difference.
    #[test]
    fn first_turns_are_dropped_early_and_then_a_half_each_time() {
        for (offset, first, points) in
            [(0.0, 17, [8, 16, 24]), (0.25, 15, [6, 14, 22]), (0.75, 11, [2, 10, 18])]
        {
            for forgets in [false, true] {
                let all = talk(80);
                let (mut forgotten, mut starts) = (0, Vec::new());
                for turns in 1..26 {
                    let dropped_size = all[..forgotten].iter().map(Turn::size).sum();
                    let left = &all[forgotten..turns];
                    let whole = Fitting { dropped_size, offset, ..fitting(left, 170) };
                    let mut encode =
                        |from: usize| Ok(vec![TokenId(0); 10 * (left.len() - from + 1)]);
                    let (tokens, dropped) = whole.fit(&mut encode).expect("something fits");
                    let is_dropped = forgotten + dropped > 0;
                    assert!(tokens.len() >= if is_dropped { 90 } else { 10 }, "{turns} {offset}");
                    assert_eq!(is_dropped, turns >= first, "{turns} {offset}");
                    starts.push(forgotten + dropped);
                    forgotten += if forgets { dropped } else { 0 };
                }
                starts.dedup();
                assert!(
                    [0].iter().chain(&points).copied().collect::<Vec<_>>().starts_with(&starts)
                );
                assert!(starts.len() >= 3, "{starts:?}");
            }
        }
    }

    #[test]
    fn offsets_are_spread_evenly() {
        let of =
            |n: u64| [offset("You are a guard.", n), offset(&format!("You are guard {n}."), 0)];
        let mut offsets: Vec<_> = (0..500).flat_map(of).collect();
        assert!(offsets.iter().all(|offset| (0.0..1.0).contains(offset)));
        offsets.sort_by(f32::total_cmp);
        for (place, offset) in offsets.iter().enumerate() {
            assert!((offset - place as f32 / 1e3).abs() < 0.1, "{place}: {offset}");
        }
    }

    /// A prompt may drop turns of the conversation for ever, or only for itself: the next prompt
    /// begins with the same turn.
    #[test]
    fn dropping_turns_does_not_move_the_possible_beginnings() {
        let all = talk(200);
        for turns in 20..200 {
            let whole = fitting(&all[..turns], 170);
            for dropped in 0..turns {
                let dropped_size = all[..dropped].iter().map(Turn::size).sum();
                let rest = Fitting { dropped_size, turns: &all[dropped..turns], ..whole };
                let left: Vec<_> = rest.starts(160).iter().map(|turn| turn + dropped).collect();
                let mut expected = whole.starts(160);
                expected.retain(|&turn| turn > dropped);
                // The part in which the rest begins may have another first turn that is no answer.
                assert!(expected.ends_with(&left[left.len().min(1)..]), "{turns} {dropped}");
            }
        }
    }

    #[test]
    fn a_question_is_counted_as_its_allowance() {
        let turns = talk(16);
        let mut encode = |from: usize| Ok(vec![TokenId(0); 10 * (turns.len() - from + 1)]);
        let mut dropped = |question_spare| {
            let fitting = Fitting { question_spare, ..fitting(&turns, 170) };
            fitting.fit(&mut encode).expect("something fits").1
        };
        assert_eq!((dropped(0), dropped(1)), (0, 8));
        assert_eq!([question_allowance(100), question_allowance(4_000)], [12, 128]);
    }

    #[test]
    fn a_long_conversation_is_encoded_log2_times() {
        for tokens_max in [usize::MAX, 3_000, 170] {
            let (tokens, dropped, encoded) = fit_counted(1_000, 170, tokens_max);
            assert_eq!((tokens, dropped), (170, 984), "{tokens_max}");
            assert!(encoded <= 11, "{encoded}");
        }
    }

    #[test]
    fn if_nothing_fits_only_the_question_remains_and_errors_are_returned() {
        let (tokens, dropped, _) = fit_counted(100, 10, usize::MAX);
        assert_eq!((tokens, dropped), (10, 100));
        let refused = || TooLong::No("roles must alternate".into());
        assert_eq!(fitting(&talk(9), 50).fit(&mut |_| Err(refused())), Err(refused()));
    }

    /// Possible first turns of a shortened prompt.
    #[test]
    fn a_prompt_may_start_with_any_turn_except_an_answer() {
        use Speaker::{Agent, Observation, User};
        let turn = |speaker| Turn { speaker, text: "0123456789".into() };
        let starts = |speakers: &[Speaker]| {
            let turns: Vec<Turn> = speakers.iter().copied().map(turn).collect();
            (0..turns.len()).filter(|&at| !is_answer(&turns, at)).collect::<Vec<_>>()
        };
        assert_eq!(starts(&[User, Agent, User, Agent]), [0, 2]);
        assert_eq!(starts(&[Agent, User, User, Agent]), [0, 1, 2]);
        assert_eq!(starts(&[Observation, Agent, Observation, User, Agent]), [0, 2, 3]);
        // An agent that talks without being asked: all turns except the first answer.
        assert_eq!(starts(&[User, Agent, Agent, Agent]), [0, 2, 3]);
        // So any conversation can be shortened, even one without a user.
        let monologue: Vec<Turn> = (0..100).map(|_| turn(Agent)).collect();
        let mut encode = |from: usize| Ok(vec![TokenId(0); 10 * (101 - from)]);
        let fits = fitting(&monologue, 90).fit(&mut encode);
        let (tokens, dropped) = fits.expect("something fits");
        assert_eq!((tokens.len(), dropped), (90, 92));
    }

    #[test]
    fn turns_that_cannot_fit_are_skipped_without_encoding() {
        let turns = talk(1_000);
        // At least two tokens each.
        assert_eq!(first_possible(&turns, 100, 10), 950);
        assert_eq!(first_possible(&turns, 100, 1_000), 900);
        assert_eq!(first_possible(&turns, 10_000, 10), 0);
        assert_eq!(first_possible(&[], 0, 10), 0);
        // A template may leave out blank turns.
        let blank = vec![Turn { speaker: Speaker::User, text: " \n".into() }; 1_000];
        assert_eq!(first_possible(&blank, 100, 10), 0);
    }
}
