//! Text of the grammars parses, and its arguments are valid.

use std::sync::{Arc, LazyLock};

use crate::common::{MARKERS, Piece, Random, action, data, extended, plain, read, set, special};
use serde_json::{Value, json};
use walla_grammar::unmarked::Syntax;
use walla_grammar::{
    ActionError, ActionSet, ActionSpec, CallFormat, CallMarkers, Compiler, CompilerOptions,
    ConstraintError, Delimiter, Grammar, GrammarOptions, GrammarStart, ParsedCall, Vocabulary,
    call_grammar, check, render, unmarked_start,
};
use walla_model::Gguf;
use walla_model::tokenizer::Tokenizer;
use walla_reference_test::reference_test;
use walla_types::TokenId;

struct Setup {
    tokenizer: Arc<Tokenizer>,
    compiler: Compiler,
}

impl Setup {
    fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let vocabulary = Vocabulary::new(tokenizer.clone()).unwrap();
        Self { tokenizer, compiler: Compiler::new(vocabulary, CompilerOptions::default()) }
    }
}

/// Delimiters as ordinary text, and as special tokens.
fn setups() -> &'static [Setup; 2] {
    static SETUPS: LazyLock<[Setup; 2]> = LazyLock::new(|| [plain(), special()].map(Setup::new));
    &SETUPS
}

/// A reply that the masks allow. Texts are closed soon. `None` if it is not finished.
fn draw(
    grammar: &Grammar,
    setup: &Setup,
    markers: &CallMarkers,
    random: &mut Random,
) -> Option<Vec<Piece>> {
    let vocabulary = grammar.vocabulary();
    let mut matcher = grammar.matcher();
    let mut words = vec![0; vocabulary.mask_words()];
    let mut pieces: Vec<Piece> = Vec::new();
    let freedom = random.below(25);
    for step in 0..800 {
        if matcher.has_ended() {
            return Some(pieces);
        }
        matcher.mask(&mut words).unwrap_or_else(|e| panic!("{pieces:?}: {e}"));
        let allowed: Vec<TokenId> = (0..vocabulary.tokens() as u32)
            .filter(|token| words[(token / 32) as usize] >> (token % 32) & 1 == 1)
            .map(TokenId)
            .collect();
        let token = pick(random, &allowed, setup, markers, step >= freedom);
        matcher.accept(token).unwrap();
        if setup.tokenizer.is_end_of_generation(token) {
            continue;
        }
        let bytes = setup.tokenizer.token_bytes(token);
        match (markers.of_token(token), pieces.last_mut()) {
            (Some(delimiter), _) => pieces.push(Piece::Delimiter(delimiter)),
            (None, Some(Piece::Text(text))) => text.extend_from_slice(bytes),
            (None, _) => pieces.push(Piece::Text(bytes.to_vec())),
        }
    }
    None
}

fn pick(
    random: &mut Random,
    tokens: &[TokenId],
    setup: &Setup,
    markers: &CallMarkers,
    is_closing: bool,
) -> TokenId {
    let closes = |token: &&TokenId| {
        let bytes = setup.tokenizer.token_bytes(**token);
        setup.tokenizer.is_end_of_generation(**token)
            || markers.of_token(**token).is_some()
            || matches!(bytes, b"\"" | b"'" | b"}" | b"]" | b")" | b"\n" | b"<" | b"</")
    };
    if is_closing && random.below(8) != 0 {
        let closing: Vec<_> = tokens.iter().filter(closes).collect();
        if !closing.is_empty() {
            return *closing[random.below(closing.len())];
        }
    }
    let (one, other) = (random.pick(tokens), random.pick(tokens));
    let length = |token| setup.tokenizer.token_bytes(token).len();
    if random.flag() && length(other) < length(one) { other } else { one }
}

/// Draws replies and checks their calls. Returns the number of finished replies.
fn check_replies(
    setups: &[Setup],
    actions: &ActionSet,
    format: CallFormat,
    seed: u64,
    draws: u64,
) -> usize {
    let mut finished = 0;
    for (index, setup) in setups.iter().enumerate() {
        let markers = CallMarkers::new(format, &setup.tokenizer);
        for start in [GrammarStart::Call, GrammarStart::BehindOpen] {
            let mut random = Random::new(seed * 4 + index as u64);
            let options = GrammarOptions { start, max_calls: 1 + random.below(3) as u32 };
            let constraint = call_grammar(&markers, actions, options).unwrap();
            let grammar = setup.compiler.compile(&constraint).unwrap_or_else(|error| {
                panic!("{format:?} {}: {error}\n{constraint:?}", json!(actions.tools()))
            });
            for _ in 0..draws {
                let Some(mut pieces) = draw(&grammar, setup, &markers, &mut random) else {
                    continue;
                };
                if start == GrammarStart::BehindOpen && format != CallFormat::LlamaJson {
                    let open = match markers.open_text() {
                        Some(text) => Piece::Text(text.as_bytes().to_vec()),
                        None => Piece::Delimiter(Delimiter::Open),
                    };
                    pieces.insert(0, open);
                    if let [Piece::Text(open), Piece::Text(rest), ..] = &mut pieces[..] {
                        open.append(rest);
                        pieces.remove(1);
                    }
                }
                finished += 1;
                check_reply(actions, &markers, &pieces, options.max_calls as usize);
            }
        }
    }
    finished
}

fn check_reply(actions: &ActionSet, markers: &CallMarkers, pieces: &[Piece], max_calls: usize) {
    let shown = || -> String {
        let text = pieces.iter().map(|piece| match piece {
            Piece::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Piece::Delimiter(delimiter) => format!("<<{delimiter:?}>>"),
        });
        format!("{:?} {}", markers.format(), text.collect::<String>())
    };
    let (calls, speech) = read(markers, pieces, None, 1 << 20);
    assert!(speech.trim_ascii().is_empty(), "{}: {speech:?}", shown());
    assert!(!calls.is_empty() && calls.len() <= max_calls, "{}", shown());
    for call in calls {
        let call = call.unwrap_or_else(|error| panic!("{}: {error}", shown()));
        let checked = check(actions, call).unwrap_or_else(|e| panic!("{}: {e}", shown()));
        let action = actions.get(&checked.name).unwrap();
        let validator = jsonschema::validator_for(action.parameters()).unwrap();
        assert!(validator.is_valid(&Value::Object(checked.arguments)), "{}", shown());
    }
}

#[test]
fn drawn_calls_are_valid() {
    for format in CallFormat::ALL {
        let finished = check_replies(setups(), &set(), format, 1, 6);
        assert!(finished >= 12, "{format:?}: {finished} replies");
    }
}

/// Byte-level BPE and SentencePiece, with tokens that contain parts of the syntax.
#[reference_test]
fn drawn_calls_of_published_vocabularies_are_valid() {
    for name in ["qwen2", "llama-spm"] {
        let file = Gguf::open(data("tokenizers").join(format!("{name}.gguf"))).unwrap();
        let setups = [&[][..], &MARKERS].map(|texts| Setup::new(extended(&file, texts)));
        for format in CallFormat::ALL {
            let finished = check_replies(&setups, &set(), format, 2, 2);
            assert!(finished >= 4, "{name} {format:?}: {finished} replies");
        }
    }
}

/// `WALLA_ACTION_SEEDS` sets of random schemas, by default 10.
#[test]
fn drawn_calls_of_random_schemas_are_valid() {
    let seeds = std::env::var("WALLA_ACTION_SEEDS").ok();
    let seeds = seeds.map_or(10, |seeds| seeds.parse().expect("a number"));
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let actions = ActionSet::new([action(&mut random, "f"), action(&mut random, "f-2")]);
        for format in CallFormat::ALL {
            check_replies(setups(), actions.as_ref().unwrap(), format, seed, 2);
        }
    }
}

/// The text of a call as a template prints it is allowed, so the next prompt has the same tokens.
#[test]
fn rendered_calls_are_allowed() {
    let actions = set();
    let Value::Object(arguments) = json!({"item": "l'or", "count": 3, "note": "For \"you\".",
        "gift": true, "to": ["Odo", "Ida"], "at": {"x": 0.5, "Y": "é"}})
    else {
        panic!()
    };
    for call in
        [ParsedCall::new("give", arguments), ParsedCall::new("wave", serde_json::Map::new())]
    {
        for format in CallFormat::ALL {
            for setup in setups() {
                let markers = CallMarkers::new(format, &setup.tokenizer);
                let options = GrammarOptions { start: GrammarStart::Call, max_calls: 1 };
                let constraint = call_grammar(&markers, &actions, options).unwrap();
                let grammar = setup.compiler.compile(&constraint).unwrap();
                let mut matcher = grammar.matcher();
                let text = render(format, &call);
                for piece in crate::common::pieces(&markers, &text) {
                    let tokens = match piece {
                        Piece::Delimiter(delimiter) => vec![markers.token(delimiter).unwrap()],
                        Piece::Text(bytes) => {
                            grammar.vocabulary().encode(std::str::from_utf8(&bytes).unwrap())
                        }
                    };
                    for token in tokens {
                        let bytes = String::from_utf8_lossy(setup.tokenizer.token_bytes(token));
                        matcher.accept(token).unwrap_or_else(|error| {
                            panic!("{text} at {bytes:?}: {error}\n{constraint:?}")
                        });
                    }
                }
                assert!(matcher.is_complete(), "{text}");
            }
        }
    }
}

/// The limits of the compiler allow the largest set of usual actions.
#[test]
fn sixty_four_actions_compile() {
    // No two actions have a common part.
    let action = |index| {
        let schema = crate::common::give().parameters().to_string();
        let schema = schema.replace("nails", &format!("nails {index}"));
        let schema = schema.replace("\"maxLength\":40", &format!("\"maxLength\":{}", 40 + index));
        let schema = schema.replace("\"price\"", &format!("\"price_{index}\""));
        let schema = serde_json::from_str(&schema).unwrap();
        ActionSpec::new(format!("give_{index}"), "", &schema).unwrap()
    };
    let actions = ActionSet::new((0..ActionSet::MAX_ACTIONS).map(action)).unwrap();
    for format in CallFormat::ALL {
        for setup in setups() {
            let markers = CallMarkers::new(format, &setup.tokenizer);
            let options = GrammarOptions { start: GrammarStart::Call, max_calls: 4 };
            let constraint = call_grammar(&markers, &actions, options).unwrap();
            let start = std::time::Instant::now();
            let grammar = setup.compiler.compile(&constraint);
            let grammar = grammar.unwrap_or_else(|error| panic!("{format:?}: {error}"));
            println!("{format:?}: {} bytes, {:?}", constraint.source_bytes(), start.elapsed());
            assert!(draw(&grammar, setup, &markers, &mut Random::new(3)).is_some());
        }
    }
}

/// Free texts cannot contain the syntax that closes them, nor control characters.
#[test]
fn free_texts_do_not_close_calls() {
    let actions = set();
    let accepts = |format, tokens: usize, text: &str| {
        let setup = &setups()[tokens];
        let markers = CallMarkers::new(format, &setup.tokenizer);
        let options = GrammarOptions { start: GrammarStart::BehindOpen, max_calls: 1 };
        let constraint = call_grammar(&markers, &actions, options).unwrap();
        let mut matcher = setup.compiler.compile(&constraint).unwrap().matcher();
        let tokens =
            crate::common::pieces(&markers, text).into_iter().flat_map(|piece| match piece {
                Piece::Delimiter(delimiter) => vec![markers.token(delimiter).unwrap()],
                Piece::Text(bytes) => {
                    setup.compiler.vocabulary().encode(str::from_utf8(&bytes).unwrap())
                }
            });
        tokens.into_iter().all(|token| matcher.accept(token).is_ok())
    };
    for (format, start) in [
        (CallFormat::HermesJson, "\n{\"name\": \"give_all\", \"arguments\": {\"why\": \""),
        (CallFormat::QwenXml, "\n<function=give_all>\n<parameter=why>\n"),
        (CallFormat::Lfm2, "[give_all(why='"),
        (CallFormat::Gemma4, "call:give_all{why:<|\"|>"),
    ] {
        for tokens in [0, 1] {
            let is_allowed = |text: &str| accepts(format, tokens, &format!("{start}{text}"));
            assert!(is_allowed("It's é.") || format == CallFormat::Lfm2);
            assert!(!is_allowed("a\u{1}") && !is_allowed("a\r"), "{format:?}");
            assert!(!is_allowed(&"a".repeat(201)) && is_allowed(&"a".repeat(200)), "{format:?}");
            let has_line = matches!(format, CallFormat::QwenXml | CallFormat::Gemma4);
            assert_eq!(is_allowed("a\nb"), has_line, "{format:?}");
            let has_tag = match format {
                CallFormat::QwenXml => false,
                CallFormat::Gemma4 => tokens == 1,
                _ => true,
            };
            assert_eq!(is_allowed("a<b"), has_tag, "{format:?} {tokens}");
            let has_end = has_tag && format != CallFormat::QwenXml;
            assert_eq!(is_allowed("a</tool_c"), has_end, "{format:?} {tokens}");
        }
    }
}

#[test]
fn what_cannot_be_written_is_named() {
    let spec = |schema: Value| {
        let schema = json!({"type": "object", "properties": {"a": schema}});
        ActionSet::new([ActionSpec::new("f", "", &schema).unwrap()]).unwrap()
    };
    let grammar = |format, tokens: usize, actions: &ActionSet| {
        let markers = CallMarkers::new(format, &setups()[tokens].tokenizer);
        call_grammar(&markers, actions, GrammarOptions { start: GrammarStart::Call, max_calls: 1 })
    };
    let empty = spec(json!({"type": "string"})).actions()[0].with_choices("a", [""; 0]);
    let empty = ActionSet::new([empty.unwrap()]).unwrap();
    assert_eq!(grammar(CallFormat::Plain, 0, &empty), Err(ActionError::NoAction));
    let tag = spec(json!({"enum": ["a</parameter>"]}));
    let refused = |format, tokens, actions: &ActionSet| match grammar(format, tokens, actions) {
        Err(ActionError::Of { action, error }) if action == "f" => *error,
        other => panic!("{other:?}"),
    };
    let unwritable = |error| matches!(error, ActionError::Unwritable { .. });
    assert!(unwritable(refused(CallFormat::QwenXml, 1, &tag)));
    let quote = spec(json!({"enum": ["a<|\"|>"]}));
    assert!(unwritable(refused(CallFormat::Gemma4, 0, &quote)));
    assert!(grammar(CallFormat::Gemma4, 1, &quote).is_ok(), "its text is not the token");
    let mixed = spec(json!({"anyOf": [{"type": "string"},
        {"type": "array", "items": {"type": "null"}}]}));
    let error = refused(CallFormat::QwenXml, 1, &mixed);
    let ActionError::Schema(error) = error else { panic!("{error}") };
    assert!(matches!(error, ConstraintError::UnsupportedKeyword { .. }), "{error}");
    for format in CallFormat::ALL {
        assert!(format == CallFormat::QwenXml || grammar(format, 1, &mixed).is_ok());
        let one = grammar(format, 1, &tag).ok();
        assert_eq!(one, grammar(format, 1, &tag).ok(), "equal sets have equal grammars");
    }
}

/// The beginning of a call without markers is the beginning of the grammar, in every format that
/// has its syntax.
#[test]
fn a_call_without_markers_continues_in_the_grammar() {
    use CallFormat::{
        Gemma4, HermesJson, Lfm2, LlamaJson, MistralList, MistralNamed, Phi4, Plain, QwenXml,
    };
    let hermes = Some("\n{\"name\": \"f\"");
    let list = Some("[{\"name\": \"f\"");
    for (format, syntax, text, expected) in [
        (HermesJson, Syntax::Json, "{\"name\": \"f\"", hermes),
        (Plain, Syntax::Json, "{ \"name\" :'f'", hermes),
        (HermesJson, Syntax::Json, "{\n  \"name\": \"f\",\n", Some("\n{\"name\": \"f\",")),
        (LlamaJson, Syntax::Json, "{\"name\":\"f\"", Some("{\"name\": \"f\"")),
        (HermesJson, Syntax::Json, "[{\"name\": \"f\"", None),
        (MistralList, Syntax::Json, "[ {\"name\": \"f\"", list),
        (Phi4, Syntax::Json, "{\"name\": \"f\"", list),
        (MistralNamed, Syntax::Json, "{\"name\": \"f\"", None),
        (MistralNamed, Syntax::Named, "f{", None),
        (QwenXml, Syntax::Xml, "<function=", Some("\n<function=")),
        (Lfm2, Syntax::Python, "f(", Some("[f(")),
        (Lfm2, Syntax::Python, "[f(", Some("[f(")),
        (Gemma4, Syntax::Gemma, "call:f{", Some("call:f{")),
        (HermesJson, Syntax::Python, "f(", None),
        (HermesJson, Syntax::Json, "{\"function\": {}}", None),
        (HermesJson, Syntax::Json, "{\"name", None),
    ] {
        let start = unmarked_start(format, syntax, text.as_bytes());
        assert_eq!(start.as_deref(), expected.map(str::as_bytes), "{format:?} {text:?}");
    }
}
