use std::ffi::{CStr, c_void};
use std::ptr;

use super::api::*;
use super::*;
use crate::driver::facts::facts;

/// An empty kernel with one parameter of eight bytes.
const TEXT: &CStr = c"
.version 8.3
.target sm_75
.address_size 64

.visible .entry nothing(
	.param .align 8 .b8 nothing_param_0[8]
)
{
	ret;
}
";

fn load(image: &CStr) -> (CUresult, CUmodule, String) {
    let mut log = [1_u8; 256];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
            .map(|option| option as u32);
    let mut values = [log.as_mut_ptr().cast(), ptr::without_provenance_mut(200)];
    let mut module = ptr::null_mut();
    let image = image.as_ptr().cast();
    // SAFETY: all arguments are valid during the call.
    let result = unsafe {
        cuModuleLoadDataEx(&raw mut module, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    assert_eq!(log[200..], [1; 56], "no more than there is room for");
    let words = CStr::from_bytes_until_nul(&log).unwrap_or_default();
    (result, module, words.to_string_lossy().trim_start_matches('\u{1}').to_owned())
}

fn function() -> CUfunction {
    let (result, module, _) = load(TEXT);
    assert_eq!(result, CUresult::CUDA_SUCCESS);
    let mut function = ptr::null_mut();
    ok!(cuModuleGetFunction(&raw mut function, module, c"nothing".as_ptr()));
    function
}

/// Launch configuration of one block of a warp.
fn config() -> CUlaunchConfig {
    CUlaunchConfig {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: ptr::null_mut(),
        attrs: ptr::null_mut(),
        numAttrs: 0,
    }
}

fn launch(function: CUfunction, config: &CUlaunchConfig) -> CUresult {
    let mut param = 0_u64;
    let mut params = [(&raw mut param).cast::<c_void>()];
    // SAFETY: all arguments are valid during the call; the kernel takes eight bytes.
    unsafe { cuLaunchKernelEx(config, function, params.as_mut_ptr(), ptr::null_mut()) }
}

#[test]
fn only_ptx_for_this_chip_is_loaded() {
    let _device = Device::open();
    let (result, ..) = load(c"\x7fELF\x02\x01\x01");
    assert_eq!(result, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    let text = TEXT.to_str().unwrap().replace("sm_75", "sm_100");
    let (result, _, words) = load(&std::ffi::CString::new(text).unwrap());
    assert_eq!(result, CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(words.contains("sm_100"), "{words}");
    let (result, _, words) = load(c"no text at all");
    assert_eq!(result, CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(!words.is_empty());
}

#[test]
fn a_kernel_is_found_by_name_until_its_module_is_unloaded() {
    let _device = Device::open();
    let (_, module, _) = load(TEXT);
    let (mut first, mut second) = (ptr::null_mut(), ptr::null_mut());
    ok!(cuModuleGetFunction(&raw mut first, module, c"nothing".as_ptr()));
    ok!(cuModuleGetFunction(&raw mut second, module, c"nothing".as_ptr()));
    assert_eq!(first, second);
    refused!(
        cuModuleGetFunction(&raw mut second, module, c"something".as_ptr()),
        CUDA_ERROR_NOT_FOUND
    );
    ok!(cuModuleUnload(module));
    assert_eq!(launch(first, &config()), CUresult::CUDA_ERROR_INVALID_HANDLE);
    refused!(
        cuModuleGetFunction(&raw mut first, module, c"nothing".as_ptr()),
        CUDA_ERROR_INVALID_HANDLE
    );
}

#[test]
fn a_launch_beyond_the_limits_of_the_chip_is_refused() {
    let _device = Device::open();
    let function = function();
    assert_eq!(launch(function, &config()), CUresult::CUDA_SUCCESS);
    let wrong = [
        CUlaunchConfig { gridDimX: 0, ..config() },
        CUlaunchConfig { gridDimY: 65_536, ..config() },
        CUlaunchConfig { blockDimX: 1_025, ..config() },
        CUlaunchConfig { blockDimX: 512, blockDimY: 3, ..config() },
        CUlaunchConfig { blockDimX: 1, blockDimZ: 65, ..config() },
        CUlaunchConfig { sharedMemBytes: (48 << 10) + 1, ..config() },
        CUlaunchConfig { numAttrs: 1, ..config() },
    ];
    for config in wrong {
        assert_eq!(launch(function, &config), CUresult::CUDA_ERROR_INVALID_VALUE, "{config:?}");
    }
    let config = config();
    let nothing = ptr::null_mut();
    refused!(
        cuLaunchKernelEx(&raw const config, function, nothing, ptr::null_mut()),
        CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
fn more_shared_memory_must_be_requested() {
    let _device = Device::open();
    let (function, optin) = (function(), facts().unwrap().shared_bytes_optin.cast_signed());
    let much = CUlaunchConfig { sharedMemBytes: 60 << 10, ..config() };
    assert_eq!(launch(function, &much), CUresult::CUDA_ERROR_INVALID_VALUE);
    refused!(cuFuncSetAttribute(function, 8, optin + 1), CUDA_ERROR_INVALID_VALUE);
    refused!(cuFuncSetAttribute(function, 8, -1), CUDA_ERROR_INVALID_VALUE);
    ok!(cuFuncSetAttribute(function, 8, 60 << 10));
    ok!(cuFuncSetAttribute(function, 9, 100));
    assert_eq!(launch(function, &much), CUresult::CUDA_SUCCESS);
}

#[test]
fn clusters_divide_the_grid() {
    let _device = Device::open();
    if facts().unwrap().capability < (9, 0) {
        return;
    }
    let function = function();
    let launch = |cluster: u32, blocks: u32| {
        // SAFETY: plain data for which zeros are valid.
        let mut attribute: CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim =
            CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 };
        let attrs = &raw mut attribute;
        launch(function, &CUlaunchConfig { gridDimX: blocks, attrs, numAttrs: 1, ..config() })
    };
    assert_eq!(launch(2, 4), CUresult::CUDA_SUCCESS);
    for (cluster, blocks) in [(0, 4), (2, 3), (16, 16)] {
        assert_eq!(launch(cluster, blocks), CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE);
    }
}
