//! A byte-level vocabulary of any size.

use walla_model::gguf::Writer;
use walla_model::spec::Architecture;

use super::{Dialect, Model};

/// Token types of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// The last tokens of the vocabulary.
const CONTROLS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// The bytes and the control tokens: the minimum size of a vocabulary.
pub(super) const VOCAB_MIN: u32 = 256 + CONTROLS.len() as u32;

pub(super) const CHATML: &str = "{% for message in messages %}\
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Adds tokenizer and chat template.
pub(super) fn describe(writer: &mut Writer, model: &Model, dialect: &Dialect<'_>) {
    let tokens = tokens(model.vocab as usize, dialect.special);
    let merges = merges(model.vocab as usize - dialect.special.len());
    let controls_from = tokens.len() - CONTROLS.len();
    let special_from = controls_from - dialect.special.len();
    let kind = |index| match index {
        _ if index < special_from => NORMAL,
        _ if index < controls_from => USER_DEFINED,
        _ => CONTROL,
    };
    let kinds: Vec<i32> = (0..tokens.len()).map(kind).collect();
    let [end_of_text, _, end_of_message] = [0, 1, 2].map(|i| (controls_from + i) as u32);
    let splitter = match model.architecture {
        Architecture::Qwen3 => "qwen2",
        Architecture::Qwen35 => "qwen35",
        _ => "llama-bpe",
    };
    writer
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", splitter)
        .strings("tokenizer.ggml.tokens", tokens.iter().map(String::as_str))
        .i32s("tokenizer.ggml.token_type", &kinds)
        .strings("tokenizer.ggml.merges", merges.iter().map(String::as_str))
        .u32("tokenizer.ggml.bos_token_id", end_of_text)
        .u32("tokenizer.ggml.eos_token_id", end_of_message)
        .u32("tokenizer.ggml.padding_token_id", end_of_text)
        .bool("tokenizer.ggml.add_bos_token", false)
        .bool("tokenizer.ggml.add_eos_token", false)
        .str("tokenizer.chat_template", dialect.template);
}

/// The 256 bytes, words, special and control tokens.
fn tokens(vocab: usize, special: &[&str]) -> Vec<String> {
    let bytes = (0..=u8::MAX).map(|byte| letter(byte).to_string());
    let words = (0..words(vocab - special.len())).map(|index| word(index).concat());
    let special = special.iter().map(|text| (*text).to_owned());
    bytes.chain(words).chain(special).chain(CONTROLS.map(str::to_owned)).collect()
}

/// A word is a shorter word (or the preceding space) and a letter. So the speech of agents (words,
/// with an occasional byte) is encoded to the tokens that they generated, as with a real model.
/// Otherwise every turn of a conversation would be evaluated again as single letters.
fn merges(vocab: usize) -> Vec<String> {
    (0..words(vocab)).map(|index| word(index).join(" ")).collect()
}

fn words(vocab: usize) -> usize {
    vocab.saturating_sub(256 + CONTROLS.len())
}

/// Word `index` of a, b, … z, aa, ab and so on, after a space: all but its last letter, and the
/// last letter. Only letters, because pre-tokenizers split them from digits.
fn word(index: usize) -> [String; 2] {
    let letter = |index: usize| char::from(b'a' + (index % 26) as u8);
    let mut earlier = Vec::new();
    let mut rest = index / 26;
    while rest > 0 {
        rest -= 1;
        earlier.push(letter(rest));
        rest /= 26;
    }
    let shorter = ['Ġ'].into_iter().chain(earlier.into_iter().rev()).collect();
    [shorter, letter(index).to_string()]
}

/// GPT-2's letter for a byte: the same character if it is visible in Latin-1, else the next one
/// from U+0100 on.
fn letter(byte: u8) -> char {
    let is_visible = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_visible(byte) {
        return byte.into();
    }
    let earlier = (0..byte).filter(|&b| !is_visible(b)).count() as u32;
    char::from_u32(0x100 + earlier).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn byte_letters_match_gpt_2() {
        assert_eq!(letter(b' '), 'Ġ');
        assert_eq!(letter(b'\n'), 'Ċ');
        assert_eq!(letter(0), 'Ā');
        assert_eq!(letter(0xad), 'Ń');
        assert_eq!(letter(b'a'), 'a');
        assert_eq!(letter(0xff), 'ÿ');
    }

    #[test]
    fn a_vocabulary_has_its_size_and_no_token_twice() {
        for vocab in [259, 300, 49_152] {
            let tokens = tokens(vocab, &[]);
            assert_eq!(tokens.len(), vocab);
            assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), vocab);
            assert_eq!(tokens[vocab - 1], "<|im_end|>");
        }
    }

    #[test]
    fn words_are_made_of_shorter_words() {
        let tokens = tokens(49_152, &[]);
        let words = ["Ġa", "Ġz", "Ġaa", "Ġaz", "Ġba", "Ġzz", "Ġaaa", "Ġbcd"];
        let places = [0, 25, 26, 51, 52, 701, 702, 1_433];
        assert_eq!(places.map(|index| &*tokens[256 + index]), words);
        let mut known: HashSet<&str> = tokens[..256].iter().map(String::as_str).collect();
        for (merge, token) in merges(49_152).iter().zip(&tokens[256..]) {
            let (shorter, letter) = merge.split_once(' ').expect("a merge has two sides");
            assert!(known.contains(shorter) && known.contains(letter), "{merge}");
            assert_eq!([shorter, letter].concat(), *token);
            known.insert(token);
        }
    }
}
