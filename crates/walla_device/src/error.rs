/// Reason why a device refused or failed a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device does not have enough memory: load a smaller model, a shorter context or fewer
    /// agents, or use another device.
    #[error("out of memory for {what}: {wanted_bytes} bytes wanted, {free_bytes} free")]
    OutOfMemory {
        /// Purpose of the memory.
        what: String,
        /// Requested bytes.
        wanted_bytes: u64,
        /// Free bytes, as far as the device knows.
        free_bytes: u64,
    },
    /// The device does not support this: use another device or another model file.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// The device.
        device: String,
        /// The op, type or size.
        what: String,
    },
    /// A copy from or to this host buffer is still in flight: poll its event and retry.
    #[error("host buffer {host} has a copy in flight")]
    HostInFlight {
        /// The buffer's number.
        host: u32,
    },
    /// The bytes of a matrix could not be read from their [source](crate::WeightSource). The file
    /// is faulty; the device remains usable.
    #[error("{matrix}: {reason}")]
    Source {
        /// The matrix.
        matrix: String,
        /// The source's message.
        reason: String,
    },
    /// A call failed and had no effect. The device remains usable.
    #[error("{call} failed: {reason}")]
    Failed {
        /// The call.
        call: &'static str,
        /// The driver's message.
        reason: String,
    },
    /// The device is permanently lost: drop it and open another.
    #[error("device lost in {call}: {reason}")]
    Lost {
        /// The call that detected the loss.
        call: &'static str,
        /// The driver's message.
        reason: String,
    },
    /// The caller violated the interface (unknown handle, inconsistent sizes): a bug in the caller.
    #[error("invalid use of the device: {0}")]
    Invalid(String),
}

impl DeviceError {
    /// Whether the device is permanently lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}
