//! The reply in progress of an agent.

use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};

/// Bytes reserved for each token that a reply may have.
///
/// English takes about 4.5 bytes per token, Chinese and Japanese 3 to 6. A longer reply grows its
/// buffer, which allocates; this does not occur in practice.
const REPLY_BYTES_PER_TOKEN: usize = 8;

/// Maximum number of bytes reserved for a reply, for any token limit.
const MAX_REPLY_BYTES_RESERVED: usize = 16 * 1024;

/// Bytes to reserve for a reply of at most `max_reply_tokens` tokens.
pub(crate) fn reply_bytes(max_reply_tokens: u32) -> usize {
    (max_reply_tokens as usize).saturating_mul(REPLY_BYTES_PER_TOKEN).min(MAX_REPLY_BYTES_RESERVED)
}

/// Progress of an agent's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Default, Clone, Debug, PartialEq, Hash))]
pub enum SpeechState {
    /// No ask is open.
    #[default]
    Silent,
    /// An ask is open; its reply has not begun.
    Asked,
    /// The prompt is in prefill, or the model reasons.
    Thinking,
    /// Text is arriving.
    Talking,
}

/// The reply in progress of an agent: for speech bubbles, animation and lip movement.
///
/// The plugin writes it in [`WallaSystems::Publish`](crate::WallaSystems::Publish) and, for a new
/// ask, in [`WallaSystems::Collect`](crate::WallaSystems::Collect). The text of the last reply
/// stays until the next reply begins.
#[derive(Component, Debug, Default)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Component, Default, Debug))]
#[component(clone_behavior = Ignore)]
pub struct Speech {
    state: SpeechState,
    question: String,
    text: String,
}

impl Speech {
    /// Progress of the answer.
    #[must_use]
    pub fn state(&self) -> SpeechState {
        self.state
    }

    /// Whether no ask is open. An [`Ask`](crate::Ask) that was triggered is open at once; one that
    /// was written as a message is open after [`WallaSystems::Collect`](crate::WallaSystems).
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.state == SpeechState::Silent
    }

    /// The reply so far, or the complete last reply.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The question of the reply in progress; empty while the agent is silent.
    #[must_use]
    pub fn question(&self) -> &str {
        &self.question
    }

    /// Records an ask whose answer may take `bytes`.
    pub(crate) fn asked(&mut self, bytes: usize) {
        self.text.reserve(bytes.saturating_sub(self.text.len()));
        if self.state == SpeechState::Silent {
            self.state = SpeechState::Asked;
        }
    }

    pub(crate) fn begin(&mut self, question: &str) {
        self.state = SpeechState::Thinking;
        self.question.clear();
        self.question.push_str(question);
        self.text.clear();
    }

    pub(crate) fn push_text(&mut self, delta: &str) {
        self.state = SpeechState::Talking;
        self.text.push_str(delta);
    }

    /// Records the end of a reply. `waiting`: another ask is open.
    pub(crate) fn end(&mut self, waiting: bool) {
        self.state = if waiting { SpeechState::Asked } else { SpeechState::Silent };
        self.question.clear();
    }

    /// Records the end of an ask whose reply never began. The component counts as changed only if
    /// its state changes.
    pub(crate) fn end_unbegun(mut speech: Mut<Self>, waiting: bool) {
        if speech.state == SpeechState::Asked && !waiting {
            speech.end(false);
        }
    }

    /// The entity is no longer an agent.
    pub(crate) fn fall_silent(&mut self) {
        self.end(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_passes_through_all_states() {
        let mut speech = Speech::default();
        assert!(speech.is_silent());
        speech.asked(100);
        assert_eq!(speech.state(), SpeechState::Asked);
        speech.begin("How much?");
        assert_eq!((speech.state(), speech.question()), (SpeechState::Thinking, "How much?"));
        speech.push_text("Three");
        speech.push_text(" silver.");
        assert_eq!((speech.state(), speech.text()), (SpeechState::Talking, "Three silver."));
        speech.end(false);
        assert!(speech.is_silent() && speech.question().is_empty());
        assert_eq!(speech.text(), "Three silver.", "a bubble can stay up");
    }

    #[test]
    fn the_reply_reserve_is_bounded() {
        assert_eq!(reply_bytes(256), 2_048);
        assert_eq!(reply_bytes(u32::MAX), MAX_REPLY_BYTES_RESERVED);
    }
}
