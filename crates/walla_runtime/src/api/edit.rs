//! Changes of a conversation.

use super::AgentId;

/// A change of turns that a conversation has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ConversationEdit {
    /// Removes turns from the end. More than there are removes all.
    Rewind {
        /// Number of turns.
        turns: u32,
    },
    /// Replaces the text of a turn, and keeps its speaker. Without such a turn nothing changes.
    Text {
        /// Number of turns behind it: 0 is the last one.
        turns_after: u32,
        /// Its new text. Untrusted, like all text of a conversation.
        text: String,
    },
    /// Replaces the conversation by a copy of another agent's. Its reply in progress and waiting
    /// asks are not copied. An unknown agent, or one of another client, changes nothing.
    CopyOf {
        /// An agent of the same client.
        source: AgentId,
    },
}

impl ConversationEdit {
    /// The agent whose conversation is copied.
    #[must_use]
    pub fn source(&self) -> Option<AgentId> {
        match self {
            Self::CopyOf { source } => Some(*source),
            _ => None,
        }
    }
}
