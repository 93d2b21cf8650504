use walla_device::DeviceError;
use walla_model::TensorError;
use walla_types::SeqId;

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
    /// A step has no rows: there is nothing to submit.
    #[error("a step without rows")]
    NoRows,
    /// A step has more rows, outputs, logits rows or sequences than the executor was loaded for:
    /// split it.
    #[error("a step of {wanted} {what}, at most {max}")]
    StepTooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        wanted: u32,
        /// The bound.
        max: u32,
    },
    /// The mask of allowed tokens of a sequence forbids the whole vocabulary: nothing could be
    /// drawn.
    #[error("the mask of sequence {seq} forbids all {vocab} tokens of the vocabulary")]
    NothingAllowed {
        /// The sequence.
        seq: SeqId,
        /// Tokens of the vocabulary.
        vocab: u32,
    },
    /// Where the results of a step should be are those of another: the device is broken. Use
    /// another.
    #[error("results of step {found} where those of step {step} should be")]
    ForeignResults {
        /// Whose results were asked for.
        step: u64,
        /// Whose are there.
        found: u64,
    },
    /// The caller stopped the load.
    #[error("loading was stopped")]
    Stopped,
}

impl ExecError {
    /// Whether a step that was refused with this error has left no trace on the device: it can be
    /// submitted again, when there is room or with what is wrong put right. After any other error
    /// nobody knows how much of the step happened.
    #[must_use]
    pub fn nothing_happened(&self) -> bool {
        matches!(
            self,
            Self::RingFull { .. }
                | Self::NoRows
                | Self::StepTooLarge { .. }
                | Self::NothingAllowed { .. }
                | Self::Device(DeviceError::HostInFlight { .. })
        )
    }
}
