use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUcontext, CUresult};
use walla_device::{DeviceCounters, DeviceError, OpenOptions};

use super::arena::Arena;
use super::context_source;
use super::context_source::ContextOrigin;
use super::gpu::{Gpu, describe};
use super::green;
use super::objects::Object;
use super::stream::Stream;

/// Maximum wait for work in flight when a context is dropped; after it, the context is leaked.
const MAX_DROP_WAIT: Duration = Duration::from_millis(100);

/// A context on one GPU. After a sticky error it is lost, but the process can open another (unless
/// the program owns the context).
#[derive(Debug)]
pub(crate) struct Context {
    raw: CUcontext,
    pub(super) origin: ContextOrigin,
    gpu: Gpu,
    lost: RefCell<Option<DeviceError>>,
    /// Ceiling of all device memory, and the bytes allocated.
    max_memory_bytes: u64,
    pub(super) allocated_bytes: Cell<u64>,
    /// All streams: dropping the context polls them.
    pub(super) streams: RefCell<Vec<Stream>>,
    counters: RefCell<DeviceCounters>,
    /// All objects created here. In a context that the device does not own, nothing else frees
    /// them.
    pub(super) objects: RefCell<Vec<Object>>,
    /// Memory that is not freed with the context.
    pub(super) arenas: RefCell<Vec<Arena>>,
}

// SAFETY: driver contexts may be used from any thread as long as calls make them current, which
// `Context::enter` does; the cells are reached through one owner at a time (`Send`, not `Sync`).
unsafe impl Send for Context {}

impl Context {
    /// Finds or creates the context that the options select. Takes some hundred milliseconds.
    pub(crate) fn open(gpu: &Gpu, options: &OpenOptions) -> Result<Self, DeviceError> {
        let mut found = context_source::find(gpu, &options.gpu_context)?;
        // Kernels distribute their work over the multiprocessors that this context has.
        found.gpu.facts.multiprocessors = found.gpu.facts.multiprocessors_used;
        Ok(Self {
            raw: found.raw,
            origin: found.origin,
            gpu: found.gpu,
            lost: RefCell::new(None),
            max_memory_bytes: options.max_memory_bytes.unwrap_or(u64::MAX),
            allocated_bytes: Cell::new(0),
            streams: RefCell::new(Vec::new()),
            counters: RefCell::default(),
            objects: RefCell::default(),
            arenas: RefCell::default(),
        })
    }

    /// The GPU as seen from this context, with the multiprocessors that the context has.
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

    /// Returns the error if the device is lost. Calls that do not reach the driver check this
    /// first.
    pub(crate) fn refuse_lost(&self) -> Result<(), DeviceError> {
        self.lost.borrow().as_ref().map_or(Ok(()), |lost| Err(lost.clone()))
    }

    /// Returns the error if the device is lost, else makes the context current on this thread.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        self.refuse_lost()?;
        // SAFETY: the context lives until `self` is dropped.
        let result = unsafe { sys::cuCtxSetCurrent(self.raw) };
        self.check("cuCtxSetCurrent", result)
    }

    /// Converts the result of a call. A sticky error marks the device as lost.
    pub(super) fn check(&self, call: &'static str, result: CUresult) -> Result<(), DeviceError> {
        self.value(call, result.result())
    }

    /// As [`check`](Self::check), for a call that returns a value.
    pub(super) fn value<T>(
        &self,
        call: &'static str,
        result: Result<T, DriverError>,
    ) -> Result<T, DeviceError> {
        result.map_err(|DriverError(error)| {
            if !is_sticky(error) {
                return DeviceError::Failed { call, reason: describe(error) };
            }
            let lost = DeviceError::Lost { call, reason: describe(error) };
            *self.lost.borrow_mut() = Some(lost.clone());
            lost
        })
    }

    /// Whether a sticky error was seen.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.borrow().is_some()
    }

    /// Bytes that can still be allocated: the free memory, limited by the ceiling.
    pub(crate) fn memory_left_bytes(&self) -> Result<u64, DeviceError> {
        let left = self.max_memory_bytes.saturating_sub(self.allocated_bytes.get());
        Ok(self.memory_free_bytes()?.min(left))
    }

    /// Free memory of the device in bytes.
    pub(crate) fn memory_free_bytes(&self) -> Result<u64, DeviceError> {
        self.enter()?;
        let (free, _total) = self.value("cuMemGetInfo", result::mem_get_info())?;
        Ok(free as u64)
    }

    /// Blocks until all enqueued work is done.
    #[expect(clippy::disallowed_methods, reason = "the only place that waits: loading and tests")]
    pub(crate) fn synchronize(&self) -> Result<(), DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.synchronizations);
        if !matches!(self.origin, ContextOrigin::Own) {
            // The program may use the same context: wait only for this device's streams.
            for stream in &*self.streams.borrow() {
                // SAFETY: the stream was made in this context, which is alive.
                let result = unsafe { sys::cuStreamSynchronize(stream.0) };
                self.check("cuStreamSynchronize", result)?;
            }
            return Ok(());
        }
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
    /// Frees everything at once. A lost context is destroyed too, which only tears down the
    /// driver's bookkeeping. Work that does not end in time is left to the end of the process,
    /// because freeing memory under a running copy would block. A context owned by the program is
    /// not destroyed.
    fn drop(&mut self) {
        let begun = Instant::now();
        let deadline = begun + MAX_DROP_WAIT;
        // No query of a lost device succeeds, so there is nothing to wait for.
        while !self.is_lost() {
            match self.is_idle() {
                Ok(true) | Err(_) => break,
                Ok(false) if Instant::now() >= deadline => return self.leak(),
                Ok(false) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        let idle = Instant::now();
        let is_usable = self.enter().is_ok();
        if matches!(self.origin, ContextOrigin::Own | ContextOrigin::Graphics(_)) {
            // SAFETY: nothing uses the context after this; every handle made in it is owned by the
            // device that owns `self`.
            let _ = unsafe { sys::cuCtxDestroy_v2(self.raw) };
        } else if is_usable {
            self.free_objects();
        }
        let destroyed = Instant::now();
        // After the context or its objects: nothing is left that could use the addresses.
        for arena in self.arenas.get_mut() {
            arena.give_back();
        }
        let micros = |from: Instant, to: Instant| to.duration_since(from).as_micros() as u64;
        tracing::debug!(
            target: "walla::device",
            wait_micros = micros(begun, idle),
            destroy_micros = micros(idle, destroyed),
            arena_micros = micros(destroyed, Instant::now()),
            "the context is freed"
        );
        if let ContextOrigin::Green(green) = self.origin {
            green::destroy(green);
        }
    }
}

impl Context {
    /// Leaks everything until the end of the process, including the program's context or queue:
    /// work is in flight there.
    fn leak(&mut self) {
        if let ContextOrigin::Program(owner) | ContextOrigin::Graphics(owner) = &self.origin {
            std::mem::forget(Arc::clone(owner));
        }
    }
}

/// Whether an error leaves the context unusable: every later call would return the same error.
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
