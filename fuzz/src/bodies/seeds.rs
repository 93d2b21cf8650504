//! Seeds: small inputs with high coverage.

use walla_doubles::synth::{self, Mixture, Model};

use super::tokenizer::PRES;

/// Tiny models of every architecture that can be synthesised.
///
/// # Panics
/// If they cannot be written.
#[must_use]
pub fn gguf() -> Vec<Vec<u8>> {
    let mut seeds = vec![b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()];
    for model in [Model::LLAMA_3_2_1B, Model::QWEN3_0_6B, Model::GEMMA_3_1B] {
        let tiny = Model {
            width: 32,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            head_dim: 16,
            hidden: 32,
            vocab: 259,
            ..model
        };
        seeds.push(synth::write(&tiny, Mixture::Q4_0, 1, Vec::new()).expect("a possible model"));
    }
    seeds
}

/// Inputs for the vocabulary builder: both kinds, with and without extra tokens and merges, each
/// with a text.
#[must_use]
pub fn tokenizer() -> Vec<Vec<u8>> {
    const TEXTS: [&str; 3] = [
        "Hello  wörld's 1234,\n\n\t猫🙂 they'll<|im_end|>",
        "▁ a\u{a0}b\u{2028}c \u{301}e <think>\r\n",
        "   leading, trailing   ",
    ];
    let mut seeds = Vec::new();
    for kind in 0..=1 {
        for pre in 0..PRES.len() as u8 {
            for text in TEXTS {
                let mut seed = vec![kind, pre, 255, 6]; // six tokens beyond the bytes
                for (token_kind, text) in [(5, 4), (5, 3), (40, 6), (40, 8), (200, 255), (200, 255)]
                {
                    seed.extend([token_kind, text]);
                    if text == 255 {
                        seed.extend(b"he\xff");
                    }
                    seed.push(3); // score
                }
                seed.extend([0, 0, 0, 0, 200, 200]); // roles, name, types
                seed.extend([3, 104, 0, 101, 0, 108, 0, 108, 0, 111, 0, 32, 0]); // merges
                seed.extend([0, 0, 101]); // flags
                seed.extend([5, 1, 0, 200, 0, 32, 0, 104, 0, 2, 1]); // tokens to decode
                seed.extend([7, 0]); // where to cut
                seed.extend(text.as_bytes());
                seeds.push(seed);
            }
        }
    }
    seeds
}

/// Our own templates in the style of the published ones, each with a conversation.
#[must_use]
pub fn template() -> Vec<Vec<u8>> {
    const SOURCES: [&str; 6] = [
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "{{ bos_token }}{%- set ns = namespace(text='', n=0) -%}{% for m in messages[::-1] %}{% set ns.text = m['content'] | trim ~ ns.text %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.text + eos_token }}{{ ns.n }}",
        "{% macro turn(role, text) %}[{{ role | upper }}]{{ text.strip('\\n') }}{% endmacro %}{% for m in messages if m.role != 'system' %}{{ turn(m.role, m.content) }}{{ loop.index0 }}{% else %}{{ raise_exception('nobody') }}{% endfor %}",
        "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set messages = messages[1:] %}{% endif %}{{ strftime_now('%d %b %Y') }}{% for m in messages %}{% if not loop.first %}, {% endif %}{{ m | tojson }}{{ m.content.split('x') | join('y') }}{{ m.content[::-1] }}{% endfor %}",
        "{% for i in range(3) %}{% for m in messages recursive %}{{ m.content | upper | replace('A', 'b') | indent(2) }}{{ '%s' | format(m.content) }}{% endfor %}{% break %}{% endfor %}",
        "{% set x %}{{ messages }}{{ messages | map(attribute='content') | list }}{% endset %}{{ x | length }}{{ x }}{{ debug() }}{{ messages | selectattr('role', 'equalto', 'user') | list | string }}",
    ];
    let conversation = b"\xff<s>\xff</s>\xff\x01\x00\xe8\x07\x00\x00\x07\x1a\x02You are Greta.\xff \xff\x00Hello\n\xff<|im_end|>\xff\x01 Hi!\xff\xff\x00Bye\xff\xff";
    SOURCES.iter().map(|source| [source.as_bytes(), conversation].concat()).collect()
}

/// Templates and conversations of up to 256 KiB, in lines of less than 1,000 bytes.
#[must_use]
pub fn template_large() -> Vec<Vec<u8>> {
    const CONVERSATION: &[u8] = b"\xff<s>\xff</s>\xff\x01\x00\xe8\x07\x00\x00\x07\x1a";
    const TURNS: &[u8] = b"{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}";
    let repeated = |line: &str, bytes: usize| line.repeat(bytes / line.len());
    let sources = [
        repeated("A line of the template's text, as long as licences are.\n", 250_000),
        repeated("{% if add_generation_prompt %}a{% else %}b{% endif %}\n", 120_000),
        repeated("{% set x = messages[0].content ~ 'x' %}\n", 120_000),
        repeated("{# a comment of some length that nothing comes out of #}\n", 250_000),
        format!("{{{{ 'x'\n{} }}}}", repeated("~ 'y'\n", 60_000)),
        format!("{}{}", "{% if messages %}\n".repeat(3_000), "{% endif %}\n".repeat(3_000)),
        format!("{{{{ [\n{}] | length }}}}", repeated("'item', 1, none,\n", 120_000)),
    ];
    let mut seeds: Vec<Vec<u8>> = sources
        .iter()
        .map(|source| [source.as_bytes(), TURNS, CONVERSATION, b"\x00Hello\xff\xff"].concat())
        .collect();
    // Long texts: each message ends with two texts, which the target joins.
    for line in ["Hello, said the innkeeper.\n", "{{ x }} <|im_end|>\n", "\u{1f642}\u{301}▁\n"] {
        let turn = [b"\x00".as_slice(), repeated(line, 30_000).as_bytes(), b"\xff\xff"].concat();
        seeds.push([TURNS, CONVERSATION, &turn.repeat(8)].concat());
    }
    seeds
}
