//! The entry points that tests call, and the types that they take.

pub(super) use cudarc::driver::sys::{
    CUcontext, CUdevResource, CUdevResourceType, CUdevice_attribute, CUdeviceptr, CUevent,
    CUfunction, CUgraphExec, CUgreenCtx, CUjit_option, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue_union__bindgen_ty_1, CUlaunchConfig, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocationType,
    CUmodule, CUresult, CUstream, CUstreamCaptureMode,
};

pub(super) use crate::driver::context::{
    cuCtxCreate_v2, cuCtxDestroy_v2, cuCtxSetCurrent, cuCtxSynchronize,
};
pub(super) use crate::driver::device::{
    cuDeviceGet, cuDeviceGetAttribute, cuDeviceGetCount, cuDeviceGetName, cuInit,
};
pub(super) use crate::driver::errors::{cuGetErrorName, cuGetErrorString};
pub(super) use crate::driver::event::{
    cuEventCreate, cuEventDestroy_v2, cuEventElapsedTime, cuEventQuery,
};
pub(super) use crate::driver::graph::{
    cuGraphDestroy, cuGraphExecDestroy, cuGraphInstantiateWithFlags, cuGraphLaunch, cuGraphUpload,
};
pub(super) use crate::driver::green::{
    cuCtxFromGreenCtx, cuCtxGetDevResource, cuDevResourceGenerateDesc, cuDevSmResourceSplitByCount,
    cuDeviceGetDevResource, cuGreenCtxCreate, cuGreenCtxDestroy, cuGreenCtxStreamCreate,
};
pub(super) use crate::driver::launch::cuLaunchKernelEx;
pub(super) use crate::driver::memory::{
    cuMemAlloc_v2, cuMemFree_v2, cuMemFreeHost, cuMemGetInfo_v2, cuMemHostAlloc,
    cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2, cuMemsetD8Async,
};
pub(super) use crate::driver::module::{
    cuFuncSetAttribute, cuModuleGetFunction, cuModuleLoadDataEx, cuModuleUnload,
};
pub(super) use crate::driver::primary::{cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRetain};
pub(super) use crate::driver::stream::{
    cuEventRecord, cuStreamBeginCapture_v2, cuStreamCreate, cuStreamDestroy_v2, cuStreamEndCapture,
    cuStreamQuery, cuStreamSynchronize, cuStreamWaitEvent,
};
pub(super) use crate::driver::virtual_memory::{
    cuMemAddressFree, cuMemAddressReserve, cuMemCreate, cuMemGetAllocationGranularity, cuMemMap,
    cuMemRelease, cuMemSetAccess, cuMemUnmap,
};
