/// Why a device refused or failed a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device has not enough memory: load a smaller model, a shorter context or fewer agents,
    /// or use another device.
    #[error("out of memory for {what}: {wanted_bytes} bytes wanted, {free_bytes} free")]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes that were free, as far as the device knows.
        free_bytes: u64,
    },
    /// The device cannot do this: use another device or another model file.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// The device.
        device: String,
        /// The op, type or size.
        what: String,
    },
    /// A copy from or to this host buffer is still in flight: poll its event and come back.
    #[error("host buffer {host} has a copy in flight")]
    HostInFlight {
        /// The buffer's number.
        host: u32,
    },
    /// The bytes of a matrix could not be read from their [source](crate::WeightSource): its file
    /// is at fault, the device lives on.
    #[error("{matrix}: {reason}")]
    Source {
        /// The matrix.
        matrix: String,
        /// The source's message.
        reason: String,
    },
    /// A call failed, the device lives on: the work of this call did not happen.
    #[error("{call} failed: {reason}")]
    Failed {
        /// The call.
        call: &'static str,
        /// The driver's words.
        reason: String,
    },
    /// The device is gone for good: drop it, open another.
    #[error("device lost in {call}: {reason}")]
    Lost {
        /// The call that found out.
        call: &'static str,
        /// The driver's words.
        reason: String,
    },
    /// The caller broke the contract (unknown handle, sizes that disagree): a defect in the caller.
    #[error("invalid use of the device: {0}")]
    Invalid(String),
}

impl DeviceError {
    /// Whether the device is gone for good.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}
