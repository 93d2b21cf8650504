use std::ffi::{CStr, c_void};

use bytemuck::Pod;
use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUjit_option, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue_union__bindgen_ty_1, CUlaunchConfig, CUmodule, CUresult,
};
use walla_device::DeviceError;

use super::gpu::describe;
use super::objects::Object;
use super::{Context, Stream};
use crate::images::Code;

/// Maximum bytes of the compiler's log kept in an error.
const LOG_BYTES: usize = 4096;

/// A loaded module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module(CUmodule);

// SAFETY: a driver handle without thread affinity; see `Context`.
unsafe impl Send for Module {}

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function(CUfunction);

// SAFETY: as for `Module`.
unsafe impl Send for Function {}

/// 8-byte words of the largest parameter struct.
pub(crate) const PARAM_WORDS: usize = 131;

/// One kernel launch: everything but the stream. The parameter is one struct, copied at the launch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Launch {
    pub(crate) function: Function,
    pub(crate) grid: [u32; 3],
    pub(crate) threads: u32,
    /// May start before the previous kernel has ended (programmatic dependent launch): every kernel
    /// of walla waits for its predecessor itself.
    pub(crate) overlap: bool,
    pub(crate) shared_bytes: u32,
    /// Cluster size: blocks that are neighbours along the first grid dimension. 0 for kernels
    /// without clusters.
    pub(crate) cluster: u32,
    /// Index of its op in the program, for measurements; `None` outside of ops.
    pub(crate) op: Option<u32>,
    /// The kernel's parameter struct, in 8-byte words for alignment; the rest is zero.
    pub(crate) params: [u64; PARAM_WORDS],
}

impl Launch {
    /// A launch without dynamic shared memory.
    pub(crate) fn new<P: Pod>(
        function: Function,
        grid: [u32; 3],
        threads: u32,
        params: &P,
    ) -> Self {
        const { assert!(size_of::<P>() <= 8 * PARAM_WORDS && align_of::<P>() <= 8) };
        let mut words = [0_u64; PARAM_WORDS];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..size_of::<P>()]
            .copy_from_slice(bytemuck::bytes_of(params));
        Self {
            function,
            grid,
            threads,
            overlap: false,
            shared_bytes: 0,
            cluster: 0,
            op: None,
            params: words,
        }
    }
}

impl Context {
    /// Loads PTX, which the driver compiles for this device, or machine code.
    pub(crate) fn load_module(&self, code: &Code) -> Result<Module, DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.modules);
        let image = code.bytes().as_ptr();
        let mut log = vec![0_u8; LOG_BYTES];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
        let mut raw: CUmodule = std::ptr::null_mut();
        // SAFETY: `Code` guarantees that PTX is zero-terminated and that the tables of machine code
        // are within it; the option arrays have the stated length and live through the call.
        let result = unsafe {
            sys::cuModuleLoadDataEx(
                &raw mut raw,
                image.cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if result != CUresult::CUDA_SUCCESS {
            let words = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
            let reason = format!("{}; {}", describe(result), words.trim());
            // A sticky error is latched; any other error includes the compiler's log.
            let error = self.check("cuModuleLoadDataEx", result);
            return Err(match error {
                Err(lost) if lost.is_lost() => lost,
                _ => DeviceError::Failed { call: "cuModuleLoadDataEx", reason },
            });
        }
        self.keep(Object::Module(raw));
        Ok(Module(raw))
    }

    /// Finds a kernel, if the module has it. Allows it `shared_bytes` of dynamic shared memory if
    /// that exceeds the default limit of 48 KiB.
    pub(crate) fn function(
        &self,
        module: Module,
        name: &CStr,
        shared_bytes: u32,
    ) -> Result<Option<Function>, DeviceError> {
        self.enter()?;
        let mut raw: CUfunction = std::ptr::null_mut();
        // SAFETY: the module is alive, the name is terminated.
        let result = unsafe { sys::cuModuleGetFunction(&raw mut raw, module.0, name.as_ptr()) };
        if result == CUresult::CUDA_ERROR_NOT_FOUND {
            return Ok(None);
        }
        self.check("cuModuleGetFunction", result)?;
        if shared_bytes > 48 * 1024 {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was just found.
            let result =
                unsafe { sys::cuFuncSetAttribute(raw, attribute, shared_bytes.cast_signed()) };
            self.check("cuFuncSetAttribute", result)?;
            // All such kernels use the same shared memory carveout, so that one can start while
            // another runs: a multiprocessor changes its carveout only when it is idle.
            let attribute =
                CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // SAFETY: as above; 100 is a share in percent.
            let result = unsafe { sys::cuFuncSetAttribute(raw, attribute, 100) };
            self.check("cuFuncSetAttribute", result)?;
        }
        Ok(Some(Function(raw)))
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// The parameter struct is the kernel's own, and every address in it is valid for the kernel's
    /// accesses until the stream has passed the launch.
    pub(crate) unsafe fn launch(&self, stream: Stream, launch: &Launch) -> Result<(), DeviceError> {
        self.enter()?;
        // Launches into a capture are counted too, as part of loading.
        self.count(|c| &mut c.kernel_launches);
        // SAFETY: the structs are plain data for which zeros are valid.
        let mut attributes: [CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        if launch.overlap {
            let attribute = &mut attributes[count];
            attribute.id =
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attribute.value.programmaticStreamSerializationAllowed = 1;
            count += 1;
        }
        if launch.cluster > 0 {
            let attribute = &mut attributes[count];
            attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attribute.value.clusterDim =
                CUlaunchAttributeValue_union__bindgen_ty_1 { x: launch.cluster, y: 1, z: 1 };
            count += 1;
        }
        let [grid_x, grid_y, grid_z] = launch.grid;
        let config = CUlaunchConfig {
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: stream.0,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        let mut params = [launch.params.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the configuration and the parameter live through the call, which copies them; the
        // rest is the caller's.
        let result = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                launch.function.0,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.check("cuLaunchKernelEx", result)
    }
}
