//! The cache counts the same sizes as the allocator, within a factor of two.

use serde_json::json;
use walla_grammar::{Compiler, CompilerOptions, Constraint, Vocabulary};

use crate::Memory;
use crate::common::{Random, compiler, demo, schema, small};

fn kinds() -> Vec<Constraint> {
    let texts = |count: usize| (0..count).map(|index| format!("a text with number {index}"));
    let properties = |count: usize| {
        let all = (0..count).map(|index| (format!("p{index}"), json!({"type": "integer"})));
        json!({"type": "object", "properties": all.collect::<serde_json::Map<_, _>>()})
    };
    vec![
        Constraint::regex("[a-z]+"),
        Constraint::regex("a.{9}b"),
        Constraint::regex(".{0,900}"),
        Constraint::regex(".*a.{11}"),
        Constraint::regex("\\p{L}{1,50}"),
        Constraint::regex("(ab?){300}c|d.*e.{5}".repeat(5)),
        Constraint::regex("a?".repeat(300)),
        Constraint::choice(["yes", "no"]),
        Constraint::choice(texts(500)),
        Constraint::choice(texts(8_000)),
        schema(&json!({"enum": texts(6_000).collect::<Vec<_>>()})),
        schema(&json!({"enum": (0..8_000).collect::<Vec<_>>()})),
        schema(&json!({"type": "string", "format": "date-time"})),
        schema(&json!({"type": "object"})),
        schema(&properties(5)),
        schema(&properties(500)),
        schema(
            &json!({"anyOf": (0..200).map(|i| json!({"type": "string", "pattern": format!("^a.*{i}b{{1,9}}$")})).collect::<Vec<_>>()}),
        ),
        Constraint::lark("start: a\na: \"x\" a | \"y\""),
        Constraint::lark(
            (0..900)
                .map(|index| format!("r{index}: \"t{index}\" r{} | \"x\"\n", index + 1))
                .collect::<String>()
                + "r900: \"y\"\nstart: r0\n",
        ),
    ]
}

fn within_two(counted: usize, allocated: usize) -> bool {
    counted <= 2 * allocated && allocated <= 2 * counted
}

#[test]
fn sizes_are_those_of_the_allocator() {
    let mut memory = Memory::new();
    for tokenizer in [small("llama32-q4_0"), demo()] {
        let compiler = compiler(tokenizer);
        compiler.compile(&Constraint::regex("warm")).unwrap();
        for constraint in kinds() {
            let source: String = constraint.sources()[0].chars().take(40).collect();
            memory.restart();
            let before = compiler.bytes();
            let grammar = compiler.compile(&constraint).unwrap();
            let (counted, kept) = (compiler.bytes() - before, memory.kept());
            // The key of the cache shares the source, which was allocated before.
            let kept = kept + constraint.source_bytes();
            assert!(within_two(counted, kept), "{source}: {counted} bytes counted, {kept} kept");
            memory.restart();
            let mut matcher = grammar.matcher();
            let mut words = vec![0; compiler.vocabulary().mask_words()];
            let mut random = Random(7);
            for step in 0..80 {
                if matcher.has_ended() || matcher.mask(&mut words).is_err() {
                    break;
                }
                let tokens = crate::common::allowed(&words);
                matcher.accept(tokens[random.below(tokens.len())]).unwrap();
                let (counted, kept) = (matcher.bytes(), memory.kept());
                let text = format!("{source}, step {step}: {counted} bytes counted, {kept} kept");
                assert!(within_two(counted, kept), "{text}");
            }
        }
    }
}

/// Their sources have some ten bytes each, and their lexers far more.
#[test]
fn small_sources_of_large_grammars_keep_the_limit_of_the_cache() {
    const MAX_BYTES: usize = 4 << 20;
    let memory = Memory::new();
    let vocabulary = Vocabulary::new(small("llama32-q4_0")).unwrap();
    let options = CompilerOptions { max_cache_bytes: MAX_BYTES, ..CompilerOptions::default() };
    let compiler = Compiler::new(vocabulary, options);
    let before = memory.kept();
    for count in 1..=150 {
        compiler.compile(&Constraint::regex(format!("\\p{{L}}{{1,{count}}}"))).unwrap();
    }
    let (entries, counted) = compiler.cached();
    assert!(entries > 2 && counted <= MAX_BYTES, "{entries} entries, {counted} bytes");
    let kept = memory.kept() - before;
    assert!(kept <= 2 * MAX_BYTES, "{kept} bytes kept");
}
