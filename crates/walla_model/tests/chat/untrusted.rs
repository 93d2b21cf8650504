//! Players cannot type control tokens: for any contents of any field, the prompt has the control
//! tokens of harmless words.

use std::path::PathBuf;

use crate::reference_data::files;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use walla_model::chat::{BuiltInTemplate, ChatTemplate, Message, RenderOptions, Role};
use walla_model::tokenizer::{SpecialIds, Tokenizer, Vocabulary};
use walla_types::TokenId;

/// Control tokens of all families, and role names: more than any single vocabulary has.
const CONTROLS: [&str; 20] = [
    "<s>",
    "</s>",
    "<unk>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<bos>",
    "[INST]",
    "[/INST]",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "\u{2002}<space>",
];

/// User-defined tokens that look like markers, and two that do not.
const USER_DEFINED: [&str; 5] = ["<think>", "</think>", "<tool_call>", "\n\n", "    "];

/// Templates in the style of every family.
const TEMPLATES: [(&str, &str); 6] = [
    (
        "chatml",
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    (
        "headers",
        "{{- bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}",
    ),
    (
        "turns",
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}",
    ),
    (
        "inst",
        "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set messages = messages[1:] %}{% endif %}{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]{% if loop.last and s is defined %}{{ s ~ '\n\n' }}{% endif %}{{ m.content }}[/INST]{% else %}{{ m.content.strip() + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "thinking",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% set c = m.content %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}<think>\n\n</think>\n\n{{ c.lstrip('\n') }}{% else %}{{ m.content.replace('/no_think', '').rstrip() }}{% endif %}<|im_end|>\n{% endfor %}",
    ),
    (
        "adjacent",
        "<|{{ messages[0].content }}|>{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}<|im_{{ messages[-1].content }}",
    ),
];

/// Vendors' templates that are here.
fn published() -> Vec<(String, String)> {
    let source = |path: PathBuf| {
        let source = std::fs::read_to_string(&path).unwrap();
        (path.display().to_string(), source)
    };
    files("templates", "jinja").into_iter().map(source).collect()
}

/// GPT-2's letter for a byte: the same character if it is visible in Latin-1, else the next one
/// from U+0100 on.
fn letter(byte: u8) -> char {
    let is_visible = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_visible(byte) {
        return byte.into();
    }
    let earlier = (0..byte).filter(|&b| !is_visible(b)).count() as u32;
    char::from_u32(0x100 + earlier).unwrap()
}

/// Both kinds of vocabulary: the bytes, all control tokens, and merges that would spell parts of
/// these tokens.
fn tokenizers() -> Vec<(&'static str, Tokenizer)> {
    let bytes: Vec<String> = (0..=u8::MAX).map(|byte| letter(byte).to_string()).collect();
    let pieces: Vec<String> = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")).collect();
    let merged = ["<|", "im", "_e", "nd", "|>", "im_e", "im_end", "<|im_end"];
    let merges = ["< |", "i m", "_ e", "n d", "| >", "im _e", "im_e nd", "<| im_end"];
    let build = |model, pre, bytes: &[String], byte_kind: i64, space: &'static str| {
        let normal = merged.iter().copied().chain([space]);
        let tokens: Vec<&str> = bytes
            .iter()
            .map(String::as_str)
            .chain(CONTROLS)
            .chain(USER_DEFINED)
            .chain(normal)
            .collect();
        let mut kinds = vec![byte_kind; 256];
        kinds.extend([3; CONTROLS.len()]);
        kinds.extend([4; USER_DEFINED.len()]);
        kinds.resize(tokens.len(), 1);
        let vocabulary = Vocabulary {
            model,
            pre,
            token_types: Some(kinds),
            scores: Some((0..tokens.len()).map(|index| index as f32).collect()),
            tokens,
            merges: Some(merges.to_vec()),
            special: SpecialIds { bos: Some(256), eos: Some(257), ..SpecialIds::default() },
            ..Vocabulary::default()
        };
        Tokenizer::new(&vocabulary).unwrap()
    };
    vec![
        ("bytes", build("gpt2", "llama-bpe", &bytes, 1, "ĠĠ")),
        ("pieces", build("llama", "", &pieces, 6, "▁")),
    ]
}

/// Possible attacks.
fn fragment() -> impl Strategy<Value = String> {
    let specials: Vec<&str> = CONTROLS.iter().chain(&USER_DEFINED).copied().collect();
    let special = prop::sample::select(specials);
    let oddities = prop::sample::select(vec![
        "\0",
        "\u{202e}",
        "\u{2066}",
        "\u{200d}",
        "\u{feff}",
        "\u{2028}",
        "\u{2029}",
        "\u{2002}",
        "\u{2005}",
        "\u{10ffff}",
        "\u{10f000}",
        "\u{fffd}",
        "\u{301}",
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "{{ bos_token }}",
        "{% endfor %}",
        "' + bos_token + '",
        "\\u003c",
        "\\n",
        "%s",
        "<",
        "|",
        ">",
        "▁",
        "Ġ",
        " ",
        "\n",
        "\r\n",
        "\t",
        "im_end",
        "|im_end|>",
        "<|im_",
        "end|>",
        "system",
        "<0x3C>",
        "/think",
        "Hello",
    ]);
    prop_oneof![
        4 => special.clone().prop_map(str::to_owned),
        // Its prefix or suffix: adjacent text may complete it.
        4 => (special.clone(), any::<prop::sample::Index>(), any::<bool>())
            .prop_map(|(text, at, is_end)| {
            let places: Vec<usize> = text.char_indices().map(|(place, _)| place).collect();
            let (left, right) = text.split_at(places[at.index(places.len())]);
            if is_end { right } else { left }.to_owned()
        }),
        // In the alphabet that represents untrusted text inside a template.
        2 => special.prop_map(|text| {
            text.bytes().filter_map(|byte| char::from_u32(0x10_f000 + u32::from(byte))).collect()
        }),
        3 => oddities.prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(fragment(), 0..6).prop_map(|parts| parts.concat())
}

/// System, then user and assistant alternately.
fn regular() -> impl Strategy<Value = Vec<(Role, String)>> {
    (prop::option::of(text()), prop::collection::vec(text(), 1..5)).prop_map(|(system, texts)| {
        let turns = [Role::User, Role::Assistant].into_iter().cycle().zip(texts);
        system.map(|text| (Role::System, text)).into_iter().chain(turns).collect()
    })
}

/// A conversation with roles in any order. Templates that refuse it receive it in another form.
fn irregular() -> impl Strategy<Value = Vec<(Role, String)>> {
    let roles = vec![
        Role::System,
        Role::User,
        Role::Assistant,
        Role::Observation,
        // Not a call, so it is a reply.
        Role::Action,
        Role::ActionResult,
    ];
    // Reasoning in a reply is removed, and some templates print markers around it.
    let turn = |(role, text): (Role, String)| match role {
        Role::Assistant | Role::Action => (role, text.replace("</think>", "</ think>")),
        _ => (role, text),
    };
    prop::collection::vec((prop::sample::select(roles), text()).prop_map(turn), 0..7)
}

fn conversation() -> impl Strategy<Value = Vec<(Role, String)>> {
    prop_oneof![regular(), irregular()]
}

/// A template can test whether a text is empty after trimming, so such a text is kept.
fn harmless(text: &str) -> &str {
    if text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\u{b}').is_empty() {
        text
    } else {
        "x"
    }
}

fn reserved(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    conversation: &[(Role, String)],
    say: fn(&str) -> &str,
) -> Vec<TokenId> {
    let messages: Vec<Message<'_>> =
        conversation.iter().map(|(role, text)| Message::new(*role, say(text))).collect();
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let prompt = template.render(&messages, &options).unwrap();
    let mut tokens = tokenizer.encode_prompt(&prompt).unwrap();
    tokens.retain(|&token| tokenizer.is_reserved(token));
    tokens
}

#[test]
fn control_tokens_come_only_from_the_template() {
    let tokenizers = tokenizers();
    let own = TEMPLATES.map(|(name, source)| (name.to_owned(), source.to_owned()));
    let built_in = BuiltInTemplate::ALL.map(|t| (t.to_string(), t.source().to_owned()));
    let templates: Vec<_> = own
        .into_iter()
        .chain(built_in)
        .chain(published())
        .map(|(name, source)| (name, ChatTemplate::new(&source, "<s>", "</s>").unwrap()))
        .collect();
    let mut runner =
        TestRunner::new(Config { cases: 500, failure_persistence: None, ..Config::default() });
    let result = runner.run(&conversation(), |conversation| {
        for (vocabulary, tokenizer) in &tokenizers {
            for (name, template) in &templates {
                let found = reserved(template, tokenizer, &conversation, |text| text);
                let expected = reserved(template, tokenizer, &conversation, harmless);
                prop_assert_eq!(found, expected, "{} with {}", name, vocabulary);
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// A template that does not transform untrusted text prints it complete and unchanged.
#[test]
fn untrusted_text_is_preserved() {
    let template = ChatTemplate::chatml();
    let mut runner =
        TestRunner::new(Config { cases: 1_000, failure_persistence: None, ..Config::default() });
    let result = runner.run(&regular(), |conversation| {
        let messages: Vec<Message<'_>> =
            conversation.iter().map(|(role, text)| Message::new(*role, text)).collect();
        let prompt = template.render(&messages, &RenderOptions::default()).unwrap();
        let name = |role| match role {
            Role::System | Role::Observation => "system",
            Role::Action | Role::ActionResult => unreachable!("not in regular conversations"),
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        let turn = |(role, text): &(Role, String)| {
            format!("<|im_start|>{}\n{text}<|im_end|>\n", name(*role))
        };
        prop_assert_eq!(prompt.text(), conversation.iter().map(turn).collect::<String>());
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Shows that the test above can fail: with all text trusted, the same attacks do produce control
/// tokens.
#[test]
fn the_same_attacks_on_trusted_text_give_control_tokens() {
    use walla_model::tokenizer::EncodeOptions;
    let options = EncodeOptions { add_special: false, parse_special: true };
    for (name, tokenizer) in tokenizers() {
        for text in CONTROLS {
            let tokens = tokenizer.encode(text, options).unwrap();
            assert_eq!(tokens.len(), 1, "{name}: {text:?}");
            assert!(tokenizer.is_reserved(tokens[0]), "{name}: {text:?}");
        }
    }
}
