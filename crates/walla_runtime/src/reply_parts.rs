//! Parts of a reply: speech and reasoning.
//!
//! Tokens arrive with their bytes. A reasoning marker ([`ReasoningMarkers`]) switches between the
//! parts and belongs to neither. A marker is a token, or a text with any tokenisation; bytes that
//! may be the beginning of such a text are held back. Each part is a [`Detokenizer`]: it assembles
//! whole characters. Stop strings are searched in speech only, across blocks of reasoning.
//!
//! White space behind a closing marker, and white space between the beginning of a reply and an
//! opening marker, belongs to neither part.
//!
//! A token counts in the part that contains its last byte. Tokens of markers, and tokens of omitted
//! white space, count as reasoning.

mod held;
mod splitter;

use std::sync::Arc;

use walla_model::chat::{ReasoningFormat, ReasoningMarkers, ReplyStart};
use walla_types::TokenId;

use self::splitter::{Mode, Splitter};
use crate::api::{MAX_DELTA_BYTES, ReplyEvent};
use crate::detokenizer::Detokenizer;
use crate::inline_text::InlineText;

/// A part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Text for hosts and for the conversation.
    Speech,
    /// Text between reasoning markers.
    Reasoning,
}

/// Receives text: the part, the text, and the number of tokens that it completes.
pub(crate) type Say<'a> = dyn FnMut(Part, InlineText<MAX_DELTA_BYTES>, u32) + 'a;

/// Both parts of one agent's replies, one reply at a time. The default allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct ReplyParts {
    sinks: Sinks,
    /// Created when the first reply of a model with markers begins.
    splitter: Option<Box<Splitter>>,
}

/// Destinations of bytes.
#[derive(Debug, Default)]
struct Sinks {
    /// By [`Part`], like `tokens`.
    texts: [Detokenizer; 2],
    tokens: [u32; 2],
}

impl Part {
    /// The event that carries text of this part.
    pub(crate) fn event(self, text: InlineText<MAX_DELTA_BYTES>, tokens: u32) -> ReplyEvent {
        match self {
            Self::Speech => ReplyEvent::Delta { text, tokens },
            Self::Reasoning => ReplyEvent::Reasoning { text, tokens },
        }
    }
}

impl ReplyParts {
    /// Parts of replies whose speech ends before any of these strings.
    pub(crate) fn new(stop_strings: &[String]) -> Self {
        let texts = [Detokenizer::new(stop_strings), Detokenizer::default()];
        Self { sinks: Sinks { texts, tokens: [0; 2] }, splitter: None }
    }

    /// Begins a reply with new stop strings.
    pub(crate) fn set_stop_strings(&mut self, stop_strings: &[String]) {
        self.sinks.text(Part::Speech).set_stop_strings(stop_strings);
        self.reset();
    }

    /// Begins a reply that is only speech, until [`ReplyParts::begin`].
    pub(crate) fn reset(&mut self) {
        self.sinks.texts.iter_mut().for_each(Detokenizer::reset);
        self.sinks.tokens = [0; 2];
        if let Some(splitter) = &mut self.splitter {
            splitter.reset(Mode::Off);
        }
    }

    /// Separates the current reply into parts. Call it before the reply's first token.
    pub(crate) fn begin(&mut self, markers: &Arc<ReasoningMarkers>, start: ReplyStart) {
        if self.splitter.is_none() {
            *self.sinks.text(Part::Reasoning) = Detokenizer::new(&[]);
        }
        let splitter = self.splitter.get_or_insert_with(|| Box::new(Splitter::new(markers)));
        splitter.reset(match start {
            ReplyStart::Speech | ReplyStart::AfterReasoning => Mode::Speech,
            ReplyStart::Reasoning(format) => Mode::Reasoning(format),
            ReplyStart::Header(format) => Mode::Header(format),
        });
        splitter.is_blank = start == ReplyStart::Speech;
        splitter.skips_space = start == ReplyStart::AfterReasoning;
    }

    /// Takes a token with its text and passes the text that can be shown to `say`. Returns `true`
    /// if a stop string is complete: the reply has ended.
    pub(crate) fn push(&mut self, token: TokenId, bytes: &[u8], say: &mut Say<'_>) -> bool {
        match &mut self.splitter {
            Some(splitter) if splitter.mode != Mode::Off => {
                splitter.push(&mut self.sinks, token, bytes, say);
            }
            _ => self.sinks.put_token(Part::Speech, bytes, say),
        }
        self.sinks.texts[Part::Speech as usize].is_stopped()
    }

    /// Index of the complete stop string, after [`push`](Self::push) has returned `true`:
    /// [`Detokenizer::stop_index`] of the speech.
    pub(crate) fn stop_index(&self) -> u32 {
        self.sinks.texts[Part::Speech as usize].stop_index()
    }

    /// Shows the text that was held back, because a call follows.
    pub(crate) fn interrupt(&mut self, say: &mut Say<'_>) {
        if let Some(splitter) = &mut self.splitter {
            splitter.release_all(&mut self.sinks, say);
        }
        let speech = &mut |text, tokens| say(Part::Speech, text, tokens);
        self.sinks.text(Part::Speech).finish(speech);
    }

    /// Shows the text that was held back, because the reply has ended.
    pub(crate) fn finish(&mut self, say: &mut Say<'_>) {
        if let Some(splitter) = &mut self.splitter {
            splitter.release_all(&mut self.sinks, say);
        }
        for part in [Part::Reasoning, Part::Speech] {
            self.sinks.text(part).finish(&mut |text, tokens| say(part, text, tokens));
        }
    }

    /// Speech tokens so far. They include tokens that may be the beginning of a marker, until it is
    /// complete.
    pub(crate) fn speech_tokens(&self) -> u32 {
        self.sinks.tokens[Part::Speech as usize]
    }

    /// Tokens of reasoning and markers so far.
    pub(crate) fn reasoning_tokens(&self) -> u32 {
        self.sinks.tokens[Part::Reasoning as usize]
    }

    /// Format of the open block, if [`ReplyParts::close`] can close it now.
    pub(crate) fn open_format(&self) -> Option<ReasoningFormat> {
        match self.splitter.as_ref()?.mode {
            Mode::Reasoning(format) => Some(format),
            // The header of a channel may still name a speech channel.
            Mode::Header(format) => format.has_header().then_some(format),
            Mode::Off | Mode::Speech => None,
        }
    }

    /// Whether the next text is speech, unless it is a marker or left out.
    pub(crate) fn is_speaking(&self) -> bool {
        let Some(splitter) = &self.splitter else { return true };
        matches!(splitter.mode, Mode::Off | Mode::Speech)
    }

    /// Whether a token with these bytes would be speech, so that it may be a stop token.
    pub(crate) fn would_speak(&self, bytes: &[u8]) -> bool {
        let skips_space = self.splitter.as_ref().is_some_and(|splitter| splitter.skips_space);
        self.is_speaking() && !(skips_space && is_space(bytes))
    }

    /// Switches to speech after the engine has closed the open block.
    pub(crate) fn close(&mut self, say: &mut Say<'_>) {
        let Some(splitter) = &mut self.splitter else { return };
        splitter.release_all(&mut self.sinks, say);
        splitter.mode = Mode::Speech;
        (splitter.is_blank, splitter.skips_space) = (false, true);
        splitter.header.clear();
    }
}

impl Sinks {
    fn text(&mut self, part: Part) -> &mut Detokenizer {
        &mut self.texts[part as usize]
    }

    fn put(&mut self, part: Part, bytes: &[u8], tokens: u32, say: &mut Say<'_>) {
        self.text(part).push_part(bytes, tokens, &mut |text, tokens| say(part, text, tokens));
    }

    fn put_token(&mut self, part: Part, bytes: &[u8], say: &mut Say<'_>) {
        self.count_tokens(part, 1);
        self.put(part, bytes, 1, say);
    }

    fn count_tokens(&mut self, part: Part, tokens: u32) {
        self.tokens[part as usize] += tokens;
    }

    /// Moves `tokens` tokens, which were counted as `counted`, to a marker.
    fn hide(&mut self, counted: Part, tokens: u32) {
        if counted == Part::Speech {
            self.tokens[counted as usize] -= tokens;
            self.count_tokens(Part::Reasoning, tokens);
        }
        self.text(Part::Reasoning).push_part(&[], tokens, &mut |_, _| {});
    }
}

/// Whether `bytes` is non-empty ASCII white space.
fn is_space(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.trim_ascii().is_empty()
}

#[cfg(test)]
mod tests;
