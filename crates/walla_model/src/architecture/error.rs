use walla_types::{TensorType, UnknownTensorType};

use crate::{
    gguf::{MetadataError, Shape, TensorError},
    spec::Architecture,
};

/// Why a file does not describe a model that walla can run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No builder for this architecture: use another model.
    #[error("architecture {found:?} is not supported (supported: {})", Architecture::names())]
    Architecture {
        /// `general.architecture`.
        found: String,
    },
    /// The file is one part of a model that was split: join all of them first.
    #[error(
        "this is part {part} of {parts} of a split model: join the parts with \
         `llama-gguf-split --merge FIRST_PART WHOLE_MODEL`"
    )]
    Split {
        /// Which part, counted from 1.
        part: u64,
        /// How many there are.
        parts: u64,
    },
    /// A key is missing or has the wrong type: the file is damaged or was made by a broken tool.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A number makes no sense: the file is damaged or was made by a broken tool.
    #[error("key {key:?} is {found}, expected {expected}")]
    Hyperparameter {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What is allowed.
        expected: String,
    },
    /// The model wants something that walla does not compute: use another model.
    #[error("key {key:?} is {found}: {feature} not supported")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What it asks for, with its verb.
        feature: &'static str,
    },
    /// A tensor is missing.
    #[error("tensor {tensor:?} is missing, expected shape {expected:?}")]
    Missing {
        /// The name.
        tensor: String,
        /// Its dimensions, the innermost first.
        expected: Vec<u64>,
    },
    /// A tensor has dimensions that the hyperparameters contradict.
    #[error("tensor {tensor:?} has shape {found}, expected {expected:?}")]
    Shape {
        /// The name.
        tensor: String,
        /// Its dimensions.
        found: Shape,
        /// What the hyperparameters say, the innermost first.
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
    /// A vector (norm, bias, taps, frequencies) in a type of blocks.
    #[error("tensor {tensor:?} is of type {found}, expected F32, F16 or BF16")]
    QuantisedVector {
        /// The name.
        tensor: String,
        /// Its type.
        found: TensorType,
    },
    /// A vector holds a number that makes no sense.
    #[error(
        "tensor {tensor:?}: number {index} is {found}, expected a positive number (1e-9 to 1e15)"
    )]
    Number {
        /// The name.
        tensor: String,
        /// Which one.
        index: usize,
        /// The number.
        found: String,
    },
    /// The file holds weights that the architecture as walla knows it would leave out, so it is a
    /// variant that computes something else.
    #[error("tensor {tensor:?} is no part of a {architecture} model")]
    Unused {
        /// The name.
        tensor: String,
        /// The builder.
        architecture: Architecture,
    },
    /// A tensor cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
