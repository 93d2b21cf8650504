//! Work as streams and graphs have it.

use std::ops::Range;
use std::ptr;

use cudarc::driver::sys::CUresult;

use super::MEMORY;
use super::launch::KernelLaunch;
use crate::machine::Fault;

/// A fault: its number and what it says.
pub(super) type Failed = (CUresult, String);

/// One thing to do. Addresses are looked at again each time it is done, since a graph may outlive memory.
#[derive(Clone)]
pub(super) enum Operation {
    Kernel(KernelLaunch),
    /// From one address to another, one of which is the device's.
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
    /// Does it.
    ///
    /// # Errors
    /// The fault that ends all work of the context.
    pub(super) fn run(&self) -> Result<(), Failed> {
        match self {
            Self::Kernel(launch) => launch.run().map_err(failed),
            Self::Copy { to, from, device } => {
                let bytes = checked("a copy", device)?;
                let (to, from) = (*to as *mut u8, *from as *const u8);
                // SAFETY: the device's range was just found, and memory stays while work runs that uses it (rule of the driver's callers); the
                // host's is as long by the promise of whoever enqueued the copy.
                unsafe { ptr::copy(from, to, bytes) };
                Ok(())
            }
            Self::Fill { device, byte } => {
                let bytes = checked("a fill", device)?;
                // SAFETY: as above.
                unsafe { ptr::write_bytes(device.start as *mut u8, *byte, bytes) };
                Ok(())
            }
        }
    }
}

/// The length of a range that is memory.
fn checked(what: &str, range: &Range<u64>) -> Result<usize, Failed> {
    if MEMORY.contains(range) {
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
