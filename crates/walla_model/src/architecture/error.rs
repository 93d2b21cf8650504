use walla_types::{TensorType, UnknownTensorType};

use crate::{
    gguf::{MetadataError, Shape, TensorError},
    spec::Architecture,
};

/// Why a file does not describe a model that walla can run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No builder exists for this architecture: use another model.
    #[error(
        "architecture {found:?} is not supported{} (supported: {})",
        layers_of(found),
        Architecture::names()
    )]
    Architecture {
        /// `general.architecture`.
        found: String,
    },
    /// The model computes vectors: load it as an embedding model.
    #[error(
        "a {architecture} model computes embeddings and generates no text: load it with \
         walla::Embedder, or use `walla embed`"
    )]
    Encoder {
        /// The architecture.
        architecture: Architecture,
    },
    /// The file in memory is one part of a split model: open the first part by its path, or join
    /// all parts first.
    #[error(
        "this is part {part} of {parts} of a split model, without the others: open the first part \
         by its path, or join the parts with `llama-gguf-split --merge FIRST_PART WHOLE_MODEL`"
    )]
    Split {
        /// Number of the part, from 1.
        part: u64,
        /// Number of parts.
        parts: u64,
    },
    /// A key is missing or has the wrong type: the file is damaged or a broken tool wrote it.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A number is out of range: the file is damaged or a broken tool wrote it.
    #[error("key {key:?} is {found}, expected {expected}")]
    Hyperparameter {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// The allowed values.
        expected: String,
    },
    /// The model requires a feature that walla does not compute: use another model.
    #[error("key {key:?} is {found}: {feature} not supported")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// The unsupported feature, with its verb.
        feature: &'static str,
    },
    /// A layer is of a kind that walla does not compute: use another model.
    #[error("tensor {tensor:?}: the layer is {kind}, which is not supported in {architecture}")]
    LayerKind {
        /// A tensor that only such layers have.
        tensor: String,
        /// The kind of layer, with an article.
        kind: &'static str,
        /// The architecture of the builder.
        architecture: Architecture,
    },
    /// A tensor is missing.
    #[error("tensor {tensor:?} is missing, expected shape {expected:?}")]
    Missing {
        /// The name.
        tensor: String,
        /// Its dimensions, the innermost first.
        expected: Vec<u64>,
    },
    /// A tensor's dimensions contradict the hyperparameters.
    #[error("tensor {tensor:?} has shape {found}, expected {expected:?}")]
    Shape {
        /// The name.
        tensor: String,
        /// Its dimensions.
        found: Shape,
        /// The dimensions that the hyperparameters require, the innermost first.
        expected: Vec<u64>,
    },
    /// A tensor's type has no kernels: quantise the model to another type.
    #[error("tensor {tensor:?}: {source}")]
    Type {
        /// The name.
        tensor: String,
        /// The type's code.
        source: UnknownTensorType,
    },
    /// A vector (norm, bias, taps, frequencies) or a router has a block-quantised type.
    #[error("tensor {tensor:?} is of type {found}, expected F32, F16 or BF16")]
    Quantized {
        /// The name.
        tensor: String,
        /// Its type.
        found: TensorType,
    },
    /// A vector holds a number that is out of range.
    #[error("tensor {tensor:?}: number {index} is {found}, expected {expected}")]
    Number {
        /// The name.
        tensor: String,
        /// Index of the number.
        index: usize,
        /// The number.
        found: String,
        /// Numbers that the architecture allows.
        expected: &'static str,
    },
    /// The file holds weights that the builder would not use, so it is a variant of the
    /// architecture that computes something else.
    #[error("tensor {tensor:?} is no part of a {architecture} model")]
    Unused {
        /// The name.
        tensor: String,
        /// The architecture of the builder.
        architecture: Architecture,
    },
    /// A tensor cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// The layers of an architecture that a supported one resembles, for a message.
fn layers_of(architecture: &str) -> &'static str {
    match architecture {
        "granitemoe" => ": its layers are mixtures of experts",
        "granitehybrid" | "nemotron_h" => ": some of its layers are Mamba-2",
        _ => "",
    }
}
