//! Templates and tokenizers at work, on a thread of their own: encoding a long prompt takes milliseconds, and no step waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{JoinHandle, Thread};

use walla_model::chat::{ChatTemplate, Message, RenderOptions, Role};
use walla_model::tokenizer::{EncodeOptions, Tokenizer};
use walla_types::TokenId;

use crate::api::{AgentId, ContextPolicy, GenerationId, Speaker, Turn};

/// The model's text side.
#[derive(Debug)]
pub(crate) struct ModelText {
    pub tokenizer: Tokenizer,
    /// `None` if the file has no template: raw prompts only.
    pub template: Option<ChatTemplate>,
}

/// What to encode.
#[derive(Debug)]
pub(super) struct TextJob {
    pub agent: AgentId,
    pub generation: GenerationId,
    pub source: TextSource,
    /// Tokens that the context holds.
    pub context_tokens: u32,
    /// Tokens of them to keep free for the reply.
    pub reply_tokens: u32,
}

/// Where the prompt comes from.
#[derive(Debug)]
pub(super) enum TextSource {
    /// Raw text.
    Raw(String),
    /// A conversation through the template; the oldest `dropped` turns are left out.
    Chat { persona: String, turns: Vec<Turn>, dropped: usize, policy: ContextPolicy },
}

/// A prompt, encoded.
#[derive(Debug)]
pub(super) struct TextDone {
    pub agent: AgentId,
    pub generation: GenerationId,
    /// The tokens and how many of the oldest turns they leave out, or what is wrong.
    pub result: Result<(Vec<TokenId>, usize), String>,
}

/// Encodes in the background, or at once where a test wants every run to be the same.
#[derive(Debug)]
pub(super) enum TextWorker {
    Inline {
        text: Arc<ModelText>,
        done: Vec<TextDone>,
    },
    Thread {
        jobs: Option<SyncSender<TextJob>>,
        done: Receiver<TextDone>,
        thread: Option<JoinHandle<()>>,
    },
}

impl TextWorker {
    /// A worker that encodes inside [`TextWorker::submit`].
    pub fn inline(text: Arc<ModelText>) -> Self {
        Self::Inline { text, done: Vec::new() }
    }

    /// A worker thread that takes up to `jobs_max` jobs and unparks `waker` when one is done.
    pub fn spawn(text: Arc<ModelText>, jobs_max: usize, waker: Thread) -> std::io::Result<Self> {
        let (jobs, jobs_in) = sync_channel::<TextJob>(jobs_max);
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
        Ok(Self::Thread { jobs: Some(jobs), done, thread: Some(thread) })
    }

    /// Starts a job; gives it back if the worker has no room now.
    pub fn submit(&mut self, job: TextJob) -> Result<(), TextJob> {
        match self {
            Self::Inline { text, done } => {
                done.push(encode_caught(text, job));
                Ok(())
            }
            Self::Thread { jobs: Some(jobs), .. } => {
                jobs.try_send(job).map_err(|error| match error {
                    TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
                })
            }
            Self::Thread { jobs: None, .. } => Err(job),
        }
    }

    /// A finished job, if there is one.
    pub fn collect(&mut self) -> Option<TextDone> {
        match self {
            Self::Inline { done, .. } => done.pop(),
            Self::Thread { done, .. } => done.try_recv().ok(),
        }
    }
}

impl Drop for TextWorker {
    /// Lets the thread end by itself: a job in progress is bounded by the template's fuel and the tokenizer's byte cap.
    fn drop(&mut self) {
        if let Self::Thread { jobs, thread, .. } = self {
            drop(jobs.take());
            drop(thread.take());
        }
    }
}

/// A template or tokenizer that panics fails its prompt, not the engine.
fn encode_caught(text: &ModelText, job: TextJob) -> TextDone {
    let _stage = walla_trace::enter(walla_trace::Stage::Encode);
    let (agent, generation) = (job.agent, job.generation);
    let result = catch_unwind(AssertUnwindSafe(|| encode(text, job)))
        .unwrap_or_else(|_| Err("the prompt could not be encoded: a defect in walla".into()));
    TextDone { agent, generation, result }
}

fn encode(text: &ModelText, job: TextJob) -> Result<(Vec<TokenId>, usize), String> {
    match job.source {
        TextSource::Raw(raw) => {
            let options = EncodeOptions { add_special: true, parse_special: false };
            let tokens = text.tokenizer.encode(&raw, options).map_err(|error| error.to_string())?;
            Ok((tokens, 0))
        }
        TextSource::Chat { persona, turns, dropped, policy } => {
            let limit = job.context_tokens.saturating_sub(job.reply_tokens) as usize;
            let first = dropped.min(turns.len().saturating_sub(1));
            let tokens = encode_chat(text, &persona, turns.get(first..).unwrap_or_default())?;
            if tokens.len() <= limit || policy != ContextPolicy::DropOldest {
                return Ok((tokens, first));
            }
            drop_oldest(text, &persona, &turns, first, limit)
        }
    }
}

/// Leaves out turns, oldest first, until the prompt fits in three quarters of the limit: with room to spare the next asks keep
/// the same beginning, and what is in the cache of it stays valid.
fn drop_oldest(
    text: &ModelText,
    persona: &str,
    turns: &[Turn],
    first: usize,
    limit: usize,
) -> Result<(Vec<TokenId>, usize), String> {
    let mut last = None;
    for dropped in first + 1..turns.len() {
        // A prompt begins with the user's turn: templates insist on it.
        let rest = turns.get(dropped..).unwrap_or_default();
        if rest.first().is_some_and(|turn| turn.speaker == Speaker::Agent) {
            continue;
        }
        let tokens = encode_chat(text, persona, rest)?;
        let fits = tokens.len() <= limit / 4 * 3;
        last = Some((tokens, dropped));
        if fits {
            break;
        }
    }
    match last {
        Some(fitting) => Ok(fitting),
        None => {
            encode_chat(text, persona, turns.get(first..).unwrap_or_default()).map(|t| (t, first))
        }
    }
}

fn encode_chat(text: &ModelText, persona: &str, turns: &[Turn]) -> Result<Vec<TokenId>, String> {
    let template =
        text.template.as_ref().ok_or("the model file has no chat template: use a raw prompt")?;
    let system = (!persona.is_empty()).then_some(Message { role: Role::System, content: persona });
    let said = turns.iter().map(|turn| Message {
        role: match turn.speaker {
            Speaker::User => Role::User,
            Speaker::Agent => Role::Assistant,
        },
        content: &turn.text,
    });
    let messages: Vec<_> = system.into_iter().chain(said).collect();
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let prompt = template.render(&messages, &options).map_err(|error| error.to_string())?;
    text.tokenizer.encode_prompt(&prompt).map_err(|error| error.to_string())
}
