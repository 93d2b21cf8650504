//! Reasoning: limits, and replies that begin in a block.

use std::sync::Arc;

use walla_model::chat::ReplyStart;
use walla_types::TokenId;

use super::Core;
use super::agents::{AgentState, Reply};

/// Maximum number of blocks that the engine closes in one reply.
pub(super) const MAX_BLOCKS_CLOSED: u32 = 4;

/// Maximum number of reasoning tokens outside of blocks: markers, and white space behind a block.
const MAX_OUTSIDE_TOKENS: u32 = 32;

impl Core {
    /// Whether a reply without an open block exceeds its reasoning limit. No block can be closed
    /// then, so the reply must end.
    pub(super) fn reasons_outside_of_blocks(agent: &AgentState, reply: &Reply) -> bool {
        let most = reply.max_reasoning_tokens.saturating_add(MAX_OUTSIDE_TOKENS);
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
            if agent.spec.max_reasoning_tokens == 0 && is_open {
                prompt.extend_from_slice(closing);
                start = ReplyStart::AfterReasoning;
            }
        }
        // Reasoning gets half of the context behind the prompt, and more if speech needs less.
        let room = context_tokens.saturating_sub(prompt.len() as u32);
        let speech = agent.spec.max_reply_tokens.saturating_add(closing_tokens).min(room / 2);
        reply.max_reasoning_tokens = agent.spec.max_reasoning_tokens.min(room - speech);
        agent.output.begin(&Arc::clone(markers), start);
    }
}
