//! Contexts that are shared with the program, and contexts on a part of the GPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use walla_cuda::{CudaBackend, GraphicsQueue, SharedContext};
use walla_device::{
    Backend, Device, DeviceError, GpuContext, GpuFacts, GpuHandle, KvType, OpenOptions, Support,
};
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::gpu;
use crate::memory::cache;
use crate::model::Shape;
use crate::parity::tokens;
use crate::rig::{Piece, Rig};
use crate::tested;

fn open(context: impl Into<GpuContext>) -> Result<Box<dyn Device>, DeviceError> {
    let options = OpenOptions { gpu_context: context.into(), ..OpenOptions::default() };
    CudaBackend::from_env().open(&tested(), &options)
}

fn facts(device: &dyn Device) -> GpuFacts {
    device.info().gpu.clone().unwrap()
}

/// The program's context on the tested GPU, as the runtime API would create it. It lives as long as
/// a reference to it.
fn program() -> Arc<CudaContext> {
    let ordinal = tested().trim_start_matches("cuda:").parse().unwrap();
    CudaContext::new(ordinal).unwrap()
}

fn shared(program: &Arc<CudaContext>) -> SharedContext {
    let raw = program.cu_ctx().cast();
    #[expect(unsafe_code, reason = "the safety conditions of a shared context")]
    // SAFETY: the context is retained until the last clone of `program` is dropped, and the handle
    // owns one.
    unsafe {
        SharedContext::new(raw, Arc::clone(program))
    }
}

/// Tokens of several steps: a prompt, then one token at a time, each fed back.
fn conversation(rig: &mut Rig, shape: &Shape) -> Vec<u32> {
    let prompt = tokens(shape.vocab, 21, 8);
    let mut said = vec![rig.step(&[Piece::new(0, 0, &prompt)], 0).rows[0].token];
    for position in 21..40 {
        let last = *said.last().unwrap() as i32;
        said.push(rig.step(&[Piece::new(0, position, &[last])], 0).rows[0].token);
    }
    said
}

#[gpu_test]
fn a_device_in_the_programs_context_leaves_it_alive() {
    let device = gpu();
    let shape = Shape::llama(TensorType::Q8_0);
    assert_eq!(facts(&*device).context, "its own");
    let expected = conversation(&mut Rig::new(device, &shape, KvType::F16, 2), &shape);

    let program = program();
    let stream = program.new_stream().unwrap();
    let numbers: Vec<u32> = (0..1 << 20).collect();
    let of_program = stream.clone_htod(&numbers).unwrap();
    let held = Arc::strong_count(&program);
    for round in 0..2 {
        let device = open(shared(&program)).unwrap();
        assert_eq!(facts(&*device).context, "the program's");
        assert_eq!(facts(&*device).multiprocessors_used, facts(&*device).multiprocessors);
        let mut rig = Rig::new(device, &shape, KvType::F16, 2);
        assert_eq!(conversation(&mut rig, &shape), expected, "round {round}");
        assert_eq!(rig.device.graph_fallbacks().total(), 0);
        // The program's own work continues.
        assert!(stream.clone_dtoh(&of_program).unwrap() == numbers);
        drop(rig);
        assert_eq!(Arc::strong_count(&program), held, "the device holds it no more");
    }
    assert!(stream.clone_dtoh(&of_program).unwrap() == numbers, "the context is alive");
}

#[test]
#[ignore = "counts the GPU's free memory: run it alone"]
fn resources_in_the_programs_context_are_freed() {
    let program = program();
    let free_mib = || cudarc::driver::result::mem_get_info().unwrap().0 >> 20;
    let shape = Shape::llama(TensorType::Q8_0);
    let mut free = Vec::new();
    for _ in 0..4 {
        program.bind_to_thread().unwrap();
        free.push(free_mib());
        let mut rig = Rig::new(open(shared(&program)).unwrap(), &shape, KvType::F16, 2);
        rig.device.create_cache(&cache(1_000)).unwrap();
        rig.device.create_buffer("much", 500 << 20).unwrap();
        conversation(&mut rig, &shape);
        let during = free_mib();
        assert!(during + 1_490 < free[0], "{during} MiB free with 1,500 MiB in use, {free:?}");
    }
    println!("MiB free before each of four devices: {free:?}");
    // The driver keeps allocations that the first device caused.
    assert!(free[3] + 8 >= free[1], "{free:?}");
}

#[gpu_test]
fn handles_that_do_not_fit_are_refused() {
    let unknown = open(GpuContext::Existing(GpuHandle::new("a string"))).err().unwrap();
    assert!(matches!(unknown, DeviceError::Unsupported { .. }), "{unknown}");
    let nothing = open(GpuContext::Share { percent: 0 }).err().unwrap();
    assert!(matches!(nothing, DeviceError::Invalid(_)), "{nothing}");
    #[expect(unsafe_code, reason = "the safety conditions of a shared context")]
    // SAFETY: a null context is refused before the driver receives it.
    let null = unsafe { SharedContext::new(std::ptr::null_mut(), ()) };
    let null = open(null).err().unwrap();
    assert!(matches!(null, DeviceError::Invalid(_)), "{null}");
}

#[gpu_test]
fn without_cuda_in_graphics_the_device_has_its_own_context_with_a_reason() {
    let device = gpu();
    let support = facts(&*device).graphics_contexts;
    println!("CUDA in Graphics: {support}");
    let Support::Absent(why) = support else {
        println!("SKIPPED: this machine has it");
        return;
    };
    #[expect(unsafe_code, reason = "the safety conditions of a shared queue")]
    // SAFETY: the queue is not accessed if the platform cannot share one.
    let queue = unsafe { GraphicsQueue::vulkan(std::ptr::null_mut(), ()) };
    let device = open(queue).unwrap();
    assert_eq!(facts(&*device).context, format!("its own; CUDA in Graphics: {why}"));
    let shape = Shape::llama(TensorType::Q8_0);
    conversation(&mut Rig::new(device, &shape, KvType::F16, 2), &shape);
}

/// Time of a decode step with a product of realistic size, launched as a graph.
fn step_time(rig: &mut Rig, shape: &Shape) -> Duration {
    rig.step(&[Piece::new(0, 0, &tokens(shape.vocab, 1, 4))], 0);
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..20 {
            rig.device.launch(rig.stream, rig.graphs[0][1]).unwrap();
        }
        rig.device.synchronize().unwrap();
        best = best.min(start.elapsed() / 20);
    }
    best
}

#[gpu_test]
fn a_share_of_the_multiprocessors_gives_the_same_tokens() {
    let device = gpu();
    let support = facts(&*device).green_contexts;
    println!("green contexts: {support}");
    let small = Shape::llama(TensorType::Q4K);
    let expected = conversation(&mut Rig::new(device, &small, KvType::F16, 2), &small);
    for percent in [6, 25, 75] {
        let device = open(GpuContext::Share { percent }).unwrap();
        let GpuFacts { context, multiprocessors, multiprocessors_used, .. } = facts(&*device);
        println!("{percent} %: {context}");
        if let Support::Absent(why) = &support {
            println!("SKIPPED: {why}");
            assert!(context.starts_with("its own; "), "{context}");
            return;
        }
        assert!(context.starts_with("green, "), "{context}");
        let wanted = (multiprocessors * percent).div_ceil(100);
        assert!((wanted..wanted + 16).contains(&multiprocessors_used), "{multiprocessors_used}");
        let mut rig = Rig::new(device, &small, KvType::F16, 2);
        assert_eq!(conversation(&mut rig, &small), expected, "{percent} %");
        assert_eq!(rig.device.graph_fallbacks().total(), 0);
    }
}

#[test]
#[ignore = "measures: run it alone"]
fn graphs_use_only_their_share_of_the_multiprocessors() {
    let device = gpu();
    if let Support::Absent(why) = facts(&*device).green_contexts {
        println!("SKIPPED: {why}");
        return;
    }
    let large = Shape { vocab: 98_304, ..Shape::llama(TensorType::Q4K) };
    let large = Shape { width: 2_048, layers: 1, ..large };
    let whole = step_time(&mut Rig::new(device, &large, KvType::F16, 3), &large);
    let mut part = open(GpuContext::Share { percent: 6 }).unwrap();
    let used = facts(&*part).multiprocessors_used;
    let rate = part.read_bytes_per_second().unwrap().unwrap();
    drop(part);
    let part = open(GpuContext::Share { percent: 6 }).unwrap();
    let part = step_time(&mut Rig::new(part, &large, KvType::F16, 3), &large);
    println!(
        "a step: {whole:?} on all multiprocessors, {part:?} on {used}, which read {:.0} GB/s",
        rate / 1e9
    );
    assert!(part > 3 * whole, "{part:?} on {used} multiprocessors, {whole:?} on all");
}
