//! Work as streams and graphs have it.

use std::ops::Range;
use std::ptr;

use cudarc::driver::sys::{CUdevice, CUresult};

use super::launch::KernelLaunch;
use super::memory_of;
use crate::machine::Fault;
use crate::memory::Memory;

/// A fault: its number and what it says.
pub(super) type Failed = (CUresult, String);

/// One thing to do. Addresses are looked at again each time it is done, since a graph may outlive
/// memory.
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
    /// Does it on a device.
    ///
    /// # Errors
    /// The fault that ends all work of the context.
    pub(super) fn run(&self, device: CUdevice) -> Result<(), Failed> {
        let memory = memory_of(device);
        match self {
            Self::Kernel(launch) => launch.run(memory).map_err(failed),
            Self::Copy { to, from, device } => {
                let bytes = checked("a copy", device, memory)?;
                let (to, from) = (*to as *mut u8, *from as *const u8);
                // SAFETY: the device's range was just found, and memory stays while work runs that
                // uses it (rule of the driver's callers); the host's is as long by the promise of
                // whoever enqueued the copy.
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

/// The length of a range that is memory.
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
