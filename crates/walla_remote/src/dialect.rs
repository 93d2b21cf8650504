//! Extensions of the protocol that servers have.

use std::borrow::Cow;
use std::str::FromStr;

use walla_runtime::{Cancellation, Capabilities, ConstraintKinds, Determinism, PrefixCache};

use crate::options::OptionsError;

/// The software of a server. All speak OpenAI's chat completions; they differ in extensions.
///
/// | | `OpenAi` | `Vllm` | `Sglang` | `LlamaServer` | `Dynamo` | `Walla` |
/// |---|---|---|---|---|---|---|
/// | top-k, min-p, repetition penalty | – | yes | yes | yes | yes | yes |
/// | JSON schema | `response_format` | same | same | same | same | same |
/// | regular expression | – | `structured_outputs` | `regex` | – | `structured_outputs` | `structured_outputs` |
/// | choice | – | `structured_outputs` | `regex` | `grammar` | `structured_outputs` | `structured_outputs` |
/// | Lark grammar | – | `structured_outputs` (backend `guidance`) | – | – | – | `structured_outputs` |
/// | candidates | – | token ids by `return_tokens_as_token_ids` | – | `id` of a token | – | `id` of a token |
/// | switch of reasoning | – | `chat_template_kwargs` | same | same | same | same |
/// | priority | – | `priority`, lower first | `priority`, higher first | – | `nvext.agent_hints.priority`, higher first | `priority`, lower first |
/// | key of the prefix cache | `prompt_cache_key` | – | – | `cache_prompt` | – | – |
///
/// "–": the server has no such field. A constraint, and candidates, then fail the ask with
/// [`Unsupported`](walla_runtime::Unsupported); the other settings are left out. Sources: the
/// documentation of the servers in November 2026.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// Only what OpenAI documents: the default, for any server.
    #[default]
    OpenAi,
    /// vLLM, tested with 0.25.1. For calls, the server needs `--enable-auto-tool-choice` and
    /// `--tool-call-parser`; for JSON without white space up to the token limit,
    /// `--structured-outputs-config '{"backend": "xgrammar", "disable_any_whitespace": true}'`; for
    /// [cached tokens](walla_runtime::Usage::cached_tokens), `--enable-prompt-tokens-details`; for
    /// priorities, `--scheduling-policy priority`.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's `llama-server`, also `llama-cpp-python[server]`.
    LlamaServer,
    /// NVIDIA Dynamo.
    Dynamo,
    /// `walla serve`.
    Walla,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::OpenAi, Self::Vllm, Self::Sglang, Self::LlamaServer, Self::Dynamo, Self::Walla];

    /// Its name on command lines: `open-ai`, `vllm`, `sglang`, `llama-server`, `dynamo` or `walla`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "open-ai",
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::LlamaServer => "llama-server",
            Self::Dynamo => "dynamo",
            Self::Walla => "walla",
        }
    }

    /// Features of such a server.
    #[must_use]
    pub fn capabilities(self) -> Capabilities {
        let mut can = Capabilities::CHAT;
        let has_grammars = matches!(self, Self::Vllm | Self::Dynamo | Self::Walla);
        can.constraints = ConstraintKinds {
            json_schema: true,
            regex: has_grammars || self == Self::Sglang,
            choice: self != Self::OpenAi,
            lark: matches!(self, Self::Vllm | Self::Walla),
        };
        can.actions = true;
        can.seeds = true;
        can.log_probabilities = matches!(self, Self::Vllm | Self::LlamaServer | Self::Walla);
        can.determinism = Determinism::None;
        can.prefix_cache = PrefixCache::Remote;
        can.cancellation = Cancellation::DropsRequest;
        can
    }

    /// Whether it has samplers that OpenAI lacks.
    pub(crate) fn has_samplers(self) -> bool {
        self != Self::OpenAi
    }

    /// Whether its templates have a switch of reasoning.
    pub(crate) fn has_thinking_switch(self) -> bool {
        self != Self::OpenAi
    }

    /// The field for the priority, as the server documents it.
    #[must_use]
    pub fn priority(self) -> Option<PriorityField> {
        match self {
            Self::OpenAi | Self::LlamaServer => None,
            Self::Vllm | Self::Walla => Some(PriorityField::lower_first("/priority")),
            Self::Sglang => Some(PriorityField::higher_first("/priority")),
            Self::Dynamo => Some(PriorityField::higher_first("/nvext/agent_hints/priority")),
        }
    }
}

/// By the [name](Dialect::name).
impl FromStr for Dialect {
    type Err = OptionsError;

    fn from_str(name: &str) -> Result<Self, OptionsError> {
        let named = Self::ALL.into_iter().find(|dialect| dialect.name() == name);
        named.ok_or_else(|| OptionsError::Dialect { name: name.to_owned() })
    }
}

/// How the priority of an agent is sent to a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PriorityField {
    /// Place in the request: a JSON pointer to an object's member.
    pub(crate) pointer: Cow<'static, str>,
    pub(crate) is_lower_first: bool,
}

impl PriorityField {
    /// A server that serves lower numbers earlier, such as vLLM. It gets the negated
    /// [`AgentSpec::priority`](walla_runtime::AgentSpec::priority).
    ///
    /// `pointer`: a JSON pointer into the request, such as `"/priority"`.
    pub fn lower_first(pointer: impl Into<Cow<'static, str>>) -> Self {
        Self { pointer: pointer.into(), is_lower_first: true }
    }

    /// A server that serves higher numbers earlier, such as NVIDIA Dynamo.
    pub fn higher_first(pointer: impl Into<Cow<'static, str>>) -> Self {
        Self { pointer: pointer.into(), is_lower_first: false }
    }

    pub(crate) fn value(&self, priority: i32) -> i64 {
        let priority = i64::from(priority);
        if self.is_lower_first { -priority } else { priority }
    }
}
