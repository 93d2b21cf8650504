//! Builds a [`ModelSpec`] from a file: one builder per architecture.
//!
//! Key names, tensor names and defaults match llama.cpp, so files made for it load here.

mod error;
mod gemma3;
mod gemma4;
mod granite;
mod lfm2;
mod lfm2moe;
mod llama;
mod mistral3;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod rope;
mod smollm3;
mod source;
mod transformer;

pub use error::SpecError;

use crate::{
    gguf::{Gguf, split},
    spec::{Architecture, ModelSpec},
};

impl ModelSpec {
    /// Describes the model in a file.
    ///
    /// `context_tokens` is the context of each sequence. Models with two sets of rotation factors
    /// (Phi 3's longrope) select by it, as llama.cpp does.
    ///
    /// Every tensor of the file is part of the specification, with the dimensions that the
    /// hyperparameters require. The only exception is the unused set of rotation factors.
    ///
    /// # Errors
    /// [`SpecError`] names the key or tensor and the expected value.
    pub fn from_gguf(gguf: &Gguf, context_tokens: u32) -> Result<Self, SpecError> {
        // Parts after the first have none of the keys below.
        let parts = gguf.find::<u64>(split::COUNT)?.unwrap_or(1);
        if parts > 1 && gguf.parts() as u64 != parts {
            let part = gguf.find::<u64>(split::NUMBER)?.unwrap_or(0).saturating_add(1);
            return Err(SpecError::Split { part, parts });
        }
        let name: &str = gguf.require("general.architecture")?;
        let architecture = Architecture::from_name(name)
            .ok_or_else(|| SpecError::Architecture { found: name.to_owned() })?;
        let source = source::Source::new(gguf, architecture);
        let mut model = transformer::Transformer::read(&source)?;
        match architecture {
            Architecture::Llama => llama::build(&model, context_tokens),
            Architecture::Qwen2 => qwen2::build(&model, context_tokens),
            Architecture::Qwen3 => qwen3::build(&model, context_tokens),
            Architecture::Gemma3 => gemma3::build(&model, context_tokens),
            Architecture::SmolLm3 => smollm3::build(&model, context_tokens),
            Architecture::Phi3 => phi3::build(&model, context_tokens),
            Architecture::Lfm2 => lfm2::build(&model, context_tokens),
            Architecture::Granite => granite::build(&model, context_tokens),
            Architecture::Mistral3 => mistral3::build(&model, context_tokens),
            Architecture::Qwen3Moe => qwen3moe::build(&model, context_tokens),
            Architecture::Lfm2Moe => lfm2moe::build(&model, context_tokens),
            Architecture::Qwen35 => qwen35::build(&mut model, context_tokens),
            Architecture::Qwen35Moe => qwen35moe::build(&mut model, context_tokens),
            Architecture::Gemma4 => gemma4::build(&model, context_tokens),
        }
    }
}
