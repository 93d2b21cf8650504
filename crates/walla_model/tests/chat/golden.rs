//! Vendors' templates render the same text as Python's Jinja with transformers' settings.
//!
//! `golden/*.txt` contain the output of `golden/make.py`. The templates belong to their vendors and
//! are not part of this repository.

use std::path::Path;
use walla_reference_test::reference_test;

use crate::reference_data::{all_files, models};
use serde_json::Value;
use walla_model::Gguf;
use walla_model::chat::{ChatTemplate, Message, RenderOptions, Role, Segment};
use walla_model::tokenizer::Tokenizer;

const SYSTEM: Message<'_> = Message::new(
    Role::System,
    "You are Greta, the smith of Emberfall.\nA horseshoe costs 3 silver.",
);
const ASK: Message<'_> = Message::new(Role::User, "What does a horseshoe cost?");
const REPLY: Message<'_> = Message::new(Role::Assistant, "Three silver, über-cheap 🙂.");
const SPACED: Message<'_> = Message::new(Role::User, " Thank you,\n  Greta \n");
const SPACED_REPLY: Message<'_> = Message::new(Role::Assistant, "\n\nSafe travels!\n");
const THOUGHT: Message<'_> =
    Message::new(Role::Assistant, "<think>\nA horseshoe? Hm.\n</think>\n\nThree silver.");

/// The conversations of `golden/make.py`.
fn conversation(case: &str) -> &'static [Message<'static>] {
    match case {
        "system_user" => &[SYSTEM, ASK],
        "user" => &[ASK],
        "system_turns" => &[SYSTEM, ASK, REPLY, SPACED],
        "turns" => &[ASK, REPLY, SPACED],
        "replied" => &[SYSTEM, ASK, REPLY, SPACED, SPACED_REPLY],
        "thought" => &[SYSTEM, ASK, THOUGHT, SPACED],
        "thought_last" => &[SYSTEM, ASK, THOUGHT],
        other => panic!("golden/make.py and this file differ: {other:?}"),
    }
}

/// Case names and texts of a golden file: `#### name generation=0 thinking=0`, the text, a line
/// break.
fn golden(template: &Path) -> Vec<(String, String)> {
    let name = template.file_stem().unwrap().to_string_lossy();
    let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{path}: {error}; make it with tests/golden/make.py"));
    let cases = text.split("#### ").skip(1);
    let case = |case: &str| {
        let (head, text) = case.split_once('\n').expect("a case has a head");
        (
            head.to_owned(),
            text.strip_suffix('\n').expect("a text ends with a line break").to_owned(),
        )
    };
    cases.map(case).collect()
}

#[reference_test]
fn published_templates_render_as_in_python() {
    for path in all_files("templates", "jinja") {
        let source = std::fs::read_to_string(&path).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>")
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let cases = golden(&path);
        assert_eq!(cases.len(), 16, "{}", path.display());
        let mut changed = 0;
        for (head, expected) in cases {
            let options = RenderOptions {
                add_generation_prompt: head.contains("generation=1"),
                enable_thinking: head.contains("thinking=1"),
                ..RenderOptions::default()
            };
            let messages = conversation(head.split(' ').next().unwrap());
            // A template that requires user and agent to alternate renders no prompt for a second
            // reply.
            let for_reply = options.add_generation_prompt;
            if for_reply && messages.last().unwrap().role == Role::Assistant {
                let last = template.normalized(messages, true).pop().unwrap();
                if last.role == Role::User {
                    changed += 1;
                    continue;
                }
            }
            let prompt = template
                .render(messages, &options)
                .unwrap_or_else(|error| panic!("{} {head}: {error}", path.display()));
            assert_eq!(prompt.text(), expected, "{} {head}", path.display());
        }
        let name = path.to_string_lossy();
        let alternates = name.contains("gemma") || name.contains("Mistral");
        assert_eq!(changed > 0, alternates, "{name}");
        assert!(changed <= 4, "{name}");
    }
}

/// Gemma's template does not accept system messages, and this is detected; all others accept them.
#[reference_test]
fn support_for_system_messages_is_detected() {
    for path in all_files("templates", "jinja") {
        let source = std::fs::read_to_string(&path).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let is_gemma = path.to_string_lossy().contains("gemma");
        assert_eq!(template.supports_system(), !is_gemma, "{}", path.display());
    }
}

/// A persona that mentions `/think` must not switch anything, because templates cannot read
/// untrusted text.
#[reference_test]
fn untrusted_text_does_not_affect_template_logic() {
    for path in all_files("templates", "jinja") {
        let source = std::fs::read_to_string(&path).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let own = |content: &str| -> String {
            let messages =
                [Message::new(Role::System, content), ASK, Message::new(Role::Assistant, content)];
            let prompt = template.render(&messages, &RenderOptions::default()).unwrap();
            let texts = prompt.segments.iter().filter(|s| matches!(s, Segment::Template(_)));
            texts.map(Segment::text).collect()
        };
        for content in ["/think", "/no_think", "a</think>b", "<tool_response>x</tool_response>"] {
            assert_eq!(own(content), own("x"), "{} {content:?}", path.display());
        }
    }
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// The template and vocabulary of each model: text and ids.
#[test]
fn conversations_of_every_model() {
    for path in models("json") {
        let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let Some(case) = json.get("chat").filter(|chat| chat.is_object()) else { continue };
        let file = Gguf::open(path.with_extension("gguf")).unwrap();
        let tokenizer = Tokenizer::from_gguf(&file).unwrap();
        let template = ChatTemplate::from_gguf(&file).unwrap().expect("the model has a template");
        let messages: Vec<Message<'_>> =
            case["messages"].as_array().unwrap().iter().map(message).collect();
        let options = RenderOptions {
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            ..RenderOptions::default()
        };
        let prompt = template.render(&messages, &options).unwrap();
        assert_eq!(prompt.text(), case["rendered"].as_str().unwrap(), "{}", path.display());
        let found = tokenizer.encode_prompt(&prompt).unwrap();
        let found: Vec<u64> = found.into_iter().map(|token| token.0.into()).collect();
        assert_eq!(found, ids(&case["ids"]), "{}", path.display());
    }
}

fn message(value: &Value) -> Message<'_> {
    let role = match value["role"].as_str().unwrap() {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        other => panic!("role {other:?}"),
    };
    Message::new(role, value["content"].as_str().unwrap())
}
