use std::ptr;

use super::api::*;
use super::*;

const RELAXED: u32 = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;

fn event() -> CUevent {
    let mut event = ptr::null_mut();
    ok!(cuEventCreate(&raw mut event, 0));
    event
}

fn begin(stream: CUstream) {
    ok!(cuStreamBeginCapture_v2(stream, RELAXED));
}

/// Ends a capture; returns an executable graph.
fn end(stream: CUstream) -> CUgraphExec {
    let (mut graph, mut instance) = (ptr::null_mut(), ptr::null_mut());
    ok!(cuStreamEndCapture(stream, &raw mut graph));
    ok!(cuGraphInstantiateWithFlags(&raw mut instance, graph, 0));
    ok!(cuGraphDestroy(graph));
    ok!(cuGraphUpload(instance, stream));
    instance
}

fn fill(memory: CUdeviceptr, byte: u8, bytes: usize, stream: CUstream) {
    ok!(cuMemsetD8Async(memory, byte, bytes, stream));
}

/// Makes one stream wait for another.
fn order(first: CUstream, second: CUstream) {
    let event = event();
    ok!(cuEventRecord(event, first));
    ok!(cuStreamWaitEvent(second, event, 0));
}

#[test]
fn a_joined_stream_is_captured_and_runs_in_order() {
    let _device = Device::open();
    let (origin, joined, memory) = (stream(), stream(), allocate(4));
    fill(memory, 0, 4, origin);
    begin(origin);
    fill(memory, 1, 4, origin);
    order(origin, joined);
    fill(memory, 2, 3, joined);
    order(joined, origin);
    fill(memory, 3, 1, origin);
    assert_eq!(download(memory, 4), [0; 4], "nothing ran");
    let graph = end(origin);
    // Both are ordinary streams again.
    fill(memory + 3, 9, 1, joined);
    assert_eq!(download(memory, 4), [0, 0, 0, 9]);
    for _ in 0..2 {
        ok!(cuGraphLaunch(graph, joined));
        assert_eq!(download(memory, 4), [3, 2, 2, 1]);
        fill(memory, 7, 4, origin);
    }
    ok!(cuGraphExecDestroy(graph));
    refused!(cuGraphLaunch(graph, origin), CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn a_graph_in_a_capture_is_part_of_it() {
    let _device = Device::open();
    let (stream, memory) = (stream(), allocate(2));
    begin(stream);
    fill(memory, 1, 1, stream);
    let inner = end(stream);
    begin(stream);
    ok!(cuGraphLaunch(inner, stream));
    fill(memory + 1, 2, 1, stream);
    let outer = end(stream);
    ok!(cuGraphExecDestroy(inner));
    ok!(cuGraphLaunch(outer, stream));
    assert_eq!(download(memory, 2), [1, 2]);
}

#[test]
fn captures_begin_once_and_end_on_their_stream() {
    let _device = Device::open();
    let (origin, joined) = (stream(), stream());
    let mut graph = ptr::null_mut();
    refused!(cuStreamEndCapture(origin, &raw mut graph), CUDA_ERROR_ILLEGAL_STATE);
    refused!(
        cuStreamBeginCapture_v2(ptr::null_mut(), RELAXED),
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
    begin(origin);
    refused!(cuStreamBeginCapture_v2(origin, RELAXED), CUDA_ERROR_ILLEGAL_STATE);
    order(origin, joined);
    refused!(cuStreamEndCapture(joined, &raw mut graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    refused!(cuStreamEndCapture(origin, &raw mut graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    refused!(cuStreamEndCapture(origin, &raw mut graph), CUDA_ERROR_ILLEGAL_STATE);
    assert!(graph.is_null());
    ok!(cuStreamQuery(origin));
    ok!(cuStreamQuery(joined));
}

#[test]
fn unjoined_work_is_refused_at_the_end_of_a_capture() {
    let _device = Device::open();
    let (origin, joined, memory) = (stream(), stream(), allocate(1));
    let mut graph = ptr::null_mut();
    begin(origin);
    order(origin, joined);
    fill(memory, 1, 1, joined);
    refused!(cuStreamEndCapture(origin, &raw mut graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    // The wait must follow the work.
    begin(origin);
    order(origin, joined);
    order(joined, origin);
    fill(memory, 1, 1, joined);
    refused!(cuStreamEndCapture(origin, &raw mut graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    // A stream that joined without work need not be waited for. A stream may be waited for
    // indirectly.
    let third = stream();
    begin(origin);
    order(origin, joined);
    order(joined, third);
    fill(memory, 1, 1, third);
    order(third, joined);
    order(joined, origin);
    end(origin);
}

#[test]
fn concurrent_captures_cannot_depend_on_each_other() {
    let _device = Device::open();
    let (first, second, outside) = (stream(), stream(), stream());
    let mut graph = ptr::null_mut();
    let (captured, done) = (event(), event());
    ok!(cuEventRecord(done, outside));
    begin(first);
    begin(second);
    ok!(cuEventRecord(captured, first));
    refused!(cuStreamWaitEvent(second, captured, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    refused!(cuStreamEndCapture(second, &raw mut graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    refused!(cuEventQuery(captured), CUDA_ERROR_CAPTURED_EVENT);
    refused!(cuStreamWaitEvent(first, done, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    refused!(cuStreamEndCapture(first, &raw mut graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(first);
    refused!(cuStreamSynchronize(first), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    refused!(cuStreamEndCapture(first, &raw mut graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    refused!(cuStreamWaitEvent(outside, captured, 0), CUDA_ERROR_CAPTURED_EVENT);
    begin(first);
    ok!(cuStreamDestroy_v2(first));
}

#[test]
fn events_measure_the_time_between_them() {
    let _device = Device::open();
    let (stream, mut millis) = (stream(), 0.0);
    let (begin, end, mut timeless) = (event(), event(), ptr::null_mut());
    ok!(cuEventCreate(&raw mut timeless, 2));
    ok!(cuEventQuery(begin));
    refused!(cuEventElapsedTime(&raw mut millis, begin, end), CUDA_ERROR_INVALID_HANDLE);
    ok!(cuEventRecord(begin, stream));
    std::thread::sleep(std::time::Duration::from_millis(2));
    ok!(cuEventRecord(end, stream));
    ok!(cuEventRecord(timeless, stream));
    ok!(cuEventElapsedTime(&raw mut millis, begin, end));
    assert!((2.0..2_000.0).contains(&millis), "{millis}");
    let there = millis;
    ok!(cuEventElapsedTime(&raw mut millis, end, begin));
    assert_eq!(millis, -there);
    refused!(cuEventElapsedTime(&raw mut millis, begin, timeless), CUDA_ERROR_INVALID_HANDLE);
    ok!(cuEventDestroy_v2(begin));
    refused!(cuEventQuery(begin), CUDA_ERROR_INVALID_HANDLE);
}
