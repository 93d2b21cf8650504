//! Markers of reasoning: text that a model writes for itself before it speaks.
//!
//! Most formats are a block between two markers (`<think>` … `</think>`). Gemma 4 adds a header
//! line after the opening marker (`<|channel>thought\n`). The channel format of gpt-oss names a
//! channel in the header of each message (`<|channel|>analysis<|message|>` … `<|end|>`); only the
//! channel `final` is speech.
//!
//! # When a marker counts
//! - The vocabulary has it as a special token: only this token is the marker. The same text spelled
//!   by other tokens is plain text, so an agent can quote it.
//! - Otherwise, if the chat template contains one of the two markers: its text, in any
//!   tokenisation.
//! - Otherwise never: a model without markers is not affected.
//!
//! Untrusted text never opens a block in a prompt: [`ReasoningMarkers::start_of`] reads only
//! template text.

use walla_types::TokenId;

use super::{ChatTemplate, Message, Prompt, RenderOptions, Role, Segment};
use crate::tokenizer::{EncodeOptions, Tokenizer};

/// Markers of a block, and the text with which the engine closes it.
struct Block {
    open: &'static str,
    close: &'static str,
    /// Text that closes a block, as in the models' training data.
    closing: &'static str,
    /// A header line follows the opening marker.
    has_header: bool,
}

impl Block {
    const fn new(open: &'static str, close: &'static str, closing: &'static str) -> Self {
        Self { open, close, closing, has_header: false }
    }
}

const BLOCKS: [Block; 11] = [
    // Qwen 3, DeepSeek R1, SmolLM 3, GLM 4.5, Nemotron, LFM 2, Granite 3.3 and many others.
    Block::new("<think>", "</think>", "\n</think>\n\n"),
    // Magistral, Ministral 3.
    Block::new("[THINK]", "[/THINK]", "[/THINK]"),
    // Gemma 4.
    Block { has_header: true, ..Block::new("<|channel>", "<channel|>", "<channel|>") },
    // Seed-OSS.
    Block::new("<seed:think>", "</seed:think>", "</seed:think>"),
    // Command R7B, Command A.
    Block::new("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),
    // Apertus.
    Block::new("<|inner_prefix|>", "<|inner_suffix|>", "<|inner_suffix|>"),
    // EXAONE Deep.
    Block::new("<thought>", "</thought>", "\n</thought>\n\n"),
    // OpenThinker.
    Block::new("<|begin_of_thought|>", "<|end_of_thought|>", "\n<|end_of_thought|>\n\n"),
    // Kimi-VL.
    Block::new("◁think▷", "◁/think▷", "◁/think▷"),
    // Fine-tunes.
    Block::new("<thinking>", "</thinking>", "\n</thinking>\n\n"),
    Block::new("<reasoning>", "</reasoning>", "\n</reasoning>\n\n"),
];

/// The channel format. It counts only if all four markers are special tokens.
const CHANNEL_MARKERS: [(&str, Marker); 4] = [
    ("<|start|>", Marker::Start),
    ("<|channel|>", Marker::Channel),
    ("<|message|>", Marker::Message),
    ("<|end|>", Marker::End),
];

const CHANNEL_CLOSING: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";

/// The channel whose messages are speech.
const SPOKEN_CHANNEL: &[u8] = b"final";

/// Maximum length of a marker, in bytes.
pub const MAX_MARKER_BYTES: usize = 24;

/// A format of reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningFormat(u8);

impl ReasoningFormat {
    /// The channel format of gpt-oss.
    pub const CHANNELS: Self = Self(BLOCKS.len() as u8);

    fn block(self) -> Option<&'static Block> {
        BLOCKS.get(usize::from(self.0))
    }

    /// Whether a header line, which is neither reasoning nor speech, follows the opening marker.
    #[must_use]
    pub fn has_header(self) -> bool {
        self.block().is_some_and(|block| block.has_header)
    }

    fn closing(self) -> &'static str {
        self.block().map_or(CHANNEL_CLOSING, |block| block.closing)
    }
}

/// A marker in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// Opens a block.
    Open(ReasoningFormat),
    /// Closes a block.
    Close(ReasoningFormat),
    /// Channel format: begins the header of a message, with its role.
    Start,
    /// Channel format: the name of the message's channel follows.
    Channel,
    /// Channel format: ends the header of a message.
    Message,
    /// Channel format: ends a message.
    End,
}

/// State at the start of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyStart {
    /// Speech, or a block that the model opens.
    #[default]
    Speech,
    /// Directly after a marker that closes a block.
    AfterReasoning,
    /// Inside a block that the prompt opened.
    Reasoning(ReasoningFormat),
    /// Inside a header that the prompt began.
    Header(ReasoningFormat),
}

/// The reasoning markers of a model. Immutable: share it freely.
///
/// # Examples
/// ```
/// # fn run(gguf: &walla_model::Gguf) -> Result<(), Box<dyn std::error::Error>> {
/// use walla_model::chat::{ChatTemplate, ReasoningMarkers};
/// use walla_model::tokenizer::Tokenizer;
///
/// let tokenizer = Tokenizer::from_gguf(gguf)?;
/// let template = ChatTemplate::from_gguf(gguf)?;
/// let markers = ReasoningMarkers::new(&tokenizer, template.as_ref());
/// println!("separates reasoning: {}", markers.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningMarkers {
    /// Texts of all markers that count, for prompts.
    known: Vec<(&'static str, Marker)>,
    /// Special tokens that are markers.
    tokens: Vec<(TokenId, Marker)>,
    /// Markers that are recognised by their text.
    texts: Vec<(&'static str, Marker)>,
    /// Tokens that close a block, by format; empty if the vocabulary cannot spell them.
    closing: Vec<Vec<TokenId>>,
    opens_unasked: bool,
}

impl ReasoningMarkers {
    /// The markers of a model with this vocabulary and template; `None` if it has none.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> Option<Self> {
        let all = all_markers();
        let tokens: Vec<(TokenId, Marker)> = special_tokens(tokenizer, &all);
        let has_token = |marker| tokens.iter().any(|&(_, other)| other == marker);
        let mentions = |text: &str| template.is_some_and(|template| template.source.contains(text));
        let counts = |marker: Marker| match marker.block() {
            Some((format, block)) => {
                has_token(Marker::Open(format))
                    || has_token(Marker::Close(format))
                    || mentions(block.open)
                    || mentions(block.close)
            }
            None => CHANNEL_MARKERS.iter().all(|&(_, marker)| has_token(marker)),
        };
        let known: Vec<_> = all.into_iter().filter(|&(_, marker)| counts(marker)).collect();
        if known.is_empty() {
            return None;
        }
        let is_text = |&&(_, marker): &&(&str, Marker)| {
            let block = marker.block().map(|(_, block)| block);
            let is_mentioned = block.is_some_and(|b| mentions(b.open) || mentions(b.close));
            is_mentioned && !has_token(marker)
        };
        let texts = known.iter().filter(is_text).copied().collect();
        let is_known = |marker| known.iter().any(|&(_, other)| other == marker);
        let tokens = tokens.iter().filter(|&&(_, marker)| is_known(marker)).copied().collect();
        let mut markers = Self { known, tokens, texts, closing: Vec::new(), opens_unasked: false };
        let formats = (0..=ReasoningFormat::CHANNELS.0).map(ReasoningFormat);
        markers.closing = formats.map(|format| markers.spell_closing(tokenizer, format)).collect();
        markers.opens_unasked = template
            .and_then(|template| template.probe(false))
            .is_some_and(|prompt| markers.start_of(tokenizer, &prompt).is_silent());
        Some(markers)
    }

    /// The marker of a token.
    #[must_use]
    pub fn of_token(&self, token: TokenId) -> Option<Marker> {
        self.tokens.iter().find(|(marker, _)| *marker == token).map(|&(_, marker)| marker)
    }

    /// Tokens that open a block.
    pub fn opening_tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        let opens = |(_, marker): &&(TokenId, Marker)| matches!(marker, Marker::Open(_));
        self.tokens.iter().filter(opens).map(|&(token, _)| token)
    }

    /// Markers that are recognised by their text. None is a prefix of another.
    #[must_use]
    pub fn texts(&self) -> &[(&'static str, Marker)] {
        &self.texts
    }

    /// Tokens that close a block; empty if the vocabulary cannot spell them.
    #[must_use]
    pub fn closing(&self, format: ReasoningFormat) -> &[TokenId] {
        self.closing.get(usize::from(format.0)).map_or(&[], Vec::as_slice)
    }

    /// Whether a reply begins inside a block although [`RenderOptions::enable_thinking`] is off:
    /// the template has no switch.
    #[must_use]
    pub fn opens_unasked(&self) -> bool {
        self.opens_unasked
    }

    /// Whether messages of this channel are speech. The name may have a suffix.
    #[must_use]
    pub fn is_spoken_channel(name: &[u8]) -> bool {
        name.trim_ascii_start().starts_with(SPOKEN_CHANNEL)
    }

    /// State at the start of the reply to a prompt. It is determined by the template text after all
    /// untrusted text.
    #[must_use]
    pub fn start_of(&self, tokenizer: &Tokenizer, prompt: &Prompt) -> ReplyStart {
        let Some(Segment::Template(end)) = prompt.segments.last() else {
            return ReplyStart::Speech;
        };
        let last = self.known.iter().filter_map(|&(text, marker)| {
            let at = end.rfind(text)?;
            Some((at, at + text.len(), marker))
        });
        let Some((at, behind, marker)) = last.max_by_key(|&(at, ..)| at) else {
            return ReplyStart::Speech;
        };
        let before = end.get(..at).unwrap_or_default();
        let behind = end.get(behind..).unwrap_or_default();
        // A marker in an instruction, followed by the end of a turn, does not start a reply.
        let options = EncodeOptions { add_special: false, parse_special: true };
        let tokens = tokenizer.encode(behind, options).unwrap_or_default();
        let ends_turn =
            |&token: &TokenId| tokenizer.is_control(token) || tokenizer.is_end_of_generation(token);
        if tokens.iter().any(ends_turn) {
            return ReplyStart::Speech;
        }
        let is_blank = behind.trim().is_empty();
        match marker {
            Marker::Open(format) if format.has_header() && !behind.contains('\n') => {
                ReplyStart::Header(format)
            }
            Marker::Open(format) => ReplyStart::Reasoning(format),
            Marker::Close(_) if is_blank => ReplyStart::AfterReasoning,
            Marker::Close(_) => ReplyStart::Speech,
            Marker::Start | Marker::Channel | Marker::End => {
                ReplyStart::Header(ReasoningFormat::CHANNELS)
            }
            Marker::Message => match before.rsplit_once("<|channel|>") {
                Some((_, name)) if !Self::is_spoken_channel(name.as_bytes()) => {
                    ReplyStart::Reasoning(ReasoningFormat::CHANNELS)
                }
                _ if is_blank => ReplyStart::AfterReasoning,
                _ => ReplyStart::Speech,
            },
        }
    }

    fn spell_closing(&self, tokenizer: &Tokenizer, format: ReasoningFormat) -> Vec<TokenId> {
        let last = match format.block() {
            Some(_) => Marker::Close(format),
            None => Marker::Message,
        };
        let Some(&(text, _)) = self.known.iter().find(|&&(_, marker)| marker == last) else {
            return Vec::new();
        };
        let options = EncodeOptions { add_special: false, parse_special: true };
        let tokens = tokenizer.encode(format.closing(), options).unwrap_or_default();
        let has_marker = if self.texts.iter().any(|&(_, marker)| marker == last) {
            let bytes: Vec<u8> =
                tokens.iter().flat_map(|&token| tokenizer.token_bytes(token)).copied().collect();
            bytes.windows(text.len()).any(|window| window == text.as_bytes())
        } else {
            tokens.iter().any(|&token| self.of_token(token) == Some(last))
        };
        if has_marker { tokens } else { Vec::new() }
    }
}

impl Marker {
    /// The block that it opens or closes.
    fn block(self) -> Option<(ReasoningFormat, &'static Block)> {
        match self {
            Self::Open(format) | Self::Close(format) => Some((format, format.block()?)),
            Self::Start | Self::Channel | Self::Message | Self::End => None,
        }
    }
}

impl ReplyStart {
    /// Whether the first text of the reply is not speech.
    #[must_use]
    pub fn is_silent(self) -> bool {
        matches!(self, Self::Reasoning(_) | Self::Header(_))
    }
}

impl ChatTemplate {
    /// Whether [`RenderOptions::enable_thinking`] changes the prompt.
    #[must_use]
    pub fn has_thinking_switch(&self) -> bool {
        let [off, on] = [false, true].map(|thinking| self.probe(thinking));
        off.is_some() && on.is_some() && off != on
    }

    /// The prompt of a short question.
    fn probe(&self, enable_thinking: bool) -> Option<Prompt> {
        let question = [Message::new(Role::User, "x")];
        let options = RenderOptions {
            add_generation_prompt: true,
            enable_thinking,
            ..RenderOptions::default()
        };
        self.render(&question, &options).ok()
    }
}

fn all_markers() -> Vec<(&'static str, Marker)> {
    let blocks = BLOCKS.iter().zip(0..).flat_map(|(block, format)| {
        let format = ReasoningFormat(format);
        [(block.open, Marker::Open(format)), (block.close, Marker::Close(format))]
    });
    blocks.chain(CHANNEL_MARKERS).collect()
}

/// Special tokens whose text is a marker. A text may occur twice in a vocabulary.
fn special_tokens(tokenizer: &Tokenizer, all: &[(&'static str, Marker)]) -> Vec<(TokenId, Marker)> {
    let marker_of = |token: TokenId| {
        let bytes = tokenizer.token_bytes(token);
        let may_be = bytes.len() <= MAX_MARKER_BYTES
            && bytes.first().is_some_and(|&first| matches!(first, b'<' | b'[') || first > 0x7f);
        let (_, marker) = all.iter().find(|(text, _)| may_be && text.as_bytes() == bytes)?;
        tokenizer.is_special(token).then_some((token, *marker))
    };
    (0..tokenizer.vocab_size() as u32).map(TokenId).filter_map(marker_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Matching takes the first complete marker, and holds back as many bytes as the longest marker
    /// has.
    #[test]
    fn no_marker_is_longer_than_declared_or_the_beginning_of_another() {
        let all = all_markers();
        for (i, (text, _)) in all.iter().enumerate() {
            assert!(text.len() <= MAX_MARKER_BYTES, "{text}");
            let begins_so =
                |(j, other): (usize, &(&str, Marker))| j != i && other.0.starts_with(text);
            assert!(!all.iter().enumerate().any(begins_so), "{text}");
        }
    }

    #[test]
    fn a_closing_text_contains_its_marker() {
        for block in &BLOCKS {
            assert!(block.closing.contains(block.close), "{}", block.close);
        }
        assert!(CHANNEL_CLOSING.ends_with("<|message|>"));
    }
}
