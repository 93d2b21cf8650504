//! Reasoning: replies that begin in a block, and blocks that are closed at their limit.

use std::sync::Arc;

use walla_model::chat::ReplyStart;
use walla_types::TokenId;

use super::Core;
use super::agents::{AgentState, Reply};
use crate::api::{Event, FinishReason};

/// Maximum number of blocks that the engine closes in one reply.
const BLOCKS_CLOSED_MAX: u32 = 4;

/// Maximum number of reasoning tokens outside of blocks: markers, and white space behind a block.
const OUTSIDE_TOKENS_MAX: u32 = 32;

impl Core {
    /// Whether a reply without an open block exceeds its reasoning limit. No block can be closed
    /// then, so the reply must end.
    pub(super) fn reasons_outside_of_blocks(agent: &AgentState, reply: &Reply) -> bool {
        let most = reply.reasoning_tokens_max.saturating_add(OUTSIDE_TOKENS_MAX);
        agent.text.open_format().is_none() && reply.usage.reasoning_tokens > most
    }

    /// Begins to separate a reply. A block with a limit of 0 tokens is closed in the prompt.
    pub(super) fn begin_parts(
        &mut self,
        slot: usize,
        mut start: ReplyStart,
        prompt: &mut Vec<TokenId>,
    ) {
        // A cache that is smaller than the context also limits replies.
        let context_tokens = self.context_tokens.min(self.kv.capacity_tokens());
        let Some(agent) = self.agents.get_mut(slot) else { return };
        let (Some(reply), Some(markers)) = (agent.reply.as_mut(), &self.text.reasoning) else {
            return;
        };
        let mut closing_tokens = 0;
        if let ReplyStart::Reasoning(format) | ReplyStart::Header(format) = start {
            let closing = markers.closing(format);
            closing_tokens = closing.len() as u32;
            let is_open = matches!(start, ReplyStart::Reasoning(_)) && closing_tokens > 0;
            if agent.spec.reasoning_tokens_max == 0 && is_open {
                prompt.extend_from_slice(closing);
                start = ReplyStart::AfterReasoning;
            }
        }
        // Reasoning gets half of the context behind the prompt, and more if speech needs less.
        let room = context_tokens.saturating_sub(prompt.len() as u32);
        let speech = agent.spec.reply_tokens_max.saturating_add(closing_tokens).min(room / 2);
        reply.reasoning_tokens_max = agent.spec.reasoning_tokens_max.min(room - speech);
        agent.text.begin(&Arc::clone(markers), start);
    }

    /// Closes the open block of a reply if its limit is reached. The closing marker is evaluated
    /// like a prompt, and the next draw is speech. A draw in flight is discarded.
    pub(super) fn close_reasoning(&mut self, slot: usize, now_micros: u64) {
        let Self { agents, text, clients, .. } = self;
        let Some(agent) = agents.get_mut(slot) else { return };
        let (Some(format), Some(reply)) = (agent.text.open_format(), agent.reply.as_mut()) else {
            return;
        };
        if reply.usage.reasoning_tokens < reply.reasoning_tokens_max {
            return;
        }
        let closing = text.reasoning.as_ref().map_or(&[][..], |markers| markers.closing(format));
        let reason = match () {
            () if closing.is_empty() || reply.blocks_closed >= BLOCKS_CLOSED_MAX => {
                FinishReason::ReasoningLength
            }
            // The last token of the marker needs a position, because the first speech token is
            // sampled from it.
            () if agent.sequence.history().len() + closing.len() > self.context_tokens as usize => {
                FinishReason::ContextFull
            }
            () => {
                reply.blocks_closed += 1;
                let (id, generation) = (agent.id, reply.generation);
                let mut outbox = clients.outbox(agent.client);
                agent.text.close(&mut |part, text, tokens| {
                    if let Some(outbox) = outbox.as_mut() {
                        let what = part.event(text, tokens);
                        outbox.queue(Event { agent: id, generation, what });
                    }
                });
                agent.sequence.append_known(closing);
                return;
            }
        };
        self.finish(slot, reason, now_micros);
    }
}
