//! Requests of the protocol.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

#[derive(Debug, Default, Deserialize)]
pub(super) struct Request {
    pub messages: Vec<Message>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<i64>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub repeat_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub seed: Option<i64>,
    pub stop: Option<Texts>,
    pub max_tokens: Option<u32>,
    pub max_completion_tokens: Option<u32>,
    pub n: Option<u32>,
    pub logprobs: Option<bool>,
    pub top_logprobs: Option<u32>,
    pub logit_bias: Option<BTreeMap<String, f32>>,
    pub response_format: Option<ResponseFormat>,
    pub structured_outputs: Option<StructuredOutputs>,
    pub tools: Option<Vec<Tool>>,
    pub tool_choice: Option<Value>,
    pub parallel_tool_calls: Option<bool>,
    pub priority: Option<i32>,
    pub chat_template_kwargs: Option<Map<String, Value>>,
    pub modalities: Option<Vec<String>>,
    // Not supported: of an older form of the protocol, and of other servers.
    pub functions: Option<IgnoredAny>,
    pub function_call: Option<IgnoredAny>,
    pub audio: Option<IgnoredAny>,
    pub grammar: Option<IgnoredAny>,
    pub guided_json: Option<IgnoredAny>,
    pub guided_regex: Option<IgnoredAny>,
    pub guided_choice: Option<IgnoredAny>,
    pub guided_grammar: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    pub include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Message {
    pub role: String,
    pub content: Option<Content>,
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The call in its older form, without an id.
    pub function_call: Option<CalledFunction>,
    /// The call that a message of a tool answers.
    pub tool_call_id: Option<String>,
    /// Name of a user, one of several.
    pub name: Option<String>,
}

/// Text, or a list of parts.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Debug, Deserialize)]
pub(super) struct ContentPart {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(alias = "refusal")]
    pub text: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ToolCall {
    pub id: Option<String>,
    pub function: CalledFunction,
}

#[derive(Debug, Deserialize)]
pub(super) struct CalledFunction {
    pub name: String,
    /// JSON text, or an object.
    pub arguments: Option<Value>,
}

/// One text or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Texts {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
pub(super) struct ResponseFormat {
    #[serde(rename = "type")]
    pub kind: String,
    pub json_schema: Option<NamedSchema>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NamedSchema {
    pub schema: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StructuredOutputs {
    pub json: Option<Value>,
    pub regex: Option<String>,
    pub choice: Option<Vec<String>>,
    pub grammar: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Tool {
    #[serde(rename = "type")]
    pub kind: String,
    pub function: Option<ToolFunction>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ToolFunction {
    pub name: String,
    pub description: Option<String>,
    pub parameters: Option<Value>,
}

/// A request for vectors.
#[derive(Debug, Deserialize)]
pub(super) struct Embeddings {
    pub input: Input,
    pub encoding_format: Option<String>,
    pub dimensions: Option<usize>,
}

/// One text, several, or another form, which is not supported.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Input {
    Texts(Texts),
    Other(IgnoredAny),
}
