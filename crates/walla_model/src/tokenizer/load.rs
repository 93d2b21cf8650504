//! Builds a checked tokenizer from a file's vocabulary.

use walla_types::TokenId;

use super::{
    Model, Tokenizer,
    bpe::{Alphabet, Bpe},
    error::VocabularyError,
    kind::Kind,
    partition::Partition,
    pieces::{Index, Pieces},
    special,
    split::PreTokenizer,
    spm::Spm,
    vocabulary::{SpecialIds, Vocabulary},
    wordpiece::WordPiece,
};

/// Maximum number of tokens in a vocabulary; the largest today have 262 144.
const MAX_TOKENS: usize = 1 << 24;

/// Maximum number of characters of a token's text in a warning.
const MAX_TEXT_SHOWN: usize = 64;

/// Maximum size of all token texts and merges in bytes: offsets are 32 bits wide.
const MAX_BYTES: usize = 1 << 30;

impl Tokenizer {
    /// Checks a vocabulary and builds a tokenizer.
    ///
    /// # Errors
    /// [`VocabularyError`] names the key or token that is invalid.
    pub fn new(vocabulary: &Vocabulary<'_>) -> Result<Self, VocabularyError> {
        let kind = ModelKind::of(vocabulary)?;
        check_sizes(vocabulary)?;
        vocabulary.special.check(vocabulary.tokens.len())?;
        let (texts, duplicates) = Texts::new(&vocabulary.tokens);
        let find = |text: &str| texts.find(text);
        // The order matters: duplicates take over the results of the steps before.
        let mut kinds = kinds(vocabulary)?;
        let ids = special::complete(vocabulary.special, vocabulary.model, &find, &mut kinds);
        special::strip_by_name(vocabulary.model_name, &find, &mut kinds);
        special::mark_markers(vocabulary.tokens.iter().copied(), &mut kinds);
        special::share_kinds(&duplicates, &mut kinds);
        let (asked, default) = kind.adds_bos(vocabulary.add_bos);
        let adds_bos = adds(
            asked,
            default,
            ids.bos,
            ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id"),
        )?;
        let adds_eos = adds(
            vocabulary.add_eos.or((kind == ModelKind::WordPiece).then_some(true)),
            false,
            ids.eos,
            ("tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id"),
        )?;
        let partition = partition(&vocabulary.tokens, &kinds);
        let warnings = warnings(vocabulary, &duplicates, &find);
        let (pieces, index, model) = match kind {
            ModelKind::Spm => load_spm(vocabulary, &kinds, &ids, &texts)?,
            ModelKind::Bpe(alphabet) => load_bpe(vocabulary, &kinds, &ids, &texts, alphabet)?,
            ModelKind::WordPiece => load_wordpiece(vocabulary, &kinds, &ids)?,
        };
        let tokens = vocabulary.tokens.len();
        let max_piece_bytes = (0..tokens as u32).map(|id| pieces.get(id).len()).max().unwrap_or(0);
        Ok(Self {
            pieces,
            index,
            kinds,
            partition,
            model,
            bos: ids.bos.map(TokenId),
            eos: ids.eos.map(TokenId),
            eot: ids.eot.map(TokenId),
            adds_bos,
            adds_eos,
            adds_space_prefix: match kind {
                ModelKind::Spm => vocabulary.add_space_prefix.unwrap_or(true),
                ModelKind::Bpe(_) => false,
                ModelKind::WordPiece => true,
            },
            max_piece_bytes,
            max_text_bytes: Self::MAX_TEXT_BYTES,
            warnings,
        })
    }
}

/// Defects that may make tokens differ from the tokens of the model's training.
fn warnings(
    vocabulary: &Vocabulary<'_>,
    duplicates: &[(u32, u32)],
    find: special::Find<'_>,
) -> Vec<String> {
    let mut warnings = vocabulary.warnings.clone();
    if vocabulary.model == "gpt2" && vocabulary.pre.is_empty() {
        let likely = likely_pre(find).map(|name| format!("; the markers are those of {name:?}"));
        warnings.push(format!(
            "the file has no tokenizer.ggml.pre: text is split as by \"default\", which gives other \
             tokens than the model was trained with if that is wrong. Name the pre-tokenizer (walla \
             --pre NAME, or pre_tokenizer in the engine's options){}",
            likely.unwrap_or_default()
        ));
    }
    if let Some(&(first, second)) = duplicates.first() {
        let text = vocabulary.tokens.get(first as usize).copied().unwrap_or_default();
        let text: String = text.chars().take(MAX_TEXT_SHOWN).collect();
        warnings.push(format!(
            "tokenizer.ggml.tokens has {} duplicate texts, the first one is {text:?} (tokens {first} \
             and {second}): the first token of a text encodes it",
            duplicates.len()
        ));
    }
    warnings
}

/// The pre-tokenizer of families that are recognised by their markers.
fn likely_pre(find: special::Find<'_>) -> Option<&'static str> {
    let families = [
        (["<|start_header_id|>", "<|eot_id|>"], "llama-bpe"),
        (["<|im_start|>", "<|object_ref_start|>"], "qwen2"),
        (["<|im_start|>", "<tool_call>"], "qwen2"),
        (["[INST]", "[AVAILABLE_TOOLS]"], "tekken"),
    ];
    let is_family = |markers: &[&str; 2]| markers.iter().all(|text| find(text).is_some());
    families.iter().find(|(markers, _)| is_family(markers)).map(|(_, name)| *name)
}

/// `tokenizer.ggml.model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelKind {
    /// "llama".
    Spm,
    /// "gpt2" or "gemma4".
    Bpe(Alphabet),
    /// "bert".
    WordPiece,
}

impl ModelKind {
    fn of(vocabulary: &Vocabulary<'_>) -> Result<Self, VocabularyError> {
        match vocabulary.model {
            "llama" => Ok(Self::Spm),
            "bert" => Ok(Self::WordPiece),
            "gemma4" => Ok(Self::Bpe(Alphabet::Characters)),
            "gpt2" => match PreTokenizer::from_name(vocabulary.pre) {
                Some(pre) => Ok(Self::Bpe(Alphabet::Bytes(pre))),
                None => Err(VocabularyError::UnknownPreTokenizer(vocabulary.pre.to_owned())),
            },
            model => Err(VocabularyError::UnknownModel(model.to_owned())),
        }
    }

    /// The file's request to add BOS, and the default without a request. Files of Gemma 4 with
    /// `add_bos_token` off are wrong: llama.cpp ignores the key too.
    fn adds_bos(self, asked: Option<bool>) -> (Option<bool>, bool) {
        match self {
            Self::Spm => (asked, true),
            Self::Bpe(Alphabet::Bytes(pre)) => (asked, pre.adds_bos()),
            Self::Bpe(Alphabet::Characters) => (asked.filter(|&asked| asked), true),
            Self::WordPiece => (Some(true), true),
        }
    }
}

/// Whether a tokenizer model has a list of merges.
fn has_merges(model: &str) -> bool {
    matches!(model, "gpt2" | "gemma4")
}

fn check_sizes(vocabulary: &Vocabulary<'_>) -> Result<(), VocabularyError> {
    let tokens = vocabulary.tokens.len();
    let merges = vocabulary.merges.as_deref().filter(|_| has_merges(vocabulary.model));
    let merges = merges.unwrap_or_default();
    let bytes = vocabulary.tokens.iter().chain(merges).map(|text| text.len()).sum();
    // A merge adds up to three symbols; ids must stay below the two values that mean "none".
    if tokens == 0 || tokens > MAX_TOKENS || merges.len() > MAX_TOKENS || bytes > MAX_BYTES {
        return Err(VocabularyError::Size { tokens, bytes, max_tokens: MAX_TOKENS });
    }
    let scores = vocabulary.scores.as_ref().filter(|_| vocabulary.model == "llama");
    let lists = [
        ("tokenizer.ggml.token_type", vocabulary.token_types.as_ref().map(Vec::len)),
        ("tokenizer.ggml.scores", scores.map(Vec::len)),
    ];
    for (key, found) in lists {
        if let Some(found) = found
            && found != tokens
        {
            return Err(VocabularyError::Length { key, found, tokens });
        }
    }
    Ok(())
}

fn kinds(vocabulary: &Vocabulary<'_>) -> Result<Vec<Kind>, VocabularyError> {
    let Some(types) = &vocabulary.token_types else {
        return Ok(vec![Kind::NORMAL; vocabulary.tokens.len()]);
    };
    let kind = |(token, (&found, text)): (u32, (&i64, &&str))| {
        let bad = || VocabularyError::TokenType {
            token: TokenId(token),
            text: (*text).to_owned(),
            found,
        };
        Kind::from_code(found).ok_or_else(bad)
    };
    (0..).zip(types.iter().zip(&vocabulary.tokens)).map(kind).collect()
}

/// Whether BOS or EOS is added. A file that requests it must name the token; a default without a
/// token has no effect.
fn adds(
    asked: Option<bool>,
    default: bool,
    token: Option<u32>,
    (flag, key): (&'static str, &'static str),
) -> Result<bool, VocabularyError> {
    match (asked, token) {
        (Some(true), None) => Err(VocabularyError::MissingSpecial { flag, key }),
        (asked, token) => Ok(asked.unwrap_or(default) && token.is_some()),
    }
}

/// Tokens by their text in the file; used only during loading.
struct Texts {
    pieces: Pieces,
    index: Index,
}

impl Texts {
    /// Also returns the first and the later token of each duplicate text.
    fn new(tokens: &[&str]) -> (Self, Vec<(u32, u32)>) {
        let bytes = tokens.iter().map(|text| text.len()).sum();
        let mut texts = Self {
            pieces: Pieces::with_capacity(tokens.len(), bytes),
            index: Index::with_capacity(tokens.len()),
        };
        let mut duplicates = Vec::new();
        for text in tokens {
            let id = texts.pieces.push(text.as_bytes());
            if text.is_empty() {
                continue; // without a text it has only its id
            }
            if let Err(first) = texts.index.insert(&texts.pieces, id) {
                duplicates.push((first, id));
            }
        }
        (texts, duplicates)
    }

    fn find(&self, text: &str) -> Option<u32> {
        self.index.find(&self.pieces, text.as_bytes())
    }
}

fn partition(tokens: &[&str], kinds: &[Kind]) -> Partition {
    let specials =
        (0..).zip(tokens.iter().zip(kinds)).filter(|(_, (_, kind))| kind.is_any(Kind::SPECIAL));
    Partition::new(specials.map(|(id, (&text, &kind))| (text, TokenId(id), kind)))
}

/// The byte of `<0x41>`.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)
}

/// The byte of a byte token.
fn byte_piece(id: u32, text: &str) -> Result<u8, VocabularyError> {
    byte_of(text)
        .ok_or_else(|| VocabularyError::ByteToken { token: TokenId(id), text: text.to_owned() })
}

/// The token for text that the vocabulary cannot spell. It is never a token of the chat format or
/// one that ends a generation, even if the file's unknown token is such a token.
fn unknown_of_text(ids: &SpecialIds, kinds: &[Kind]) -> Option<u32> {
    let of_chat = Kind::CONTROL.with(Kind::MARKER).with(Kind::UNUSED);
    let is_no_text = of_chat.with(Kind::END_OF_GENERATION);
    ids.unknown.filter(|&id| kinds.get(id as usize).is_some_and(|kind| !kind.is_any(is_no_text)))
}

/// The tokens of all bytes in a vocabulary with byte fallback: `<0x41>`, else the token of the
/// character, else the unknown token.
fn byte_tokens(
    kinds: &[Kind],
    ids: &SpecialIds,
    texts: &Texts,
) -> Result<[u32; 256], VocabularyError> {
    let unknown = unknown_of_text(ids, kinds);
    let mut bytes = [0; 256];
    for (byte, slot) in (0..=u8::MAX).zip(&mut bytes) {
        let one = char::from(byte).to_string();
        let token = texts
            .find(&format!("<0x{byte:02X}>"))
            .or_else(|| if byte.is_ascii() { texts.find(&one) } else { None })
            .filter(|&id| kinds.get(id as usize).is_some_and(|kind| !kind.is_any(Kind::RESERVED)))
            .or(unknown);
        *slot = token.ok_or(VocabularyError::MissingByte { byte })?;
    }
    Ok(bytes)
}

/// A part of the vocabulary that its model needs.
fn needed<T>(
    vocabulary: &Vocabulary<'_>,
    part: Option<T>,
    key: &'static str,
) -> Result<T, VocabularyError> {
    let model = || vocabulary.model.to_owned();
    part.ok_or_else(|| VocabularyError::Missing { model: model(), key })
}

/// Capacity for the pieces of all tokens.
fn room_for(vocabulary: &Vocabulary<'_>) -> (Pieces, Index) {
    let tokens = vocabulary.tokens.len();
    let bytes = vocabulary.tokens.iter().map(|text| text.len()).sum();
    (Pieces::with_capacity(tokens, bytes), Index::with_capacity(tokens))
}

fn load_spm(
    vocabulary: &Vocabulary<'_>,
    kinds: &[Kind],
    ids: &SpecialIds,
    texts: &Texts,
) -> Result<(Pieces, Index, Model), VocabularyError> {
    let scores = needed(vocabulary, vocabulary.scores.as_deref(), "tokenizer.ggml.scores")?;
    let (mut pieces, mut index) = room_for(vocabulary);
    let mut spellable = Vec::with_capacity(vocabulary.tokens.len());
    for (id, ((text, kind), score)) in (0..).zip(vocabulary.tokens.iter().zip(kinds).zip(scores)) {
        if kind.is_any(Kind::SPECIAL) {
            pieces.push(text.as_bytes());
        } else if kind.is_any(Kind::BYTE) {
            pieces.push(&[byte_piece(id, text)?]);
        } else {
            pieces.push(text.replace('▁', " ").as_bytes());
        }
        // A text with a space is never found: in look-ups spaces are written as ▁.
        if kind.is_spellable()
            && !text.is_empty()
            && !text.contains(' ')
            && index.insert(&pieces, id).is_ok()
        {
            // Only the scores of these tokens order merges.
            if score.is_nan() {
                return Err(VocabularyError::Score {
                    token: TokenId(id),
                    text: (*text).to_owned(),
                });
            }
            spellable.push(id);
        }
    }
    let bytes = byte_tokens(kinds, ids, texts)?;
    let model = Spm::load(scores, bytes, &pieces, spellable.iter().copied());
    pieces.shrink();
    Ok((pieces, index, Model::Spm(model)))
}

fn load_bpe(
    vocabulary: &Vocabulary<'_>,
    kinds: &[Kind],
    ids: &SpecialIds,
    texts: &Texts,
    alphabet: Alphabet,
) -> Result<(Pieces, Index, Model), VocabularyError> {
    let merges = needed(vocabulary, vocabulary.merges.as_deref(), "tokenizer.ggml.merges")?;
    let (mut pieces, mut index) = room_for(vocabulary);
    let mut aliases = Vec::new();
    let mut spelled = Vec::new();
    for (id, (text, kind)) in (0..).zip(vocabulary.tokens.iter().zip(kinds)) {
        let is_spelled =
            alphabet.spell(text, &mut spelled) && !text.is_empty() && kind.is_spellable();
        if kind.is_any(Kind::SPECIAL) {
            pieces.push(text.as_bytes());
            if is_spelled && spelled != text.as_bytes() {
                aliases.push((spelled.clone(), id));
                continue;
            }
        } else if kind.is_any(Kind::BYTE) {
            pieces.push(&[byte_piece(id, text)?]);
        } else if is_spelled {
            pieces.push(&spelled);
        } else {
            pieces.push(text.as_bytes());
        }
        if is_spelled {
            // Of tokens with the same spelling the first one is found; an alias would be the
            // second.
            let _ = index.insert(&pieces, id);
        }
    }
    let lists = (&mut pieces, &mut index);
    let model = match alphabet {
        Alphabet::Bytes(pre) => {
            Bpe::of_bytes(pre, merges, (&aliases, unknown_of_text(ids, kinds)), lists)?
        }
        Alphabet::Characters => {
            Bpe::of_characters(merges, &aliases, byte_tokens(kinds, ids, texts)?, lists)?
        }
    };
    pieces.shrink();
    Ok((pieces, index, Model::Bpe(model)))
}

fn load_wordpiece(
    vocabulary: &Vocabulary<'_>,
    kinds: &[Kind],
    ids: &SpecialIds,
) -> Result<(Pieces, Index, Model), VocabularyError> {
    let unknown = needed(vocabulary, ids.unknown, "tokenizer.ggml.unknown_token_id")?;
    let (mut pieces, mut index) = room_for(vocabulary);
    let mut max_piece_bytes = 0;
    for (id, (text, kind)) in (0..).zip(vocabulary.tokens.iter().zip(kinds)) {
        let start = text.strip_prefix('▁').filter(|_| !kind.is_any(Kind::SPECIAL));
        match start {
            Some(start) => pieces.push(format!(" {start}").as_bytes()),
            None => pieces.push(text.as_bytes()),
        };
        // Words contain no spaces, so the first character distinguishes starts from continuations.
        let is_spelled = kind.is_spellable() && !text.is_empty() && !text.contains(' ');
        if is_spelled && index.insert(&pieces, id).is_ok() {
            max_piece_bytes = max_piece_bytes.max(pieces.get(id).len());
        }
    }
    let lowercase = vocabulary.lowercase.unwrap_or(true);
    let strips_accents = vocabulary.strip_accents.unwrap_or(lowercase);
    pieces.shrink();
    let model = WordPiece { unknown, lowercase, strips_accents, max_piece_bytes };
    Ok((pieces, index, Model::WordPiece(model)))
}
