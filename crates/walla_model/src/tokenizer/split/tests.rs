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

#[test]
fn words_are_the_text_and_never_empty() {
    // Every pair and triple out of characters that patterns treat differently.
    let characters: Vec<char> =
        "aZ'sé中カ\u{301}7½,$`～。 \t\n\r\u{a0}\u{3000}\u{1}\u{e000}😀".chars().collect();
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
    assert_eq!(PreTokenizer::from_name("kimi-k2"), None);
}
