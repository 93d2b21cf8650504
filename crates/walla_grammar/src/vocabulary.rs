//! The vocabulary of a model as the matcher sees it.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::toktrie::{
    INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv,
};
use llguidance::{ParserFactory, panic_utils};
use walla_model::tokenizer::Tokenizer;
use walla_types::TokenId;

use crate::VocabularyError;

/// Maximum number of tokens: the tree stores ids in 24 bits and its size in 22 bits.
const MAX_TOKENS: usize = 1 << 20;

/// Maximum length of a token in bytes: the tree stores depths in 10 bits. A longer token is never
/// allowed; its text can be written with shorter ones.
const MAX_TOKEN_BYTES: usize = 1_000;

/// Sets of tokens that are allowed together within texts of JSON with at least this length left:
/// the second and third of `SlicedBiasComputer::general_slices`. Texts without a limit have these
/// too; the sets for them and for white space would take as long to build and 20 MB more for
/// 150,000 tokens.
const SLICES: [&str; 2] = [r#"[^"\\\x00-\x1F\x7F]{1,10}"#, r#"[^"\\\x00-\x1F\x7F]{1,30}"#];

/// Trees of tokens that the matcher keeps: of all tokens and of the [`SLICES`] with their
/// differences, and how many of them are about as large as the first.
const TREES: (usize, usize) = (9, 5);

/// Marks special tokens in the tree. This byte never occurs in UTF-8.
const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// Options of a [`Vocabulary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VocabularyOptions {
    /// Whether text that the grammar forces is written in the tokenizer's spelling. Then
    /// [`Matcher::forced`](crate::Matcher::forced) returns tokens, and a mask in forced text
    /// allows one token. Otherwise a mask allows every spelling. Default: `true`, because models
    /// are trained on the tokenizer's spelling.
    pub forced_tokens: bool,
}

impl Default for VocabularyOptions {
    fn default() -> Self {
        Self { forced_tokens: true }
    }
}

/// The tokens of a model, prepared for masks. Built once per model; a clone shares it.
///
/// The text of constraints is the concatenated bytes of its tokens ([`Tokenizer::token_bytes`]). In
/// a SentencePiece vocabulary a token with a leading `▁` starts with a space.
///
/// - Reserved and end-of-generation tokens belong to no text. A grammar reaches reserved tokens by
///   name only, and the end of a grammar allows all end-of-generation tokens.
/// - Tokens without text, and tokens with the byte 0xFF, which UTF-8 does not have, are never
///   allowed.
/// - Tokens with equal bytes (for example `A` and the byte token `<0x41>`) are allowed together.
///
/// # Examples
/// ```
/// # fn run(tokenizer: walla_model::tokenizer::Tokenizer) -> Result<(), walla_grammar::VocabularyError> {
/// use std::sync::Arc;
/// use walla_grammar::Vocabulary;
///
/// let vocabulary = Vocabulary::new(Arc::new(tokenizer))?;
/// assert_eq!(vocabulary.mask_words(), vocabulary.tokens().div_ceil(32));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Vocabulary(Arc<Shared>);

struct Shared {
    factory: ParserFactory,
    env: Arc<Env>,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.tokens()).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Prepares the tokens of a tokenizer, with default options. Takes some 300 ms and 45 MB for
    /// 150,000 tokens.
    ///
    /// # Errors
    /// [`VocabularyError`].
    pub fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, VocabularyError> {
        Self::with_options(tokenizer, VocabularyOptions::default())
    }

    /// Prepares the tokens of a tokenizer.
    ///
    /// # Errors
    /// [`VocabularyError`].
    pub fn with_options(
        tokenizer: Arc<Tokenizer>,
        options: VocabularyOptions,
    ) -> Result<Self, VocabularyError> {
        let tokens = tokenizer.vocab_size();
        if tokens > MAX_TOKENS {
            return Err(VocabularyError::TooManyTokens { tokens, max_tokens: MAX_TOKENS });
        }
        let build = AssertUnwindSafe(|| {
            let env = Arc::new(Env::new(tokenizer, options));
            let caps = InferenceCapabilities {
                ff_tokens: env.is_canonical,
                ..InferenceCapabilities::default()
            };
            let shared: TokEnv = env.clone();
            let slices = SLICES.map(str::to_owned);
            let factory = ParserFactory::new(&shared, caps, &slices)?;
            Ok(Self(Arc::new(Shared { factory, env })))
        });
        panic_utils::catch_unwind(build)
            .map_err(|error| VocabularyError::Internal { message: first_line(&error.to_string()) })
    }

    /// Number of tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.0.env.trie.vocab_size()
    }

    /// Estimated memory of the tables in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let trie = &self.0.env.trie;
        let tokens = trie.vocab_size();
        let text: usize = (0..tokens as u32).map(|token| trie.token_len(token)).sum();
        // Per tree: the place of each token's text, the order of the tokens, all texts, and nodes
        // of 8 bytes in an array that grew by doubling.
        let nodes = 8 * trie.root().subtree_size().next_power_of_two();
        TREES.0 * (12 * tokens + text) + TREES.1 * nodes
    }

    /// Length of a mask in words of 32 bits, one bit per token, the lowest bit first.
    #[must_use]
    pub fn mask_words(&self) -> usize {
        self.tokens().div_ceil(u32::BITS as usize)
    }

    /// Whether [forced text](VocabularyOptions::forced_tokens) is written in the tokenizer's
    /// spelling. False if the vocabulary cannot spell every byte of UTF-8.
    #[must_use]
    pub fn has_forced_tokens(&self) -> bool {
        self.0.env.is_canonical
    }

    /// The tokens of a text within a reply: the tokenizer's spelling, without a space before it and
    /// without reserved tokens.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<TokenId> {
        self.encode_bytes(text.as_bytes())
    }

    /// As [`encode`](Self::encode), of bytes that may begin or end within a character.
    #[must_use]
    pub fn encode_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.env.tokenize_bytes(bytes).into_iter().map(TokenId).collect()
    }

    /// Whether the token ends a generation.
    pub(crate) fn is_end(&self, token: TokenId) -> bool {
        self.0.env.trie.eos_tokens().contains(&token.0)
    }

    pub(crate) fn end_tokens(&self) -> impl Iterator<Item = u32> + '_ {
        let all = self.0.env.trie.eos_tokens().iter().copied();
        all.filter(|&token| token != INVALID_TOKEN)
    }

    pub(crate) fn factory(&self) -> &ParserFactory {
        &self.0.factory
    }

    /// The special token with this text, for example `<tool_call>`.
    pub(crate) fn special(&self, text: &str) -> Option<TokenId> {
        self.0.env.trie.get_special_token(text).map(TokenId)
    }
}

/// The first line of a message of the library; panics have a backtrace behind it.
pub(crate) fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

/// The tokenizer behind the matcher's interface.
struct Env {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
    is_canonical: bool,
}

impl Env {
    fn new(tokenizer: Arc<Tokenizer>, options: VocabularyOptions) -> Self {
        let all = || (0..tokenizer.vocab_size() as u32).map(TokenId);
        let words: Vec<Vec<u8>> = all().map(|token| word(&tokenizer, token)).collect();
        let ends: Vec<u32> = tokenizer.end_of_generation_tokens().map(|token| token.0).collect();
        let first_end = ends.first().copied().unwrap_or(INVALID_TOKEN);
        let info = TokRxInfo::new(words.len() as u32, first_end);
        let mut trie = TokTrie::from(&info, &words);
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        // The bytes that UTF-8 uses. Without a token for each of them some text has no tokens, and
        // the matcher requires tokens for all forced text.
        let spells_all = (0..=0xf4).filter(|byte| !matches!(byte, 0xc0 | 0xc1));
        let spells_all = spells_all.into_iter().all(|byte| trie.token_id(&[byte]).is_some());
        Self { is_canonical: options.forced_tokens && spells_all, tokenizer, trie }
    }

    /// The tokenizer's spelling if its tokens have exactly this text.
    fn spelling(&self, text: &str) -> Option<Vec<u32>> {
        let tokens = self.tokenizer.encode_continuation(text).ok()?;
        let mut rest = text.as_bytes();
        for &token in &tokens {
            let bytes = self.trie.token(token.0);
            rest = rest.strip_prefix(bytes).filter(|_| !bytes.is_empty())?;
        }
        rest.is_empty().then(|| tokens.into_iter().map(|token| token.0).collect())
    }
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Tokens with exactly these bytes. Bytes that are not UTF-8, and text that the tokenizer
    /// changes (`▁` in SentencePiece), become the longest tokens from left to right.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let mut tokens = Vec::new();
        for chunk in bytes.utf8_chunks() {
            let valid = chunk.valid();
            if !valid.is_empty() {
                let spelled = self.spelling(valid);
                tokens
                    .extend(spelled.unwrap_or_else(|| self.trie.greedy_tokenize(valid.as_bytes())));
            }
            tokens.extend(self.trie.greedy_tokenize(chunk.invalid()));
        }
        tokens
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.is_canonical
    }
}

/// The bytes of a token in the tree; empty if it is never allowed.
fn word(tokenizer: &Tokenizer, token: TokenId) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(token);
    if bytes.is_empty() || bytes.len() > MAX_TOKEN_BYTES || bytes.contains(&MARKER) {
        return Vec::new();
    }
    if tokenizer.is_reserved(token) || tokenizer.is_end_of_generation(token) {
        return [&[MARKER], bytes].concat();
    }
    tokenizer.text_bytes(token).to_vec()
}
