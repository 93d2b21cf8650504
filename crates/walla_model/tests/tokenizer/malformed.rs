//! Invalid vocabularies give errors that name the defect.

use crate::tokenizer_common::{
    BYTE, CONTROL, Lists, NORMAL, UNKNOWN, USER_DEFINED, byte_level, characters, sentence_piece,
};
use walla_model::chat::{ChatTemplate, Message, Prompt, RenderOptions, Role, Segment};
use walla_model::gguf::Writer;
use walla_model::tokenizer::{Tokenizer, Vocabulary};
use walla_model::{Gguf, Value};
use walla_types::TokenId;

fn error(vocabulary: &Vocabulary<'_>) -> String {
    Tokenizer::new(vocabulary).unwrap_err().to_string()
}

fn with(mut lists: Lists, change: impl FnOnce(&mut Lists)) -> String {
    change(&mut lists);
    error(&lists.vocabulary())
}

#[test]
fn unknown_kinds_are_named() {
    let lists = byte_level("kimi-k2");
    let message = error(&lists.vocabulary());
    assert!(message.starts_with("tokenizer.ggml.pre \"kimi-k2\" is not supported"), "{message}");
    assert!(message.contains("--pre NAME") && message.contains("llama-bpe, "), "{message}");
    let lists = Lists { model: "t5", ..byte_level("gpt-2") };
    let message = error(&lists.vocabulary());
    assert!(message.starts_with("tokenizer.ggml.model \"t5\" is not supported"), "{message}");
}

#[test]
fn missing_lists_are_named() {
    let (bpe, spm) = (byte_level("gpt-2"), sentence_piece());
    let message = error(&Vocabulary { merges: None, ..bpe.vocabulary() });
    assert_eq!(message, "a vocabulary of model \"gpt2\" needs tokenizer.ggml.merges");
    let message = error(&Vocabulary { merges: None, ..characters().vocabulary() });
    assert_eq!(message, "a vocabulary of model \"gemma4\" needs tokenizer.ggml.merges");
    let message = error(&Vocabulary { scores: None, ..spm.vocabulary() });
    assert_eq!(message, "a vocabulary of model \"llama\" needs tokenizer.ggml.scores");
    let message = error(&Vocabulary { tokens: vec![], ..bpe.vocabulary() });
    assert!(message.contains("tokenizer.ggml.tokens has 0 tokens"), "{message}");
    // Types are optional: without them all tokens are normal.
    assert!(Tokenizer::new(&Vocabulary { token_types: None, ..bpe.vocabulary() }).is_ok());
}

#[test]
fn lengths_must_agree() {
    let message = with(byte_level("gpt-2"), |lists| lists.types.truncate(5));
    assert!(message.starts_with("tokenizer.ggml.token_type has 5 entries for "), "{message}");
    let message = with(sentence_piece(), |lists| lists.scores.push(0.0));
    assert!(message.starts_with("tokenizer.ggml.scores has "), "{message}");
}

#[test]
fn byte_tokens_must_name_their_byte() {
    for text in ["<0x-1>", "<0xZZ>", "<0x+1>", "<0x041>", "<0x4>", "0x41", "<0x41", ""] {
        let message = with(sentence_piece(), |lists| {
            lists.tokens.retain(|token| token != text);
            lists.types.truncate(lists.tokens.len());
            lists.scores.truncate(lists.tokens.len());
            lists.add(text, BYTE, 0.0);
        });
        assert!(message.contains(&format!("{text:?}, expected \"<0x00>\"")), "{message}");
    }
}

#[test]
fn every_byte_needs_a_token_or_an_unknown_one() {
    let mut lists = sentence_piece();
    let at = lists.tokens.iter().position(|token| token == "<0xC3>").unwrap();
    lists.tokens[at] = "other".into();
    lists.types[at] = NORMAL;
    let tokenizer = lists.tokenizer();
    let tokens = tokenizer.encode("ü", Default::default()).unwrap();
    assert!(tokens.contains(&TokenId(0)), "the unknown token takes the byte: {tokens:?}");
    let mut own = characters();
    own.tokens[4 + 0xc3] = "other".into();
    own.types[4 + 0xc3] = NORMAL;
    let tokens = own.tokenizer().encode("ü", Default::default()).unwrap();
    assert_eq!(tokens, [TokenId(3), TokenId(4 + 0xbc)]);
    let message = with(own, |lists| lists.special.unknown = None);
    assert!(message.starts_with("no token for the byte 0xC3, and no unknown"), "{message}");
    // By default token 0 is the unknown token; a "llama" vocabulary without it is refused.
    let message = with(lists, |lists| lists.special.unknown = Some(4_000));
    assert!(message.starts_with("tokenizer.ggml.unknown_token_id is 4000, outside"), "{message}");
}

/// The token that represents a byte must be one that may be typed; otherwise a player could type a
/// control token.
#[test]
fn unknown_bytes_never_become_control_tokens() {
    // "llama" always treats token 0 as unknown, even if the file does not.
    for (unknown, kind) in [(None, CONTROL), (Some(0), CONTROL), (Some(0), USER_DEFINED)] {
        let message = with(sentence_piece(), |lists| {
            let at = lists.tokens.iter().position(|token| token == "<0xC3>").unwrap();
            lists.tokens[at] = "other".into();
            lists.types[at] = NORMAL;
            lists.types[0] = kind;
            lists.special.unknown = unknown;
        });
        assert!(message.starts_with("no token for the byte 0xC3, and no unknown"), "{message}");
    }
}

/// A file may use the same token for two roles, or one text twice.
#[test]
fn unknown_bytes_never_become_end_of_generation_tokens() {
    for repeats in [false, true] {
        let end = |lists: &mut Lists| {
            let end = lists.add(if repeats { "<unk>" } else { "the end" }, NORMAL, 0.0);
            lists.special.unknown = Some(end);
            lists.special.eos = Some(end);
        };
        let mut spm = sentence_piece();
        let at = spm.tokens.iter().position(|token| token == "<0xC3>").unwrap();
        spm.tokens[at] = "other".into();
        spm.types[at] = NORMAL;
        let mut bpe = byte_level("gpt-2");
        bpe.tokens[0xc3] = "other".into();
        for lists in [spm, bpe] {
            let message = with(lists, end);
            assert!(message.starts_with("no token for the byte 0xC3, and no unknown"), "{message}");
        }
    }
}

#[test]
fn byte_level_vocabularies_need_all_bytes() {
    let without = |byte: u8| {
        let mut lists = byte_level("gpt-2");
        lists.tokens[usize::from(byte)] = "other".into();
        lists
    };
    for byte in [b'a', b'\n', 0xc3, 0xbc] {
        let message = with(without(byte), |_| ());
        assert!(message.starts_with(&format!("no token for the byte 0x{byte:02X}, and")));
        let message = with(without(byte), |lists| {
            lists.special.unknown = Some(lists.add("<unk>", CONTROL, 0.0));
        });
        assert!(message.starts_with(&format!("no token for the byte 0x{byte:02X}, and")));
    }
    let mut lists = without(0xc3);
    let unknown = lists.add("<unk>", UNKNOWN, 0.0);
    lists.special.unknown = Some(unknown);
    let tokens = lists.tokenizer().encode("ü", Default::default()).unwrap();
    assert_eq!(tokens, [TokenId(unknown), TokenId(0xbc)]);
    // Bytes that ordinary text does not contain may be missing.
    for byte in [0x01, 0x7f, 0xc0, 0xf4, 0xff] {
        without(byte).tokenizer();
    }
}

/// A single bracket that a file marks as user-defined is an ordinary character.
#[test]
fn single_characters_are_no_markers() {
    let mut lists = byte_level("gpt-2");
    for c in "<>[]|".bytes() {
        lists.types[usize::from(c)] = USER_DEFINED;
    }
    let tokenizer = lists.tokenizer();
    let text = "a < b [c] | <|im_end|>";
    let prompt = Prompt { segments: vec![Segment::Untrusted(text.into())] };
    let tokens = tokenizer.encode_prompt(&prompt).unwrap();
    assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    assert!(!tokens.iter().any(|&token| tokenizer.is_reserved(token)));
}

#[test]
fn merges_are_two_texts() {
    for text in ["ab", "", " ", "a ", " a", "a b c", "a  b"] {
        for lists in [byte_level("gpt-2"), characters()] {
            let message = with(lists, |lists| lists.merges.insert(3, text.into()));
            let expected = format!("tokenizer.ggml.merges[3] is {text:?}, expected two texts");
            assert!(message.starts_with(&expected), "{message}");
        }
    }
}

#[test]
fn merges_of_unknown_tokens_are_ignored() {
    let mut lists = byte_level("gpt-2");
    lists.merges.extend(["x y".into(), "xy z".into(), "日 本".into(), "q nosuchtoken".into()]);
    let tokenizer = lists.tokenizer();
    // "xyz" merges into a text that is not a token, so it is spelled by its bytes.
    let tokens = tokenizer.encode("xyz", Default::default()).unwrap();
    assert_eq!(tokens.len(), 3);
    assert_eq!(tokenizer.decode(&tokens).unwrap(), "xyz");
}

#[test]
fn special_ids_must_be_in_the_vocabulary() {
    let message = with(byte_level("gpt-2"), |lists| lists.special.eos = Some(9999));
    assert!(message.starts_with("tokenizer.ggml.eos_token_id is 9999, outside"), "{message}");
    let message = with(byte_level("gpt-2"), |lists| {
        lists.special.bos = None;
        lists.add_bos = Some(true);
    });
    assert!(message.contains("there is no tokenizer.ggml.bos_token_id"), "{message}");
}

/// A model file with these tokens and the keys that `more` writes.
fn file(lists: &Lists, more: impl FnOnce(&mut Writer)) -> Gguf {
    let mut writer = Writer::new();
    writer.str("tokenizer.ggml.model", lists.model);
    writer.str("tokenizer.ggml.pre", lists.pre);
    writer.strings("tokenizer.ggml.tokens", lists.tokens.iter().map(String::as_str));
    writer.strings("tokenizer.ggml.merges", lists.merges.iter().map(String::as_str));
    writer.f32s("tokenizer.ggml.scores", &lists.scores);
    let types: Vec<i32> = lists.types.iter().map(|&code| code as i32).collect();
    writer.i32s("tokenizer.ggml.token_type", &types);
    more(&mut writer);
    let bytes = writer.begin(Vec::new()).unwrap().finish().unwrap();
    Gguf::from_bytes(bytes.as_slice()).unwrap()
}

/// Roles with two keys are named by the key in the file; numbers are printed unchanged.
#[test]
fn special_ids_are_named_as_the_file_does() {
    for (key, id) in [
        ("tokenizer.ggml.fim_pad_token_id", 99_999),
        ("tokenizer.ggml.bos_token_id", 1 << 32),
        ("tokenizer.ggml.eos_token_id", 1 << 40),
    ] {
        let file = file(&byte_level("gpt-2"), |writer| _ = writer.value(key, Value::U64(id)));
        let message = Tokenizer::from_gguf(&file).unwrap_err().to_string();
        assert!(message.starts_with(&format!("{key} is {id}, outside")), "{message}");
    }
}

/// A template prints the tokenizer's BOS and EOS, regardless of how the file specifies them.
#[test]
fn templates_receive_the_tokenizers_bos_and_eos() {
    let text = |lists: &Lists, more: fn(&mut Writer)| {
        let file = file(lists, |writer| {
            writer.str("tokenizer.chat_template", "[{{ bos_token }}|{{ eos_token }}]");
            more(writer);
        });
        let tokenizer = Tokenizer::from_gguf(&file).unwrap();
        let own = |token: Option<TokenId>| {
            token.map_or("", |token| str::from_utf8(tokenizer.token_bytes(token)).unwrap())
        };
        let template = ChatTemplate::from_gguf(&file).unwrap().unwrap();
        let messages = [Message::new(Role::User, "x")];
        let text = template.render(&messages, &RenderOptions::default()).unwrap().text();
        assert_eq!(text, format!("[{}|{}]", own(tokenizer.bos()), own(tokenizer.eos())));
        text
    };
    assert_eq!(text(&sentence_piece(), |_| ()), "[<s>|</s>]", "the defaults of \"llama\"");
    let none =
        |writer: &mut Writer| _ = writer.value("tokenizer.ggml.bos_token_id", Value::I32(-1));
    assert_eq!(text(&byte_level("gpt-2"), none), "[|]");
    let eos = |writer: &mut Writer| _ = writer.u32("tokenizer.ggml.eos_token_id", 0);
    assert_eq!(text(&sentence_piece(), eos), "[<s>|<unk>]");
}

#[test]
fn invalid_types_and_scores_are_refused() {
    let message = with(byte_level("gpt-2"), |lists| lists.types[65] = 7);
    assert!(message.contains("token 65 (") && message.contains("has type 7"), "{message}");
    let message = with(sentence_piece(), |lists| lists.scores[300] = f32::NAN);
    assert!(message.starts_with("token 300 (") && message.contains("NaN"), "{message}");
}

#[test]
fn tokens_without_text_are_not_found() {
    let mut lists = byte_level("gpt-2");
    lists.add("", 1, 0.0);
    lists.add("", 3, 0.0);
    let tokenizer = lists.tokenizer();
    assert_eq!(tokenizer.encode("ab", Default::default()).unwrap().len(), 2);
    assert_eq!(tokenizer.special_token(""), None);
}
