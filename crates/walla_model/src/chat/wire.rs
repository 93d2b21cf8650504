//! Conversations as messages of the chat completions protocol.

use serde_json::{Map, Value};

use super::calls::{Call, CallShape};
use super::history::{self, ActionForm, Form, NormalMessage, SystemPlace};
use super::{Message, Role};

/// The lists of messages that a server of the chat completions protocol accepts. Users and agents
/// always alternate, because servers render a template that may be strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireForm {
    /// System messages may be anywhere, so observations are system messages. Otherwise only the
    /// persona is one, and an observation is a user message with
    /// [`OBSERVATION_PREFIX`](super::OBSERVATION_PREFIX).
    pub system_anywhere: bool,
    /// Calls are `tool_calls`, and results are messages of the role `tool`. Otherwise both are
    /// text.
    pub tools: bool,
}

/// The messages of a conversation as JSON, so that the model replies next.
///
/// The last one never is the agent's. Format: `messages` in [OpenAI's
/// reference](https://platform.openai.com/docs/api-reference/chat/create).
///
/// # Examples
/// ```
/// use serde_json::json;
/// use walla_model::chat::{Message, Role, WireForm, wire_messages};
///
/// let persona = Message::new(Role::System, "You are Greta.");
/// let news = Message::new(Role::Observation, "Odo leaves.");
/// let form = WireForm { system_anywhere: false, tools: true };
/// let expected = json!([
///     {"role": "system", "content": "You are Greta."},
///     {"role": "user", "content": "Observation: Odo leaves."},
/// ]);
/// assert_eq!(json!(wire_messages(&[persona, news], form)), expected);
/// ```
#[must_use]
pub fn wire_messages(messages: &[Message<'_>], form: WireForm) -> Vec<Value> {
    let system = if form.system_anywhere { SystemPlace::Anywhere } else { SystemPlace::First };
    let native = ActionForm {
        shape: Some(CallShape::FunctionText),
        results: true,
        with_text: true,
        several: true,
        uncounted: true,
        result_last: true,
        needs_result: true,
    };
    let actions = if form.tools { native } else { ActionForm::default() };
    let form = Form { system, system_last: form.system_anywhere, actions, ..Form::default() };
    let contents = messages.iter().map(|its| (its.role, its.text(), its.call));
    history::normalize(&form, contents, true).iter().map(message).collect()
}

fn message(normal: &NormalMessage<'_>) -> Value {
    let mut message = Map::new();
    message.insert("role".into(), normal.role.name().into());
    message.insert("content".into(), normal.content.as_ref().into());
    if !normal.calls.is_empty() {
        let calls: Vec<Value> = normal.calls.iter().map(Call::wire).collect();
        message.insert("tool_calls".into(), calls.into());
    }
    if let (Role::ActionResult, Some(call)) = (normal.role, &normal.answered) {
        message.insert("tool_call_id".into(), call.id().into());
    }
    message.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wire(letters: &str, form: WireForm) -> Value {
        let messages = letters.chars().map(|letter| match letter {
            's' => (Role::System, "persona"),
            'u' => (Role::User, "question"),
            'a' => (Role::Assistant, "answer"),
            'o' => (Role::Observation, "event"),
            'c' => (Role::Action, r#"{"name": "wave", "arguments": {"at": "Odo"}}"#),
            _ => (Role::ActionResult, "done"),
        });
        let messages: Vec<_> =
            messages.map(|(role, content)| Message::new(role, content)).collect();
        wire_messages(&messages, form).into()
    }

    const NATIVE: WireForm = WireForm { system_anywhere: false, tools: true };

    fn call(id: &str) -> Value {
        let function = json!({"name": "wave", "arguments": r#"{"at":"Odo"}"#});
        json!({"id": id, "type": "function", "function": function})
    }

    #[test]
    fn calls_and_results_are_native() {
        let expected = json!([
            {"role": "system", "content": "persona"},
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": "answer", "tool_calls": [call("call00000"), call("call00001")]},
            {"role": "tool", "content": "done", "tool_call_id": "call00000"},
            {"role": "tool", "content": "...", "tool_call_id": "call00001"},
            {"role": "assistant", "content": "answer"},
            {"role": "user", "content": "question"},
        ]);
        assert_eq!(wire("suaccrau", NATIVE), expected);
        let without_text = wire("uc", NATIVE);
        assert_eq!(without_text[1]["content"], "");
        assert_eq!(without_text[2]["role"], "tool", "the agent continues behind a result");
    }

    /// As text: many servers ignore the field `name`, and their model would not see it.
    #[test]
    fn names_of_users_are_text() {
        let named =
            |name, content| Message { name: Some(name), ..Message::new(Role::User, content) };
        let messages = [named("Alice", "Hello!"), named("Bob", "Hi.")];
        let expected = json!([{"role": "user", "content": "Alice: Hello!\n\nBob: Hi."}]);
        assert_eq!(json!(wire_messages(&messages, NATIVE)), expected);
    }

    /// Users and agents alternate in any conversation, and the model can reply.
    #[test]
    fn any_conversation_is_accepted() {
        let letters = ['s', 'u', 'a', 'o', 'c', 'r'];
        for system_anywhere in [false, true] {
            for tools in [false, true] {
                let form = WireForm { system_anywhere, tools };
                for number in 0..6_usize.pow(5) {
                    let list: String =
                        (0..5).map(|at| letters[number / 6_usize.pow(at) % 6]).collect();
                    check(&wire(&list, form), form, &list);
                }
            }
        }
    }

    fn check(messages: &Value, form: WireForm, list: &str) {
        let messages = messages.as_array().unwrap();
        let role = |message: &Value| message["role"].as_str().unwrap().to_owned();
        let mut latest = String::new();
        let mut open: Vec<Value> = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            let role = role(message);
            if role == "tool" {
                assert!(form.tools, "{list}");
                let id = &message["tool_call_id"];
                let place = open.iter().position(|call| call["id"] == *id);
                open.remove(place.unwrap_or_else(|| panic!("{list}: a result without its call")));
                continue;
            }
            assert!(open.is_empty(), "{list}: a call without a result");
            if role == "system" {
                assert!(form.system_anywhere || at == 0, "{list}");
                continue;
            }
            let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
            if calls.is_empty() {
                assert_ne!(role, latest, "{list}");
                assert!(role == "user" || latest == "user", "{list}: the agent is first");
                latest = role;
            }
            open = calls;
        }
        assert!(open.is_empty(), "{list}");
        let last = messages.last().map(role).unwrap_or_default();
        assert!(last != "assistant" && !last.is_empty(), "{list}: {last}");
    }
}
