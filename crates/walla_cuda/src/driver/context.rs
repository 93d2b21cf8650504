use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUcontext, CUctx_flags, CUresult};
use walla_device::{DeviceCounters, DeviceError};

use super::arena::Arena;
use super::library::{Gpu, describe};
use super::stream::Stream;

/// Longest that dropping a context waits for work in flight before it gives up and leaks.
const DROP_WAIT_MAX: Duration = Duration::from_millis(100);

/// A context of its own on one GPU: after a sticky error it is lost, but the process can open another.
#[derive(Debug)]
pub(crate) struct Context {
    raw: CUcontext,
    gpu: Gpu,
    lost: RefCell<Option<DeviceError>>,
    /// Device memory that may be allocated in all, and how much is.
    memory_bytes_max: u64,
    pub(super) allocated_bytes: Cell<u64>,
    /// Streams made so far: dropping polls them.
    pub(super) streams: RefCell<Vec<Stream>>,
    counters: RefCell<DeviceCounters>,
    /// Memory that destroying the context does not free.
    pub(super) arenas: RefCell<Vec<Arena>>,
}

// SAFETY: driver contexts may be used from any thread as long as calls make them current, which `Context::enter` does;
// the cells are reached through one owner at a time (`Send`, not `Sync`).
unsafe impl Send for Context {}

impl Context {
    /// Creates a context. Takes some hundred milliseconds.
    pub(crate) fn create(gpu: &Gpu, memory_bytes_max: Option<u64>) -> Result<Self, DeviceError> {
        let mut raw: CUcontext = std::ptr::null_mut();
        let flags = CUctx_flags::CU_CTX_SCHED_YIELD as u32;
        // SAFETY: `raw` lives through the call; the device came from cuDeviceGet; a `Gpu` proves the library.
        let result = unsafe { sys::cuCtxCreate_v2(&raw mut raw, flags, gpu.device) };
        if result != CUresult::CUDA_SUCCESS {
            return Err(DeviceError::Failed { call: "cuCtxCreate", reason: describe(result) });
        }
        Ok(Self {
            raw,
            gpu: gpu.clone(),
            lost: RefCell::new(None),
            memory_bytes_max: memory_bytes_max.unwrap_or(u64::MAX),
            allocated_bytes: Cell::new(0),
            streams: RefCell::new(Vec::new()),
            counters: RefCell::default(),
            arenas: RefCell::default(),
        })
    }

    /// The GPU that it is on.
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Calls counted so far.
    pub(crate) fn counters(&self) -> DeviceCounters {
        *self.counters.borrow()
    }

    /// Counts a call that is about to be made.
    pub(super) fn count(&self, count: impl FnOnce(&mut DeviceCounters) -> &mut u64) {
        *count(&mut self.counters.borrow_mut()) += 1;
    }

    /// Refuses if the device is lost, else makes the context current on this thread.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        if let Some(lost) = &*self.lost.borrow() {
            return Err(lost.clone());
        }
        // SAFETY: the context lives until `self` is dropped.
        let result = unsafe { sys::cuCtxSetCurrent(self.raw) };
        self.check("cuCtxSetCurrent", result)
    }

    /// Turns a result into an error, and a sticky one into the loss of the device.
    pub(super) fn check(&self, call: &'static str, result: CUresult) -> Result<(), DeviceError> {
        match result {
            CUresult::CUDA_SUCCESS => Ok(()),
            error if is_sticky(error) => {
                let lost = DeviceError::Lost { call, reason: describe(error) };
                *self.lost.borrow_mut() = Some(lost.clone());
                Err(lost)
            }
            error => Err(DeviceError::Failed { call, reason: describe(error) }),
        }
    }

    /// Whether a sticky error was seen.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.borrow().is_some()
    }

    /// Memory that can still be allocated, in bytes: what is free, below the ceiling.
    pub(crate) fn memory_left_bytes(&self) -> Result<u64, DeviceError> {
        let left = self.memory_bytes_max.saturating_sub(self.allocated_bytes.get());
        Ok(self.memory_free_bytes()?.min(left))
    }

    /// Free memory of the device in bytes.
    pub(crate) fn memory_free_bytes(&self) -> Result<u64, DeviceError> {
        self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both live through the call.
        let result = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        self.check("cuMemGetInfo", result)?;
        Ok(free as u64)
    }

    /// Blocks until everything enqueued is done.
    pub(crate) fn synchronise(&self) -> Result<(), DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.synchronisations);
        // SAFETY: the context is current.
        let result = unsafe { sys::cuCtxSynchronize() };
        self.check("cuCtxSynchronize", result)
    }

    fn is_idle(&self) -> Result<bool, DeviceError> {
        for stream in &*self.streams.borrow() {
            if !self.stream_is_idle(*stream)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for Context {
    /// Frees everything at once. A lost context is destroyed too, which only tears down the driver's bookkeeping; work that
    /// does not end in time is left to the end of the process, because freeing under a running copy would block on it.
    fn drop(&mut self) {
        let deadline = Instant::now() + DROP_WAIT_MAX;
        while !self.is_lost() {
            match self.is_idle() {
                Ok(true) | Err(_) => break,
                Ok(false) if Instant::now() >= deadline => return,
                Ok(false) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        // SAFETY: nothing uses the context after this; every handle made in it is owned by the device that owns `self`.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.raw) };
        for arena in self.arenas.get_mut().drain(..) {
            arena.give_back();
        }
    }
}

/// Whether an error leaves the context unusable: every later call would answer the same.
fn is_sticky(error: CUresult) -> bool {
    matches!(
        error,
        CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_INVALID_CONTEXT
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTAINED
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_SYSTEM_NOT_READY
            | CUresult::CUDA_ERROR_UNKNOWN
    )
}
