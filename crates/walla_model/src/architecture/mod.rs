//! Builds a [`ModelSpec`] from a file. An architecture has a builder, or is a case of one.
//!
//! Key names, tensor names and defaults match llama.cpp, so files made for it load here.

mod bert;
mod error;
mod gemma3;
mod gemma4;
mod granite;
mod lfm2;
mod plain;
mod qwen35;
mod rope;
mod source;
mod transformer;

pub use error::SpecError;

use crate::{
    embedding::{EmbeddingModel, EmbeddingSpec, Pooling},
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
        let source = source(gguf)?;
        if source.architecture.is_encoder() {
            return Err(SpecError::Encoder { architecture: source.architecture });
        }
        let mut model = transformer::Transformer::read(&source)?;
        match source.architecture {
            Architecture::Llama
            | Architecture::Qwen2
            | Architecture::Qwen3
            | Architecture::Qwen3Moe
            | Architecture::SmolLm3
            | Architecture::Phi3
            | Architecture::Mistral3 => plain::build(&model, context_tokens),
            Architecture::Gemma3 => gemma3::build(&model, context_tokens),
            Architecture::Gemma4 => gemma4::build(&model, context_tokens),
            Architecture::Lfm2 | Architecture::Lfm2Moe => lfm2::build(&model, context_tokens),
            Architecture::Granite => granite::build(&model, context_tokens),
            Architecture::Qwen35 | Architecture::Qwen35Moe => {
                qwen35::build(&mut model, context_tokens)
            }
            encoder @ Architecture::Bert => Err(SpecError::Encoder { architecture: encoder }),
        }
    }
}

impl EmbeddingSpec {
    /// Describes the embedding model in a file, for texts of up to `context_tokens` tokens.
    ///
    /// A file of an architecture that generates text is accepted too, with or without a pooling.
    ///
    /// # Errors
    /// [`SpecError`] names the key or tensor and the expected value.
    pub fn from_gguf(gguf: &Gguf, context_tokens: u32) -> Result<Self, SpecError> {
        let source = source(gguf)?;
        let pooling = match source.find::<u32>("pooling_type")? {
            None | Some(0) => None,
            Some(4) => return Err(source.unsupported("pooling_type", 4, "models that rank are")),
            Some(code) => {
                let wrong = || source.wrong("pooling_type", code, "0 to 3");
                Some(Pooling::from_code(code).ok_or_else(wrong)?)
            }
        };
        let model = match source.architecture {
            Architecture::Bert => EmbeddingModel::Encoder(bert::build(&source)?),
            _ => EmbeddingModel::Decoder(ModelSpec::from_gguf(gguf, context_tokens)?),
        };
        Ok(Self { model, pooling })
    }
}

/// The file as its architecture's builder reads it.
fn source(gguf: &Gguf) -> Result<source::Source<'_>, SpecError> {
    // Parts after the first have none of the keys below.
    let parts = gguf.find::<u64>(split::COUNT)?.unwrap_or(1);
    if parts > 1 && gguf.parts() as u64 != parts {
        let part = gguf.find::<u64>(split::NUMBER)?.unwrap_or(0).saturating_add(1);
        return Err(SpecError::Split { part, parts });
    }
    let name: &str = gguf.require("general.architecture")?;
    let architecture = Architecture::from_name(name)
        .ok_or_else(|| SpecError::Architecture { found: name.to_owned() })?;
    Ok(source::Source::new(gguf, architecture))
}
