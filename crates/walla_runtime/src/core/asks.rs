//! Asks: accepts, starts and cancels them.

use std::sync::Arc;

use walla_model::chat::ReplyStart;
use walla_types::TokenId;

use super::Core;
use super::agents::{AgentState, Asked, Reply};
use super::encode::{Conversation, EncodeJob, Encoded, PromptSource, Purpose};
use super::scoring::Scoring;
use crate::api::{
    AgentId, ContextPolicy, FinishReason, Logged, Prompt, ReplyError, ReplyEvent, ReplyId,
    TokenRun, Unsupported, Usage,
};
use crate::ask_queue::Ask;
use crate::engine_core::ClientKey;

impl Core {
    pub(super) fn ask(&mut self, client: ClientKey, id: AgentId, ask: Ask) {
        let reply_id = ask.reply_id;
        if let Err(error) = self.agents.ask(client, id, ask) {
            self.clients.queue_event(client, id, reply_id, ReplyEvent::Failed(error));
        }
    }

    /// Cancels a reply or a waiting ask. `None` cancels all of them.
    pub(super) fn cancel(
        &mut self,
        client: ClientKey,
        id: AgentId,
        reply_id: Option<ReplyId>,
        now_micros: u64,
    ) {
        let matches = |g: ReplyId| reply_id.is_none_or(|wanted| wanted == g);
        let Some(cancelled) = self.agents.cancel(client, id, matches) else { return };
        if let Some(slot) = cancelled.reply_slot {
            self.finish(slot, FinishReason::Cancelled, now_micros);
        }
        for reply_id in cancelled.asks {
            let usage = Usage::default();
            let what = ReplyEvent::Finished { reason: FinishReason::Cancelled, usage };
            self.clients.queue_event(client, id, reply_id, what);
        }
    }

    /// Ends a reply, or shortens one that has ended, to the part that the host heard.
    pub(super) fn interrupt(
        &mut self,
        client: ClientKey,
        id: AgentId,
        (reply_id, heard_bytes): (ReplyId, u32),
        now_micros: u64,
    ) {
        let Some(agent) = self.agents.of_client(client, id) else { return };
        if let Some(reply) = agent.reply.as_mut().filter(|reply| reply.reply_id == reply_id) {
            reply.heard_bytes = heard_bytes;
        } else {
            agent.shorten_reply(reply_id, heard_bytes);
        }
        self.cancel(client, id, Some(reply_id), now_micros);
    }

    pub(super) fn remove_agent(&mut self, client: ClientKey, id: AgentId, now_micros: u64) {
        self.cancel(client, id, None, now_micros);
        if self.agents.of_client(client, id).is_some() {
            self.kv.supersede_snapshots(id);
        }
        if let Some(slot) = self.agents.remove(client, id) {
            self.drop_sequence(slot);
        }
    }

    /// Assigns slots to agents that wait for one.
    fn place_waiting(&mut self, now_micros: u64) {
        while let Some((id, slot)) = self.next_placement(now_micros) {
            // The agent that leaves the slot may still have pages under its number.
            self.drop_sequence(slot);
            self.agents.place(id, slot);
        }
    }

    /// The agent that gets the next slot, and the slot. `None` if no agent gets one now.
    pub(super) fn next_placement(&self, now_micros: u64) -> Option<(AgentId, usize)> {
        self.agents.next_placement(now_micros, &|client| self.clients.is_schedulable(client))
    }

    /// Fails every reply and every waiting ask, and removes all agents.
    pub(super) fn fail_all(&mut self, reason: &str) {
        for slot in 0..self.agents.slots() {
            // Replies before asks: `fail` needs the agents that are taken below.
            self.fail(slot, ReplyError::EngineGone(reason.to_owned()));
        }
        for mut agent in self.agents.take_all() {
            let (client, id) = (agent.client, agent.id);
            for ask in agent.asks.drain(..) {
                let error = ReplyError::EngineGone(reason.to_owned());
                self.clients.queue_event(client, id, ask.reply_id, ReplyEvent::Failed(error));
            }
        }
    }

    /// Starts the next ask of every free agent. If an ask fails at once, the following one is
    /// started.
    pub(super) fn start_asks(&mut self, now_micros: u64) {
        self.place_waiting(now_micros);
        for slot in self.prompts.begin_round(self.agents.slots()) {
            while self.start_next_ask(slot, now_micros) {}
        }
    }

    /// Whether an agent can start an ask now.
    pub(super) fn is_free(&self, slot: usize) -> bool {
        let can_begin = |agent: &AgentState| agent.reply.is_none() && !agent.asks.is_empty();
        let agent = self.agents.get(slot).filter(|agent| can_begin(agent));
        agent.is_some_and(|agent| {
            self.clients.runs(agent.client) && !self.transfers.is_loading(agent.id)
        })
    }

    /// Starts an agent's next ask. Returns `false` if it has none or the ask keeps waiting.
    fn start_next_ask(&mut self, slot: usize, now_micros: u64) -> bool {
        if !self.is_free(slot) {
            return false;
        }
        let Some(agent) = self.agents.get_mut(slot) else { return false };
        let Some(ask) = agent.asks.front() else { return false };
        // Checked first because it is cheap: in a crowd this is the usual case, in every round.
        if !self.prompts.accepts(ask) {
            return false;
        }
        let Some(ask) = agent.asks.pop_front() else { return false };
        self.start_ask(slot, ask, now_micros);
        true
    }

    fn start_ask(&mut self, slot: usize, ask: Ask, now_micros: u64) {
        let context_tokens = self.prompt_context_tokens();
        let max_turns = self.context_tokens as usize;
        let Some(agent) = self.agents.get_mut(slot) else { return };
        // First, so that the ask sees the latest persona and settings.
        agent.take_changes();
        let fault = agent.spec.actions.as_ref().and_then(|actions| actions.fault.clone());
        let mut reply = Reply::new(&ask, agent.history.exchanges_removed(), now_micros);
        // They were appended before the ask, so they precede its question.
        agent.extend_turns(ask.turns_before, max_turns);
        let is_scorable = !matches!(ask.prompt, Prompt::Results(_) | Prompt::Again);
        let prompt = match ask.options.score {
            Some(_) if !is_scorable => Err(ReplyError::Unsupported(Unsupported::Scores)),
            _ => agent.apply(ask.prompt, max_turns),
        };
        // Capacity for its speech, so that no token allocates: 6 bytes per token suffice for most
        // languages.
        reply.speech.reserve(6 * agent.spec.max_reply_tokens.min(context_tokens) as usize);
        let is_logged = self.clients.is_logged(agent.client);
        reply.log = is_logged.then(TokenRun::new);
        self.clients.log(agent.client, agent.id, reply.reply_id, Logged::Begun);
        agent.reply = Some(reply);
        let prompt = match prompt {
            Ok(prompt) => prompt,
            Err(error) => return self.fail(slot, error),
        };
        let score = ask.options.score.clone();
        let is_chat = prompt.is_question() || matches!(prompt, Prompt::Continue);
        agent.is_chat = is_chat;
        let is_question = prompt.is_question();
        let refused = || {
            let policy = agent.history.call_policy(&agent.spec, &ask.options, is_question);
            policy.err().map(Arc::new)
        };
        if let Some(fault) = fault.or_else(refused).filter(|_| is_chat && score.is_none()) {
            return self.fail(slot, ReplyError::Actions(fault));
        }
        // Behind an opening, the reply has no reasoning.
        let opening = ask.options.opening.or_else(|| score.is_some().then(Arc::default));
        let notes = ask.options.notes;
        let conversation = || {
            let mut conversation = Conversation::of(agent);
            (conversation.opening, conversation.notes) = (opening, notes);
            conversation
        };
        let source = match prompt {
            Prompt::Tokens(tokens) if score.is_some() => PromptSource::Tokens(tokens),
            Prompt::Tokens(tokens) => return self.start_generation(slot, tokens, None, now_micros),
            Prompt::Raw(text) => PromptSource::Raw(text),
            Prompt::RawTrusted(text) => PromptSource::RawTrusted(text),
            prompt => {
                let asked = prompt.into_question().map_or(Asked::Conversation, Asked::Question);
                PromptSource::Chat { conversation: conversation(), asked }
            }
        };
        let reply_tokens = self.model_text.reply_tokens(&agent.spec);
        let job = EncodeJob {
            agent: agent.id,
            purpose: Purpose::Reply(ask.reply_id),
            source,
            context_tokens,
            declared_tokens: self.context_tokens,
            // Half of the context at most, because the persona needs space too.
            reply_tokens: reply_tokens.min(context_tokens / 2),
            score,
        };
        if self.prompts.submit(job, slot, self.agents.slots()).is_err() {
            self.fail(
                slot,
                ReplyError::Text("the text thread has ended: a defect in walla".into()),
            );
        }
    }

    /// Maximum tokens of a prompt with its reply: older turns are also left out if the cache is
    /// smaller than the context. They are forgotten only if the context is too small.
    pub(super) fn prompt_context_tokens(&self) -> u32 {
        self.context_tokens.min(self.kv.capacity_tokens())
    }

    /// Takes encoded prompts from the worker. Returns `true` if there were any.
    pub(super) fn collect_prompts(&mut self, now_micros: u64) -> bool {
        let mut any = false;
        while let Some(done) = self.prompts.collect() {
            any = true;
            let Some(slot) = self.agents.slot_of(done.agent) else { continue };
            let reply_id = match done.purpose {
                Purpose::Reply(reply_id) => reply_id,
                Purpose::Background(version) => {
                    self.begin_background(slot, version, done.result);
                    continue;
                }
            };
            let Some(agent) = self.agents.get_mut(slot) else { continue };
            let waits = |r: &&mut Reply| r.reply_id == reply_id && !r.is_running;
            let Some(reply) = agent.reply.as_mut().filter(waits) else { continue };
            match done.result {
                Ok(Encoded { tokens, forgotten, start, texts, .. }) => {
                    reply.asked = done.asked;
                    // Forgotten turns never fit again, so the conversation is bounded by the
                    // context. If the turns were edited meanwhile, the next prompt drops them.
                    if reply.exchanges_removed == agent.history.exchanges_removed() {
                        agent.history.drop_oldest(forgotten);
                        reply.usage.dropped_turns = u32::try_from(forgotten).unwrap_or(u32::MAX);
                    }
                    let is_score = reply.options.score.is_some();
                    reply.scoring = is_score.then(|| Scoring::new(texts));
                    let start = start.filter(|_| !is_score);
                    self.start_generation(slot, tokens, start, now_micros);
                }
                Err(ReplyError::PromptTooLong { .. })
                    if agent.spec.context_policy == ContextPolicy::Stop =>
                {
                    self.finish(slot, FinishReason::ContextFull, now_micros);
                }
                Err(error) => self.fail(slot, error),
            }
        }
        any
    }

    /// Whether the context and the cache can hold a prompt of this length, and a further token.
    pub(super) fn check_length(&self, prompt_tokens: u32) -> Result<(), ReplyError> {
        let context_tokens = self.context_tokens;
        if prompt_tokens >= context_tokens {
            return Err(ReplyError::PromptTooLong { prompt_tokens, context_tokens });
        }
        let free_pages = self.kv.ledger().usable_pages();
        let wanted_pages = prompt_tokens.div_ceil(self.kv.ledger().options().page_tokens);
        if wanted_pages > free_pages {
            // Waiting cannot help, because the whole cache is smaller.
            return Err(ReplyError::NoPages { wanted_pages, free_pages });
        }
        Ok(())
    }

    /// Starts the generation for `prompt` and reuses its cached prefix. With `start`, the reply is
    /// separated into speech and reasoning.
    fn start_generation(
        &mut self,
        slot: usize,
        mut prompt: Vec<TokenId>,
        start: Option<ReplyStart>,
        now_micros: u64,
    ) {
        if let Some(start) = start {
            self.begin_parts(slot, start, &mut prompt);
        }
        let vocab = self.card.vocab;
        let Some(agent) = self.agents.get_mut(slot) else { return };
        if let Some(token) = prompt.iter().find(|token| token.0 >= vocab) {
            let reason = format!("token {token} is not in the vocabulary of {vocab}");
            return self.fail(slot, ReplyError::Text(reason));
        }
        let biases = agent.spec.sampling.biases();
        if let Some(bias) = biases.iter().find(|bias| bias.token.0 >= vocab) {
            // A device refuses the whole step, and with it the tokens of other agents.
            let token = bias.token;
            let reason = format!("the bias of token {token}: the vocabulary has {vocab} tokens");
            return self.fail(slot, ReplyError::Text(reason));
        }
        if prompt.is_empty() {
            return self.fail(slot, ReplyError::Text("the prompt is empty".into()));
        }
        let prompt_tokens = prompt.len() as u32;
        if let Some(reply) = agent.reply.as_mut() {
            reply.usage.prompt_tokens = prompt_tokens;
        }
        if prompt_tokens >= self.context_tokens && agent.spec.context_policy == ContextPolicy::Stop
        {
            return self.finish(slot, FinishReason::ContextFull, now_micros);
        }
        let scoring = agent.reply.as_ref().and_then(|reply| reply.scoring.as_ref());
        let behind = scoring.map_or(0, Scoring::tokens_behind);
        if let Err(error) = self.check_length(prompt_tokens.saturating_add(behind)) {
            return self.fail(slot, error);
        }
        let cached_tokens = self.keep_prefix(slot, &prompt);
        let Some(agent) = self.agents.get_mut(slot) else { return };
        agent.sequence.begin(&prompt, self.budget.ticks);
        // Its tokens have been replaced.
        agent.background.end();
        let (client, id) = (agent.client, agent.id);
        // The client's clock: it may be paused.
        let encoded_micros = self.clients.now_micros(client, now_micros);
        let Some(reply) = agent.reply.as_mut() else { return };
        reply.is_running = true;
        reply.encoded_micros = encoded_micros;
        reply.usage.cached_tokens = cached_tokens;
        let reply_id = reply.reply_id;
        tracing::debug!(target: "walla::reply", agent = id.0, reply_id = reply_id.0, prompt_tokens, cached_tokens, "started");
        let says_nothing = agent.spec.max_reply_tokens == 0 || reply.max_tokens() == 0;
        let is_cancelled = reply.is_cancelled_here();
        let is_score = reply.scoring.is_some();
        self.clients.queue_event(client, id, reply_id, ReplyEvent::Started { prompt_tokens });
        if is_score && !is_cancelled {
            return self.score_next(slot, now_micros);
        }
        if says_nothing {
            return self.finish(slot, FinishReason::Length, now_micros);
        }
        self.begin_calls(slot);
        if is_cancelled {
            return self.finish(slot, FinishReason::Cancelled, now_micros);
        }
        self.begin_constraint(slot);
    }
}
