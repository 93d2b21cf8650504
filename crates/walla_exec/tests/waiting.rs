//! A thread that waits for a step leaves its processor to the threads that compute the step.
#![cfg(target_os = "linux")]

use std::ops::ControlFlow;
use std::time::Duration;

use walla_cpu::{CpuDevice, CpuOptions};
use walla_device::KvType;
use walla_doubles::synth::{self, Mixture, Model};
use walla_exec::{ExecOptions, Executor, Sequences, Target};
use walla_model::{Gguf, ModelSpec};
use walla_plan::{Batch, Output, TokenInput};
use walla_types::{SeqId, TokenId};

const OPTIONS: ExecOptions = ExecOptions {
    max_sequences: 1,
    max_snapshots: 0,
    transfer_bytes: 0,
    context_tokens: 64,
    page_tokens: 16,
    pages: 5,
    max_rows: 32,
    max_outputs: 1,
    max_logits_rows: 1,
    max_masks: 0,
    mapped_results: true,
    kv_type: KvType::F32,
    ring: 2,
    target: Target::Tokens,
};

/// A model whose steps take much longer than a wake-up.
fn sequences() -> Sequences {
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let shape = Model { layers: 40, ..Model::TINY };
    let bytes = synth::write(&shape, Mixture::F16, 3, Vec::new()).unwrap();
    let file = Gguf::from_bytes(bytes).unwrap();
    let model = ModelSpec::from_gguf(&file, OPTIONS.context_tokens).unwrap();
    let device = Box::new(CpuDevice::new(cpu).unwrap());
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    Sequences::new(Executor::load(device, &file, &model, OPTIONS, go_on).unwrap()).unwrap()
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(times.split(' ').next().unwrap().parse().unwrap())
}

/// The time is compared with that of a thread that polls. Other load affects both, but not equally,
/// so the best of five attempts counts: a thread that polls in its wait has none.
#[test]
fn a_thread_that_waits_for_a_step_leaves_its_processor() {
    let mut sequences = sequences();
    let mut all: Vec<[Duration; 2]> = Vec::new();
    while all.len() < 5 && all.last().is_none_or(|[polling, waiting]| *waiting >= *polling / 2) {
        all.push(processor_times(&mut sequences));
    }
    assert!(all.iter().any(|[polling, waiting]| *waiting < *polling / 2), "{all:?}");
}

/// Processor time of this thread while it polls for steps, and while it waits for them.
fn processor_times(sequences: &mut Sequences) -> [Duration; 2] {
    let mut batch = Batch::new(sequences.limits());
    let mut ran = [Duration::ZERO; 2];
    while ran[0] < Duration::from_millis(50) {
        for (polls, ran) in [true, false].into_iter().zip(&mut ran) {
            for token in 0..32 {
                batch.push(TokenInput::Id(TokenId(token)), None, SeqId(0), Output::None).unwrap();
            }
            sequences.submit(&mut batch, &|_| None).unwrap();
            batch.clear();
            let start = processor_time();
            let completed = loop {
                if let Some(completed) = sequences.poll().unwrap() {
                    break completed;
                }
                if polls {
                    std::thread::yield_now();
                } else if let Some(completed) = sequences.wait().unwrap() {
                    break completed;
                }
            };
            *ran += processor_time() - start;
            sequences.release(completed);
            sequences.remove(SeqId(0)).unwrap();
        }
    }
    ran
}
