//! A byte-level vocabulary of any size.

use super::Model;
use crate::{gguf::Writer, spec::Architecture};

/// Token types of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// The last tokens of the vocabulary.
const CONTROLS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

const CHATML: &str = "{% for message in messages %}\
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Adds tokenizer and chat template.
pub(super) fn describe(writer: &mut Writer, model: &Model) {
    let tokens = tokens(model.vocab as usize);
    let controls_from = tokens.len() - CONTROLS.len();
    let kind = |index| if index < controls_from { NORMAL } else { CONTROL };
    let kinds: Vec<i32> = (0..tokens.len()).map(kind).collect();
    let [end_of_text, _, end_of_message] = [0, 1, 2].map(|i| (controls_from + i) as u32);
    let splitter = if model.architecture == Architecture::Qwen3 { "qwen2" } else { "llama-bpe" };
    writer
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", splitter)
        .strings("tokenizer.ggml.tokens", tokens.iter().map(String::as_str))
        .i32s("tokenizer.ggml.token_type", &kinds)
        .strings("tokenizer.ggml.merges", core::iter::empty())
        .u32("tokenizer.ggml.bos_token_id", end_of_text)
        .u32("tokenizer.ggml.eos_token_id", end_of_message)
        .u32("tokenizer.ggml.padding_token_id", end_of_text)
        .bool("tokenizer.ggml.add_bos_token", false)
        .bool("tokenizer.ggml.add_eos_token", false)
        .str("tokenizer.chat_template", CHATML);
}

/// The 256 bytes, filler words (which no merge ever makes, but sampling finds) and control tokens.
fn tokens(vocab: usize) -> Vec<String> {
    let bytes = (0..=u8::MAX).map(|byte| letter(byte).to_string());
    let fillers = (256..vocab.saturating_sub(CONTROLS.len())).map(|id| format!("Ġw{id}"));
    bytes.chain(fillers).chain(CONTROLS.map(str::to_owned)).collect()
}

/// GPT-2's letter for a byte: itself where it is visible in Latin-1, else the next of U+0100 and up.
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
    fn letters_are_those_of_gpt_2() {
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
            let tokens = tokens(vocab);
            assert_eq!(tokens.len(), vocab);
            assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), vocab);
            assert_eq!(tokens[vocab - 1], "<|im_end|>");
        }
    }
}
