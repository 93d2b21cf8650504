//! Reasoning: limits, and replies that begin in a block.

use std::sync::Arc;

use walla_model::chat::ReplyStart;
use walla_types::TokenId;

use super::Core;
use super::agents::{AgentState, Reply};

/// Maximum number of blocks that the engine closes in one reply.
pub(super) const BLOCKS_CLOSED_MAX: u32 = 4;

/// Maximum number of reasoning tokens outside of blocks: markers, and white space behind a block.
const OUTSIDE_TOKENS_MAX: u32 = 32;

impl Core {
    /// Whether a reply without an open block exceeds its reasoning limit. No block can be closed
    /// then, so the reply must end.
    pub(super) fn reasons_outside_of_blocks(agent: &AgentState, reply: &Reply) -> bool {
        let most = reply.reasoning_tokens_max.saturating_add(OUTSIDE_TOKENS_MAX);
        agent.output.open_format().is_none() && reply.usage.reasoning_tokens > most
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
        let (Some(reply), Some(markers)) = (agent.reply.as_mut(), &self.model_text.reasoning)
        else {
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
        agent.output.begin(&Arc::clone(markers), start);
    }
}
