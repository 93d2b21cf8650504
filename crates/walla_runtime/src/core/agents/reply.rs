//! An ask and the reply to it.

use std::sync::Arc;

use walla_types::{TokenId, TokenMask};

use crate::api::{
    ActionPolicy, AgentId, AskOptions, FirstTokenTimes, ReplyId, TokenRun, Turn, Usage,
};
use crate::ask_queue::Ask;
use crate::core::constraints::ReplyConstraint;
use crate::core::scoring::Scoring;

/// The subject of a reply in a conversation.
#[derive(Debug)]
pub(in crate::core) enum Asked {
    /// The user's turn.
    Question(Turn),
    /// The conversation as it was.
    Conversation,
}

/// A reply in progress.
#[derive(Debug, Default)]
pub(in crate::core) struct Reply {
    pub reply_id: ReplyId,
    pub arrived_micros: u64,
    /// Time at which it left the queue of asks.
    pub begun_micros: u64,
    /// Time at which its prompt was encoded.
    pub encoded_micros: u64,
    /// Times of the first and the latest step with tokens of its prompt.
    pub prefill_micros: Option<(u64, u64)>,
    /// Its subject, set when it is encoded. Both become part of the conversation when it ends.
    pub asked: Option<Asked>,
    /// Whether its prompt is known: it is evaluated, or speaks.
    pub is_running: bool,
    pub usage: Usage,
    /// All speech so far, for the conversation.
    pub speech: String,
    /// Whether it may call actions. `None`: its agent has none, or it is not in a conversation, or
    /// it has a constraint.
    pub policy: Option<ActionPolicy>,
    /// Allowed tokens of a reply that must not call actions: all but the token that opens a call.
    pub speech_mask: Option<Arc<TokenMask>>,
    /// Number of calls so far, valid or not.
    pub calls_ended: u32,
    /// Its calls so far, for the conversation.
    pub actions: Vec<Turn>,
    /// Bytes of `speech` that the conversation keeps: [`u32::MAX`] unless the host interrupts.
    pub heard_bytes: u32,
    /// Value of [`History::exchanges_removed`](crate::history::History::exchanges_removed) when the
    /// prompt was made.
    pub exchanges_removed: u32,
    /// Time of its first speech token.
    pub spoken_since_micros: Option<u64>,
    /// Maximum reasoning tokens, limited by the context.
    pub max_reasoning_tokens: u32,
    /// Blocks of reasoning that the engine has closed.
    pub blocks_closed: u32,
    /// Number of recomputations of its sequence after failed steps.
    pub retries: u32,
    /// Settings of its ask.
    pub options: AskOptions,
    /// Its grammar, if its text is constrained.
    pub constraint: Option<ReplyConstraint>,
    /// Texts that are scored in place of a reply.
    pub scoring: Option<Scoring>,
    /// Number of tokens so far, sampled or forced.
    pub tokens: u32,
    /// The latest tokens, for a recording. `None`: the client has none.
    pub log: Option<TokenRun>,
}

impl Reply {
    /// A new reply.
    pub fn new(ask: &Ask, exchanges_removed: u32, now_micros: u64) -> Self {
        Self {
            reply_id: ask.reply_id,
            arrived_micros: ask.arrived_micros,
            begun_micros: now_micros,
            encoded_micros: now_micros,
            heard_bytes: u32::MAX,
            exchanges_removed,
            options: ask.options.clone(),
            ..Self::default()
        }
    }
}

impl Reply {
    /// Counts a token. Returns a full run of tokens for a recording.
    pub fn count(&mut self, token: TokenId) -> Option<TokenRun> {
        self.tokens += 1;
        self.log.as_mut()?.push(token).then(|| self.log.replace(TokenRun::new()))?
    }

    /// Maximum tokens of all kinds.
    pub fn max_tokens(&self) -> u32 {
        self.options.max_tokens.unwrap_or(u32::MAX)
    }

    /// Whether its calls are separated from its speech.
    pub fn may_have_calls(&self) -> bool {
        self.policy.is_some()
    }

    /// Whether it is cancelled now, because of [`AskOptions::cancel_after`]. Then the bytes that
    /// were heard are set.
    pub fn is_cancelled_here(&mut self) -> bool {
        let Some(cancel) = self.options.cancel_after.as_deref().copied() else { return false };
        let is_here = self.tokens >= cancel.tokens;
        if is_here {
            self.heard_bytes = cancel.heard_bytes;
        }
        is_here
    }

    /// A step with tokens of its prompt was submitted.
    pub fn submitted_prompt(&mut self, now_micros: u64) {
        let (_, latest) = self.prefill_micros.get_or_insert((now_micros, now_micros));
        *latest = now_micros;
    }

    /// Its first token was sampled.
    pub fn sampled_first(&mut self, now_micros: u64) {
        let Self { arrived_micros, begun_micros, encoded_micros, prefill_micros, .. } = *self;
        let (first, last) = prefill_micros.unwrap_or((encoded_micros, encoded_micros));
        // The sum is at least 1, because 0 means that there was no token.
        let now_micros = now_micros.max(arrived_micros + 1).max(last);
        self.usage.first_token_micros = now_micros - arrived_micros;
        let waited_micros = begun_micros.saturating_sub(arrived_micros);
        let times = FirstTokenTimes {
            waiting_micros: waited_micros + first.saturating_sub(encoded_micros),
            encoding_micros: encoded_micros.saturating_sub(begun_micros),
            prefill_micros: last - first,
            decode_micros: now_micros - last,
        };
        self.usage.first_token = times;
    }

    /// Traces the time to its first token, which was sampled at `now_micros`.
    pub fn trace_first(&self, agent: AgentId, now_micros: u64) {
        if !walla_trace::is_listening() {
            return;
        }
        let (first, last) =
            self.prefill_micros.unwrap_or((self.encoded_micros, self.encoded_micros));
        let token_nanos = walla_trace::now_nanos();
        let before = |micros: u64| {
            token_nanos.saturating_sub(now_micros.saturating_sub(micros).saturating_mul(1_000))
        };
        walla_trace::first_token(&walla_trace::FirstToken {
            agent: agent.0,
            reply_id: self.reply_id.0,
            arrived_nanos: before(self.arrived_micros),
            encoding_nanos: before(self.begun_micros)..before(self.encoded_micros),
            prefill_nanos: before(first)..before(last),
            token_nanos,
        });
    }

    /// Moves all times by the duration of a pause.
    pub fn postpone(&mut self, micros: u64) {
        self.arrived_micros += micros;
        self.begun_micros += micros;
        self.encoded_micros += micros;
        self.prefill_micros =
            self.prefill_micros.map(|(first, last)| (first + micros, last + micros));
        self.spoken_since_micros.iter_mut().for_each(|since| *since += micros);
    }
}
