//! Tools, calls and results of actions in every kind of template.

use crate::action_templates::{TEMPLATES, templates};
use crate::reference_data::{all_files, files};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use walla_model::chat::{
    BuiltInTemplate, ChatTemplate, FILLER, Message, RESULT_PREFIX, RenderOptions, Role, Segment,
    Tools, ToolsError,
};
use walla_reference_test::reference_test;

use Role::{Action, ActionResult, Assistant, Observation, System, User};

/// The templates of this folder, the built-in and the vendors' ones.
fn all_templates() -> Vec<(String, ChatTemplate)> {
    let built_in = BuiltInTemplate::ALL.map(|t| (t.to_string(), t.source().to_owned()));
    let published = files("templates", "jinja")
        .into_iter()
        .map(|path| (path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
    let compiled = |(name, source): (String, String)| {
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        (name, template)
    };
    templates().into_iter().chain(built_in.into_iter().chain(published).map(compiled)).collect()
}

fn find(name: &str) -> ChatTemplate {
    templates().into_iter().find(|(other, _)| other == name).unwrap().1
}

fn prints(template: &ChatTemplate) -> [bool; 3] {
    [template.prints_tools(), template.prints_calls(), template.takes_results()]
}

fn tools() -> Tools {
    let item = json!({"type": "string", "enum": ["nails"]});
    let parameters = json!({"type": "object", "properties": {"item": item}});
    let function = json!({"name": "give", "description": "Sells it.", "parameters": parameters});
    let list = json!([{"type": "function", "function": function}]);
    Tools::new(&list, "Actions: give(item)").unwrap()
}

fn options(tools: Option<Tools>) -> RenderOptions {
    RenderOptions { add_generation_prompt: true, tools, ..RenderOptions::default() }
}

fn render(template: &ChatTemplate, turns: &[(Role, &str)], options: &RenderOptions) -> String {
    let messages: Vec<_> =
        turns.iter().map(|&(role, content)| Message::new(role, content)).collect();
    template.render(&messages, options).unwrap().text()
}

const GIVE: &str = r#"{"name": "give", "arguments": {"item": "nails"}}"#;

#[test]
fn probes_find_what_a_template_prints() {
    for ((name, template), (_, expected, _)) in templates().iter().zip(TEMPLATES) {
        template.check().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(prints(template), expected, "{name}");
    }
    let built_in = |template| prints(&ChatTemplate::built_in(template, "", "").unwrap());
    // They print the name of any role.
    assert_eq!(built_in(BuiltInTemplate::Chatml), [false, false, true]);
    assert_eq!(built_in(BuiltInTemplate::Llama3), [false, false, true]);
    assert_eq!(built_in(BuiltInTemplate::Gemma), [false; 3]);
    assert_eq!(built_in(BuiltInTemplate::Mistral), [false; 3]);
}

#[reference_test]
fn probes_find_what_published_templates_print() {
    for path in all_files("templates", "jinja") {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let expected = [
            ("Qwen", [true, true, true]),
            ("Llama", [true, true, true]),
            ("Mistral", [true, true, true]),
            ("LFM2", [true, false, true]),
            ("SmolLM3", [false, false, true]),
            ("gemma", [false; 3]),
            ("Phi-3.5", [false; 3]),
        ];
        let (_, expected) = expected.iter().find(|(part, _)| name.contains(part)).unwrap();
        assert_eq!(prints(&template), *expected, "{name}");
    }
}

const SALE: [(Role, &str); 8] = [
    (System, "You are Greta."),
    (User, "Nails, please."),
    (Assistant, "Here you are."),
    (Action, GIVE),
    (Action, r#"{"name": "charge", "arguments": {"silver": 3}}"#),
    (ActionResult, "Sold."),
    (ActionResult, "Paid."),
    (Assistant, "Farewell."),
];

#[test]
fn calls_and_results_have_the_form_of_the_template() {
    let qwen = render(&find("json in tags"), &SALE[1..], &RenderOptions::default());
    assert_eq!(
        qwen,
        "<|im_start|>user\nNails, please.<|im_end|>\n<|im_start|>assistant\nHere you are.\n\
         <tool_call>\n{\"name\": \"give\", \"arguments\": {\"item\": \"nails\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"charge\", \"arguments\": {\"silver\": 3}}\n</tool_call>\
         <|im_end|>\n<|im_start|>user\n<tool_response>\nSold.\n</tool_response>\n\
         <tool_response>\nPaid.\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\nFarewell.<|im_end|>\n"
    );
    let ministral = render(&find("calls after text, uncounted"), &SALE, &RenderOptions::default());
    assert_eq!(
        ministral,
        "<s>[SYSTEM_PROMPT]You are Greta.[/SYSTEM_PROMPT][INST]Nails, please.[/INST]\
         Here you are.[TOOL_CALLS]give[ARGS]{\"item\": \"nails\"}[TOOL_CALLS]charge[ARGS]\
         {\"silver\": 3}</s>[TOOL_RESULTS]Sold.[/TOOL_RESULTS][TOOL_RESULTS]Paid.[/TOOL_RESULTS]\
         Farewell.</s>"
    );
    let gemma = render(&find("results inside the turn"), &SALE[1..], &RenderOptions::default());
    assert_eq!(
        gemma,
        "<s><|turn>user\nNails, please.<turn|>\n<|turn>model\nHere you are.\
         <|tool_call>call:give{item:<|\"|>nails<|\"|>}<tool_call|>\
         <|tool_call>call:charge{silver:3}<tool_call|>\
         <|tool_response>response:give{value:<|\"|>Sold.<|\"|>}<tool_response|>\
         <|tool_response>response:charge{value:<|\"|>Paid.<|\"|>}<tool_response|>Farewell.<turn|>\n"
    );
    let llama = render(&find("one call per message"), &SALE[2..6], &RenderOptions::default());
    let head = |role| format!("<|start_header_id|>{role}<|end_header_id|>\n\n");
    let calls = format!(
        "{0}Here you are.<|eot_id|>{0}{{\"name\": \"give\", \"parameters\": {{\"item\": \
         \"nails\"}}}}<|eot_id|>{0}{{\"name\": \"charge\", \"parameters\": {{\"silver\": 3}}}}\
         <|eot_id|>{1}\"Sold.\"<|eot_id|>",
        head("assistant"),
        head("ipython")
    );
    assert!(llama.ends_with(&calls), "{llama}");
}

/// A template that counts no calls gets fillers where roles would not alternate.
#[test]
fn roles_alternate_around_calls() {
    let nemo = find("identifiers of nine letters");
    let sold = "[TOOL_CALLS][{\"name\": \"give\", \"arguments\": {\"item\": \"nails\"}, \"id\": \
                \"call00000\"}]</s>[TOOL_RESULTS]{\"content\": Sold., \"call_id\": \"call00000\"}\
                [/TOOL_RESULTS]";
    let result = [(User, "Nails!"), (Action, GIVE), (ActionResult, "Sold.")];
    assert_eq!(render(&nemo, &result, &options(None)), format!("<s>[INST]Nails![/INST]{sold}"));
    let reply = [&result[..], &[(Assistant, "Bye.")]].concat();
    let text = render(&nemo, &reply, &RenderOptions::default());
    assert_eq!(text, format!("<s>[INST]Nails![/INST]{sold}Bye.</s>"));
    let silent = [&result[..], &[(User, "Thanks.")]].concat();
    let text = render(&nemo, &silent, &options(None));
    assert_eq!(text, format!("<s>[INST]Nails![/INST]{sold}{FILLER}</s>[INST]Thanks.[/INST]"));
    let spoken = [(User, "Nails!"), (Assistant, "Here."), result[1], result[2]];
    let text = render(&nemo, &spoken, &options(None));
    assert_eq!(text, format!("<s>[INST]Nails![/INST]Here.</s>{sold}[INST]{FILLER}[/INST]"));
}

#[test]
fn templates_without_actions_get_them_as_text() {
    let gemma = find("no actions, alternating");
    let text = render(&gemma, &SALE[1..], &options(Some(tools())));
    assert_eq!(
        text,
        format!(
            "<s><start_of_turn>user\nActions: give(item)\n\nNails, please.<end_of_turn>\n\
             <start_of_turn>model\nHere you are.\n<tool_call>\n{GIVE}\n</tool_call>\n<tool_call>\n\
             {}\n</tool_call><end_of_turn>\n<start_of_turn>user\n{RESULT_PREFIX}Sold.\n\n\
             {RESULT_PREFIX}Paid.<end_of_turn>\n<start_of_turn>model\nFarewell.<end_of_turn>\n\
             <start_of_turn>user\n{FILLER}<end_of_turn>\n<start_of_turn>model\n",
            SALE[4].1
        )
    );
    let chatml = find("no actions, any role");
    let text = render(&chatml, &SALE[..2], &options(Some(tools())));
    assert!(
        text.starts_with("<|im_start|>system\nYou are Greta.\n\nActions: give(item)<|im_end|>")
    );
}

/// A result without a call, a call that is none, and a call without a result.
#[test]
fn incomplete_actions_are_rendered() {
    let qwen = find("json in tags");
    let turns =
        [(User, "Hi"), (ActionResult, "Sold."), (Action, "give nails"), (ActionResult, "x")];
    assert_eq!(
        render(&qwen, &turns, &RenderOptions::default()),
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>system\nResult: Sold.<|im_end|>\n\
         <|im_start|>assistant\ngive nails<|im_end|>\n<|im_start|>system\nResult: x<|im_end|>\n"
    );
    let gemma = find("results inside the turn");
    let turns = [(User, "Hi"), (Action, GIVE), (User, "Hello?")];
    let text = render(&gemma, &turns, &options(None));
    let answered = "<tool_call|><|tool_response>response:give{value:<|\"|>...<|\"|>}\
                    <tool_response|><turn|>\n<|turn>user\nHello?<turn|>\n<|turn>model\n";
    assert!(text.ends_with(answered), "{text}");
}

#[test]
fn tools_are_printed_where_templates_read_them() {
    let json = r#"{"type": "function", "function": {"name": "give", "description": "Sells it.", "#;
    for (name, template) in all_templates() {
        for turns in [&SALE[..2], &SALE[1..2], &SALE[..], &[], &SALE[..1]] {
            let text = render(&template, turns, &options(Some(tools())));
            let is_printed = template.prints_tools();
            assert_eq!(text.contains("Sells it."), is_printed, "{name}: {text}");
            assert_eq!(text.contains("Actions: give(item)"), !is_printed, "{name}: {text}");
        }
    }
    let text = render(&find("tools in the system message"), &SALE[1..2], &options(Some(tools())));
    assert!(text.starts_with(&format!("<|system|><|tool|>[{json}")), "{text}");
    let text = render(&find("results inside the turn"), &SALE[1..2], &options(Some(tools())));
    let declaration = "<|tool>declaration:give{description:<|\"|>Sells it.<|\"|>,parameters:{\
                       item:{enum:[<|\"|>nails<|\"|>],type:<|\"|>STRING<|\"|>}}}<tool|>";
    assert!(text.contains(declaration), "{text}");
}

#[test]
fn other_lists_of_tools_are_refused() {
    let error = |list| Tools::new(&list, "").unwrap_err();
    let named = |name: &str| json!([{"type": "function", "function": {"name": name}}]);
    assert!(Tools::new(&named("a-1"), "").is_ok() && Tools::new(&json!([]), "").is_ok());
    for (list, index) in [
        (json!({}), 0),
        (json!([{"type": "function", "function": {"name": "a"}}, 1]), 1),
        (json!([{"type": "other", "function": {"name": "a"}}]), 0),
        (json!([{"type": "function", "name": "a"}]), 0),
    ] {
        assert_eq!(error(list), ToolsError::NotATool { index });
    }
    for name in ["", "1.5", "a b", "<|im_end|>", "é", &"a".repeat(65)] {
        assert_eq!(error(named(name)), ToolsError::Name { name: name.to_owned() });
    }
    let deep = (0..39).fold(json!(1), |inner, _| json!([inner]));
    assert_eq!(error(deep), ToolsError::TooDeep);
    assert!(matches!(error(json!("x".repeat(300_000))), ToolsError::TooLong { .. }));
}

/// The deepest schema of an action: 17 schemas within each other.
#[test]
fn the_deepest_list_of_tools_is_printed_by_every_template() {
    let item = json!({"type": "string", "enum": ["nails"]});
    let schema = (0..16).fold(
        item,
        |inner, _| json!({"type": "object", "properties": {"a": inner}, "required": ["a"]}),
    );
    let list = json!([{"type": "function", "function": {"name": "give", "description": "Sells it.",
        "parameters": schema}}]);
    let options = options(Some(Tools::new(&list, "Actions: give").unwrap()));
    for (name, template) in all_templates() {
        let messages = [Message::new(User, "Hello")];
        let rendered = template.render(&messages, &options);
        let text = rendered.unwrap_or_else(|error| panic!("{name}: {error}")).text();
        assert!(!template.prints_tools() || text.contains("give"), "{name}: {text}");
    }
}

/// A text that no template prints, or a blank one.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![8 => "[а-я]{1,6}( [а-я]{1,6}){0,3}", 1 => Just(" \n".to_owned())]
}

/// Messages with roles in any order, many of them calls and results. With the text of each one.
fn history() -> impl Strategy<Value = Vec<(Role, String, String)>> {
    let roles = vec![
        System,
        User,
        User,
        Assistant,
        Assistant,
        Observation,
        Action,
        Action,
        Action,
        ActionResult,
        ActionResult,
        ActionResult,
    ];
    let message = |(role, text, is_broken): (Role, String, bool)| {
        let call = json!({"name": "give", "arguments": {"item": &text}}).to_string();
        let content = if role == Action && !is_broken { call } else { text.clone() };
        (role, content, text.trim().to_owned())
    };
    let message =
        (prop::sample::select(roles), text(), prop::bool::weighted(0.1)).prop_map(message);
    prop::collection::vec(message, 0..9)
}

fn for_histories(check: impl Fn(&[(Role, &str, &str)]) -> Result<(), TestCaseError>) {
    let config = Config { cases: 100, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&history(), |history| {
        let turns: Vec<_> =
            history.iter().map(|(role, all, text)| (*role, all.as_str(), text.as_str())).collect();
        check(&turns)
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Whether the template moves the persona to the last message.
fn moves_system(template: &ChatTemplate) -> bool {
    let turns = [(System, "zero"), (User, "one"), (Assistant, "two"), (User, "three")];
    let text = render(template, &turns, &options(None));
    text.find("zero") > text.find("two")
}

#[test]
fn every_template_accepts_every_history_of_actions() {
    let templates = all_templates();
    let moving: Vec<bool> = templates.iter().map(|(_, t)| moves_system(t)).collect();
    for_histories(|turns| {
        let messages: Vec<_> =
            turns.iter().map(|&(role, content, _)| Message::new(role, content)).collect();
        for ((name, template), &moves_system) in templates.iter().zip(&moving) {
            for tools in [None, Some(tools())] {
                let options = options(tools);
                let prompt = template.render(&messages, &options).map_err(|error| {
                    TestCaseError::fail(format!("{name}: {error} with {turns:?}"))
                })?;
                let untrusted = |segment: &&Segment| matches!(segment, Segment::Untrusted(_));
                let said: Vec<&str> =
                    prompt.segments.iter().filter(untrusted).map(Segment::text).collect();
                let said = said.join("\0");
                let mut rest = said.as_str();
                for (role, _, text) in turns {
                    if moves_system && *role == System {
                        prop_assert!(said.contains(text), "{}: no {:?} in {:?}", name, text, said);
                        continue;
                    }
                    let Some(at) = rest.find(text) else {
                        let all = prompt.text();
                        let reason = format!("{name}: no {text:?} in its place in {all:?}");
                        return Err(TestCaseError::fail(reason));
                    };
                    rest = &rest[at + text.len()..];
                }
            }
        }
        Ok(())
    });
}

/// The prompt of a longer history has the same prefix as that of a shorter one, up to the end of
/// the text of its last message.
#[test]
fn an_appended_call_or_result_changes_no_earlier_text() {
    let templates = all_templates();
    // Qwen 3's template removes the reasoning marker before an earlier reply.
    let is_stable = |(name, template): &&(String, ChatTemplate)| {
        !name.contains("Qwen3") && !moves_system(template)
    };
    let stable: Vec<_> = templates.iter().filter(is_stable).collect();
    assert!(stable.len() + 3 >= templates.len());
    for_histories(|turns| {
        let Some((_, before)) = turns.split_last() else { return Ok(()) };
        let Some((.., last)) = before.iter().rev().find(|(.., text)| !text.is_empty()) else {
            return Ok(());
        };
        for (name, template) in &stable {
            for tools in [None, Some(tools())] {
                let options = options(tools);
                let plain = |turns: &[(Role, &str, &str)]| {
                    let turns: Vec<_> = turns.iter().map(|&(role, all, _)| (role, all)).collect();
                    render(template, &turns, &options)
                };
                let (short, long) = (plain(before), plain(turns));
                let end = short.rfind(last).map_or(0, |at| at + last.len());
                let is_same = long.starts_with(&short[..end]);
                prop_assert!(is_same, "{}: {:?} and {:?}", name, short, long);
            }
        }
        Ok(())
    });
}

/// Calls through `tojson` are valid JSON, whatever the model wrote.
#[test]
fn printed_calls_are_valid_json() {
    let (open, close) = ("<tool_call>\n", "\n</tool_call>");
    let qwen = find("json in tags");
    let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
    let value = prop_oneof![
        any::<String>().prop_map(|text| json!(text)),
        any::<i64>().prop_map(|number| json!(number)),
        any::<bool>().prop_map(|value| json!(value)),
        any::<Vec<String>>().prop_map(|list| json!({"list": list})),
    ];
    let arguments = prop::collection::hash_map(any::<String>(), value, 0..4);
    let result = TestRunner::new(config).run(&arguments, |arguments| {
        let call = json!({"name": "give", "arguments": arguments});
        let text = render(&qwen, &[(User, "Hi"), (Action, &call.to_string())], &options(None));
        let inner = text.split_once(open).unwrap().1.rsplit_once(close).unwrap().0;
        let printed: serde_json::Value = serde_json::from_str(inner)
            .map_err(|error| TestCaseError::fail(format!("{error}: {inner}")))?;
        prop_assert_eq!(printed, call);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}
