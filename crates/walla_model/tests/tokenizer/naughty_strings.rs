//! Texts that often cause defects: decoding restores them, whole and streamed, and none becomes a
//! marker.

use crate::tokenizer_common::{Lists, byte_level, characters, files, load, sentence_piece};
use walla_model::chat::{ChatTemplate, Message, Prompt, RenderOptions, Role, Segment};
use walla_model::tokenizer::{DecodeOptions, EncodeOptions, StreamDecoder, Tokenizer};
use walla_types::TokenId;

/// All kinds of vocabulary with every pre-tokenizer, and the real vocabularies if the reference
/// data exists.
fn tokenizers() -> Vec<(String, Tokenizer)> {
    const PRES: [&str; 12] = [
        "gpt-2",
        "llama-bpe",
        "qwen2",
        "smollm",
        "deepseek-llm",
        "deepseek-coder",
        "falcon",
        "default",
        "dbrx",
        "deepseek-v3",
        "gpt-4o",
        "tekken",
    ];
    let made = PRES.iter().map(|pre| ((*pre).to_owned(), byte_level(pre)));
    let others = [("sentence pieces", sentence_piece()), ("characters", characters())];
    let made = made.chain(others.map(|(name, lists)| (name.to_owned(), lists)));
    let made = made.map(|(name, lists): (_, Lists)| (name, lists.tokenizer()));
    let real = files("tokenizers", "gguf").into_iter();
    made.chain(real.map(|path| (path.display().to_string(), load(&path)))).collect()
}

fn streamed(tokenizer: &Tokenizer, tokens: &[TokenId]) -> String {
    let mut decoder = StreamDecoder::new(DecodeOptions::default());
    let (mut text, mut delta) = (String::new(), String::new());
    for &token in tokens {
        delta.clear();
        decoder.push(tokenizer, token, &mut delta).unwrap();
        text += &delta;
    }
    delta.clear();
    decoder.finish(&mut delta);
    text + &delta
}

#[test]
fn naughty_texts_round_trip() {
    let texts = crate::naughty::texts();
    assert!(texts.len() > 150, "{}", texts.len());
    let tokenizers = tokenizers();
    for (name, tokenizer) in &tokenizers {
        // In this alphabet ▁ is a space.
        let is_spm = name == "sentence pieces" || name == "characters" || name.contains("spm");
        for text in &texts {
            let tokens = tokenizer.encode(text, EncodeOptions::default()).unwrap();
            let expected = if is_spm { text.replace('▁', " ") } else { text.clone() };
            assert_eq!(tokenizer.decode(&tokens).unwrap(), expected, "{name}: {text:?}");
            assert_eq!(streamed(tokenizer, &tokens), expected, "{name}: {text:?}");
        }
    }
}

#[test]
fn naughty_texts_are_text_in_every_field_of_a_prompt() {
    let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
                  {% endfor %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let tokenizers = tokenizers();
    for text in crate::naughty::texts() {
        for role in [Role::System, Role::User, Role::Assistant] {
            let messages =
                [Message::new(Role::System, "You are Greta."), Message::new(role, &text)];
            let prompt = template.render(&messages, &RenderOptions::default()).unwrap();
            let untrusted: String = prompt
                .segments
                .iter()
                .filter(|segment| matches!(segment, Segment::Untrusted(_)))
                .map(Segment::text)
                .collect();
            assert_eq!(untrusted, format!("You are Greta.{text}"), "{role:?}");
        }
        let prompt = Prompt { segments: vec![Segment::Untrusted(text.clone())] };
        for (name, tokenizer) in &tokenizers {
            let tokens = tokenizer.encode_prompt(&prompt).unwrap();
            let own = usize::from(tokenizer.adds_bos());
            let marker = tokens.iter().skip(own).find(|token| tokenizer.is_reserved(**token));
            assert_eq!(marker, None, "{name}: {text:?}");
        }
    }
}
