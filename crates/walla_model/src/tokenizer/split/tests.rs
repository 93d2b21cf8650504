use super::PreTokenizer::{self, *};

fn split(pre: PreTokenizer, text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    pre.split(text, &mut |word| words.push(word));
    words
}

#[test]
fn words_of_each_family() {
    let cases: &[(PreTokenizer, &str, &[&str])] = &[
        (Gpt2, "it's  2010!\n", &["it", "'s", " ", " 2010", "!", "\n"]),
        (Gpt2, "IT'S a\t\tb", &["IT", "'", "S", " a", "\t", "\t", "b"]),
        (Gpt2, "end   ", &["end", "   "]),
        (Llama3, "IT'S 12345", &["IT", "'S", " ", "123", "45"]),
        (Llama3, "a\n\n  b  \n c", &["a", "\n\n", " ", " b", "  \n", " c"]),
        (Llama3, "x != y;\r\n", &["x", " !=", " y", ";\r\n"]),
        (Llama3, "(word \u{a0}word", &["(word", " ", "\u{a0}word"]),
        (Qwen2, "12 a9", &["1", "2", " a", "9"]),
        (Qwen35, "e\u{301}a !", &["e\u{301}a", " !"]),
        (Qwen2, "e\u{301}a", &["e", "\u{301}a"]),
        (SmolLm, "a 12 b", &["a", " ", "1", "2", " b"]),
        (MiniCpm5, "a 1234", &["a", " ", "123", "4"]),
        (Falcon, "a,b 12345 `x`", &["a", ",", "b", " ", "123", "45", " ", "`", "x", "`"]),
        (Default, "a,b 12345 `x`", &["a", ",", "b", " ", "123", "45", " `", "x", "`"]),
        (DeepseekLlm, "Héllo wörld 123  ", &["H", "é", "llo", " w", "ö", "rld", " ", "123", "  "]),
        (DeepseekLlm, "a\r\nb", &["a", "\r", "\n", "b"]),
        (DeepseekLlm, "你好。x", &["你好", "。", "x"]),
        (DeepseekLlm, "a\u{3000}b", &["a", "\u{3000}b"]),
        (DeepseekCoder, "a 12, b", &["a", " ", "1", "2", ",", " b"]),
        (DeepseekCoder, "x + y\n", &["x", " +", " y", "\n"]),
        (DeepseekV3, "f(x) = 1234;\n", &["f", "(x", ")", " =", " ", "123", "4", ";\n"]),
        (DeepseekV3, "你好カナ abc  d", &["你好カナ", " abc", " ", " d"]),
        (DeepseekV3, "\u{1}\u{2}x\u{1}", &["\u{1}", "\u{2}x", "\u{1}"]),
        (Gpt4o, "HelloWorld's ABCd", &["Hello", "World's", " ABCd"]),
        (Gpt4o, "ÀBC 1234 a/\n", &["À", "BC", " ", "123", "4", " a", "/\n"]),
        (Tekken, "don't 12", &["don", "'t", " ", "1", "2"]),
    ];
    for (pre, text, expected) in cases {
        assert_eq!(split(*pre, text), *expected, "{pre:?}: {text:?}");
    }
}

const ALL: [PreTokenizer; 14] = [
    Default,
    Gpt2,
    Llama3,
    Dbrx,
    MiniCpm5,
    Qwen2,
    Qwen35,
    SmolLm,
    Falcon,
    DeepseekLlm,
    DeepseekCoder,
    DeepseekV3,
    Gpt4o,
    Tekken,
];

/// Characters that patterns treat differently.
const CHARACTERS: &str = "aZ'sé中カ\u{301}7½,$`～。 \t\n\r\u{a0}\u{3000}\u{1}\u{e000}😀";

const SENTENCES: [&str; 7] = [
    "They're I'LL we'VE he'd it'm DON'T 'twas o'Reilly's",
    "HelloWorld XMLHttpRequest iPhone ÉCOLE Ǆ ǅ straße/\n//x\r\n",
    "1234567 12,345.67 ½¾ ٣٤٥ 三千 v2.0",
    "  two  spaces\t\ttabs \n \n\n lines \r\n end  ",
    "f(x) = !y && z != `w` <|im_end|> [a]{b} ~^$+",
    "日本語のテキスト、カタカナ。中文！한국어 텍스트",
    "e\u{301}a\u{301} \u{301}x 👍🏽 😀!\u{a0}\u{3000} x\u{a0}y",
];

/// Words are compared with the published expressions; `tests/golden/splits.py` contains them and
/// writes the file.
#[test]
fn words_match_the_published_expressions() {
    let quads = |a: char| {
        let pairs = CHARACTERS.chars().flat_map(|b| CHARACTERS.chars().map(move |c| (b, c)));
        pairs.map(move |(b, c)| [a, b, c, a].iter().collect()).collect::<Vec<String>>()
    };
    let sentences = SENTENCES.map(|sentence| vec![sentence.to_owned()]);
    let groups: Vec<_> = CHARACTERS.chars().map(quads).chain(sentences).collect();
    let mut found = String::new();
    for pre in ALL {
        for (number, texts) in groups.iter().enumerate() {
            let words = texts.iter().flat_map(|text| split(pre, text));
            let bytes = words.flat_map(|word| word.bytes().chain([0xff]));
            let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            found += &format!("{pre:?} {number} {hash:016x}\n");
        }
    }
    let expected = include_str!("../../../tests/golden/splits.txt");
    let differ = found.lines().zip(expected.lines()).filter(|(found, expected)| found != expected);
    assert_eq!(differ.collect::<Vec<_>>(), [], "families and groups of texts");
    assert_eq!(found.len(), expected.len());
}

#[test]
fn words_are_the_text_and_never_empty() {
    // Every pair and triple.
    let characters: Vec<char> = CHARACTERS.chars().collect();
    for &a in &characters {
        for &b in &characters {
            for &c in &characters {
                let text: String = [a, b, c, a].iter().collect();
                for pre in ALL {
                    let words = split(pre, &text);
                    assert!(words.iter().all(|word| !word.is_empty()), "{pre:?}: {text:?}");
                    assert_eq!(words.concat(), text, "{pre:?}");
                }
            }
        }
    }
}

#[test]
fn names() {
    assert_eq!(PreTokenizer::from_name("llama-bpe"), Some(Llama3));
    assert_eq!(PreTokenizer::from_name("deepseek-r1-qwen"), Some(Qwen2));
    assert_eq!(PreTokenizer::from_name(""), Some(Default));
    // Granite, Ministral 3, LFM 2, Nemotron and Qwen 3.5.
    let families = ["refact", "tekken", "lfm2", "pixtral", "qwen35"].map(PreTokenizer::from_name);
    assert_eq!(families.map(Option::unwrap), [SmolLm, Tekken, Llama3, Llama3, Qwen35]);
    assert_eq!(PreTokenizer::from_name("kimi-k2"), None);
}
