//! Templates for models whose file has no working one.

use super::{ChatTemplate, TemplateError};
use crate::names::named;

named! {
    /// A chat template that is part of this crate, for models of its family.
    ///
    /// A model understands only the template that it was trained with. With another one it produces
    /// nonsense, even if its vocabulary has the markers.
    ///
    /// The name is that in settings and commands: `chatml`, `llama3`, `gemma` or `mistral`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum BuiltInTemplate {
        /// `<|im_start|>user`: Qwen, SmolLM, LFM 2, Hermes and many finetunes.
        Chatml = "chatml",
        /// `<|start_header_id|>user<|end_header_id|>`: Llama 3 and later.
        Llama3 = "llama3",
        /// `<start_of_turn>user`: Gemma 1 to 3. The persona is part of the first user message.
        Gemma = "gemma",
        /// `[INST]…[/INST]`: Mistral, with the white space of its third and later tokenizers. The
        /// persona is part of the first user message.
        Mistral = "mistral",
    }
}

/// Refuses conversations in which user and agent do not alternate, because models of these families
/// were trained on no others. [`ChatTemplate::render`] merges messages as needed.
macro_rules! alternating {
    ($message:literal) => {
        concat!(
            "{{ bos_token }}{% for m in messages %}",
            "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}",
            "{{ raise_exception('user and agent must alternate') }}",
            "{% endif %}",
            $message,
            "{% endfor %}",
        )
    };
}

const CHATML: &str = "\
{% for m in messages %}\
{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

const LLAMA3: &str = "\
{{ bos_token }}{% for m in messages %}\
{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}\
{% endfor %}\
{% if add_generation_prompt %}\
{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}\
{% endif %}";

const GEMMA: &str = concat!(
    alternating!(
        "{{ '<start_of_turn>' + ('user' if m.role == 'user' else 'model') + '\n' \
         + m.content | trim + '<end_of_turn>\n' }}"
    ),
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
);

const MISTRAL: &str = alternating!(
    "{{ '[INST]' + m.content + '[/INST]' if m.role == 'user' else m.content + eos_token }}"
);

impl BuiltInTemplate {
    /// The Jinja source.
    #[must_use]
    pub const fn source(self) -> &'static str {
        match self {
            Self::Chatml => CHATML,
            Self::Llama3 => LLAMA3,
            Self::Gemma => GEMMA,
            Self::Mistral => MISTRAL,
        }
    }
}

impl ChatTemplate {
    /// A built-in template with the texts of the model's BOS and EOS tokens.
    ///
    /// # Errors
    /// [`TemplateError`] if these texts cannot be used.
    pub fn built_in(
        template: BuiltInTemplate,
        bos: &str,
        eos: &str,
    ) -> Result<Self, TemplateError> {
        Self::new(template.source(), bos, eos)
    }
}
