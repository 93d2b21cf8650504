//! Tokens with a role, and the kinds that follow from their roles.
//!
//! Files are often incomplete: converters omit the token that ends a turn, or mark a marker of the
//! chat format as a normal token. llama.cpp therefore also checks texts, and so does this module,
//! with the same lists. If several tokens qualify for a role, llama.cpp takes the first of its hash
//! table; here it is the first of the list.

use super::{
    error::VocabularyError,
    kind::{Kind, is_blank, looks_like_marker},
    vocabulary::SpecialIds,
};
use crate::gguf::{Gguf, Integers, Strings};

/// End of a turn, the likeliest first.
#[rustfmt::skip]
const EOT: &[&str] = &[
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
];

const EOM: &[&str] = &["<|eom_id|>"];

#[rustfmt::skip]
const FIM_PREFIX: &[&str] = &[
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
    "<|code_prefix|>", "<|prefix|>",
];

#[rustfmt::skip]
const FIM_SUFFIX: &[&str] = &[
    "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
    "<|code_suffix|>", "<|suffix|>",
];

#[rustfmt::skip]
const FIM_MIDDLE: &[&str] = &[
    "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
    "<|code_middle|>", "<|middle|>",
];

const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];

const FIM_REPO: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];

const FIM_SEPARATOR: &[&str] = &["<|file_sep|>"];

/// Texts that end a generation if they are tokens.
#[rustfmt::skip]
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
];

/// Markers that replies contain on purpose and that are visible.
const VISIBLE_MARKERS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Looks up the token with a text.
pub(super) type Find<'f> = &'f dyn Fn(&str) -> Option<u32>;

/// The texts of a file's BOS and EOS, which are the same tokens as in its tokenizer; empty if
/// absent.
pub(crate) fn texts_of_bos_and_eos(gguf: &Gguf) -> Result<(String, String), VocabularyError> {
    let Some(tokens) = gguf.find::<Strings<'_>>("tokenizer.ggml.tokens")? else {
        return Ok(Default::default());
    };
    let types = gguf.find::<Integers<'_>>("tokenizer.ggml.token_type")?;
    let mut kinds: Vec<Kind> =
        types.map(|types| types.iter().filter_map(Kind::from_code).collect()).unwrap_or_default();
    kinds.resize(tokens.len(), Kind::NORMAL);
    let model = gguf.find::<&str>("tokenizer.ggml.model")?.unwrap_or_default();
    let (ids, _) = SpecialIds::from_gguf(gguf, tokens.len())?;
    let ids = with_defaults(ids, model, &kinds);
    let text =
        |id: Option<u32>| id.and_then(|id| tokens.get(id as usize)).unwrap_or_default().to_owned();
    Ok((text(ids.bos), text(ids.eos)))
}

/// Sets the roles that the file omits, and corrects kinds accordingly.
pub(super) fn complete(
    ids: SpecialIds,
    model: &str,
    find: Find<'_>,
    kinds: &mut [Kind],
) -> SpecialIds {
    let mut ids = with_defaults(ids, model, kinds);
    if model == "bert" {
        for role in [ids.bos, ids.eos, ids.unknown] {
            add(kinds, role, Kind::CONTROL);
        }
    }
    let roles = [
        (&mut ids.eot, EOT),
        (&mut ids.eom, EOM),
        (&mut ids.fim_prefix, FIM_PREFIX),
        (&mut ids.fim_suffix, FIM_SUFFIX),
        (&mut ids.fim_middle, FIM_MIDDLE),
        (&mut ids.fim_pad, FIM_PAD),
        (&mut ids.fim_repo, FIM_REPO),
        (&mut ids.fim_separator, FIM_SEPARATOR),
    ];
    for (role, texts) in roles {
        if role.is_none() {
            *role = texts.iter().find_map(|text| find(text));
            add(kinds, *role, Kind::CONTROL);
        }
    }
    mark_ends(&ids, find, kinds);
    for text in VISIBLE_MARKERS {
        set(kinds, find(text), Kind::USER_DEFINED);
    }
    for role in [ids.eos, ids.eot, ids.eom] {
        add(kinds, role, Kind::END_OF_GENERATION);
    }
    correct_ends(find, kinds);
    ids
}

/// The defaults for files without BOS, EOS and unknown token.
///
/// "llama" has always used 1, 2 and 0, "bert" 101, 102 and 100. Early "gpt2" files meant Falcon's
/// 11. That is used only if 11 is a control token, because elsewhere it is a comma.
fn with_defaults(ids: SpecialIds, model: &str, kinds: &[Kind]) -> SpecialIds {
    let within = |id: u32| ((id as usize) < kinds.len()).then_some(id);
    match model {
        "llama" => SpecialIds {
            bos: ids.bos.or_else(|| within(1)),
            eos: ids.eos.or_else(|| within(2)),
            unknown: ids.unknown.or_else(|| within(0)),
            ..ids
        },
        "bert" => SpecialIds {
            bos: ids.bos.or(ids.cls).or_else(|| within(101)),
            eos: ids.separator.or_else(|| within(102)),
            unknown: ids.unknown.or_else(|| within(100)),
            ..ids
        },
        _ => {
            let is_control = kinds.get(11).is_some_and(|kind| kind.is_any(Kind::CONTROL));
            let falcon = is_control.then_some(11);
            SpecialIds { bos: ids.bos.or(falcon), eos: ids.eos.or(falcon), ..ids }
        }
    }
}

/// Marks tokens that end a generation by role or text. A token with such a text is a control token,
/// regardless of its type in the file.
fn mark_ends(ids: &SpecialIds, find: Find<'_>, kinds: &mut [Kind]) {
    for role in [ids.fim_pad, ids.fim_repo, ids.fim_separator] {
        add(kinds, role, Kind::END_OF_GENERATION);
    }
    for text in END_OF_GENERATION {
        add(kinds, find(text), Kind::END_OF_GENERATION.with(Kind::CONTROL));
    }
}

/// Corrects formats in which a text of the list does not end a generation.
fn correct_ends(find: Find<'_>, kinds: &mut [Kind]) {
    let ends = |kinds: &[Kind], text: &str| {
        let id = find(text)?;
        kinds.get(id as usize)?.is_any(Kind::END_OF_GENERATION).then_some(id)
    };
    let has = |kinds: &[Kind], text: &str| ends(kinds, text).is_some();
    // Formats that end with <|return|>, <|call|> or <|flush|> use <|end|> between the messages of
    // one reply.
    let call = has(kinds, "<|call|>") || has(kinds, "<|calls|>");
    if let Some(end) = ends(kinds, "<|end|>")
        && call
        && (has(kinds, "<|return|>") || has(kinds, "<|flush|>"))
    {
        set(kinds, Some(end), Kind::USER_DEFINED);
    }
    // Here </s> is the HTML tag.
    if let Some(tag) = ends(kinds, "</s>")
        && (has(kinds, "<|tool_response>") || has(kinds, "<|plamo:eos|>"))
    {
        set(kinds, Some(tag), Kind::NORMAL);
    }
}

/// Phi 3's markers also consume the white space after them. GGUF has no key for this, so it is
/// derived from the name.
pub(super) fn strip_by_name(model_name: &str, find: Find<'_>, kinds: &mut [Kind]) {
    let name = model_name.to_lowercase();
    if !name.contains("phi-3") && !name.contains("phi3") {
        return;
    }
    for kind in kinds.iter_mut().filter(|kind| kind.is_any(Kind::SPECIAL)) {
        *kind = kind.with(Kind::STRIPS_RIGHT);
    }
    add(kinds, find("</s>"), Kind::STRIPS_RIGHT);
    for text in ["<unk>", "<s>", "<|endoftext|>"] {
        if let Some(kind) = find(text).and_then(|id| kinds.get_mut(id as usize)) {
            *kind = kind.without(Kind::STRIPS_RIGHT);
        }
    }
}

/// Marks the user-defined tokens that untrusted text may not become, and the tokens of white space.
pub(super) fn mark_markers<'t>(texts: impl Iterator<Item = &'t str>, kinds: &mut [Kind]) {
    for (text, kind) in texts.zip(kinds) {
        if kind.is_any(Kind::USER_DEFINED) && is_blank(text) {
            *kind = kind.with(Kind::BLANK);
        }
        if kind.is_any(Kind::USER_DEFINED) && !kind.is_any(Kind::CONTROL) && looks_like_marker(text)
        {
            *kind = kind.with(Kind::MARKER);
        }
    }
}

/// Gives each later token of a text the [shared properties](Kind::OF_TEXT) of the first one.
pub(super) fn share_kinds(duplicates: &[(u32, u32)], kinds: &mut [Kind]) {
    for &(first, later) in duplicates {
        let of_first = kinds.get(first as usize).copied().unwrap_or_default();
        add(kinds, Some(later), of_first.and(Kind::OF_TEXT));
    }
}

fn add(kinds: &mut [Kind], id: Option<u32>, kind: Kind) {
    if let Some(old) = id.and_then(|id| kinds.get_mut(id as usize)) {
        *old = old.with(kind);
    }
}

fn set(kinds: &mut [Kind], id: Option<u32>, kind: Kind) {
    if let Some(old) = id.and_then(|id| kinds.get_mut(id as usize)) {
        *old = kind;
    }
}
