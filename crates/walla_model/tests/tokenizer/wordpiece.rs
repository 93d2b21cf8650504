//! WordPiece: words, pieces, normalisation, special tokens. Ids of a published vocabulary are
//! compared with the reference in `walla_embed/tests`.

use walla_model::tokenizer::{EncodeOptions, SpecialIds, Tokenizer, Vocabulary};
use walla_types::TokenId;

const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
const TOKENS: [&str; 21] = [
    "▁un",
    "▁afford",
    "able",
    "afford",
    "a",
    "▁a",
    "▁b",
    "▁,",
    "▁!",
    "▁cafe",
    "▁中",
    "▁文",
    "s",
    "▁playing",
    "▁play",
    "ing",
    "▁ᄒ",
    "ᅡ",
    "▁ß",
    "▁i",
    "▁[",
];

fn vocabulary() -> Vocabulary<'static> {
    let tokens: Vec<&str> = SPECIAL.into_iter().chain(TOKENS).collect();
    let types = (0..tokens.len()).map(|id| if id < SPECIAL.len() { 3 } else { 1 }).collect();
    Vocabulary {
        model: "bert",
        tokens,
        token_types: Some(types),
        special: SpecialIds {
            cls: Some(2),
            separator: Some(3),
            unknown: Some(1),
            ..SpecialIds::default()
        },
        ..Vocabulary::default()
    }
}

/// The tokens of a text, by their texts in the vocabulary.
fn pieces(vocabulary: &Vocabulary<'_>, text: &str) -> Vec<String> {
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    let ids = tokenizer.encode(text, EncodeOptions::default()).unwrap();
    ids.iter().map(|id| vocabulary.tokens[id.0 as usize].to_owned()).collect()
}

#[test]
fn words_become_the_longest_pieces() {
    let vocabulary = vocabulary();
    let cases: [(&str, &[&str]); 13] = [
        ("unaffordable", &["▁un", "afford", "able"]),
        ("afford unafford", &["▁afford", "▁un", "afford"]),
        ("playing plays", &["▁playing", "▁play", "s"]),
        ("a,b!", &["▁a", "▁,", "▁b", "▁!"]),
        // One part that cannot be spelled makes the whole word unknown.
        ("unaffordablex a", &["[UNK]", "▁a"]),
        ("s able", &["[UNK]", "[UNK]"]),
        ("中文a中", &["▁中", "▁文", "▁a", "▁中"]),
        ("CAFÉ Cafe\u{301} café", &["▁cafe", "▁cafe", "▁cafe"]),
        ("하", &["▁ᄒ", "ᅡ"]),
        ("ß İ", &["▁ß", "▁i"]),
        ("\u{0}a\u{ad}\u{fffd}\tb\u{a0}a", &["▁a", "▁b", "▁a"]),
        ("", &[]),
        (" \n\u{3000}\u{200b}", &[]),
    ];
    for (text, wanted) in cases {
        assert_eq!(pieces(&vocabulary, text), wanted, "{text:?}");
    }
}

#[test]
fn words_of_more_than_a_hundred_characters_are_unknown() {
    let vocabulary = vocabulary();
    let word = |count| pieces(&vocabulary, &"a".repeat(count));
    assert_eq!(word(100).len(), 100);
    assert_eq!(word(101), ["[UNK]"]);
    assert_eq!(pieces(&vocabulary, &"a".repeat(1 << 20)), ["[UNK]"]);
}

#[test]
fn lower_case_and_accents_follow_the_file() {
    let cased = Vocabulary { lowercase: Some(false), ..vocabulary() };
    assert_eq!(pieces(&cased, "A a café cafe"), ["[UNK]", "▁a", "[UNK]", "▁cafe"]);
    let stripped = Vocabulary { strip_accents: Some(true), ..cased };
    assert_eq!(pieces(&stripped, "A café"), ["[UNK]", "▁cafe"]);
    let accents = Vocabulary { strip_accents: Some(false), ..vocabulary() };
    assert_eq!(pieces(&accents, "A café"), ["▁a", "[UNK]"]);
}

#[test]
fn both_ends_are_added_and_text_never_becomes_a_special_token() {
    let tokenizer = Tokenizer::new(&vocabulary()).unwrap();
    let ids = |text: &str, add_special, parse_special| {
        let options = EncodeOptions { add_special, parse_special };
        let ids = tokenizer.encode(text, options).unwrap();
        ids.into_iter().map(|id| id.0).collect::<Vec<_>>()
    };
    let (a, open, unknown) = (10, 25, 1);
    assert_eq!(ids("a", true, false), [2, a, 3]);
    assert_eq!(ids("", true, false), [2, 3]);
    assert_eq!(ids("[SEP]", false, false), [open, unknown, unknown]);
    assert_eq!(ids("a[SEP]a", true, true), [2, a, 3, a, 3]);
    let untrusted = tokenizer.encode_untrusted("[MASK] a").unwrap();
    assert_eq!(untrusted.last(), Some(&TokenId(a)));
    assert!(!untrusted.iter().any(|id| [0, 2, 3, 4].contains(&id.0)), "{untrusted:?}");
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(TokenId(2)), Some(TokenId(3))));
    assert!(tokenizer.adds_bos() && tokenizer.adds_eos() && tokenizer.is_control(TokenId(2)));
}

#[test]
fn decoding_joins_the_pieces() {
    let tokenizer = Tokenizer::new(&vocabulary()).unwrap();
    let options = EncodeOptions { add_special: true, parse_special: false };
    let ids = tokenizer.encode("Unaffordable, playing a", options).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), "unaffordable , playing a");
}

#[test]
fn roles_have_defaults_and_must_be_in_the_vocabulary() {
    let many: Vec<String> = (0..200).map(|nth| format!("▁t{nth}")).collect();
    let base = Vocabulary {
        tokens: many.iter().map(String::as_str).collect(),
        token_types: None,
        special: SpecialIds::default(),
        ..vocabulary()
    };
    let tokenizer = Tokenizer::new(&base).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(TokenId(101)), Some(TokenId(102))));
    let options = EncodeOptions { add_special: true, parse_special: false };
    let ids = tokenizer.encode("t5 t101 zzz", options).unwrap();
    // The text of a role's token is not spelled.
    assert_eq!(ids, [101, 5, 100, 100, 102].map(TokenId));
    let error = |special: SpecialIds| {
        let tokens = base.tokens[..50].to_vec();
        let vocabulary = Vocabulary { special, tokens, ..base.clone() };
        Tokenizer::new(&vocabulary).unwrap_err().to_string()
    };
    let ids = SpecialIds { unknown: Some(1), ..SpecialIds::default() };
    assert!(error(ids).contains("there is no tokenizer.ggml.bos_token_id"));
    let ids = SpecialIds { cls: Some(2), separator: Some(3), ..SpecialIds::default() };
    assert!(error(ids).contains("needs tokenizer.ggml.unknown_token_id"));
    let ids = SpecialIds { unknown: Some(50), ..SpecialIds::default() };
    assert!(error(ids).contains("unknown_token_id is 50, outside"));
}
