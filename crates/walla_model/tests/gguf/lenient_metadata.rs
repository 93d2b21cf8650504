//! Metadata that walla does not use never prevents loading. Metadata that it uses is checked, and
//! errors name it.

use crate::gguf_common::{ARRAY, BOOL, Raw, STRING, U8, U32, array, text};
use crate::reference_data::data;
use crate::spec_common::{llama, spoil};
use crate::tokenizer_common::{Lists, byte_level, sentence_piece};
use walla_doubles::synth::Model;
use walla_model::chat::ChatTemplate;
use walla_model::gguf::{Strings, Unreadable, Writer};
use walla_model::tokenizer::{EncodeOptions, Tokenizer};
use walla_model::{Gguf, MetadataError, ModelSpec, Value};
use walla_reference_test::reference_test;
use walla_types::TokenId;

/// A valid model file with entries added to its header.
fn with_entries(file: &[u8], entries: &[(&[u8], u32, Vec<u8>)]) -> Vec<u8> {
    let count = u64::from_le_bytes(file[16..24].try_into().unwrap());
    let sound = Gguf::from_bytes(file).unwrap();
    let data: u64 = (0..sound.tensors().len())
        .map(|i| sound.tensor_bytes(i).unwrap().len().next_multiple_of(32) as u64)
        .sum();
    let mut out = file[..16].to_vec();
    out.extend((count + entries.len() as u64).to_le_bytes());
    for (key, code, value) in entries {
        out.extend(text(key));
        out.extend(code.to_le_bytes());
        out.extend(value);
    }
    // The rest of the header, which the padding follows.
    let header = file.len() - data as usize;
    let tensors_end = end_of_tensors(file, &sound);
    assert!(tensors_end <= header);
    out.extend(&file[24..tensors_end]);
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(&file[header..]);
    out
}

/// End of the last tensor's description, whose last field is its offset.
fn end_of_tensors(file: &[u8], sound: &Gguf) -> usize {
    let last = sound.tensors().last().unwrap();
    let name = text(last.name.as_bytes());
    let at = file.windows(name.len()).rposition(|bytes| bytes == name).unwrap();
    at + name.len() + 4 + 8 * last.shape.dims().len() + 4 + 8
}

/// Every kind of defect that a reader can skip.
fn odd_entries() -> Vec<(&'static [u8], u32, Vec<u8>)> {
    let nested = array(ARRAY, 2, &[array(U8, 1, &[7]), array(STRING, 1, &text(b"x"))].concat());
    vec![
        (b"odd.text", STRING, text(b"D:\\\xc4\xa3\xd0\xcd\\imatrix.dat")),
        (b"odd.texts", ARRAY, array(STRING, 2, &[text(b"a"), text(b"\xff")].concat())),
        (b"odd.bool", BOOL, vec![2]),
        (b"odd.bools", ARRAY, array(BOOL, 3, &[0, 1, 255])),
        (b"odd.nested", ARRAY, nested),
        (b"odd.empty", ARRAY, array(99, 0, &[])),
        (b"odd.number", 6, f32::NAN.to_le_bytes().to_vec()),
        (b"", U32, vec![1, 2, 3, 4]),
        (b"odd.\xff.key", U8, vec![1]),
        (b"odd.twice", U8, vec![1]),
        (b"odd.twice", BOOL, vec![1]),
    ]
}

#[test]
fn defects_of_unused_keys_only_add_warnings() {
    let sound = spoil(&Model::QWEN3_0_6B).file();
    let odd = Gguf::from_bytes(with_entries(&sound, &odd_entries())).unwrap();
    let sound = Gguf::from_bytes(sound).unwrap();
    assert!(sound.warnings().is_empty());
    assert_eq!(ModelSpec::from_gguf(&odd, 1024), ModelSpec::from_gguf(&sound, 1024));
    let tokens = |file: &Gguf| {
        let tokenizer = Tokenizer::from_gguf(file).unwrap();
        assert!(tokenizer.warnings().is_empty());
        tokenizer.encode("Hello there", EncodeOptions::default()).unwrap()
    };
    assert_eq!(tokens(&odd), tokens(&sound));
    assert!(ChatTemplate::from_gguf(&odd).unwrap().is_some());
    let last = sound.tensors().len() - 1;
    assert_eq!(odd.tensor_bytes(last), sound.tensor_bytes(last));

    let warnings: Vec<_> = odd.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            r#"key "odd.text" holds a STRING that is not UTF-8: it is ignored"#,
            "key \"odd.texts\" holds an ARRAY of 2 STRING, of which number 1 is not UTF-8: \
             it is ignored",
            r#"key "odd.bool" holds BOOL 2, which is neither 0 nor 1: it is ignored"#,
            "key \"odd.bools\" holds an ARRAY of 3 BOOL with BOOL 255, which is neither 0 nor 1: \
             it is ignored",
            r#"key "odd.nested" holds an ARRAY of ARRAY: it is ignored"#,
            r#"key "odd.empty" holds an empty ARRAY of the unknown type 99: it is ignored"#,
            "the metadata has an empty key",
            r#"key "odd.twice" appears twice"#,
            r#"key "odd.�.key" is not UTF-8: it is ignored"#,
        ]
    );
}

#[test]
fn every_such_defect_is_an_error_that_names_the_key_where_it_is_used() {
    let file = Raw::good().with(|f| {
        odd_entries().iter().for_each(|(key, code, value)| f.entry(key, *code, value));
    });
    let gguf = Gguf::from_bytes(file).unwrap();
    let text = |key: &str| gguf.require::<&str>(key).unwrap_err().to_string();
    assert_eq!(
        text("odd.text"),
        r#"key "odd.text" holds a STRING that is not UTF-8, expected a STRING"#
    );
    let texts = gguf.require::<Strings<'_>>("odd.texts").unwrap_err().to_string();
    assert!(texts.starts_with(r#"key "odd.texts" holds an ARRAY of 2 STRING, of which number 1"#));
    let flag = gguf.require::<bool>("odd.bool").unwrap_err().to_string();
    assert!(flag.starts_with(r#"key "odd.bool" holds BOOL 2, which is neither"#), "{flag}");
    assert!(text("odd.nested").contains("holds an ARRAY of ARRAY, expected a STRING"));
    assert_eq!(
        gguf.find::<u32>("odd.twice"),
        Err(MetadataError::Duplicate { key: "odd.twice".into() })
    );
    // Listings contain all entries.
    assert_eq!(gguf.get("odd.twice"), Some(Value::U8(1)), "the first one");
    assert_eq!(gguf.get("odd.bool"), Some(Value::Unreadable(Unreadable::Bool(2))));
    let Some(Value::Array(flags)) = gguf.get("odd.bools") else { panic!("an array") };
    assert_eq!(flags.get(2), Some(Value::Unreadable(Unreadable::Bool(255))));
    let Some(Value::Array(texts)) = gguf.get("odd.texts") else { panic!("an array") };
    assert_eq!(texts.get(1), Some(Value::Unreadable(Unreadable::Text(b"\xff"))));
    assert_eq!(gguf.get("odd.text").unwrap().to_string(), "D:\\ģ��\\imatrix.dat");
    assert_eq!(gguf.get(""), Some(Value::U32(0x0403_0201)));
}

#[test]
fn many_warnings_are_counted() {
    let file = Raw::good().with(|f| {
        (0..100).for_each(|i| f.entry(format!("k{i}").as_bytes(), BOOL, &[9]));
    });
    let warnings = Gguf::from_bytes(file).unwrap().warnings();
    assert_eq!(warnings.len(), 17);
    assert_eq!(warnings.last().unwrap(), "84 more defects in the metadata");
    let long = Raw::good().with(|f| f.entry(&[b'k'; 60_000], BOOL, &[9]));
    let warnings = Gguf::from_bytes(long).unwrap().warnings();
    assert!(warnings[0].to_string().len() < 300, "{}", warnings[0]);
}

/// Odd values are copied unchanged.
#[test]
fn the_writer_keeps_odd_values() {
    let file = Raw::good().with(|f| {
        odd_entries()[..6].iter().for_each(|(key, code, value)| f.entry(key, *code, value));
    });
    let first = Gguf::from_bytes(file).unwrap();
    let mut writer = Writer::new();
    for (key, value) in first.metadata() {
        writer.value(key, value);
    }
    let second = writer.begin(Vec::new()).unwrap().finish().unwrap();
    let second = Gguf::from_bytes(second).unwrap();
    assert!(first.metadata().eq(second.metadata()));
    assert_eq!(first.warnings(), second.warnings());
}

#[test]
fn keys_of_other_configurations_are_ignored() {
    let wrong = |key: &str| llama().set(key, Value::String("wrong")).spec();
    for key in [
        "general.name",
        "llama.rope.scaling.original_context_length",
        "llama.rope.scaling.yarn_beta_fast",
        "llama.attention.sliding_window_pattern",
        "llama.vocab_size",
        "split.no",
    ] {
        assert!(wrong(key).is_ok(), "{key}: {:?}", wrong(key));
    }
    let none = || llama().set("llama.rope.scaling.type", Value::String("none"));
    assert!(none().set("llama.rope.scaling.factor", Value::F32(f32::NAN)).spec().is_ok());
    let yarn = llama()
        .set("llama.rope.scaling.type", Value::String("yarn"))
        .set("llama.rope.scaling.original_context_length", Value::U32(0));
    assert!(yarn.message().contains("original_context_length\" is 0, expected 1..="));
    let gemma = || spoil(&Model::GEMMA_3_1B).set("gemma3.rope.freq_base_swa", Value::F32(f32::NAN));
    assert!(gemma().spec().is_err());
    assert!(gemma().set("gemma3.attention.sliding_window", Value::U32(0)).spec().is_ok());
    // The context selects one of two sets of rotation factors.
    let sets = || {
        let short = llama().drop("rope_freqs.weight").add("rope_factors_short.weight", &[8]);
        short.add("rope_factors_long.weight", &[9])
    };
    let at = |context: u32| {
        let model = sets().set("llama.rope.scaling.original_context_length", Value::U32(512));
        ModelSpec::from_gguf(&Gguf::from_bytes(model.file()).unwrap(), context)
    };
    assert!(at(512).is_ok());
    let message = at(513).unwrap_err().to_string();
    assert!(message.contains("\"rope_factors_long.weight\" has shape [9]"), "{message}");
}

/// A file with a vocabulary's lists and the keys that `more` writes.
fn file(lists: &Lists, more: impl FnOnce(&mut Writer)) -> Gguf {
    let mut writer = Writer::new();
    writer.str("tokenizer.ggml.model", lists.model);
    writer.strings("tokenizer.ggml.tokens", lists.tokens.iter().map(String::as_str));
    let types: Vec<i32> = lists.types.iter().map(|&code| code as i32).collect();
    writer.i32s("tokenizer.ggml.token_type", &types);
    if lists.model == "gpt2" {
        writer.str("tokenizer.ggml.pre", lists.pre);
        writer.strings("tokenizer.ggml.merges", lists.merges.iter().map(String::as_str));
    } else {
        writer.f32s("tokenizer.ggml.scores", &lists.scores);
    }
    more(&mut writer);
    let bytes = writer.begin(Vec::new()).unwrap().finish().unwrap();
    Gguf::from_bytes(bytes.as_slice()).unwrap()
}

#[test]
fn lists_of_the_other_tokenizer_model_are_ignored() {
    let tokens = |gguf: &Gguf| {
        let tokenizer = Tokenizer::from_gguf(gguf).unwrap();
        tokenizer.encode("the </s> 12", EncodeOptions::default()).unwrap()
    };
    let byte_level = byte_level("gpt-2");
    let spoilt = file(&byte_level, |writer| {
        writer.f32s("tokenizer.ggml.scores", &[f32::NAN; 3]);
        writer.str("tokenizer.ggml.add_space_prefix", "yes");
        writer.u32("general.name", 7);
    });
    assert_eq!(tokens(&spoilt), tokens(&file(&byte_level, |_| ())));
    let pieces = sentence_piece();
    let spoilt = file(&pieces, |writer| {
        writer.strings("tokenizer.ggml.merges", ["", "a b c"].into_iter());
        writer.str("tokenizer.ggml.pre", "no-such-pre-tokenizer");
    });
    assert_eq!(tokens(&spoilt), tokens(&file(&pieces, |_| ())));
}

#[test]
fn scores_count_where_merges_use_them() {
    let mut pieces = sentence_piece();
    pieces.scores[..3].fill(f32::NAN); // unknown and control tokens never merge
    assert!(Tokenizer::from_gguf(&file(&pieces, |_| ())).is_ok());
    pieces.scores[300] = f32::NAN;
    let message = Tokenizer::from_gguf(&file(&pieces, |_| ())).unwrap_err().to_string();
    assert!(
        message.starts_with("token 300 (") && message.contains("NaN in tokenizer.ggml.scores"),
        "{message}"
    );
}

/// walla does not use fill-in-the-middle, so an invalid id of these roles is a warning.
#[test]
fn ids_of_unused_roles_are_ignored() {
    for (key, value) in [
        ("tokenizer.ggml.prefix_token_id", Value::U64(99_999)),
        ("tokenizer.ggml.fim_suf_token_id", Value::U64(1 << 32)),
        ("tokenizer.ggml.fim_mid_token_id", Value::String("<MID>")),
    ] {
        let gguf = file(&byte_level("gpt-2"), |writer| _ = writer.value(key, value));
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        let [warning] = tokenizer.warnings() else { panic!("{:?}", tokenizer.warnings()) };
        assert!(warning.to_string().contains(key), "{warning}");
    }
}

#[test]
fn the_first_of_equal_texts_encodes_and_all_decode() {
    let mut lists = byte_level("gpt-2");
    let first = lists.tokens.iter().position(|token| token == "he").unwrap() as u32;
    let second = lists.add("he", 1, 0.0);
    let tokenizer = lists.tokenizer();
    let tokens = tokenizer.encode("he", EncodeOptions::default()).unwrap();
    assert_eq!(tokens, [TokenId(first)]);
    assert_eq!(tokenizer.decode(&[TokenId(first), TokenId(second)]).unwrap(), "hehe");
    let expected =
        format!("has 1 duplicate texts, the first one is \"he\" (tokens {first} and {second})");
    let [warning] = tokenizer.warnings() else { panic!("{:?}", tokenizer.warnings()) };
    assert!(warning.contains(&expected), "{warning}");

    let mut lists = sentence_piece();
    let first = lists.tokens.iter().position(|token| token == "he").unwrap() as u32;
    let second = lists.add("he", 1, 5.0);
    let tokenizer = lists.tokenizer();
    let tokens = tokenizer.encode("he", EncodeOptions::default()).unwrap();
    assert!(tokens.contains(&TokenId(first)) && !tokens.contains(&TokenId(second)), "{tokens:?}");
    assert_eq!(tokenizer.decode(&[TokenId(first), TokenId(second)]).unwrap(), "hehe");
}

/// A second `<|im_end|>` with type normal cannot be typed, ends a reply and is hidden, like the
/// first one.
#[test]
fn the_second_of_two_markers_is_a_marker_too() {
    for mut lists in [byte_level("gpt-2"), sentence_piece()] {
        let text = if lists.model == "gpt2" { "<|im_end|>" } else { "</s>" };
        let second = TokenId(lists.add(text, 1, 9.0));
        let tokenizer = lists.tokenizer();
        let first = tokenizer.special_token(text).unwrap();
        assert!(first < second && tokenizer.is_control(second), "{text}");
        assert!(tokenizer.is_end_of_generation(second) && tokenizer.is_reserved(second));
        let parsed = EncodeOptions { add_special: false, parse_special: true };
        assert_eq!(tokenizer.encode(text, parsed).unwrap(), [first]);
        let typed = tokenizer.encode(text, EncodeOptions::default()).unwrap();
        assert!(!typed.contains(&first) && !typed.contains(&second), "{typed:?}");
        assert_eq!(tokenizer.decode(&[second]).unwrap(), "");
    }
}

/// The reference files that were once refused.
#[reference_test]
fn reference_cases_load() {
    let load = |name: &str| {
        let gguf = Gguf::open(data(&format!("cases/{name}"))).unwrap();
        assert!(ModelSpec::from_gguf(&gguf, 512).is_ok(), "{name}");
        (Tokenizer::from_gguf(&gguf).unwrap(), gguf)
    };
    let (tokenizer, _) = load("05-duplicate-token-texts.gguf");
    let [warning] = tokenizer.warnings() else { panic!("{:?}", tokenizer.warnings()) };
    let numbers = warning.split(['(', ')', ' ']).filter_map(|word| word.parse().ok().map(TokenId));
    let [_, first, second] = numbers.collect::<Vec<_>>()[..] else { panic!("{warning}") };
    assert!(
        warning.contains(&format!("{:?}", str::from_utf8(tokenizer.token_bytes(first)).unwrap()))
    );
    assert_eq!(tokenizer.token_bytes(first), tokenizer.token_bytes(second));
    let tokens = tokenizer.encode("red ed", EncodeOptions::default()).unwrap();
    assert!(tokens.contains(&first) && !tokens.contains(&second), "{tokens:?}");
    let (_, gguf) = load("08-metadata-not-utf8.gguf");
    let [warning] = &gguf.warnings()[..] else { panic!("{:?}", gguf.warnings()) };
    assert!(warning.to_string().contains("\"quantize.imatrix.file\""), "{warning}");
}
