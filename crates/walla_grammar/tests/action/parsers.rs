//! Calls of every format: round trips, any split, damaged text.

use crate::common::{Piece, Random, action, arguments, markers, pieces, read, set};
use serde_json::{Map, Value, json};
use walla_grammar::{
    ActionSet, CallError, CallFormat, CallMarkers, CallParser, Delimiter, Input, MalformedCall,
    ParsedCall, Progress, check, render,
};

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn one(markers: &CallMarkers, text: &str) -> Result<ParsedCall, MalformedCall> {
    let (mut calls, _) = read(markers, &pieces(markers, text), None, CallParser::MAX_BYTES);
    assert_eq!(calls.len(), 1, "{text}");
    calls.remove(0)
}

/// Texts as the vendors' templates print them or as the models write them.
#[test]
fn published_forms_are_read() {
    let call = |name: &str, arguments: Value| ParsedCall::new(name, fields(arguments));
    let weather = call("get_weather", json!({"city": "Paris", "days": 2}));
    let text_of = |format: CallFormat| match format {
        CallFormat::HermesJson | CallFormat::Plain => {
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \
             \"days\": 2}}\n</tool_call>"
        }
        CallFormat::QwenXml => {
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n\
             <parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
        }
        CallFormat::LlamaJson => {
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"days\": 2}}"
        }
        CallFormat::MistralList => {
            "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \
             \"days\": 2}, \"id\": \"bbc5b7ede\"}]"
        }
        CallFormat::MistralNamed => {
            "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\", \"days\": 2}"
        }
        CallFormat::Lfm2 => {
            "<|tool_call_start|>[get_weather(city=\"Paris\", days=2)]<|tool_call_end|>"
        }
        CallFormat::Gemma4 => {
            "<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:2}<tool_call|>"
        }
        CallFormat::Phi4 => {
            "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \
             \"days\": 2}}]<|/tool_call|>"
        }
        other => panic!("{other:?}"),
    };
    let schema = json!({"type": "object", "properties":
        {"city": {"type": "string"}, "days": {"type": "integer"}}});
    let action = walla_grammar::ActionSpec::new("get_weather", "", &schema).unwrap();
    let actions = ActionSet::new([action]).unwrap();
    for format in CallFormat::ALL {
        for markers in markers(format) {
            let text = text_of(format);
            let parsed = one(&markers, text).unwrap_or_else(|e| panic!("{format:?}: {e}"));
            assert_eq!(check(&actions, parsed).unwrap(), weather, "{format:?}");
        }
        if format != CallFormat::MistralList {
            assert_eq!(render(format, &weather), text_of(format));
        }
    }
}

#[test]
fn variants_of_the_models_are_read() {
    let parsed = |format, text: &str| one(&markers(format)[1], text).unwrap();
    let call = ParsedCall::new("f", fields(json!({"a": [1, null, true], "b": "it's"})));
    for text in [
        "<|tool_call_start|>[ f ( a = [1, None, True,] , b = \"it's\" ) ]<|tool_call_end|>",
        "<|tool_call_start|>f(a=(1,null,true),b='it\\'s')<|tool_call_end|>",
        "<|tool_call_start|>[{\"name\":\"f\",\"arguments\":{\"a\":[1,null,true],\"b\":\"it's\"}}]\
         <|tool_call_end|>",
    ] {
        assert_eq!(parsed(CallFormat::Lfm2, text), call);
    }
    for text in [
        "<|tool_call>call:f{ a : [1, None, true], b : <|\"|>it's<|\"|> }<tool_call|>",
        "<|tool_call> call:f{<|\"|>a<|\"|>:[1,null,true],\"b\":\"it's\"}\n<tool_call|>",
    ] {
        assert_eq!(parsed(CallFormat::Gemma4, text), call);
    }
    let text = "<tool_call>{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\
                \"{\\\"a\\\":[1,null,true],\\\"b\\\":\\\"it's\\\"}\"}}</tool_call>";
    assert_eq!(parsed(CallFormat::HermesJson, text), call);
    let text = "[TOOL_CALLS]f{\"a\":[1,null,true],\"b\":\"it's\"}";
    assert_eq!(parsed(CallFormat::MistralNamed, text), call);
    let text = "<|python_tag|>{\"name\":\"f\",\"parameters\":{\"a\":[1,null,true],\"b\":\"it's\"}}";
    assert_eq!(parsed(CallFormat::LlamaJson, text), call);
    let text = "<|tool_call|>{\"name\":\"f\",\"arguments\":{\"a\":[1,null,true],\"b\":\"it's\"}}\
                <|/tool_call|>";
    assert_eq!(parsed(CallFormat::Phi4, text), call);
}

#[test]
fn a_block_has_several_calls() {
    let names = |format, text: &str| {
        let markers = markers(format)[1];
        let (calls, speech) = read(&markers, &pieces(&markers, text), None, CallParser::MAX_BYTES);
        let names: Vec<String> = calls.into_iter().map(|call| call.unwrap().name).collect();
        (names, String::from_utf8(speech).unwrap())
    };
    let expected = (vec!["a".to_owned(), "b".to_owned()], "So.".to_owned());
    let list = "[{\"name\":\"a\"},{\"name\":\"b\",\"arguments\":{}}]";
    for (format, text) in [
        (CallFormat::MistralList, format!("So.[TOOL_CALLS]{list}")),
        (CallFormat::Phi4, format!("So.<|tool_call|>{list}<|/tool_call|>")),
        (CallFormat::Lfm2, "So.<|tool_call_start|>[a(), b()]<|tool_call_end|>".to_owned()),
        (CallFormat::MistralNamed, "So.[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[ARGS]{}".to_owned()),
        (
            CallFormat::Gemma4,
            "So.<|tool_call>call:a{}<tool_call|><|tool_call>call:b{}<tool_call|>".to_owned(),
        ),
    ] {
        assert_eq!(names(format, &text), expected, "{format:?}");
    }
}

/// Speech before and behind a call is not part of it; the cut does not matter.
#[test]
fn every_call_is_read_back_in_every_split() {
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let spec = action(&mut random, "give-2_all");
        let schema = spec.parameters().clone();
        let actions = ActionSet::new([spec]).unwrap();
        let call = ParsedCall::new("give-2_all", arguments(&mut random, &schema));
        for format in CallFormat::ALL {
            for markers in markers(format) {
                let is_text = markers.text(Delimiter::Quote).is_some();
                let text = format!("{} Well.", render(format, &call));
                let pieces = pieces(&markers, &text);
                let (calls, speech) =
                    read(&markers, &pieces, Some(&mut random), CallParser::MAX_BYTES);
                assert_eq!(calls.len(), 1, "{text}: {calls:?}");
                let parsed = calls[0].clone().unwrap_or_else(|e| panic!("{text}: {e}"));
                let checked = check(&actions, parsed).unwrap_or_else(|e| panic!("{text}: {e}"));
                let is_exact = format != CallFormat::QwenXml;
                if is_exact {
                    assert_eq!(checked, call, "{text} {is_text}");
                }
                let validator = jsonschema::validator_for(&schema).unwrap();
                assert!(validator.is_valid(&Value::Object(checked.arguments)), "{text}");
                assert_eq!(String::from_utf8(speech).unwrap(), " Well.", "{format:?} {text}");
            }
        }
    }
}

/// Damaged calls are values: calls or errors, and the same ones in every split.
#[test]
fn damaged_text_is_a_call_or_an_error() {
    let call = ParsedCall::new(
        "give",
        fields(json!({"item": "a \"big\" sword", "count": 3, "to": ["Odo"], "at": {"x": 0.5}})),
    );
    let cases = std::env::var("WALLA_ACTION_CASES").ok();
    let cases = cases.map_or(10_000, |cases| cases.parse().expect("a number"));
    for seed in 1..=cases {
        let mut random = Random::new(seed);
        let format = random.pick(&CallFormat::ALL);
        let markers = random.pick(&markers(format));
        let text = render(format, &call);
        let mut pieces = pieces(&markers, &text);
        for _ in 0..=random.below(3) {
            mutate(&mut random, &mut pieces);
        }
        let limits = [20, 100, 10_000][random.below(3)];
        let whole = read(&markers, &pieces, None, limits);
        assert_eq!(whole, read(&markers, &pieces, Some(&mut random), limits), "{pieces:?}");
        for call in whole.0 {
            match call {
                Ok(call) => drop(check(&set(), call)),
                Err(call) => assert!(call.text.len() <= MalformedCall::MAX_TEXT_BYTES),
            }
        }
    }
}

fn mutate(random: &mut Random, pieces: &mut Vec<Piece>) {
    let all = [Delimiter::Open, Delimiter::Close, Delimiter::Args, Delimiter::Quote];
    let at = random.below(pieces.len());
    match random.below(6) {
        _ if pieces.is_empty() => pieces.push(Piece::Delimiter(random.pick(&all))),
        0 => drop(pieces.remove(at)),
        1 => pieces.insert(at, Piece::Delimiter(random.pick(&all))),
        _ => {
            let Piece::Text(text) = &mut pieces[at] else { return };
            let parts: [&[u8]; 14] = [
                b"{",
                b"}",
                b"[",
                b"]",
                b"\"",
                b"'",
                b"\\",
                b"\n",
                b"<tool_call>",
                b"</tool_call>",
                b"<|\"|>",
                b"[ARGS]",
                b"\xff",
                b"</parameter>",
            ];
            let from = random.below(text.len() + 1);
            let to = (from + random.below(8)).min(text.len());
            let part = random.pick(&parts).to_vec();
            text.splice(from..to, part);
        }
    }
    // Texts next to each other are one text.
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces.drain(..) {
        match (joined.last_mut(), piece) {
            (Some(Piece::Text(text)), Piece::Text(more)) => text.extend(more),
            (_, piece) => joined.push(piece),
        }
    }
    *pieces = joined;
}

#[test]
fn every_beginning_of_a_call_is_unfinished() {
    for format in CallFormat::ALL {
        let markers = markers(format)[1];
        let call = ParsedCall::new("give", fields(json!({"item": "nails", "n": [1, "a"]})));
        let pieces = pieces(&markers, &render(format, &call));
        let inner: Vec<Piece> = pieces.into_iter().collect();
        let Some((last, start)) = inner.split_last() else { panic!() };
        // Without the closing delimiter the text is complete: an ending token closes it.
        let (calls, _) = read(&markers, start, None, CallParser::MAX_BYTES);
        if ![CallFormat::LlamaJson, CallFormat::MistralList, CallFormat::MistralNamed]
            .contains(&format)
            && format != CallFormat::Plain
        {
            assert_eq!(*last, Piece::Delimiter(Delimiter::Close));
            assert_eq!(calls[0].as_ref().unwrap().name, "give", "{format:?}");
        }
        let Some(Piece::Text(text)) =
            start.iter().chain([last]).rfind(|p| matches!(p, Piece::Text(_)))
        else {
            panic!()
        };
        let mut parser = CallParser::new(&markers, CallParser::MAX_BYTES);
        for end in 1..text.trim_ascii_end().len() {
            parser.begin();
            assert_eq!(parser.push(Input::Text(&text[..end])), Progress::Open, "{format:?}");
            if format == CallFormat::Gemma4 || format == CallFormat::MistralNamed {
                continue; // the text is the end of the call only
            }
            parser.finish();
            let error = parser.take_calls().next().unwrap().unwrap_err();
            let inside_end = format == CallFormat::Plain && text[..end].contains(&b'}');
            assert!(error.error == CallError::Unfinished || inside_end, "{format:?} {error}");
        }
        parser.finish();
    }
}

#[test]
fn a_call_that_is_too_long_is_reported_once_and_its_end_is_found() {
    for markers in markers(CallFormat::HermesJson) {
        let long = "x".repeat(10_000);
        let text = format!("<tool_call>{{\"name\": \"{long}\"}}</tool_call> Yes.");
        let limits = 2_000;
        let (calls, speech) = read(&markers, &pieces(&markers, &text), None, limits);
        assert_eq!(calls.len(), 1);
        let error = calls[0].clone().unwrap_err();
        assert_eq!(error.error, CallError::TooLong { max_bytes: 2_000 });
        assert_eq!(error.text.len(), MalformedCall::MAX_TEXT_BYTES);
        assert_eq!(speech, b" Yes.");
    }
}

/// The text of a delimiter counts only if the vocabulary does not have it as a token.
#[test]
fn text_of_a_delimiter_is_text_if_a_token_exists() {
    let [as_text, as_token] = markers(CallFormat::HermesJson);
    let mut parser = CallParser::new(&as_token, CallParser::MAX_BYTES);
    parser.begin();
    let text = b"{\"name\": \"f\"}</tool_call>";
    assert_eq!(parser.push(Input::Text(text)), Progress::Open);
    assert!(matches!(parser.push(Input::Delimiter(Delimiter::Close)), Progress::Closed { .. }));
    assert!(parser.take_calls().next().unwrap().is_err(), "text behind the object");

    // Within a text of JSON it is text in both cases.
    let text = b"{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}";
    for markers in [as_text, as_token] {
        let mut parser = CallParser::new(&markers, CallParser::MAX_BYTES);
        parser.begin();
        assert_eq!(parser.push(Input::Text(text)), Progress::Open);
        parser.finish();
        let call = parser.take_calls().next().unwrap().unwrap();
        assert_eq!(call.arguments["a"], "</tool_call>");
    }
    assert_eq!(as_text.open_text(), Some("<tool_call>"));
    assert_eq!(as_token.open_text(), None);
}

#[test]
fn an_opening_delimiter_ends_an_open_call() {
    let markers = markers(CallFormat::HermesJson)[1];
    let text = "<tool_call>{\"name\": <tool_call>{\"name\": \"b\"}</tool_call>";
    let (calls, _) = read(&markers, &pieces(&markers, text), None, CallParser::MAX_BYTES);
    assert_eq!(calls[0].clone().unwrap_err().error, CallError::Unfinished);
    assert_eq!(calls[1].clone().unwrap().name, "b");
    assert_eq!(calls.len(), 2);
}

/// Arguments of another schema: accepted if and only if the oracle accepts them, except for
/// conversions, whose result the oracle accepts.
#[test]
fn arguments_are_checked_as_the_oracle_does() {
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let spec = action(&mut random, "f");
        let schema = spec.parameters().clone();
        let other = if random.flag() { action(&mut random, "f") } else { spec.clone() };
        let mut values = arguments(&mut random, other.parameters());
        if random.flag() && !values.is_empty() {
            let at = random.below(values.len());
            let name = values.keys().nth(at).unwrap().clone();
            let value = [json!(7), json!("7"), json!(null), json!(1e3), json!([1]), json!({})];
            values[&name] = random.pick(&value);
        }
        let validator = jsonschema::validator_for(&schema).unwrap();
        let is_valid = validator.is_valid(&Value::Object(values.clone()));
        let actions = ActionSet::new([spec]).unwrap();
        match check(&actions, ParsedCall::new("f", values.clone())) {
            Ok(call) => {
                accepted += 1;
                assert!(validator.is_valid(&Value::Object(call.arguments)), "{schema} {values:?}");
            }
            Err(error) => {
                refused += 1;
                assert!(!is_valid, "{schema} {values:?} {error}");
            }
        }
    }
    assert!(accepted > 60 && refused > 60, "{accepted} {refused}");
}

/// Names are sorted as the template's `dictsort` does.
#[test]
fn names_of_gemma_are_sorted_without_case() {
    let call = ParsedCall::new("f", fields(json!({"Y": 2, "x": {"b": 1, "A": true}})));
    let text = render(CallFormat::Gemma4, &call);
    assert_eq!(text, "<|tool_call>call:f{x:{A:true,b:1},Y:2}<tool_call|>");
}

#[test]
fn arguments_are_converted_or_refused_by_name() {
    let actions = set();
    let run = |arguments: Value| check(&actions, ParsedCall::new("give", fields(arguments)));
    let checked = run(json!({"count": "3", "item": "nails", "gift": "True", "note": null,
        "price": 2, "at": "{\"x\": 1}"}));
    let expected = json!({"item": "nails", "count": 3, "gift": true, "price": 2, "at": {"x": 1}});
    assert_eq!(Value::Object(checked.unwrap().arguments), expected);
    for (arguments, property) in [
        (json!({"item": "nails"}), "count"),
        (json!({"item": "nails", "count": 0}), "count"),
        (json!({"item": "hammer", "count": 1}), "item"),
        (json!({"item": "nails", "count": 1, "who": 1}), "who"),
        (json!({"item": "nails", "count": 1.5}), "count"),
        (json!({"item": "nails", "count": 1, "to": ["Odo", "Eve"]}), "to/1"),
        (json!({"item": "nails", "count": 1, "at": {"x": "far"}}), "at/x"),
        (json!({"item": "nails", "count": 1, "note": "long ".repeat(9)}), "note"),
        (json!({"item": "nails", "count": 1, "to": ["Odo", "Odo", "Odo", "Odo"]}), "to"),
        (json!({"item": "nails", "count": 1, "price": "much"}), "price"),
    ] {
        let error = run(arguments).unwrap_err();
        let CallError::InvalidArgument { property: named, .. } = error.error else { panic!() };
        assert_eq!(named, property);
    }
    let error = check(&actions, ParsedCall::new("fly", Map::new())).unwrap_err();
    assert_eq!(error.error, CallError::UnknownAction { name: "fly".into() });
    assert_eq!(error.text, "fly {}");
}
