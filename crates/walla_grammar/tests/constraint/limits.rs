//! Every documented limit can be reached: a schema at the limit compiles and a reply can be
//! finished; one above it is refused with the number that the user can count.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use walla_grammar::{Compiler, Constraint, ConstraintError, Grammar};

use crate::common::{Random, accepts, compiler, exact_compiler, schema, small};

fn properties(count: usize, of: &Value) -> Map<String, Value> {
    (0..count).map(|index| (format!("p{index}"), of.clone())).collect()
}

/// Writes a text, with a mask before some tokens, and returns the longest time of a mask.
fn write(grammar: &Grammar, text: &str) -> Duration {
    let mut matcher = grammar.matcher();
    let mut words = vec![0; grammar.vocabulary().mask_words()];
    let mut longest = Duration::ZERO;
    for (index, token) in grammar.vocabulary().encode(text).into_iter().enumerate() {
        if index < 8 || index % 97 == 0 {
            let start = Instant::now();
            matcher.mask(&mut words).unwrap_or_else(|error| panic!("{error}"));
            longest = longest.max(start.elapsed());
        }
        matcher.accept(token).unwrap_or_else(|error| panic!("{error}"));
    }
    assert!(matcher.is_complete());
    longest
}

/// All properties are optional: the most difficult case. The first property of a reply has the most
/// alternatives.
fn check_optional(compiler: &Compiler, value: &Value, count: usize, text: &str) {
    let start = Instant::now();
    let grammar = compiler.compile(&schema(value)).unwrap_or_else(|error| panic!("{error}"));
    let compile = start.elapsed();
    let mut random = Random(count as u64);
    let some = (0..count).filter(|_| random.below(100) == 0).collect::<Vec<_>>();
    let chosen = [vec![], vec![count - 1], (0..5).collect(), some];
    let mut longest = Duration::ZERO;
    for chosen in chosen {
        let fields = chosen.iter().map(|index| format!("\"p{index}\":{text}"));
        let text = format!("{{{}}}", fields.collect::<Vec<_>>().join(","));
        longest = longest.max(write(&grammar, &text));
    }
    println!("{count}: compiled in {compile:?}, longest mask {longest:?}");
    // Some 0.1 s; the rest is for busy machines.
    assert!(longest.max(compile) < Duration::from_secs(60), "{compile:?}, mask {longest:?}");
}

#[test]
fn objects_have_up_to_1000_optional_properties() {
    let compiler = exact_compiler(small("llama32-q4_0"));
    let closed = |count, of: Value| {
        json!({"type": "object", "properties": properties(count, &of),
        "additionalProperties": false})
    };
    for count in [501, 1_000] {
        check_optional(&compiler, &closed(count, json!({"type": "integer"})), count, "12");
    }
    check_optional(&compiler, &closed(1_000, json!({})), 1_000, "{\"a\":[1]}");
    let text = json!({"type": "string", "maxLength": 20});
    check_optional(&compiler, &closed(1_000, text), 1_000, "\"abc\"");
    let open = json!({"type": "object", "properties": properties(1_000, &json!({"type": "null"}))});
    check_optional(&compiler, &open, 1_000, "null");
    let number = json!({"type": "number", "minimum": 0});
    let both = json!({"anyOf": [closed(1_000, number), {"type": "null"}]});
    check_optional(&compiler, &both, 1_000, "0.5");
    let half: Vec<String> = (0..500).map(|index| format!("p{}", index * 2)).collect();
    let mut required = closed(1_000, json!({"type": "null"}));
    required["required"] = json!(half);
    let grammar = compiler.compile(&schema(&required)).unwrap();
    let fields = (0..500).map(|index| format!("\"p{}\":null", index * 2)).collect::<Vec<_>>();
    write(&grammar, &format!("{{{}}}", fields.join(",")));
}

/// Random replies with all forced tokens reach the end, too.
#[test]
fn replies_with_1000_optional_properties_end() {
    let tokenizer = small("llama32-q4_0");
    let compiler = compiler(tokenizer.clone());
    let value = json!({"type": "object", "additionalProperties": false,
        "properties": properties(1_000, &json!({"type": "boolean"}))});
    let validator = jsonschema::validator_for(&value).unwrap();
    let grammar = compiler.compile(&schema(&value)).unwrap();
    let mut finished = 0;
    for seed in 1..=4 {
        let Some(text) = crate::common::reply(&grammar, &tokenizer, seed, 2_000) else { continue };
        finished += 1;
        assert!(validator.is_valid(&serde_json::from_str(&text).unwrap()), "{text}");
    }
    assert!(finished > 0);
}

#[test]
fn more_is_refused_with_its_number() {
    let compiler = exact_compiler(small("llama32-q4_0"));
    let names = |count: usize| (0..count).map(|i| format!("p{i}")).collect::<Vec<_>>();
    let cases = [
        (
            json!({"properties": properties(1_001, &json!({}))}),
            "the number of properties of an object is 1001, more than the limit of 1000",
        ),
        (
            json!({"allOf": [{"properties": properties(900, &json!({}))},
                {"properties": {"x": {}, "y": properties(1, &json!({}))["p0"]}},
                {"properties": (0..99).map(|i| (format!("q{i}"), json!({}))).collect::<Map<_, _>>()}]}),
            "the number of properties of an object is 1001, more than the limit of 1000",
        ),
        (
            json!({"required": names(1_001)}),
            "the number of required properties of an object is 1001, more than the limit of 1000",
        ),
        (
            json!({"enum": names(10_001)}),
            "the number of values of \"enum\" and \"const\" is 10001, more than the limit of 10000",
        ),
        (
            json!({"anyOf": [{"enum": names(6_000)}, {"enum": names(4_001)}]}),
            "the number of values of \"enum\" and \"const\" is 10001, more than the limit of 10000",
        ),
        (
            json!({"anyOf": (0..10_000).map(|_| json!(true)).collect::<Vec<_>>()}),
            "the number of schemas is 10001, more than the limit of 10000",
        ),
    ];
    for (value, expected) in cases {
        let error = compiler.compile(&schema(&value)).unwrap_err();
        assert!(matches!(error, ConstraintError::TooLarge { .. }), "{error:?}");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn enums_have_up_to_10000_values() {
    let compiler = exact_compiler(small("llama32-q4_0"));
    for count in [4_999, 5_000, 10_000] {
        let lists: [Vec<Value>; 3] = [
            (0..count).map(|index| json!(format!("value {index}"))).collect(),
            (0..count).map(|index| json!(index * 7 - 5_000)).collect(),
            (0..count).map(|index| json!(f64::from(index) / 8.0)).collect(),
        ];
        for list in lists {
            let start = Instant::now();
            let grammar = compiler.compile(&schema(&json!({"enum": list})));
            let grammar = grammar.unwrap_or_else(|error| panic!("{count} of {}: {error}", list[1]));
            println!("{count} of {}: {:?}", list[1], start.elapsed());
            for index in [0, 1, 4_998, list.len() - 1] {
                let text = list[index].to_string();
                let text = text.strip_suffix(".0").unwrap_or(&text);
                assert!(accepts(&grammar, text), "{text}");
                assert!(!accepts(&grammar, &format!("{text}1234567")), "{text}");
            }
        }
    }
    let texts = (0..10_000).map(|index| format!("choice {index}"));
    assert!(compiler.compile(&Constraint::choice(texts)).is_ok());
}
