//! Sources that need much work compile or are refused within bounds of time and memory.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use walla_grammar::{
    Compiler, CompilerOptions, Constraint, ConstraintError, MatchError, Vocabulary,
};

use crate::Memory;
use crate::common::{Random, compiler, small};

/// The longest took 1 s in a build for tests on a busy machine; the rest is for busy machines.
const MAX_TIME: Duration = Duration::from_secs(20);

/// Memory of one compilation and some masks in bytes.
const MAX_BYTES: usize = 256 << 20;

struct Worst {
    time: Duration,
    bytes: usize,
}

/// Compiles, and writes some tokens.
fn run(
    compiler: &Compiler,
    memory: &mut Memory,
    random: &mut Random,
    worst: &mut Worst,
    constraint: &Constraint,
) -> Result<(), ConstraintError> {
    memory.restart();
    let start = Instant::now();
    let result = compiler.compile(constraint);
    let compile = start.elapsed();
    let mut words = vec![0; compiler.vocabulary().mask_words()];
    if let Ok(grammar) = &result {
        let mut matcher = grammar.matcher();
        for _ in 0..6 {
            if let Err(error) = matcher.mask(&mut words) {
                assert!(!matches!(error, MatchError::Internal { .. }), "{error}");
                break;
            }
            let tokens = crate::common::allowed(&words);
            drop(matcher.accept(tokens[random.below(tokens.len())]));
        }
    }
    let source: String = constraint.sources()[0].chars().take(300).collect();
    worst.time = worst.time.max(compile);
    worst.bytes = worst.bytes.max(memory.peak());
    assert!(start.elapsed() < MAX_TIME, "{compile:?}: {source}");
    assert!(memory.peak() < MAX_BYTES, "{} kB: {source}", memory.peak() >> 10);
    if let Err(error @ ConstraintError::Internal { .. }) = &result {
        panic!("{source}: {error}");
    }
    result.map(drop)
}

/// A number below one of several.
fn one_of(random: &mut Random, ends: &[usize]) -> usize {
    let end = ends[random.below(ends.len())];
    random.below(end)
}

/// An expression whose derivatives are many or large.
fn expression(random: &mut Random, depth: usize) -> String {
    let pieces = ["a", "b", ".", "[ab]", "[^a]", "\\w", "\\d", "é", "\\p{L}", "x", "0", "(.|\\n)"];
    let piece = |random: &mut Random| pieces[random.below(pieces.len())].to_owned();
    if depth == 0 {
        return piece(random);
    }
    let inner = |random: &mut Random| expression(random, depth - 1);
    match random.below(12) {
        0 => format!("({})*", inner(random)),
        1 => format!("({})?{}", inner(random), inner(random)),
        2 => format!("({}){{1,{}}}", inner(random), 1 + random.below(300)),
        3 => format!("({}){{0,{}}}", inner(random), 1 + random.below(60_000)),
        4 => format!("({}|{})", inner(random), inner(random)),
        5 => format!("a.*{}", inner(random)),
        6 => format!("({}*a{}{{{}}})", piece(random), piece(random), 1 + random.below(60)),
        7 => {
            let count = 1 + one_of(random, &[3, 30, 300, 3_000]);
            let (one, other) = (piece(random), ["?", "*", "{0,9}"][random.below(3)]);
            format!("{one}{other}").repeat(count)
        }
        8 => {
            let count = 1 + one_of(random, &[10, 100, 1_000]);
            let all = (0..count).map(|index| format!("[a-z{index}]{}{index}", piece(random)));
            format!("({}){}", all.collect::<Vec<_>>().join("|"), inner(random))
        }
        9 => {
            let count = 1 + random.below(40);
            let all = (0..count).map(|_| format!("({})?", inner(random)));
            all.collect::<Vec<_>>().join("").chars().take(20_000).collect()
        }
        _ => format!("{}{}", inner(random), inner(random)),
    }
}

fn text(random: &mut Random) -> Value {
    let count = 1 + one_of(random, &[2, 4, 8, 40]);
    let depth = random.below(3);
    let base = expression(random, depth);
    let all: Vec<Value> = (0..count)
        .map(|index| match random.below(4) {
            0 => json!({"pattern": expression(random, 1)}),
            1 => json!({"pattern": format!("^{base}{index}")}),
            _ => json!({"pattern": format!("{base}.*{}", index % 10)}),
        })
        .collect();
    let mut schema = json!({"type": "string", "allOf": all});
    let lengths = [0, 3, 100, 60_000];
    if random.below(3) == 0 {
        schema["minLength"] = json!(lengths[random.below(4)]);
    }
    if random.below(3) == 0 {
        schema["maxLength"] = json!(60_000 + random.below(5_000));
    }
    if random.below(5) == 0 {
        schema["format"] = json!(["email", "uri", "date-time", "ipv6"][random.below(4)]);
    }
    schema
}

fn schema(random: &mut Random) -> Value {
    let texts = |random: &mut Random| {
        let count = 1 + one_of(random, &[3, 10, 100]);
        (0..count).map(|_| text(random)).collect::<Vec<_>>()
    };
    match random.below(8) {
        0 => json!({"anyOf": texts(random)}),
        1 => json!({"allOf": [{"anyOf": [text(random), text(random)]},
            {"anyOf": [text(random), {"$ref": "#/$defs/t"}]}], "$defs": {"t": text(random)}}),
        2 => {
            let all = texts(random).into_iter().enumerate();
            let all = all.map(|(index, text)| (format!("p{index}"), text));
            json!({"type": "object", "properties": all.collect::<serde_json::Map<_, _>>()})
        }
        3 => {
            let count = 1 + random.below(20);
            let all = (0..count).map(|index| {
                (format!("^{index}x{}", expression(random, 1)), json!({"type": "null"}))
            });
            json!({"type": "object", "patternProperties": all.collect::<serde_json::Map<_, _>>(),
                "additionalProperties": text(random)})
        }
        4 => json!({"type": "array", "items": text(random), "minItems": 2}),
        5 => {
            let count = 1 + random.below(3_000);
            let all = (0..count).map(|index| format!("{}{index}", "ab".repeat(random.below(30))));
            json!({"enum": all.collect::<Vec<_>>()})
        }
        _ => text(random),
    }
}

fn terminal(random: &mut Random, depth: usize) -> String {
    let regex = |random: &mut Random| format!("/{}/", expression(random, 1).replace('/', ""));
    if depth == 0 {
        return regex(random);
    }
    let count = 2 + one_of(random, &[2, 8, 20]);
    let all = (0..count).map(|_| terminal(random, depth - 1)).collect::<Vec<_>>();
    match random.below(6) {
        0 => format!("({})", all.join(" & ")),
        1 => format!("({})", all.join(" | ")),
        2 => format!("~({})", all[0]),
        3 => format!("({}){{1,{}}}", all[0], 1 + random.below(100)),
        4 => format!("({})", all.join("? ")),
        _ => {
            let digits = (0..count).map(|digit| format!("/(.|\\n)*a(.|\\n)*{digit}(.|\\n)*/"));
            format!("({})", digits.collect::<Vec<_>>().join(" & "))
        }
    }
}

fn grammar(random: &mut Random) -> String {
    match random.below(6) {
        0 => {
            let text = "ab é".repeat(1 + random.below(3_000));
            let kind = ["substring_chars", "substring_words"][random.below(2)];
            format!("start: T\nT: %regex {{ \"{kind}\": {text:?} }}")
        }
        1 => format!("start: a\na: \"x\" a | b\nb: T b | T\nT: {}", terminal(random, 2)),
        2 => format!("start: T U\nT: {}\nU: T & {}", terminal(random, 1), terminal(random, 1)),
        3 => format!("start: %json {}", schema(random)),
        _ => format!("start: T\nT: {}", terminal(random, 2)),
    }
}

#[test]
fn hostile_sources_compile_or_are_refused_within_bounds() {
    let mut memory = Memory::new();
    let compiler = compiler(small("llama32-q4_0"));
    let mut random = Random(11);
    let mut worst = Worst { time: Duration::ZERO, bytes: 0 };
    let (mut compiled, mut refused, mut unlike) = (0, 0, 0);
    let mut count = |result: Result<(), ConstraintError>| match result {
        Ok(()) => compiled += 1,
        Err(_) => refused += 1,
    };
    let rounds = 100;
    for _ in 0..rounds {
        let depth = 1 + random.below(3);
        let schema = schema(&mut random);
        let checked = Constraint::check_json_schema(&schema).map_err(|error| error.to_string());
        let sources = [
            Constraint::json_schema_value(&schema),
            Constraint::regex(expression(&mut random, depth)),
            Constraint::lark(grammar(&mut random)),
        ];
        for (index, source) in sources.iter().enumerate() {
            let result = run(&compiler, &mut memory, &mut random, &mut worst, source);
            if index == 0 {
                // Without a vocabulary, the tables of long expressions are not prepared.
                let compiled = result.as_ref().map(drop).map_err(ToString::to_string);
                assert!(
                    checked == compiled || checked.is_ok(),
                    "{checked:?} {compiled:?}: {schema}"
                );
                unlike += usize::from(checked != compiled);
            }
            count(result);
        }
    }
    assert!(unlike < 4, "{unlike} schemas are refused by the compiler alone");
    println!("{compiled} compiled, {refused} refused; {:?}, {} kB", worst.time, worst.bytes >> 10);
    assert!(
        compiled > rounds / 4 && refused > rounds / 4,
        "{compiled} compiled, {refused} refused"
    );
}

/// The first of each kind had no end, or took a second and a gigabyte for 20 kB.
#[test]
fn limits_of_patterns_are_named() {
    let mut memory = Memory::new();
    let compiler = compiler(small("llama32-q4_0"));
    let mut worst = Worst { time: Duration::ZERO, bytes: 0 };
    let all = |count: usize| {
        let all = (0..count).map(|index| json!({"pattern": format!("a.*{}", index % 10)}));
        json!({"type": "string", "allOf": all.collect::<Vec<_>>()})
    };
    let searches = (0..14).map(|index| format!("/(.|\\n)*a(.|\\n)*{index}(.|\\n)*/"));
    let searches = searches.collect::<Vec<_>>().join(" & ");
    let chain = "a?".repeat(20_000);
    let cases = [
        (crate::common::schema(&all(12)), "the number of combinations of the patterns of a string"),
        (crate::common::schema(&all(30)), "the number of patterns of a string is 30"),
        (Constraint::lark(format!("start: T\nT: {searches}")), "the number of combinations"),
        (Constraint::regex(chain.as_str()), "the work of regular expressions"),
        (Constraint::lark(format!("start: T\nT: /{chain}/")), "the work of regular expressions"),
        (crate::common::schema(&json!({"type": "string", "pattern": chain})), "the work of"),
    ];
    for (source, expected) in cases {
        let error = run(&compiler, &mut memory, &mut Random(1), &mut worst, &source).unwrap_err();
        assert!(matches!(error, ConstraintError::TooLarge { .. }), "{error:?}");
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    assert!(worst.bytes < 64 << 20, "{} kB", worst.bytes >> 10);
}

#[test]
fn first_rules_without_a_bound_are_refused() {
    let mut memory = Memory::new();
    let compiler = compiler(small("llama32-q4_0"));
    let mut worst = Worst { time: Duration::ZERO, bytes: 0 };
    let mut left = |count: usize, start: &str| {
        let all = (0..count).map(|index| format!("{start} \"x{index}\" | "));
        let source = format!("start: a\na: {}\"e\"", all.collect::<String>());
        let source = Constraint::lark(source);
        run(&compiler, &mut memory, &mut Random(1), &mut worst, &source)
    };
    assert_eq!((left(300, "a"), left(3_000, "")), (Ok(()), Ok(())));
    for start in ["a", "\"y\"? a"] {
        let error = left(2_000, start).unwrap_err().to_string();
        assert!(error.starts_with("the number of comparisons to expand the first"), "{error}");
    }
}

#[test]
fn a_mask_beyond_its_time_ends_the_reply_with_an_error() {
    let tokenizer = small("llama32-q4_0");
    let vocabulary = Vocabulary::new(tokenizer.clone()).unwrap();
    let max_time = Duration::from_millis(20);
    let options = CompilerOptions { max_mask_time: max_time, ..CompilerOptions::default() };
    let compiler = Compiler::new(vocabulary, options);
    let source = Constraint::lark("start: t\nt: t t t t | /[a-z]/ |");
    let grammar = compiler.compile(&source).unwrap();
    let mut matcher = grammar.matcher();
    let mut words = vec![0; compiler.vocabulary().mask_words()];
    let letter = compiler.vocabulary().encode("q")[0];
    let mut steps = 0;
    let error = loop {
        let start = Instant::now();
        let result = matcher.mask(&mut words).map(drop).and_then(|()| matcher.accept(letter));
        assert!(start.elapsed() < MAX_TIME);
        match result {
            Ok(()) => steps += 1,
            Err(error) => break error,
        }
        assert!(steps < 1_000, "the limit is never reached");
    };
    assert!(steps > 0, "{steps}: {error}");
    assert!(error.to_string().contains("CompilerOptions::max_mask_time"), "{error}");
    assert!(error.is_final() && matcher.mask(&mut words) == Err(error));
    assert!(grammar.matcher().mask(&mut words).is_ok(), "others are not affected");
}
