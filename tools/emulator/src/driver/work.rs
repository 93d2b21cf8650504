//! Operations of streams and graphs.

use std::ops::Range;
use std::ptr;

use cudarc::driver::sys::{CUdevice, CUresult};

use super::launch::KernelLaunch;
use super::memory_of;
use crate::machine::Fault;
use crate::memory::Memory;

/// A fault: its number and description.
pub(super) type Failed = (CUresult, String);

/// One operation. Addresses are checked at each execution, since a graph may outlive memory.
#[derive(Clone)]
pub(super) enum Operation {
    Kernel(KernelLaunch),
    /// A copy between device memory and host memory.
    Copy {
        to: u64,
        from: u64,
        device: Range<u64>,
    },
    Fill {
        device: Range<u64>,
        byte: u8,
    },
}

impl Operation {
    /// Executes the operation on a device.
    ///
    /// # Errors
    /// The fault, after which all work of the context is discarded.
    pub(super) fn run(&self, device: CUdevice) -> Result<(), Failed> {
        let memory = memory_of(device);
        match self {
            Self::Kernel(launch) => launch.run(memory).map_err(failed),
            Self::Copy { to, from, device } => {
                let bytes = checked("a copy", device, memory)?;
                let (to, from) = (*to as *mut u8, *from as *const u8);
                // SAFETY: the device's range was checked, and memory stays valid while work uses it
                // (a rule for the driver's callers). The caller that enqueued the copy guarantees
                // that the host's range is as long.
                unsafe { ptr::copy(from, to, bytes) };
                Ok(())
            }
            Self::Fill { device, byte } => {
                let bytes = checked("a fill", device, memory)?;
                // SAFETY: as above.
                unsafe { ptr::write_bytes(device.start as *mut u8, *byte, bytes) };
                Ok(())
            }
        }
    }
}

/// The length of a range, if it is accessible memory.
fn checked(what: &str, range: &Range<u64>, memory: &Memory) -> Result<usize, Failed> {
    if memory.contains(range) {
        return Ok((range.end - range.start) as usize);
    }
    Err((CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, format!("{what} outside of memory: {range:#x?}")))
}

fn failed(fault: Fault) -> Failed {
    match fault {
        Fault::IllegalAddress(words) => (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, words),
        Fault::Misaligned(words) => (CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, words),
        Fault::Failed(words) => (CUresult::CUDA_ERROR_LAUNCH_FAILED, words),
    }
}
