//! Selection of the context that a device works in.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUcontext, CUctx_flags, CUdevice, CUgreenCtx, CUlimit, CUresult};
use walla_device::{DeviceError, GpuContext, GpuHandle};

use super::gpu::{Gpu, describe};
use super::graphics::{self, GraphicsQueue};
use super::green;

/// A CUDA context of the program. The device works in it next to the program's own work, frees its
/// own objects when it is dropped, and never destroys the context.
#[derive(Clone, Debug)]
pub struct SharedContext {
    pub(super) raw: CUcontext,
    /// Keeps the context alive.
    pub(super) owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: driver contexts may be used from any thread that makes them current.
unsafe impl Send for SharedContext {}
// SAFETY: as above; nothing here changes.
unsafe impl Sync for SharedContext {}

impl SharedContext {
    /// Lets devices work in the context `raw` (a `CUcontext` of the driver API, for example the
    /// GPU's primary context, which the runtime API uses). `owner` is dropped with the last device
    /// in the context and the last clone.
    ///
    /// # Safety
    /// - `raw` is a context of this process's driver, and stays valid until `owner` is dropped: it
    ///   is not destroyed, its GPU is not reset, and the last reference to a primary context is not
    ///   released before. Use `()` as the owner of a context that lives as long as the process.
    /// - Work of the program in this context accesses only its own memory. A fault in the context
    ///   (for example an illegal address) ends both the program's use of it and the device,
    ///   whichever caused it.
    ///
    /// # Examples
    /// ```no_run
    /// # fn primary_context() -> *mut std::ffi::c_void { std::ptr::null_mut() }
    /// use walla_cuda::SharedContext;
    /// use walla_device::OpenOptions;
    ///
    /// // SAFETY: the primary context is retained until the process ends.
    /// let shared = unsafe { SharedContext::new(primary_context(), ()) };
    /// let options = OpenOptions { gpu_context: shared.into(), ..OpenOptions::default() };
    /// ```
    #[must_use]
    pub unsafe fn new(raw: *mut c_void, owner: impl Any + Send + Sync) -> Self {
        Self { raw: raw.cast(), owner: Arc::new(owner) }
    }
}

impl From<SharedContext> for GpuContext {
    fn from(context: SharedContext) -> Self {
        Self::Existing(GpuHandle::new(context))
    }
}

/// Origin of a context, which determines how it is released.
#[derive(Debug)]
pub(super) enum ContextOrigin {
    /// Created by the device: destroyed with everything in it.
    Own,
    /// A green context created by the device, which shares its addresses with the GPU's primary
    /// context.
    Green(CUgreenCtx),
    /// Owned by the program.
    Program(Arc<dyn Any + Send + Sync>),
    /// Created by the device for the program's queue; keeps the queue alive.
    Graphics(Arc<dyn Any + Send + Sync>),
}

/// A context found or created.
pub(super) struct Found {
    pub(super) raw: CUcontext,
    pub(super) origin: ContextOrigin,
    /// The GPU as seen from the context: number of multiprocessors, virtual memory support.
    pub(super) gpu: Gpu,
}

/// The GPU with the facts of a context.
pub(super) fn seen(gpu: &Gpu, context: String) -> Gpu {
    let mut gpu = gpu.clone();
    gpu.facts.context = context;
    gpu.facts.multiprocessors_used = gpu.facts.multiprocessors;
    gpu
}

/// Finds or creates the requested context. Falls back to a context of the device if the driver or
/// the platform does not support the request.
pub(super) fn find(gpu: &Gpu, wanted: &GpuContext) -> Result<Found, DeviceError> {
    match wanted {
        GpuContext::Separate => own(gpu, "its own".to_owned()),
        GpuContext::Share { percent: 0 } => {
            Err(DeviceError::Invalid("a share of 0 % of the multiprocessors".to_owned()))
        }
        GpuContext::Share { percent } => match green::create(gpu, *percent) {
            Ok(found) => Ok(found),
            Err(why) => own(gpu, format!("its own; {percent} % of the GPU: {why}")),
        },
        GpuContext::Existing(handle) => {
            if let Some(context) = handle.get::<SharedContext>() {
                program(gpu, context)
            } else if let Some(queue) = handle.get::<GraphicsQueue>() {
                match graphics::create(gpu, queue) {
                    Ok(found) => Ok(found),
                    Err(why) => own(gpu, format!("its own; CUDA in Graphics: {why}")),
                }
            } else {
                let what = "a handle that is neither a context nor a queue".to_owned();
                Err(DeviceError::Unsupported { device: "cuda".to_owned(), what })
            }
        }
    }
}

fn own(gpu: &Gpu, words: String) -> Result<Found, DeviceError> {
    let mut raw: CUcontext = std::ptr::null_mut();
    let flags = CUctx_flags::CU_CTX_SCHED_YIELD as u32;
    // SAFETY: `raw` lives through the call; the device came from cuDeviceGet; a `Gpu` proves the
    // library.
    let result = unsafe { sys::cuCtxCreate_v2(&raw mut raw, flags, gpu.device) };
    match result {
        CUresult::CUDA_SUCCESS => {}
        // The driver needs some hundred MB for a context. It reports neither how many, nor how much
        // is free without a context.
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            let what = format!("a context on {}", gpu.description);
            return Err(DeviceError::OutOfMemory { what, wanted_bytes: 0, free_bytes: 0 });
        }
        error => return Err(DeviceError::Failed { call: "cuCtxCreate", reason: describe(error) }),
    }
    Ok(Found { raw, origin: ContextOrigin::Own, gpu: seen(gpu, words) })
}

fn program(gpu: &Gpu, context: &SharedContext) -> Result<Found, DeviceError> {
    let failed = |call, result| DeviceError::Failed { call, reason: describe(result) };
    if context.raw.is_null() {
        return Err(DeviceError::Invalid("the program's context is null".to_owned()));
    }
    // SAFETY: the maker of the handle promised that the context is alive.
    let result = unsafe { sys::cuCtxSetCurrent(context.raw) };
    if result != CUresult::CUDA_SUCCESS {
        return Err(failed("cuCtxSetCurrent", result));
    }
    let mut device: CUdevice = 0;
    // SAFETY: `device` lives through the call.
    let result = unsafe { sys::cuCtxGetDevice(&raw mut device) };
    if result != CUresult::CUDA_SUCCESS {
        return Err(failed("cuCtxGetDevice", result));
    }
    if device != gpu.device {
        let what = format!("the program's context is on GPU {device}, not on {}", gpu.device);
        return Err(DeviceError::Invalid(what));
    }
    let mut gpu = seen(gpu, "the program's".to_owned());
    if let Some(multiprocessors) = green::multiprocessors_of(context.raw) {
        gpu.facts.multiprocessors_used = multiprocessors.min(gpu.facts.multiprocessors);
    }
    // A driver that does not know the limit refuses it.
    if result::ctx::get_limit(CUlimit::CU_LIMIT_CIG_ENABLED).is_ok_and(|shares| shares != 0) {
        gpu.facts.context += ", which shares the GPU with graphics";
        gpu.facts.vmm_granularity_bytes = None;
    }
    let origin = ContextOrigin::Program(Arc::clone(&context.owner));
    Ok(Found { raw: context.raw, origin, gpu })
}
