use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::Reflect;
use walla_runtime::{InlineText, ReplyId, SentenceSplitter};

/// Maximum bytes of text in one [`ReplySentence`]: about 40 English words. Longer sentences are
/// split.
pub const MAX_SENTENCE_BYTES: usize = 240;

/// A splitter whose sentences fit into [`ReplySentence`].
pub(crate) fn splitter() -> SentenceSplitter {
    SentenceSplitter::with_max_bytes(MAX_SENTENCE_BYTES)
}

/// A complete sentence, for speech synthesis.
///
/// A sentence longer than [`MAX_SENTENCE_BYTES`] is split between words. Surrounding spaces are
/// removed. The truncated end of a reply that was cancelled or failed is not a
/// sentence: [`WallaSettings::publish_fragments`](crate::WallaSettings::publish_fragments).
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct ReplySentence {
    /// The agent that speaks.
    #[event_target]
    pub agent: Entity,
    /// The reply.
    pub reply_id: ReplyId,
    /// The [`Ask::tag`](crate::Ask::tag) of the ask.
    pub tag: u64,
    /// The sentence, never empty.
    pub text: InlineText<MAX_SENTENCE_BYTES>,
    /// Bytes of the reply's text up to the end of this sentence: for
    /// [`Cancel::heard_until`](crate::ask::Cancel::heard_until).
    pub end_bytes: u32,
    /// Whether the reply ended within this sentence: at a limit of tokens or of context, or because
    /// it was cut off.
    pub is_fragment: bool,
}

/// End of a sentence in a text that was split up to `begin`: only white space is omitted between
/// sentences.
pub(crate) fn end_of(sentence: &str, text: &str, begin: usize) -> usize {
    let rest = text.get(begin..).unwrap_or_default();
    let skipped = rest.len() - rest.trim_start().len();
    (begin + skipped + sentence.len()).min(text.len())
}
