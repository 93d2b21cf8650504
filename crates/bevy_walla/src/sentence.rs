use bevy_ecs::prelude::*;
use walla_runtime::{GenerationId, InlineText, SentenceSplitter};

/// Bytes of text that one [`SentenceSpoken`] carries at most: about 40 English words. Longer sentences come in parts.
pub const SENTENCE_BYTES_MAX: usize = 240;

/// A splitter whose sentences fit into [`SentenceSpoken`].
pub(crate) fn splitter() -> SentenceSplitter {
    SentenceSplitter::with_bytes_max(SENTENCE_BYTES_MAX)
}

/// A sentence is complete: what speech synthesis wants.
///
/// A sentence longer than [`SENTENCE_BYTES_MAX`] comes in parts, cut between words. Surrounding spaces are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
pub struct SentenceSpoken {
    /// Who speaks.
    #[event_target]
    pub agent: Entity,
    /// Which of its replies.
    pub generation: GenerationId,
    /// The sentence, never empty.
    pub text: InlineText<SENTENCE_BYTES_MAX>,
}
