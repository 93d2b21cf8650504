//! Arbitrary template and conversation: limits hold, and player text never becomes template text.

use walla_model::chat::{
    ChatTemplate, Date, MAX_OUTPUT_BYTES, Message, RenderOptions, Role, Segment, Tools,
};

use super::input::Input;

/// Compiles the first text of `bytes` as a template and renders the rest as a conversation.
///
/// # Panics
/// If untrusted text becomes template text, or a limit is exceeded.
pub fn check(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let source = input.text();
    let (bos, eos) = (input.text(), input.text());
    let Ok(template) = ChatTemplate::new(&source, &bos, &eos) else { return };
    // An unpredictable nonce: it depends on every byte of the input.
    let nonce = format!("Q{:016x}Q", fingerprint(bytes));
    if source.contains(&nonce) || bos.contains(&nonce) || eos.contains(&nonce) {
        return;
    }
    let options = RenderOptions {
        add_generation_prompt: input.flag(),
        enable_thinking: input.flag(),
        date: Date { year: input.u32(), month: input.byte().into(), day: input.byte().into() },
        tools: if fingerprint(bytes) & 1 == 0 { None } else { tools(&nonce) },
    };
    let mut contents = Vec::new();
    while !input.is_empty() && contents.len() < 8 {
        let role = *input.pick(&[
            Role::User,
            Role::Assistant,
            Role::System,
            Role::Observation,
            Role::Action,
            Role::ActionResult,
        ]);
        let text = format!("{}{nonce}{}", input.text(), input.text());
        let is_call = role == Role::Action;
        contents.push((role, if is_call { call(&text) } else { text }));
    }
    let messages: Vec<Message<'_>> =
        contents.iter().map(|(role, content)| Message::new(*role, content)).collect();
    let _ = template.check();
    let Ok(prompt) = template.render(&messages, &options) else { return };
    assert_eq!(prompt.text().len(), prompt.bytes());
    // Lossy decoding can replace one invalid byte by three.
    assert!(prompt.bytes() <= 3 * MAX_OUTPUT_BYTES);
    let mut before = None;
    for segment in &prompt.segments {
        assert!(!segment.text().is_empty(), "an empty segment");
        let kind = core::mem::discriminant(segment);
        assert_ne!(before.replace(kind), Some(kind), "two of a kind");
        if let Segment::Template(text) = segment {
            assert!(!text.contains(&nonce), "untrusted text in {text:?}");
        }
    }
}

/// A call whose argument is `text`.
fn call(text: &str) -> String {
    let text = serde_json::Value::from(text);
    format!(r#"{{"name": "give", "arguments": {{"item": {text}}}}}"#)
}

/// A tool that is described by `text`.
fn tools(text: &str) -> Option<Tools> {
    let function = serde_json::json!({"name": "give", "description": text});
    Tools::new(&serde_json::json!([{"type": "function", "function": function}]), text).ok()
}

/// FNV-1a.
fn fingerprint(bytes: &[u8]) -> u64 {
    walla_types::fnv1a(walla_types::FNV1A, bytes)
}
