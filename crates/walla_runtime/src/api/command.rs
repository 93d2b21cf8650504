//! Commands of hosts.

use walla_plan::Detail;

use super::agent::{AgentSpec, AskOptions, Prompt, Turn};
use super::cache::CacheTicket;
use super::edit::ConversationEdit;
use super::{AgentId, ReplyId};

/// Command from a host to its engine.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Command {
    /// Adds an agent. Before this command its asks fail with
    /// [`ReplyError::UnknownAgent`](crate::ReplyError::UnknownAgent).
    ///
    /// An agent needs a slot to speak; there are [`max_agents`](crate::EngineOptions::max_agents)
    /// slots. Further agents are parked: the engine keeps their specification and conversation. A
    /// parked agent that is asked waits for a slot, unless
    /// [`wait_for_slot`](crate::EngineOptions::wait_for_slot) is off. Agents beyond
    /// [`max_agents_parked`](crate::EngineOptions::max_agents_parked) are not kept: their asks fail
    /// with [`ReplyError::TooManyAgents`](crate::ReplyError::TooManyAgents).
    AddAgent {
        /// From [`Client::new_agent`](crate::Client::new_agent).
        agent: AgentId,
        /// Its specification.
        spec: Box<AgentSpec>,
    },
    /// Replaces the specification of an agent, except for the conversation (`turns` is ignored).
    /// It applies from the next reply; a reply in progress ends with the old specification.
    /// Priority, voice rate and detail, which do not affect the text, apply at once.
    ChangeAgent {
        /// The agent.
        agent: AgentId,
        /// Its new specification.
        spec: Box<AgentSpec>,
    },
    /// Changes an agent's level of detail from the next step on, for example when it comes near or
    /// leaves the player's sight.
    SetDetail {
        /// The agent.
        agent: AgentId,
        /// Its share of each frame.
        detail: Detail,
    },
    /// Replaces the conversation of an agent. A reply in progress and all waiting asks are
    /// cancelled.
    SetConversation {
        /// The agent.
        agent: AgentId,
        /// Oldest first.
        turns: Vec<Turn>,
    },
    /// Appends turns to the conversation of an agent. Nothing is cancelled: turns that arrive while
    /// the agent has asks follow the exchanges of these asks, begun or not. The conversation is
    /// therefore in the order of the commands.
    AppendTurns {
        /// The agent.
        agent: AgentId,
        /// Oldest first.
        turns: Vec<Turn>,
    },
    /// Changes turns of a conversation. A reply in progress and all waiting asks are cancelled
    /// first; the text so far of that reply is a turn. The cache is kept: the next prompt is
    /// evaluated from the first token that differs.
    EditConversation {
        /// The agent.
        agent: AgentId,
        /// The change.
        edit: ConversationEdit,
    },
    /// Adds an agent that begins as a copy of another one, with a separate future.
    ///
    /// Both share the evaluated tokens of the source: pages are shared until one of them writes,
    /// which copies at most one page. A recurrent state is copied. Without a free slot the copy is
    /// [parked](Self::AddAgent), and its next prompt is evaluated as that of any agent. The reply
    /// in progress and waiting asks of the source are not copied.
    ForkAgent {
        /// The new agent, as for [`AddAgent`](Self::AddAgent).
        agent: AgentId,
        /// An agent of the same client.
        source: AgentId,
        /// Specification of the new agent, with its conversation (`turns`): tokens that do not
        /// begin as the source's are evaluated. `None`: specification and conversation of the
        /// source; if the source is unknown, the new agent is not added.
        spec: Option<Box<AgentSpec>>,
    },
    /// Removes an agent, cancels its reply and frees its memory.
    RemoveAgent {
        /// The agent.
        agent: AgentId,
    },
    /// Requests a reply. While the agent still speaks, the ask waits.
    Ask {
        /// The agent.
        agent: AgentId,
        /// From [`Client::new_reply_id`](crate::Client::new_reply_id).
        reply_id: ReplyId,
        /// Content of the ask.
        prompt: Prompt,
        /// Settings of this ask, instead of the agent's.
        options: AskOptions,
    },
    /// Ends a reply early. Its text so far stays in the conversation; without text, the question is
    /// removed as well. Has no effect on a reply that has ended.
    Cancel {
        /// The agent.
        agent: AgentId,
        /// The reply.
        reply_id: ReplyId,
    },
    /// Ends a reply early and shortens it to the heard part. The conversation keeps the first
    /// `heard_bytes` bytes of its text, cut at the last whole character. If no byte is left, the
    /// question is removed as well.
    ///
    /// The reply may have ended, because a voice is slower than a model: this works for the last
    /// [`MAX_EXCHANGES_KNOWN`] replies of the agent. Later replies stay.
    CancelHeard {
        /// The agent.
        agent: AgentId,
        /// The reply.
        reply_id: ReplyId,
        /// Bytes of its text that were heard.
        heard_bytes: u32,
    },
    // Variants that serde skips are the last ones: it counts them in one direction only.
    /// Saves the cache of an agent, or loads it before the agent's first ask, in the background.
    ///
    /// A save has the tokens that are evaluated when it begins; of an idle agent it waits up to a
    /// second until its next prompt is prepared. Asks that follow a load wait for it. The next
    /// prompt is compared with the loaded tokens, so a file of another conversation costs its
    /// evaluation only, as a [failed](crate::CacheError) load does.
    #[cfg_attr(feature = "serde", serde(skip))]
    CopyCache {
        /// The agent.
        agent: AgentId,
        /// The copy. The host has the [job](crate::CacheJob).
        ticket: CacheTicket,
    },
}

impl Command {
    /// The agent that it concerns.
    #[must_use]
    pub fn agent(&self) -> AgentId {
        match self {
            Self::AddAgent { agent, .. }
            | Self::ChangeAgent { agent, .. }
            | Self::SetDetail { agent, .. }
            | Self::SetConversation { agent, .. }
            | Self::AppendTurns { agent, .. }
            | Self::EditConversation { agent, .. }
            | Self::ForkAgent { agent, .. }
            | Self::CopyCache { agent, .. }
            | Self::RemoveAgent { agent }
            | Self::Ask { agent, .. }
            | Self::Cancel { agent, .. }
            | Self::CancelHeard { agent, .. } => *agent,
        }
    }

    /// An ask with the agent's settings.
    #[must_use]
    pub fn ask(agent: AgentId, reply_id: ReplyId, prompt: Prompt) -> Self {
        Self::Ask { agent, reply_id, prompt, options: AskOptions::default() }
    }
}

/// When an engine runs steps for a client's agents.
///
/// A client is stalled if for a second its event queue is full, or it grants no frames under
/// [`PerFrame`](Self::PerFrame). Neither a pause nor a suspended process is a stall. Other clients
/// of the engine then use its agents' pages, which are recomputed when it continues. After ten
/// seconds a reply of it can end with [`FinishReason::TimedOut`](crate::FinishReason::TimedOut), if
/// an agent of another client has waited ten seconds for the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// A number of steps per [`Client::frame`](crate::Client::frame). Unused grants do not
    /// accumulate. A step yields at most one token per agent.
    ///
    /// Within a [budget](crate::EngineOptions::budget) each agent gets this many tokens, in as many
    /// device steps as needed. In the remaining time, agents behind their voice rate get more
    /// tokens, and prompts are prefilled.
    PerFrame {
        /// Steps per frame. Default 1.
        steps: u32,
    },
    /// As fast as the device can. While such a client has work, the budget is lifted for all
    /// clients, unless the budget was set to include it: by
    /// [`EngineOptions::budget_free_running`](crate::EngineOptions::budget_free_running) or
    /// [`Engine::set_budget`](crate::Engine::set_budget).
    FreeRunning,
}

impl Default for Pacing {
    fn default() -> Self {
        Self::PerFrame { steps: 1 }
    }
}

/// Maximum asks of one agent that wait behind its reply in progress. Further asks fail with
/// [`ReplyError::Busy`](crate::ReplyError::Busy).
pub const MAX_ASKS_WAITING: usize = 8;

/// Number of an agent's latest exchanges that [`Command::CancelHeard`] can shorten: a voice is
/// never further behind its model.
pub const MAX_EXCHANGES_KNOWN: usize = 16;
