use walla_device::DeviceError;
use walla_model::TensorError;

/// Why a model could not be loaded or a step not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The device refused or failed; see the inner error for what to do.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A tensor of the file cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The options make no sense together.
    #[error("{0}")]
    Options(String),
    /// As many steps are in flight as the ring has slots: collect one first.
    #[error("{in_flight} steps are in flight already")]
    RingFull {
        /// Steps in flight.
        in_flight: u32,
    },
    /// A step has more rows, outputs, logits rows or sequences than the executor was loaded for: split it.
    #[error("a step of {wanted} {what}, at most {max}")]
    StepTooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        wanted: u32,
        /// The bound.
        max: u32,
    },
    /// A mask of allowed tokens forbids the whole vocabulary: nothing could be drawn.
    #[error("mask {mask} of the step forbids all {vocab} tokens of the vocabulary")]
    NothingAllowed {
        /// Its place in the step.
        mask: u32,
        /// Tokens of the vocabulary.
        vocab: u32,
    },
    /// The caller stopped the load.
    #[error("loading was stopped")]
    Stopped,
}
