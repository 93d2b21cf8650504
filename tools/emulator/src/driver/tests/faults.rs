use std::ptr;

use super::api::*;
use super::*;

/// Launches a graph whose memory was freed.
fn fault(stream: CUstream) {
    let (memory, mut graph, mut instance) = (allocate(256), ptr::null_mut(), ptr::null_mut());
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;
    ok!(cuStreamBeginCapture_v2(stream, relaxed));
    ok!(cuMemsetD8Async(memory, 1, 256, stream));
    ok!(cuStreamEndCapture(stream, &raw mut graph));
    ok!(cuGraphInstantiateWithFlags(&raw mut instance, graph, 0));
    ok!(cuMemFree_v2(memory));
    // The launch only enqueues.
    ok!(cuGraphLaunch(instance, stream));
}

#[test]
fn a_fault_fails_every_later_call_until_the_context_ends() {
    let mut device = Device::open();
    let (before, stream) = (free_bytes(), stream());
    let (mut event, mut address, mut free) = (ptr::null_mut(), 0, 0);
    ok!(cuEventCreate(&raw mut event, 0));
    fault(stream);
    refused!(cuEventRecord(event, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    refused!(cuEventQuery(event), CUDA_ERROR_ILLEGAL_ADDRESS);
    refused!(cuStreamQuery(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    refused!(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    refused!(cuMemAlloc_v2(&raw mut address, 256), CUDA_ERROR_ILLEGAL_ADDRESS);
    refused!(cuMemGetInfo_v2(&raw mut free, ptr::null_mut()), CUDA_ERROR_ILLEGAL_ADDRESS);
    ok!(cuCtxSetCurrent(device.context));
    refused!(cuStreamQuery(stream), CUDA_ERROR_ILLEGAL_ADDRESS);

    ok!(cuCtxDestroy_v2(device.context));
    ok!(cuCtxCreate_v2(&raw mut device.context, 0, 0));
    assert_eq!(free_bytes(), before);
}

#[test]
fn a_fault_stays_in_its_context() {
    let device = Device::open();
    let broken = stream();
    let mut other = ptr::null_mut();
    ok!(cuCtxCreate_v2(&raw mut other, 0, 0));
    ok!(cuCtxSetCurrent(device.context));
    fault(broken);
    ok!(cuCtxSetCurrent(other));
    ok!(cuCtxSynchronize());
    refused!(cuStreamQuery(broken), CUDA_ERROR_ILLEGAL_ADDRESS);
    ok!(cuCtxDestroy_v2(other));
}
