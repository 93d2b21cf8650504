//! Scores of texts: the tokens of each text are evaluated behind a prompt, with an output for each.
//!
//! The texts of an ask are evaluated sequentially in the sequence of its agent, which keeps the
//! prompt. The output of a row is always drawn as the next token of the text, and the device
//! returns that token's log-probability: no logits are copied to the host. Asks of several agents
//! share steps. The last token of the prompt is evaluated for each text, because its output is the
//! text's first token. A recurrent state continues from a snapshot before that token.

use walla_device::step::ResultRow;
use walla_types::TokenId;

use super::Core;
use super::agents::AgentState;
use super::in_flight::PendingOutput;
use crate::api::{FinishReason, ReplyEvent, Score};

/// Outputs of a step, at least, so that an engine with few slots scores several tokens in a step.
pub(super) const SCORED_ROWS: u32 = 16;

/// The texts of an ask.
#[derive(Debug)]
pub(super) struct Scoring {
    texts: Vec<Vec<TokenId>>,
    /// Index of the text that is evaluated.
    current: usize,
    /// Log-probabilities of its tokens. A token that is evaluated again has the same bits.
    found: Vec<Option<f32>>,
}

impl Scoring {
    pub fn new(texts: Vec<Vec<TokenId>>) -> Self {
        Self { texts, current: 0, found: Vec::new() }
    }

    /// Tokens of the longest text that are evaluated behind the prompt.
    pub fn tokens_behind(&self) -> u32 {
        let longest = self.texts.iter().map(Vec::len).max().unwrap_or(0);
        longest.saturating_sub(1) as u32
    }

    /// Tokens of the text that is evaluated.
    fn current(&self) -> &[TokenId] {
        self.texts.get(self.current).map_or(&[], Vec::as_slice)
    }

    fn score(&self) -> Score {
        // In the order of the tokens, so that the sum has the same bits in every batch.
        let sum: f64 = self.found.iter().flatten().map(|found| f64::from(*found)).sum();
        let (index, tokens) = (self.current as u32, self.found.len() as u32);
        Score { index, tokens, log_probability: sum as f32 }
    }
}

impl AgentState {
    /// Position of the first row with an output, if texts are scored.
    pub fn first_scored(&self) -> Option<u32> {
        let reply = self.reply.as_ref().filter(|reply| reply.scoring.is_some())?;
        Some(reply.usage.prompt_tokens.saturating_sub(1))
    }

    /// The token behind a position, if its log-probability is wanted.
    pub fn scored_behind(&self, position: u32) -> Option<TokenId> {
        let place = position.checked_sub(self.first_scored()?)?;
        let scoring = self.reply.as_ref()?.scoring.as_ref()?;
        scoring.current().get(place as usize).copied()
    }

    /// Whether texts are scored.
    pub fn is_scoring(&self) -> bool {
        self.first_scored().is_some()
    }
}

impl Core {
    /// Rows, of the next `rows` of an agent, whose outputs fit in the step. If other agents have
    /// work, scores take half of the outputs that are left, so that the others get theirs.
    pub(super) fn rows_with_outputs(&self, slot: usize, rows: u32) -> u32 {
        let left = self.scheduler.outputs_left();
        let Some(first) = self.agents.get(slot).and_then(AgentState::first_scored) else {
            return if left == 0 { 0 } else { rows };
        };
        let start = self.kv.len(slot);
        let without = first.saturating_sub(start);
        if without > 0 && self.kv.is_recurrent() {
            // A snapshot is taken there.
            return rows.min(without);
        }
        let is_alone = self.scheduler.is_only_request();
        rows.min(without + if is_alone { left } else { left.div_ceil(2) })
    }

    /// Evaluates the next text in the place of the previous one, or ends the ask.
    pub(super) fn score_next(&mut self, slot: usize, now_micros: u64) {
        loop {
            let Some(agent) = self.agents.get_mut(slot) else { return };
            let (client, id) = (agent.client, agent.id);
            let Some(reply) = agent.reply.as_mut() else { return };
            let (reply_id, prompt_tokens) = (reply.reply_id, reply.usage.prompt_tokens as usize);
            let Some(scoring) = reply.scoring.as_mut() else { return };
            let Some(text) = scoring.texts.get(scoring.current) else {
                return self.finish(slot, FinishReason::Scored, now_micros);
            };
            scoring.found.clear();
            scoring.found.resize(text.len(), None);
            let Some((_, behind)) = text.split_last() else {
                let score = scoring.score();
                scoring.current += 1;
                self.clients.queue_event(client, id, reply_id, ReplyEvent::Score(score));
                continue;
            };
            // The sequence begins with the prompt; another text may follow it.
            // Only the prompt is common to the texts, so each begins behind it.
            let mut tokens = agent.sequence.tokens()[..prompt_tokens].to_vec();
            let behind = behind.to_vec();
            self.keep_prefix(slot, &tokens);
            tokens.extend(behind);
            if let Some(agent) = self.agents.get_mut(slot) {
                agent.sequence.begin(&tokens, self.budget.ticks);
            }
            return;
        }
    }

    /// Takes the log-probability of a token. With the last one of a text, the next text begins.
    pub(super) fn take_score(&mut self, output: PendingOutput, row: ResultRow, now_micros: u64) {
        let PendingOutput { slot, position, .. } = output;
        let Some(agent) = self.agents.get_mut(slot) else { return };
        let (Some(token), Some(first)) = (agent.scored_behind(position), agent.first_scored())
        else {
            return;
        };
        let (client, id) = (agent.client, agent.id);
        let Some(reply) = agent.reply.as_mut() else { return };
        if reply.usage.first_token_micros == 0 {
            reply.sampled_first(now_micros);
        }
        let reply_id = reply.reply_id;
        let Some(scoring) = reply.scoring.as_mut() else { return };
        let Some(found) = scoring.found.get_mut((position - first) as usize) else { return };
        let is_token = row.token == token.0;
        *found = Some(if is_token { row.log_probability } else { f32::NEG_INFINITY });
        if scoring.found.iter().all(Option::is_some) {
            let score = scoring.score();
            scoring.current += 1;
            self.clients.queue_event(client, id, reply_id, ReplyEvent::Score(score));
            self.score_next(slot, now_micros);
        }
    }
}
