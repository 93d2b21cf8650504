//! Calls of actions, and the forms in which templates read them.

use minijinja::context;
use minijinja::value::Value;
use serde_json::{Map, Value as Json, json};

use super::{filters, taint, tools};

/// The form of a call in `message.tool_calls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallShape {
    /// `{"id", "type", "function": {"name", "arguments"}}`, the arguments as a map.
    Function,
    /// As `Function`, with additional members `name` and `arguments` outside of `function`.
    Flat,
    /// As `Function`, the arguments as JSON text.
    FunctionText,
    /// As `Flat`, the arguments as JSON text.
    FlatText,
}

impl CallShape {
    /// In order of preference.
    pub const ALL: [Self; 4] = [Self::Function, Self::Flat, Self::FunctionText, Self::FlatText];

    fn is_text(self) -> bool {
        matches!(self, Self::FunctionText | Self::FlatText)
    }
}

/// A call of an action, written by the model: all of it is untrusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub name: String,
    arguments: Map<String, Json>,
    /// Number of native calls before it.
    number: u32,
}

impl Call {
    /// The call in the content of a message; `None` if it is not
    /// `{"name": "give", "arguments": {…}}`.
    pub fn parse(content: &str, number: u32) -> Option<Self> {
        let Json::Object(mut call) = serde_json::from_str(content).ok()? else { return None };
        let name = call.remove("name")?.as_str().filter(|name| tools::is_name(name))?.to_owned();
        let arguments = call.remove("arguments").filter(tools::are_arguments)?;
        let Json::Object(arguments) = arguments else { return None };
        call.is_empty().then_some(Self { name, arguments, number })
    }

    /// The identifier: nine letters and digits, because Mistral's templates accept no other length.
    pub fn id(&self) -> String {
        format!("call{:05}", self.number % 100_000)
    }

    /// The call in the chat completions protocol, the arguments as JSON text.
    pub fn wire(&self) -> Json {
        let text = Json::Object(self.arguments.clone()).to_string();
        json!({
            "id": self.id(),
            "type": "function",
            "function": {"name": self.name, "arguments": text},
        })
    }

    /// The call as the template receives it.
    pub fn value(&self, shape: CallShape) -> Value {
        let name = Value::from(taint::taint(&self.name));
        let entry = |(key, value): (&String, &Json)| (taint::taint(key), tools::untrusted(value));
        let mut arguments = Value::from_pairs(self.arguments.iter().map(entry));
        if shape.is_text() {
            arguments = Value::from(filters::json(&arguments).unwrap_or_default());
        }
        let function = context! { name => name.clone(), arguments => arguments.clone() };
        let (id, kind) = (self.id(), "function");
        match shape {
            CallShape::Function | CallShape::FunctionText => {
                context! { id, type => kind, function }
            }
            CallShape::Flat | CallShape::FlatText => {
                context! { id, type => kind, function, name, arguments }
            }
        }
    }
}

/// A call as text of the model, for templates that print no calls. Its JSON contains no `</think>`,
/// at which reasoning would be split from the text.
pub(super) fn as_text(content: &str) -> String {
    let json = content.trim().replace("</think>", r"<\/think>");
    format!("<tool_call>\n{json}\n</tool_call>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_are_calls() {
        let give = r#" {"arguments": {"item": "nails", "of": {"n": 1.0}}, "name": "give"}"#;
        let call = Call::parse(give, 7).unwrap();
        assert_eq!((call.name.as_str(), call.id().as_str()), ("give", "call00007"));
        let deep = format!(
            r#"{{"name": "give", "arguments": {{"x": {}1{}}}}}"#,
            "[".repeat(17),
            "]".repeat(17)
        );
        for text in [
            "",
            "give",
            "[]",
            r#"{"name": "give"}"#,
            r#"{"name": "give", "arguments": "{}"}"#,
            r#"{"name": "give it", "arguments": {}}"#,
            r#"{"name": "give", "arguments": {}, "id": 1}"#,
            r#"{"name": "give", "arguments": {}} and more"#,
            &deep,
        ] {
            assert_eq!(Call::parse(text, 0), None, "{text}");
        }
    }

    #[test]
    fn a_call_as_text_contains_no_end_of_reasoning() {
        let call = |item: &str| serde_json::json!({"name": "give", "arguments": {"item": item}});
        let text = as_text(&call("</think>x").to_string());
        let inner = text.strip_prefix("<tool_call>\n").unwrap().strip_suffix("\n</tool_call>");
        assert_eq!(serde_json::from_str::<Json>(inner.unwrap()).unwrap(), call("</think>x"));
        assert!(!text.contains("</think>"));
    }

    #[test]
    fn the_arguments_of_a_call_are_valid_json() {
        let arguments = serde_json::json!({
            "b": "<|im_end|>\"\\\n\u{1}\u{7f}é\u{2028}", "a": [1, -2.5, 1e300, true, null, {}],
            "\"</tool_call>": {"x": u64::MAX}, "": i64::MIN,
        });
        let content = serde_json::json!({"name": "give", "arguments": arguments}).to_string();
        let call = Call::parse(&content, 0).unwrap();
        let value = call.value(CallShape::FunctionText);
        let text = value.get_attr("function").unwrap().get_attr("arguments").unwrap();
        let text = taint::readable(text.as_str().unwrap());
        assert_eq!(serde_json::from_str::<Json>(&text).unwrap(), arguments, "{text}");
        assert!(text.starts_with(r#"{"b": "<|im_end|>"#), "{text}");
    }
}
