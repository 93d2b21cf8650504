//! The events of a streamed reply.
//!
//! Format: `chat.completion.chunk` in [OpenAI's
//! reference](https://platform.openai.com/docs/api-reference/chat-streaming). Unknown members are
//! ignored. Extensions: `reasoning_content` (vLLM before 0.12, SGLang, llama.cpp, DeepSeek) and
//! `reasoning` (vLLM), `stop_reason` (vLLM), `id` of a token (llama.cpp), a list of parts as
//! `content` (Mistral, gateways), an object as `arguments` (Ollama, gateways). A whole response has
//! a `message` in place of each `delta`.
//!
//! Numbers may be absent, null or written with a fraction: a count that cannot be read is 0, and
//! does not end a reply.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Chunk {
    pub choices: Option<Vec<Choice>>,
    pub usage: Option<Counts>,
    error: Option<Value>,
    object: Option<Value>,
}

impl Chunk {
    /// The error that it reports: in a member, or as vLLM and SGLang also write it, as the whole
    /// object. `text` is the chunk's.
    pub fn failure(&self, text: &str) -> Option<Value> {
        let is_whole = self.object.as_ref().and_then(Value::as_str) == Some("error");
        if is_whole && self.error.is_none() {
            return serde_json::from_str(text).ok();
        }
        self.error.clone()
    }
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Choice {
    #[serde(default, deserialize_with = "count")]
    pub index: u32,
    pub delta: Option<Delta>,
    /// In a whole response.
    pub message: Option<Delta>,
    pub finish_reason: Option<String>,
    /// The stop string or the id of the stop token.
    pub stop_reason: Option<Value>,
    pub logprobs: Option<Logprobs>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Delta {
    #[serde(default)]
    pub content: Content,
    pub reasoning_content: Option<String>,
    pub reasoning: Option<String>,
    pub refusal: Option<String>,
    pub tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct CallDelta {
    #[serde(default, deserialize_with = "number")]
    pub index: Option<u32>,
    pub id: Option<String>,
    pub function: Option<FunctionDelta>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct FunctionDelta {
    pub name: Option<String>,
    pub arguments: Option<Arguments>,
}

/// A text, or a list of parts, in order. Parts of other kinds, such as images, are left out.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Content(pub Vec<Piece>);

/// A text of a [`Content`].
#[derive(Debug)]
pub(crate) enum Piece {
    Speech(String),
    Reasoning(String),
}

impl TryFrom<Value> for Content {
    type Error = &'static str;

    fn try_from(content: Value) -> Result<Self, Self::Error> {
        if content.is_number() || content.is_boolean() {
            return Err("the content is neither text nor a list of parts");
        }
        let mut pieces = Vec::new();
        add_pieces(content, Piece::Speech, &mut pieces);
        Ok(Self(pieces))
    }
}

/// Depth: that of the JSON text, which serde_json bounds.
fn add_pieces(content: Value, of: fn(String) -> Piece, pieces: &mut Vec<Piece>) {
    match content {
        Value::String(text) => pieces.push(of(text)),
        Value::Array(parts) => parts.into_iter().for_each(|part| add_pieces(part, of, pieces)),
        Value::Object(mut part) => {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
            let (of, names): (fn(String) -> Piece, &[&str]) = match kind {
                "text" | "output_text" => (of, &["text"]),
                "refusal" => (of, &["refusal"]),
                "thinking" | "reasoning" | "reasoning_text" => {
                    (Piece::Reasoning, &["thinking", "reasoning", "text"])
                }
                _ => return,
            };
            if let Some(text) = names.iter().find_map(|name| part.remove(*name)) {
                add_pieces(text, of, pieces);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Arguments of a call, or a fragment of them.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "Value")]
pub(crate) struct Arguments {
    pub text: String,
    /// They were JSON, and not a text that contains it: no fragment.
    pub is_json: bool,
}

impl From<Value> for Arguments {
    fn from(arguments: Value) -> Self {
        match arguments {
            Value::String(text) => Self { text, is_json: false },
            // Some servers write it before the first fragment, in place of no text.
            Value::Object(members) if members.is_empty() => {
                Self { text: String::new(), is_json: true }
            }
            other => Self { text: other.to_string(), is_json: true },
        }
    }
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Logprobs {
    pub content: Option<Vec<Logprob>>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Logprob {
    #[serde(default, deserialize_with = "text")]
    pub token: String,
    #[serde(default, deserialize_with = "number")]
    pub id: Option<u32>,
    pub logprob: Option<f32>,
    pub top_logprobs: Option<Vec<Logprob>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Counts {
    #[serde(default, deserialize_with = "count")]
    pub prompt_tokens: u32,
    #[serde(default, deserialize_with = "count")]
    pub completion_tokens: u32,
    pub prompt_tokens_details: Option<PromptCounts>,
    pub completion_tokens_details: Option<CompletionCounts>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct PromptCounts {
    #[serde(default, deserialize_with = "number")]
    pub cached_tokens: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct CompletionCounts {
    #[serde(default, deserialize_with = "number")]
    pub reasoning_tokens: Option<u32>,
}

/// A number that is not negative, without its fraction; `None` for anything else.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let number = value.as_f64().filter(|number| *number >= 0.0);
    Ok(number.map(|number| number as u32))
}

/// A number, or 0.
fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(number(deserializer)?.unwrap_or(0))
}

/// A text, or none.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default())
}

/// The message of an error, from an object `{"error": {"message": …}}`, the inner object, or a
/// text.
pub(crate) fn error_message(error: &Value) -> String {
    let inner = error.get("error").unwrap_or(error);
    let message = inner.get("message").or_else(|| inner.get("detail")).unwrap_or(inner);
    let text = message.as_str().map_or_else(|| message.to_string(), str::to_owned);
    shortened(&text)
}

/// Maximum bytes of a server's message in an error.
const MAX_MESSAGE_BYTES: usize = 300;

/// The begin of a text from a server, in one line without control characters.
pub(crate) fn shortened(text: &str) -> String {
    let begin = &text[..text.floor_char_boundary(MAX_MESSAGE_BYTES)];
    let mut line: String =
        begin.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    if begin.len() < text.len() {
        line.push('…');
    }
    line.trim().to_owned()
}
