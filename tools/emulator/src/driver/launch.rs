//! Kernel launches.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::{
    CUfunction, CUlaunchAttribute, CUlaunchAttributeID as Id, CUlaunchConfig, CUresult,
};

use super::context::current;
use super::facts::facts;
use super::module::{FUNCTIONS, Function};
use super::stream::stream;
use super::work::Operation;
use super::{Outcome, answer};
use crate::machine::{self, Fault};
use crate::memory::Memory;
use crate::ptx::Kernel;

/// Maximum dimensions of a grid and of a block. Source: the CUDA programming guide, "Compute
/// Capabilities".
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
const MAX_THREADS: u64 = 1024;

/// Maximum blocks per cluster without opt-in.
const MAX_CLUSTER: u32 = 8;

/// Number of launches, including captured ones.
static LAUNCHES: AtomicU32 = AtomicU32::new(0);

/// A launch with copies of all its inputs.
#[derive(Clone)]
pub(super) struct KernelLaunch {
    kernel: Arc<Kernel>,
    grid: [u32; 3],
    block: [u32; 3],
    cluster: u32,
    shared_bytes: u32,
    params: Arc<[u8]>,
}

impl KernelLaunch {
    /// Runs it with the given accessible memory.
    ///
    /// # Errors
    /// The kernel's fault.
    pub(super) fn run(&self, memory: &Memory) -> Result<(), Fault> {
        let launch = machine::Launch {
            kernel: &self.kernel,
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            shared_bytes: self.shared_bytes,
            params: &self.params,
        };
        machine::run(&launch, memory)
    }

    /// Returns an error if the device cannot launch it.
    fn check(&self, function: &Function) -> Outcome {
        let fits = |sides: [u32; 3], most: [u32; 3]| {
            sides.iter().zip(most).all(|(side, most)| (1..=most).contains(side))
        };
        let threads: u64 = self.block.iter().map(|side| u64::from(*side)).product();
        let shared = u64::from(self.shared_bytes) + u64::from(self.kernel.shared_bytes());
        if !fits(self.grid, MAX_GRID)
            || !fits(self.block, MAX_BLOCK)
            || threads > MAX_THREADS
            || shared > u64::from(function.max_shared_bytes())
        {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let divides = self.grid[0].is_multiple_of(self.cluster);
        if self.cluster > MAX_CLUSTER || !divides {
            return Err(CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE);
        }
        Ok(())
    }
}

/// Blocks per cluster, along the first dimension, from the launch attributes: 1 by default.
fn cluster(attributes: &[CUlaunchAttribute]) -> Outcome<u32> {
    let mut cluster = 1;
    for attribute in attributes {
        match attribute.id {
            Id::CU_LAUNCH_ATTRIBUTE_IGNORE => continue,
            // Programmatic launch has no effect: work runs in order.
            Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION => {}
            Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                // SAFETY: the attribute's id selects the union's field.
                let sides = unsafe { attribute.value.clusterDim };
                if sides.x == 0 || (sides.y, sides.z) != (1, 1) {
                    return Err(CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE);
                }
                cluster = sides.x;
            }
            _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
        if facts()?.capability < (9, 0) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
    }
    Ok(cluster)
}

/// Copies the parameters of a kernel, which are one struct.
///
/// # Safety
/// `params` is null, or its first pointer is valid for as many bytes as the kernel's parameters
/// have.
unsafe fn copied(kernel: &Kernel, params: *mut *mut c_void) -> Outcome<Arc<[u8]>> {
    if kernel.param_bytes() == 0 {
        return Ok(Arc::default());
    }
    if params.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: guaranteed by the caller.
    let start = unsafe { params.read() };
    if start.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), kernel.param_bytes()) }.into())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    raw: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let launch = || {
        current()?;
        // SAFETY: guaranteed by the caller: null, or a launch configuration.
        let config = unsafe { config.as_ref() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if !extra.is_null() || (config.attrs.is_null() && config.numAttrs > 0) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let attributes = match config.numAttrs as usize {
            0 => &[],
            // SAFETY: guaranteed by the caller: `attrs` has `count` elements.
            count => unsafe { std::slice::from_raw_parts(config.attrs, count) },
        };
        let function = FUNCTIONS.get(raw.addr())?;
        // SAFETY: guaranteed by the caller.
        let params = unsafe { copied(&function.kernel, params) }?;
        let launch = KernelLaunch {
            kernel: Arc::clone(&function.kernel),
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            cluster: cluster(attributes)?,
            shared_bytes: config.sharedMemBytes,
            params,
        };
        launch.check(&function)?;
        let number = LAUNCHES.fetch_add(1, Ordering::Relaxed) + 1;
        let refused = facts()?.refused_launches;
        if refused > 0 && number.is_multiple_of(refused) {
            return Err(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        let stream = stream(config.hStream)?;
        // A kernel is loaded into one context, which must be the stream's.
        if stream.space.number != function.space {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        stream.enqueue(&[Operation::Kernel(launch)])
    };
    answer(launch())
}
