//! The messages of a request as a persona and the turns of a conversation.
//!
//! Results belong to calls by `tool_call_id`, in any order. Ids count within the latest
//! message with calls: older servers repeat ids in each message.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value};
use walla_runtime::{Call, CallId, ReplyId, Speaker, Turn};

use super::Refusal;
use super::wire::{CalledFunction, Content, Message};

/// Reads the messages.
///
/// # Errors
/// The index of a message that cannot be read, or the id of a call or a result without the other.
pub(super) fn conversation(messages: &[Message]) -> Result<(String, Vec<Turn>), Refusal> {
    let mut history = History::default();
    for (at, message) in messages.iter().enumerate() {
        history.add(at, message)?;
    }
    history.end_calls("messages")?;
    Ok((history.persona, history.turns))
}

#[derive(Default)]
struct History {
    persona: String,
    turns: Vec<Turn>,
    /// Messages with calls so far.
    replies: u64,
    /// Calls of the latest of them.
    calls: Vec<Known>,
    /// Their ids.
    by_id: HashMap<String, usize>,
    /// Ids of calls of earlier messages: each of them has a result.
    ended: HashSet<String>,
    /// Results of damaged calls. They follow the other results, which must be at their calls.
    loose: Vec<Turn>,
}

struct Known {
    name: String,
    /// `None`: its arguments are damaged, and it is text of the agent.
    id: Option<CallId>,
    has_result: bool,
}

impl History {
    fn add(&mut self, at: usize, message: &Message) -> Result<(), Refusal> {
        let text = text(at, message)?;
        let role = message.role.as_str();
        if matches!(role, "tool" | "function") {
            return self.add_result(at, message.tool_call_id.as_deref(), text);
        }
        self.end_calls(&format!("messages[{at}]"))?;
        match role {
            "system" | "developer" if self.turns.is_empty() => {
                if !self.persona.is_empty() {
                    self.persona.push_str("\n\n");
                }
                self.persona.push_str(&text);
            }
            "system" | "developer" => self.turns.push(Turn::new(Speaker::Observation, text)),
            "user" => {
                let name = message.name.as_deref().map(Arc::from);
                self.turns.push(Turn { name, ..Turn::new(Speaker::User, text) });
            }
            "assistant" => return self.add_reply(at, message, text),
            role => {
                let reason = format!("unknown role {role:?}");
                return Err(Refusal::of(format!("messages[{at}].role"), reason));
            }
        }
        Ok(())
    }

    fn add_reply(&mut self, at: usize, message: &Message, mut text: String) -> Result<(), Refusal> {
        let calls =
            message.tool_calls.iter().flatten().map(|its| (its.id.as_deref(), &its.function));
        let older = message.function_call.iter().map(|function| (None, function));
        let mut actions = Vec::new();
        self.replies += 1;
        for (index, (id, function)) in calls.chain(older).enumerate() {
            if let Some(id) = id.filter(|id| !id.is_empty())
                && self.by_id.insert(id.to_owned(), index).is_some()
            {
                let param = format!("messages[{at}].tool_calls[{index}].id");
                return Err(Refusal::of(param, format!("{id:?} is the id of two calls")));
            }
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let id = CallId { reply_id: ReplyId(self.replies), index };
            let mut known = Known { name: function.name.clone(), id: Some(id), has_result: false };
            match arguments(function) {
                Some(arguments) => {
                    let name = function.name.clone();
                    actions.push(Call { id, name, arguments }.turn());
                }
                None => {
                    known.id = None;
                    add_damaged(&mut text, function);
                }
            }
            self.calls.push(known);
        }
        if !text.is_empty() || actions.is_empty() {
            self.turns.push(Turn::new(Speaker::Agent, text));
        }
        self.turns.extend(actions);
        Ok(())
    }

    fn add_result(&mut self, at: usize, id: Option<&str>, text: String) -> Result<(), Refusal> {
        let refused = |reason: String| Refusal::of(format!("messages[{at}].tool_call_id"), reason);
        let repeated = |id: &str| refused(format!("the call {id:?} has a result already"));
        let index = match id.filter(|id| !id.is_empty()) {
            Some(id) => match self.by_id.get(id) {
                Some(index) => Some(*index),
                None if self.ended.contains(id) => return Err(repeated(id)),
                None => return Err(refused(format!("no call before it has the id {id:?}"))),
            },
            None => {
                let mut open = self.calls.iter().enumerate().filter(|(_, call)| !call.has_result);
                let first = open.next().map(|(index, _)| index);
                first.filter(|_| open.next().is_none())
            }
        };
        let Some(call) = index.and_then(|index| self.calls.get_mut(index)) else {
            let open = self.calls.iter().filter(|call| !call.has_result).count();
            return Err(refused(format!("it is missing, and {open} calls have no result")));
        };
        if std::mem::replace(&mut call.has_result, true) {
            return Err(repeated(id.unwrap_or_default()));
        }
        match call.id {
            Some(id) => self.turns.push(Turn::result(id, text)),
            None => self.loose.push(Turn::new(Speaker::Observation, text)),
        }
        Ok(())
    }

    /// The calls so far have their results: another message follows. A damaged call needs none.
    fn end_calls(&mut self, param: &str) -> Result<(), Refusal> {
        let is_open = |(_, call): &(usize, &Known)| !call.has_result && call.id.is_some();
        if let Some((index, call)) = self.calls.iter().enumerate().find(is_open) {
            let id = self.by_id.iter().find(|(_, its)| **its == index);
            let id = id.map_or("without an id".to_owned(), |(id, _)| format!("{id:?}"));
            let reason = format!("the call {id} of {:?} before it has no result", call.name);
            return Err(Refusal::of(param, reason));
        }
        self.calls.clear();
        self.ended.extend(self.by_id.drain().map(|(id, _)| id));
        self.turns.append(&mut self.loose);
        Ok(())
    }
}

/// The arguments of a call: JSON text, or an object. Many clients store a call without arguments
/// as an empty text or as `null`. `None`: they are damaged, for instance cut.
fn arguments(function: &CalledFunction) -> Option<Map<String, Value>> {
    let value = match &function.arguments {
        None => Value::Null,
        Some(Value::String(text)) if text.trim().is_empty() => Value::Null,
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(value) => value.clone(),
    };
    match value {
        Value::Null => Some(Map::new()),
        Value::Object(arguments) => Some(arguments),
        _ => None,
    }
}

/// Adds a call with damaged arguments to the text of its message.
fn add_damaged(text: &mut String, function: &CalledFunction) {
    let arguments = match &function.arguments {
        Some(Value::String(text)) => text.clone(),
        value => value.as_ref().map(Value::to_string).unwrap_or_default(),
    };
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(&function.name);
    text.push(' ');
    text.push_str(&arguments);
}

fn text(at: usize, message: &Message) -> Result<String, Refusal> {
    let parts = match &message.content {
        None => return Ok(String::new()),
        Some(Content::Text(text)) => return Ok(text.clone()),
        Some(Content::Parts(parts)) => parts,
    };
    let mut all = String::new();
    for (index, part) in parts.iter().enumerate() {
        match (part.kind.as_str(), &part.text) {
            ("text" | "refusal", Some(text)) => all.push_str(text),
            (kind, _) => {
                let param = format!("messages[{at}].content[{index}]");
                return Err(Refusal::of(param, format!("type {kind:?} is not supported")));
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names() {
        let messages = r#"[{"role": "user", "name": "Alice", "content": "Hi"},
            {"role": "assistant", "name": "greta", "content": "Yes?"},
            {"role": "user", "content": "Hm"}]"#;
        let messages: Vec<Message> = serde_json::from_str(messages).unwrap();
        let (_, turns) = conversation(&messages).map_err(|_| "refused").unwrap();
        let named = |name: Option<&str>| name.map(str::to_owned);
        let names: Vec<_> = turns.iter().map(|turn| named(turn.name.as_deref())).collect();
        assert_eq!(names, [named(Some("Alice")), None, None]);
    }
}
