//! Small vocabularies of all kinds, valid or invalid as the input selects, and arbitrary text.
//!
//! The format is designed for mutation: a few bytes of switches, then lists of texts, then the text
//! to encode. Random bytes as a whole file would not pass the header.

use std::sync::LazyLock;

use walla_model::Gguf;
use walla_model::chat::{Prompt, Segment};
use walla_model::gguf::Writer;
use walla_model::tokenizer::{DecodeOptions, EncodeOptions, StreamDecoder, Tokenizer};
use walla_types::TokenId;

use super::input::Input;

/// One name of every pre-tokenizer, one unknown name, and [`CHARACTERS`].
pub const PRES: [&str; 16] = [
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "smollm",
    "deepseek-llm",
    "deepseek-coder",
    "falcon",
    "default",
    "dbrx",
    "minicpm5",
    "qwen35",
    "deepseek-v3",
    "gpt-4o",
    "tekken",
    "no-such-splitter",
    CHARACTERS,
];

/// Selects the model "gemma4", which has no pre-tokenizer.
const CHARACTERS: &str = "gemma4";

/// Texts of real vocabularies that mutations would rarely find.
const MARKERS: [&str; 12] = [
    "<s>",
    "</s>",
    "<unk>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<think>",
    "[INST]",
    "  ",
    "\n\n",
    "<|endoftext|>",
    "▁▁",
];

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// Maximum number of tokens in addition to the 256 bytes, and of merges: enough to cover all kinds
/// of merges, few enough to be fast.
const MAX_EXTRAS: usize = 24;

/// The vocabulary built from the input.
struct Vocabulary {
    /// Whether a space is spelled `▁`, and bytes have separate tokens: "llama" and "gemma4".
    is_raw: bool,
    tokens: Vec<String>,
    kinds: Vec<i32>,
    /// Whether every byte has a dedicated token that text may become.
    spells_all: bool,
    /// The unknown token of the file, or the default of its kind.
    unknown: Option<u32>,
    file: Vec<u8>,
}

/// Builds a vocabulary from `bytes`, encodes a text with it and checks the tokenizer's invariants.
///
/// # Panics
/// If an invariant is violated.
pub fn check(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let Some(vocabulary) = build(&mut input) else { return };
    let file = Gguf::from_bytes(vocabulary.file.as_slice()).expect("the writer makes sound files");
    let Ok(tokenizer) = Tokenizer::from_gguf(&file) else { return };
    assert_eq!(tokenizer.vocab_size(), vocabulary.tokens.len());
    let ids: Vec<TokenId> =
        (0..input.below(32)).map(|_| TokenId(input.below(tokenizer.vocab_size()) as u32)).collect();
    streaming(&tokenizer, &ids);
    let cut = input.below(1 << 16);
    let text = input.text();
    encoding(&tokenizer, &text);
    round_trip(&vocabulary, &tokenizer, &text);
    untrusted(&vocabulary, &tokenizer, &text);
    segments(&vocabulary, &tokenizer, &text, cut);
}

fn build(input: &mut Input<'_>) -> Option<Vocabulary> {
    let is_spm = input.flag();
    let pre = *input.pick(&PRES);
    let model = match pre {
        _ if is_spm => "llama",
        CHARACTERS => CHARACTERS,
        _ => "gpt2",
    };
    let is_raw = model != "gpt2";
    let has_bytes = input.byte() >= 16; // nearly always: without them most texts are refused
    let (mut tokens, mut kinds, mut scores) = (Vec::new(), Vec::new(), Vec::new());
    if has_bytes {
        for byte in 0..=u8::MAX {
            tokens.push(if is_raw { format!("<0x{byte:02X}>") } else { letter(byte).to_string() });
            kinds.push(if is_raw { BYTE } else { NORMAL });
            scores.push(0.0);
        }
        // Without a dedicated token a space would be encoded as the three bytes of ▁, and decoded
        // to them.
        tokens.push(if is_raw { "▁" } else { "ĠĠ" }.to_owned());
        kinds.push(NORMAL);
        scores.push(-1e9);
    }
    for _ in 0..input.below(MAX_EXTRAS) {
        let kind = match input.byte() {
            0 => 0,
            1 => UNKNOWN,
            2..=31 => CONTROL,
            32..=63 => USER_DEFINED,
            64..=67 => 5,
            68..=71 => BYTE,
            72 => 9,
            _ => NORMAL,
        };
        let text = match input.byte() {
            which @ 0..=63 => MARKERS[usize::from(which) % MARKERS.len()].to_owned(),
            _ => token_text(input, is_raw || kind != NORMAL),
        };
        tokens.push(text);
        kinds.push(kind);
        scores.push(match input.byte() {
            255 => f32::from_bits(input.u32()),
            score => -f32::from(score),
        });
    }
    let extras = tokens.len();
    let special = |input: &mut Input<'_>| match input.byte() {
        0..=127 => None,
        which => Some(u32::from(which - 128) % 32 + extras.saturating_sub(24) as u32),
    };
    let (bos, eos, eot, unknown) = (special(input), special(input), special(input), special(input));
    let mut writer = Writer::new();
    writer.str("tokenizer.ggml.model", model);
    writer.str("tokenizer.ggml.pre", pre);
    let name = if input.byte() < 16 { "Phi-3 of the fuzzer" } else { "fuzz" };
    writer.str("general.name", name);
    writer.strings("tokenizer.ggml.tokens", tokens.iter().map(String::as_str));
    if input.byte() > 3 {
        writer.i32s("tokenizer.ggml.token_type", &kinds);
    } else {
        kinds.fill(NORMAL);
    }
    writer.f32s("tokenizer.ggml.scores", &scores);
    let merges = merges(input, &tokens);
    writer.strings("tokenizer.ggml.merges", merges.iter().map(String::as_str));
    let ids = [
        ("tokenizer.ggml.bos_token_id", bos),
        ("tokenizer.ggml.eos_token_id", eos),
        ("tokenizer.ggml.eot_token_id", eot),
        ("tokenizer.ggml.unknown_token_id", unknown),
    ];
    for (key, id) in ids {
        if let Some(id) = id {
            writer.u32(key, id);
        }
    }
    for key in ["add_bos_token", "add_eos_token", "add_space_prefix"] {
        match input.byte() {
            0..=99 => {}
            choice => drop(writer.bool(&format!("tokenizer.ggml.{key}"), choice & 1 == 1)),
        }
    }
    let file = writer.begin(Vec::new()).ok()?.finish().ok()?;
    let of_bytes = if is_raw { BYTE } else { NORMAL };
    let spells_all = has_bytes && kinds[..256].iter().all(|&kind| kind == of_bytes);
    let unknown = unknown.or(is_spm.then_some(0));
    Some(Vocabulary { is_raw, tokens, kinds, spells_all, unknown, file })
}

/// A token's text: raw, or in the letters that represent bytes.
fn token_text(input: &mut Input<'_>, is_raw: bool) -> String {
    let text = input.text();
    if is_raw { text } else { text.bytes().map(letter).collect() }
}

/// Merges of tokens, some with the result of an earlier merge, a few invalid.
fn merges(input: &mut Input<'_>, tokens: &[String]) -> Vec<String> {
    let mut merges: Vec<String> = Vec::new();
    for _ in 0..input.below(MAX_EXTRAS) {
        let mut half = || -> String {
            let which = input.below(tokens.len().max(1) + merges.len());
            match tokens.get(which) {
                Some(token) => token.clone(),
                None => merges
                    .get(which - tokens.len())
                    .map_or_else(String::new, |m| m.replace(' ', "")),
            }
        };
        let (left, right) = (half(), half());
        if left.len() + right.len() < 256 {
            merges.push(format!("{left} {right}"));
        }
    }
    merges
}

/// Streaming returns the same text as decoding at once, and no delta exceeds the guaranteed length.
fn streaming(tokenizer: &Tokenizer, ids: &[TokenId]) {
    for control_text in [false, true] {
        for strip_space_prefix in [false, true] {
            streaming_with(tokenizer, ids, DecodeOptions { control_text, strip_space_prefix });
        }
    }
    assert!(tokenizer.decode(&[TokenId(tokenizer.vocab_size() as u32)]).is_err());
}

fn streaming_with(tokenizer: &Tokenizer, ids: &[TokenId], options: DecodeOptions) {
    let whole = tokenizer.decode_with(ids, options).expect("tokens of this vocabulary");
    let mut bytes = Vec::new();
    let mut stream = StreamDecoder::new(options);
    let (mut text, mut delta) = (String::new(), String::new());
    for &id in ids {
        delta.clear();
        stream.push(tokenizer, id, &mut delta).expect("a token of this vocabulary");
        assert!(delta.len() <= tokenizer.max_delta_bytes());
        text += &delta;
        bytes.extend_from_slice(tokenizer.token_bytes(id));
    }
    delta.clear();
    stream.finish(&mut delta);
    text += &delta;
    assert_eq!(text, whole);
    if options.control_text && !options.strip_space_prefix && !text.contains('\u{fffd}') {
        assert!(whole.len() <= bytes.len());
    }
}

fn encoding(tokenizer: &Tokenizer, text: &str) {
    for add_special in [false, true] {
        for parse_special in [false, true] {
            let options = EncodeOptions { add_special, parse_special };
            let tokens = tokenizer.encode(text, options).expect("a short text");
            assert!(tokens.iter().all(|token| token.index() < tokenizer.vocab_size()));
            assert!(tokens.len() <= 4 * text.len() + 4, "{} tokens", tokens.len());
            assert_eq!(tokenizer.encode(text, options).as_ref(), Ok(&tokens));
            // Each decoding option once.
            let (control_text, strip_space_prefix) = (parse_special, add_special);
            streaming_with(tokenizer, &tokens, DecodeOptions { control_text, strip_space_prefix });
        }
    }
    assert!(
        tokenizer.clone().with_max_text_bytes(0).encode("x", EncodeOptions::default()).is_err()
    );
}

/// Whether a text contains the text of a token that is matched before splitting.
fn holds_special(vocabulary: &Vocabulary, tokenizer: &Tokenizer, text: &str) -> bool {
    let mut specials = vocabulary.tokens.iter().enumerate().filter(|(id, token)| {
        tokenizer.special_token(token).is_some() || vocabulary.kinds[*id] != NORMAL
    });
    specials.any(|(_, token)| !token.is_empty() && text.contains(token.as_str()))
}

/// Encoded text decodes to itself if every byte has a token. Where a space is spelled ▁,
/// that character decodes to a space.
fn round_trip(vocabulary: &Vocabulary, tokenizer: &Tokenizer, text: &str) {
    if !vocabulary.spells_all || holds_special(vocabulary, tokenizer, text) {
        return;
    }
    let tokens = tokenizer.encode(text, EncodeOptions::default()).expect("a short text");
    let expected = if vocabulary.is_raw { text.replace('▁', " ") } else { text.to_owned() };
    assert_eq!(tokenizer.decode(&tokens).as_deref(), Ok(expected.as_str()), "{tokens:?}");
}

/// Untrusted text never becomes a reserved token. Exception: in a vocabulary without some bytes,
/// text that it cannot encode becomes the unknown token.
fn untrusted(vocabulary: &Vocabulary, tokenizer: &Tokenizer, text: &str) {
    let prompt = Prompt { segments: vec![Segment::Untrusted(text.to_owned())] };
    let tokens = tokenizer.encode_prompt(&prompt).expect("a short text");
    let own = usize::from(tokenizer.adds_bos());
    for &token in tokens.iter().skip(own) {
        let is_unknown = !vocabulary.spells_all
            && vocabulary.unknown == Some(token.0)
            && !tokenizer.is_control(token)
            && !tokenizer.is_end_of_generation(token);
        assert!(is_unknown || !tokenizer.is_reserved(token), "{text:?} became {token}");
    }
    raw(vocabulary, tokenizer, text);
}

/// Raw text never becomes a control, unknown, user-defined or end-of-generation token. Exceptions:
/// white space, and bytes that no other token encodes.
fn raw(vocabulary: &Vocabulary, tokenizer: &Tokenizer, text: &str) {
    let tokens = tokenizer.encode_untrusted(text).expect("a short text");
    assert!(tokens.iter().all(|token| token.index() < tokenizer.vocab_size()));
    streaming(tokenizer, &tokens);
    if !vocabulary.spells_all {
        return;
    }
    for token in tokens {
        let (kind, text_of) = (vocabulary.kinds[token.index()], &vocabulary.tokens[token.index()]);
        let is_marker = kind == USER_DEFINED && !is_blank(text_of);
        let is_forbidden = matches!(kind, CONTROL | UNKNOWN)
            || is_marker
            || tokenizer.is_control(token)
            || tokenizer.is_end_of_generation(token);
        // The first 256 tokens are the bytes.
        assert!(!is_forbidden || token.index() < 256, "{text:?} became {token} ({text_of:?})");
    }
    if !vocabulary.is_raw && !holds_blank(vocabulary, text) {
        let tokens = tokenizer.encode_untrusted(text).expect("a short text");
        assert_eq!(tokenizer.decode(&tokens).as_deref(), Ok(text), "{tokens:?}");
    }
}

/// White space only, which SentencePiece writes as ▁.
fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || c == '▁')
}

/// Whether a text contains a user-defined token of white space, which may include the following
/// white space.
fn holds_blank(vocabulary: &Vocabulary, text: &str) -> bool {
    let mut blanks = vocabulary
        .tokens
        .iter()
        .zip(&vocabulary.kinds)
        .filter(|(token, kind)| **kind == USER_DEFINED && !token.is_empty() && is_blank(token));
    blanks.any(|(token, _)| text.contains(token.as_str()))
}

/// Segment boundaries do not change the tokens of ordinary text.
fn segments(vocabulary: &Vocabulary, tokenizer: &Tokenizer, text: &str, cut: usize) {
    let options = EncodeOptions { add_special: true, parse_special: true };
    let mut whole = tokenizer.encode(text, options).expect("a short text");
    if tokenizer.adds_eos() {
        whole.pop();
    }
    let all = Prompt { segments: vec![Segment::Template(text.to_owned())] };
    let found = tokenizer.encode_prompt(&all).expect("a short text");
    let begins_twice = tokenizer.adds_bos() && whole.get(1) == tokenizer.bos().as_ref();
    if !begins_twice {
        assert_eq!(found, whole);
    }
    if holds_special(vocabulary, tokenizer, text) {
        return;
    }
    let mut middle = cut % (text.len() + 1);
    while !text.is_char_boundary(middle) {
        middle -= 1;
    }
    let (left, right) = text.split_at(middle);
    let segments = vec![Segment::Template(left.to_owned()), Segment::Untrusted(right.to_owned())];
    assert_eq!(tokenizer.encode_prompt(&Prompt { segments }), Ok(found));
}

/// GPT-2's letter for a byte: the byte itself if visible in Latin-1, otherwise the next one from
/// U+0100 on.
pub fn letter(byte: u8) -> char {
    static LETTERS: LazyLock<[char; 256]> =
        LazyLock::new(|| std::array::from_fn(|byte| compute_letter(byte as u8)));
    LETTERS[usize::from(byte)]
}

fn compute_letter(byte: u8) -> char {
    let is_visible = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_visible(byte) {
        return byte.into();
    }
    let earlier = (0..byte).filter(|&b| !is_visible(b)).count() as u32;
    char::from_u32(0x100 + earlier).unwrap_or_default()
}
