//! The demo model's template: walla renders and encodes conversations with actions as the training
//! did.

use serde_json::Value;
use walla_grammar::{CallFormat, CallMarkers, Delimiter};
use walla_model::Gguf;
use walla_model::chat::{ChatTemplate, Message, RenderOptions, Role, Tools};
use walla_model::tokenizer::Tokenizer;

/// Written by `tools/demo_model/golden.py`.
const GOLDEN: &str = include_str!("../../../walla_demo_model/tests/rendering.json");

fn model() -> (ChatTemplate, Tokenizer) {
    let file = Gguf::from_static(walla_demo_model::GGUF).unwrap();
    let template = ChatTemplate::from_gguf(&file).unwrap().unwrap();
    (template, Tokenizer::from_gguf(&file).unwrap())
}

fn role(name: &Value) -> Role {
    match name.as_str() {
        Some("system") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("observation") => Role::Observation,
        Some("action") => Role::Action,
        Some("result") => Role::ActionResult,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_template_takes_actions() {
    let (template, tokenizer) = model();
    template.check().unwrap();
    assert_eq!(template.warnings(), [""; 0]);
    assert!(template.prints_tools() && template.prints_calls() && template.takes_results());
    let format = CallFormat::of(Some(template.source()), &tokenizer);
    assert_eq!(format, CallFormat::HermesJson);
    let markers = CallMarkers::new(format, &tokenizer);
    let opens = markers.token(Delimiter::Open).unwrap();
    let closes = markers.token(Delimiter::Close).unwrap();
    assert!(!tokenizer.is_end_of_generation(opens) && !tokenizer.is_end_of_generation(closes));
}

#[test]
fn conversations_with_actions_are_rendered_as_in_training() {
    let (template, tokenizer) = model();
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let talks = golden["talks"].as_array().unwrap();
    assert!(talks.len() > 10, "{}", talks.len());
    for talk in talks {
        let messages = talk["messages"].as_array().unwrap();
        let content = |message: &'_ Value| message["content"].as_str().unwrap().to_owned();
        let texts: Vec<_> = messages.iter().map(content).collect();
        let roles = messages.iter().map(|message| role(&message["role"]));
        let messages: Vec<_> =
            roles.zip(&texts).map(|(role, content)| Message::new(role, content)).collect();
        let has_tools = talk["tools"].as_array().is_some_and(|tools| !tools.is_empty());
        let tools = has_tools.then(|| Tools::new(&talk["tools"], "").unwrap());
        let options =
            RenderOptions { add_generation_prompt: true, tools, ..RenderOptions::default() };
        let prompt = template.render(&messages, &options).unwrap();
        assert_eq!(prompt.text(), talk["text"].as_str().unwrap());
        let ids: Vec<_> = tokenizer.encode_prompt(&prompt).unwrap().iter().map(|id| id.0).collect();
        let expected: Vec<u32> =
            talk["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(ids, expected);
    }
}
