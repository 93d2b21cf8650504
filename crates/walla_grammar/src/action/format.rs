//! Call formats of model families.

use walla_model::tokenizer::Tokenizer;

use crate::Delimiter;

/// The syntax in which a model writes calls.
///
/// | format | models |
/// |---|---|
/// | [`HermesJson`](Self::HermesJson) | Qwen 2.5, Qwen 3, Hermes 2 and 3, SmolLM 3 |
/// | [`QwenXml`](Self::QwenXml) | Qwen 3.5, Qwen 3 Coder |
/// | [`LlamaJson`](Self::LlamaJson) | Llama 3.1, 3.2, 3.3 |
/// | [`MistralList`](Self::MistralList) | Mistral 7B 0.3, Nemo, Small 3 |
/// | [`MistralNamed`](Self::MistralNamed) | Ministral 3, Devstral 2 |
/// | [`Lfm2`](Self::Lfm2) | LFM 2, LFM 2.5 |
/// | [`Gemma4`](Self::Gemma4) | Gemma 4 |
/// | [`Phi4`](Self::Phi4) | Phi-4-mini |
/// | [`Plain`](Self::Plain) | models without training on tools |
///
/// Sources: the chat templates that the vendors publish with the models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallFormat {
    /// JSON between two markers:
    ///
    /// ```text
    /// <tool_call>
    /// {"name": "f", "arguments": {"k": "v"}}
    /// </tool_call>
    /// ```
    HermesJson,
    /// Elements between two markers. Texts are raw, other values are JSON or Python's `True`,
    /// `False` and `None`, as templates print them:
    ///
    /// ```text
    /// <tool_call>
    /// <function=f>
    /// <parameter=k>
    /// v
    /// </parameter>
    /// </function>
    /// </tool_call>
    /// ```
    QwenXml,
    /// JSON as the whole reply, or behind `<|python_tag|>`, without a closing delimiter. A reply
    /// has one call:
    ///
    /// ```text
    /// {"name": "f", "parameters": {"k": "v"}}
    /// ```
    LlamaJson,
    /// A list of JSON objects, without a closing delimiter:
    ///
    /// ```text
    /// [TOOL_CALLS][{"name": "f", "arguments": {"k": "v"}}]
    /// ```
    MistralList,
    /// A name and JSON, without a closing delimiter:
    ///
    /// ```text
    /// [TOOL_CALLS]f[ARGS]{"k": "v"}
    /// ```
    MistralNamed,
    /// A list of calls in Python's syntax:
    ///
    /// ```text
    /// <|tool_call_start|>[f(k="v")]<|tool_call_end|>
    /// ```
    Lfm2,
    /// Names without quotes; `<|"|>` quotes texts, which have no escapes:
    ///
    /// ```text
    /// <|tool_call>call:f{k:<|"|>v<|"|>}<tool_call|>
    /// ```
    Gemma4,
    /// A list of JSON objects between two markers:
    ///
    /// ```text
    /// <|tool_call|>[{"name": "f", "arguments": {"k": "v"}}]<|/tool_call|>
    /// ```
    Phi4,
    /// The syntax of [`HermesJson`](Self::HermesJson). The markers are ordinary text in any
    /// tokenisation.
    Plain,
}

impl CallFormat {
    /// All formats.
    pub const ALL: [Self; 9] = [
        Self::HermesJson,
        Self::QwenXml,
        Self::LlamaJson,
        Self::MistralList,
        Self::MistralNamed,
        Self::Lfm2,
        Self::Gemma4,
        Self::Phi4,
        Self::Plain,
    ];

    /// The format of a model, by its chat template and its special tokens. A template that
    /// mentions a format decides; otherwise the special tokens of the vocabulary do. A model
    /// without either has [`Plain`](Self::Plain).
    ///
    /// # Examples
    /// ```
    /// # fn run(gguf: &walla_model::Gguf) -> Result<(), Box<dyn std::error::Error>> {
    /// use walla_grammar::CallFormat;
    /// use walla_model::tokenizer::Tokenizer;
    ///
    /// let tokenizer = Tokenizer::from_gguf(gguf)?;
    /// let format = CallFormat::of(None, &tokenizer);
    /// println!("{format:?}");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn of(template_source: Option<&str>, tokenizer: &Tokenizer) -> Self {
        let has_token = |text: &str| tokenizer.special_token(text).is_some();
        let mentioned = template_source.and_then(|source| {
            Self::mentioned(|text| source.contains(text), has_token("<|python_tag|>"))
        });
        mentioned.unwrap_or_else(|| {
            // Base models of Llama have this token, too; their templates write other calls.
            let is_llama = template_source.is_none() && has_token("<|python_tag|>");
            let found = Self::mentioned(has_token, false);
            found.unwrap_or(if is_llama { Self::LlamaJson } else { Self::Plain })
        })
    }

    /// The format whose markers occur. `has` searches a template or a vocabulary.
    fn mentioned(has: impl Fn(&str) -> bool, has_python_tag: bool) -> Option<Self> {
        if has("<|tool_call>") {
            Some(Self::Gemma4)
        } else if has("[TOOL_CALLS]") {
            Some(if has("[ARGS]") { Self::MistralNamed } else { Self::MistralList })
        } else if has("<|tool_call_start|>") || has("<|tool_list_start|>") {
            Some(Self::Lfm2)
        } else if has("<|/tool_call|>") {
            Some(Self::Phi4)
        } else if has("<tool_call>") {
            Some(if has("<function=") { Self::QwenXml } else { Self::HermesJson })
        } else if has("<|python_tag|>") && has("parameters")
            || has_python_tag && has("\"parameters\"")
        {
            Some(Self::LlamaJson)
        } else {
            None
        }
    }

    /// Maximum number of calls that the model writes in one reply; `None` without a limit.
    #[must_use]
    pub fn max_calls(self) -> Option<u32> {
        (self == Self::LlamaJson).then_some(1)
    }

    /// The text of a call in front of its arguments and behind them.
    pub(crate) fn around(self, name: &str) -> (String, &'static str) {
        match self {
            Self::HermesJson | Self::Plain => {
                (format!("\n{{\"name\": \"{name}\", \"arguments\": "), "}\n")
            }
            Self::LlamaJson => (format!("{{\"name\": \"{name}\", \"parameters\": "), "}"),
            Self::MistralList | Self::Phi4 => {
                (format!("{{\"name\": \"{name}\", \"arguments\": "), "}")
            }
            Self::MistralNamed => (name.to_owned(), ""),
            Self::QwenXml => (format!("\n<function={name}>\n"), "</function>\n"),
            Self::Lfm2 => (format!("{name}("), ")"),
            Self::Gemma4 => (format!("call:{name}"), ""),
        }
    }

    /// Whether calls are the items of a list.
    pub(crate) fn is_list(self) -> bool {
        matches!(self, Self::MistralList | Self::Phi4 | Self::Lfm2)
    }

    /// The text of a delimiter; `None` if the format has no such delimiter.
    pub(crate) fn text(self, delimiter: Delimiter) -> Option<&'static str> {
        use Delimiter::{Args, Close, Open, Quote};
        Some(match (self, delimiter) {
            (Self::HermesJson | Self::QwenXml | Self::Plain, Open) => "<tool_call>",
            (Self::HermesJson | Self::QwenXml | Self::Plain, Close) => "</tool_call>",
            (Self::LlamaJson, Open) => "<|python_tag|>",
            (Self::MistralList | Self::MistralNamed, Open) => "[TOOL_CALLS]",
            (Self::MistralNamed, Args) => "[ARGS]",
            (Self::Lfm2, Open) => "<|tool_call_start|>",
            (Self::Lfm2, Close) => "<|tool_call_end|>",
            (Self::Gemma4, Open) => "<|tool_call>",
            (Self::Gemma4, Close) => "<tool_call|>",
            (Self::Gemma4, Quote) => "<|\"|>",
            (Self::Phi4, Open) => "<|tool_call|>",
            (Self::Phi4, Close) => "<|/tool_call|>",
            _ => return None,
        })
    }
}
