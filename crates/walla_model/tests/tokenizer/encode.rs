//! Encoding rules on small vocabularies: tokens and text.

use crate::tokenizer_common::{
    CONTROL, Lists, NORMAL, USER_DEFINED, byte_level, characters, sentence_piece,
};
use walla_model::tokenizer::{EncodeOptions, PreTokenizer, Tokenizer, TokenizerError};
use walla_types::TokenId;

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const PARSED: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

/// The texts of the tokens.
fn shown(tokenizer: &Tokenizer, text: &str, options: EncodeOptions) -> Vec<String> {
    let tokens = tokenizer.encode(text, options).unwrap();
    let text =
        |&token: &TokenId| String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned();
    tokens.iter().map(text).collect()
}

#[test]
fn pairs_merge_by_rank_and_words_apart() {
    let tokenizer = byte_level("gpt-2").tokenizer();
    assert_eq!(shown(&tokenizer, "the there 123", PLAIN), ["t", "he", " the", "re", " ", "123"]);
    let qwen = byte_level("qwen2").tokenizer();
    assert_eq!(shown(&qwen, "123", PLAIN), ["1", "2", "3"], "each digit is a word");
}

#[test]
fn equal_ranks_merge_from_left_to_right() {
    let tokenizer = byte_level("gpt-2").tokenizer();
    assert_eq!(shown(&tokenizer, "   ", PLAIN), ["  ", " "]);
    // Three spaces before a word: the last belongs to the word, the others merge.
    assert_eq!(shown(&tokenizer, "   a", PLAIN), ["  ", " a"]);
}

#[test]
fn whole_words_are_taken_where_merges_are_ignored() {
    let mut lists = byte_level("llama-bpe");
    lists.add("hello", 1, 0.0);
    assert_eq!(shown(&lists.tokenizer(), "hello", PLAIN), ["hello"]);
    lists.pre = "gpt-2";
    assert_eq!(shown(&lists.tokenizer(), "hello", PLAIN), ["he", "l", "l", "o"]);
}

#[test]
fn control_tokens_are_parsed_only_on_request() {
    for tokenizer in [byte_level("gpt-2").tokenizer(), sentence_piece().tokenizer()] {
        let marker = if tokenizer.special_token("</s>").is_some() { "</s>" } else { "<|im_end|>" };
        let id = tokenizer.special_token(marker).unwrap();
        assert!(tokenizer.is_control(id));
        assert!(tokenizer.encode(marker, PARSED).unwrap().contains(&id));
        // Merges exist that would spell it.
        assert!(!tokenizer.encode(marker, PLAIN).unwrap().contains(&id));
        assert_eq!(tokenizer.decode(&tokenizer.encode(marker, PLAIN).unwrap()).unwrap(), marker);
    }
}

#[test]
fn user_defined_tokens_are_always_parsed() {
    let tokenizer = byte_level("gpt-2").tokenizer();
    assert_eq!(shown(&tokenizer, "a<think>\n\n\nb", PLAIN), ["a", "<think>", "\n\n\n", "b"]);
    assert!(tokenizer.is_reserved(tokenizer.special_token("<think>").unwrap()));
    assert!(!tokenizer.is_reserved(tokenizer.special_token("\n\n\n").unwrap()));
}

#[test]
fn the_text_of_a_byte_token_is_encoded_as_text() {
    let tokenizer = sentence_piece().tokenizer();
    let tokens = tokenizer.encode("<0x41>", PLAIN).unwrap();
    assert_eq!(tokenizer.decode(&tokens).unwrap(), "<0x41>");
    assert!(!tokens.contains(&TokenId(3 + 0x41)));
}

#[test]
fn text_without_tokens_is_encoded_as_bytes() {
    let tokenizer = sentence_piece().tokenizer();
    let tokens = tokenizer.encode("ü", PLAIN).unwrap();
    let space = tokenizer.encode("", PLAIN).unwrap().len();
    assert_eq!(tokens.get(space + 1..).unwrap(), [TokenId(3 + 0xc3), TokenId(3 + 0xbc)]);
    assert_eq!(tokenizer.decode(&tokens).unwrap(), "ü");
}

#[test]
fn space_prefix_at_the_beginning_and_after_special_tokens() {
    let mut lists = sentence_piece();
    assert_eq!(shown(&lists.tokenizer(), "the</s>the", PARSED), [" the", "</s>", " the"]);
    assert_eq!(shown(&lists.tokenizer(), "", PARSED), [""; 0]);
    lists.add_space_prefix = Some(false);
    assert_eq!(shown(&lists.tokenizer(), "the</s>the", PARSED), ["t", "he", "</s>", "t", "he"]);
}

#[test]
fn bos_and_eos_follow_the_file() {
    let mut lists = byte_level("gpt-2");
    let special = EncodeOptions { add_special: true, parse_special: false };
    assert_eq!(shown(&lists.tokenizer(), "a", special), ["a"]);
    lists.add_bos = Some(true);
    assert_eq!(shown(&lists.tokenizer(), "a", special), ["<|begin|>", "a"]);
    lists.add_bos = None;
    lists.pre = "llama-bpe";
    assert_eq!(shown(&lists.tokenizer(), "a", special), ["<|begin|>", "a"]);
    assert_eq!(shown(&sentence_piece().tokenizer(), "the", special), ["<s>", " the"]);
}

#[test]
fn markers_of_phi_strip_the_white_space_after_them() {
    let mut lists = byte_level("gpt-2");
    assert_eq!(
        shown(&lists.tokenizer(), "<|im_end|> \n a", PARSED),
        ["<|im_end|>", " ", "\n", " a"]
    );
    lists.model_name = "Phi-3 mini 4k";
    assert_eq!(shown(&lists.tokenizer(), "<|im_end|> \n a", PARSED), ["<|im_end|>", "a"]);
}

#[test]
fn a_word_of_1_mib_is_encoded_in_linear_time() {
    // One word of 1 MiB (a quadratic merge would take hours); `merge::tests` count the work.
    for lists in [byte_level("gpt-2"), sentence_piece(), characters()] {
        let tokenizer = lists.tokenizer();
        for unit in ["a", "the", "é", " the", "ü", "    ", "\n"] {
            let text = unit.repeat((1 << 20) / unit.len());
            let tokens = tokenizer.encode(&text, PLAIN).unwrap();
            assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
        }
    }
}

/// Gemma 4: merges run over a whole line, and a space is a character like any other.
#[test]
fn merges_of_characters_cross_words() {
    let tokenizer = characters().tokenizer();
    assert_eq!(shown(&tokenizer, "the the there", PLAIN), ["t", "he", " the", " the", "re"]);
    // Ranks decide, wherever a word begins: the first space merges into " t".
    assert_eq!(shown(&tokenizer, "e  t", PLAIN), ["e ", " t"]);
    assert_eq!(shown(&tokenizer, "e    t", PLAIN), ["e", "  ", " ", " t"]);
    assert_eq!(shown(&tokenizer, "▁the", PLAIN), [" the"], "▁ is a space");
    assert!(!tokenizer.adds_space_prefix());
}

#[test]
fn characters_without_tokens_become_bytes() {
    let tokenizer = characters().tokenizer();
    let bytes = |text: &str| text.bytes().map(|byte| TokenId(4 + u32::from(byte))).collect();
    let encode = |text: &str| tokenizer.encode(text, PLAIN).unwrap();
    let plain: Vec<TokenId> = bytes("ü😀\t\r");
    assert_eq!(encode("ü😀\t\r"), plain);
    assert_eq!(shown(&tokenizer, "é日", PLAIN), ["é", "日"]);
    // A merge may lead to a text without a token. It is spelled by bytes, as in llama.cpp.
    let typed = encode("<|turn");
    assert_eq!(typed, bytes("<|turn"));
    assert_eq!(tokenizer.decode(&typed).unwrap(), "<|turn");
    assert_eq!(shown(&tokenizer, "<0x41>", PLAIN), ["<", "0", "x", "4", "1", ">"]);
}

#[test]
fn runs_of_line_breaks_are_tokens_or_merged() {
    let mut lists = characters();
    assert_eq!(
        shown(&lists.tokenizer(), "e\n\nt\n \n\n\n", PLAIN),
        ["e", "\n\n", "t", "\n", " ", "\n\n\n"]
    );
    let four = "\n".repeat(4);
    assert_eq!(shown(&lists.tokenizer(), &four, PLAIN), ["\n"; 4]);
    lists.merges.push("\n \n".into());
    assert_eq!(shown(&lists.tokenizer(), &four, PLAIN), ["\n\n", "\n\n"]);
    // Other line breaks are text.
    lists.tokens.iter_mut().filter(|text| text.starts_with('\n')).for_each(|text| text.push('x'));
    let byte = TokenId(4 + u32::from(b'\n'));
    assert_eq!(lists.tokenizer().encode("\n\n", PLAIN).unwrap(), [byte; 2]);
}

#[test]
fn gemma_4_adds_bos_whatever_the_file_says() {
    let special = EncodeOptions { add_special: true, parse_special: false };
    for add_bos in [None, Some(true), Some(false)] {
        let lists = Lists { add_bos, ..characters() };
        assert_eq!(shown(&lists.tokenizer(), "t", special), ["<bos>", "t"], "{add_bos:?}");
    }
    let mut lists = characters();
    lists.special.bos = None;
    assert_eq!(shown(&lists.tokenizer(), "t", special), ["t"]);
}

/// Files mark runs of spaces as user-defined; text of the file spells them as `▁`.
#[test]
fn user_defined_spaces_are_found_by_merging() {
    let mut lists = characters();
    let at = lists.tokens.iter().position(|text| text == "▁▁▁▁").unwrap();
    lists.types[at] = USER_DEFINED;
    let token = TokenId(at as u32);
    assert_eq!(lists.tokenizer().encode("    ", PLAIN).unwrap(), [token]);
    assert_eq!(lists.tokenizer().encode_untrusted("    ").unwrap(), [token]);
    // A token with a space in its text is matched before merging.
    lists.add(" a  ", USER_DEFINED, 0.0);
    lists.add("in re", NORMAL, 0.0);
    assert_eq!(shown(&lists.tokenizer(), "t a  in re", PLAIN)[..2], ["t", " a  "]);
}

#[test]
fn long_texts_are_refused_before_any_work() {
    let tokenizer = byte_level("gpt-2").tokenizer().with_max_text_bytes(3);
    assert!(tokenizer.encode("abc", PLAIN).is_ok());
    let refused = tokenizer.encode("abcd", PLAIN);
    assert_eq!(refused, Err(TokenizerError::TooLong { bytes: 4, max_bytes: 3 }));
}

#[test]
fn ends_of_generation_by_role_and_by_text() {
    let ends = |texts: &[(&str, i64)]| {
        let mut lists = byte_level("gpt-2");
        let first = lists.tokens.len() as u32;
        for (text, ty) in texts {
            lists.add(text, *ty, 0.0);
        }
        let tokenizer = lists.tokenizer();
        let new = (first..).map(TokenId).take(texts.len());
        new.map(|token| tokenizer.is_end_of_generation(token)).collect::<Vec<_>>()
    };
    assert_eq!(ends(&[("<|eot_id|>", CONTROL), ("<|other|>", CONTROL)]), [true, false]);
    assert_eq!(ends(&[("<end_of_turn>", 1)]), [true], "whatever type the file gives it");
    assert_eq!(ends(&[("<|end|>", CONTROL), ("<|return|>", CONTROL)]), [true, true]);
    let harmony = [("<|end|>", CONTROL), ("<|return|>", CONTROL), ("<|call|>", CONTROL)];
    assert_eq!(ends(&harmony), [false, true, true], "messages of one reply end with <|end|>");
    assert_eq!(ends(&[("</s>", 1), ("<|tool_response>", USER_DEFINED)]), [false, true]);
    let tokenizer = byte_level("gpt-2").tokenizer();
    assert!(tokenizer.is_end_of_generation(tokenizer.eos().unwrap()));
    assert_eq!(tokenizer.eot(), tokenizer.special_token("<|im_end|>"));
}

#[test]
fn every_supported_name_loads() {
    let names = [
        "",
        "default",
        "gpt-2",
        "llama-bpe",
        "llama3",
        "llama-v3",
        "qwen2",
        "deepseek-r1-qwen",
        "smollm",
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-v3",
        "falcon",
        "gpt-4o",
        "tekken",
        "dbrx",
        "smaug-bpe",
        "qwen35",
    ];
    for name in names {
        assert!(PreTokenizer::from_name(name).is_some(), "{name}");
        let lists = Lists { pre: name, ..byte_level("") };
        let tokenizer = lists.tokenizer();
        let text = "Hello, wörld! 12345 日本 \n\n end";
        let tokens = tokenizer.encode(text, PLAIN).unwrap();
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text, "{name}");
    }
}
