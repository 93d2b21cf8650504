//! The active listeners.

use std::sync::atomic::AtomicU8;

/// Bits of [`LISTENERS`]: the listeners other than `tracing`.
pub(crate) const FILE: u8 = 1;
#[cfg(feature = "nvtx")]
pub(crate) const NVTX: u8 = 2;

/// Active listeners. Marks are not ordered with changes of this value: some marks may be missed
/// while a listener starts or ends.
pub(crate) static LISTENERS: AtomicU8 = AtomicU8::new(0);
