use walla_device::DeviceError;
use walla_model::TensorError;
use walla_types::SeqId;

/// Why a model could not be loaded or a step could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The device refused or failed; see the inner error for what to do.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A tensor of the file cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The options are invalid or inconsistent.
    #[error("{0}")]
    Options(String),
    /// All slots of the ring are in flight: collect a step first.
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
    #[error("a step has {wanted} {what}, the maximum is {max}")]
    StepTooLarge {
        /// The exceeded quantity.
        what: &'static str,
        /// Requested amount.
        wanted: u32,
        /// Limit.
        max: u32,
    },
    /// The token mask of a sequence forbids the whole vocabulary, so no token could be sampled.
    #[error("the mask of sequence {seq} forbids all {vocab} tokens of the vocabulary")]
    NothingAllowed {
        /// The sequence.
        seq: SeqId,
        /// Tokens of the vocabulary.
        vocab: u32,
    },
    /// The result block of a step holds the results of another step. The device is broken: use
    /// another one.
    #[error("results of step {found} instead of step {step}")]
    ForeignResults {
        /// Step whose results were requested.
        step: u64,
        /// Step whose results were found.
        found: u64,
    },
    /// The caller stopped the load.
    #[error("loading was stopped")]
    Stopped,
}

impl ExecError {
    /// Whether a step refused with this error left no trace on the device. It can be submitted
    /// again once the ring has a free slot or the cause is corrected. After any other error, it is
    /// unknown how much of the step was executed.
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
