//! An executor on the hash device, in virtual time and with planned faults.

use std::ops::ControlFlow;
use std::sync::LazyLock;

use walla_device::{DeviceError, KvType};
use walla_doubles::faulty::{FaultHandle, FaultPlan, Faulty, VirtualClock};
use walla_doubles::hash::{HashDevice, HashOptions};
use walla_doubles::synth::{self, Mixture, Model};
use walla_exec::{Completed, Draw, ExecError, ExecOptions, Executor, Sequences, StepError, Target};
use walla_model::{Gguf, ModelSpec};
use walla_plan::{Batch, Output, TokenInput};
use walla_types::{Sampling, SeqId, TokenId};

pub const OPTIONS: ExecOptions = ExecOptions {
    max_sequences: 4,
    max_snapshots: 0,
    transfer_bytes: 0,
    context_tokens: 64,
    page_tokens: 4,
    pages: 65,
    max_rows: 16,
    max_outputs: 8,
    max_logits_rows: 4,
    max_masks: 2,
    mapped_results: true,
    kv_type: KvType::F16,
    ring: 3,
    target: Target::Tokens,
};

/// The smallest model; the hash device reads only its sizes.
pub fn model() -> (Gguf, ModelSpec) {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let shape = Model { layers: 1, ..Model::TINY };
        synth::write(&shape, Mixture::F16, 3, Vec::new()).unwrap()
    });
    let file = Gguf::from_bytes(BYTES.clone()).unwrap();
    let model = ModelSpec::from_gguf(&file, OPTIONS.context_tokens).unwrap();
    (file, model)
}

pub fn go_on(_: f32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A hash device in virtual time that fails as planned.
pub fn device(plan: FaultPlan) -> (Faulty, VirtualClock) {
    let clock = VirtualClock::new();
    let options = HashOptions { clock: clock.clone(), ..HashOptions::default() };
    (Faulty::new(Box::new(HashDevice::new(options)), plan.clock(&clock)), clock)
}

/// Sequences on that device, its clock, and a handle that counts its calls.
pub struct Rig {
    pub sequences: Sequences,
    pub clock: VirtualClock,
    pub calls: FaultHandle,
}

impl Rig {
    pub fn new(options: ExecOptions) -> Self {
        Self::with_plan(options, FaultPlan::new(1))
    }

    pub fn with_plan(options: ExecOptions, plan: FaultPlan) -> Self {
        let (device, clock) = device(plan);
        let calls = device.handle();
        let (file, model) = model();
        let device = Box::new(device);
        let executor = Executor::load(device, &file, &model, options, &mut go_on).unwrap();
        Self { sequences: Sequences::new(executor).unwrap(), clock, calls }
    }

    /// Submits tokens of one sequence. The last one samples.
    pub fn submit(&mut self, seq: u32, tokens: &[u32], draw: Draw<'_>) -> Result<u64, StepError> {
        let mut batch = Batch::new(self.sequences.limits());
        push(&mut batch, seq, tokens, Output::Sample);
        self.sequences.submit(&mut batch, &|_| Some(draw))
    }

    /// As [`submit`](Self::submit), greedy.
    pub fn greedy(&mut self, seq: u32, tokens: &[u32]) -> Result<u64, StepError> {
        self.submit(seq, tokens, Draw::from(&Sampling::greedy()))
    }

    /// Advances the clock to the end of all work and returns the oldest step.
    pub fn completed(&mut self) -> Completed {
        self.sequences.executor.synchronize().unwrap();
        self.sequences.poll().unwrap().expect("all work is complete")
    }

    /// The tokens of the oldest step, which is released.
    pub fn drawn(&mut self) -> Vec<TokenId> {
        let completed = self.completed();
        let mut tokens = Vec::new();
        self.sequences
            .executor
            .read_results(completed, &mut |view| {
                let rows = view.rows.iter().take(completed.outputs as usize);
                tokens.extend(rows.map(|row| TokenId(row.token)));
            })
            .unwrap();
        self.sequences.release(completed);
        tokens
    }
}

/// Appends tokens of one sequence to a batch. The last one has `output`.
pub fn push(batch: &mut Batch, seq: u32, tokens: &[u32], output: Output) {
    for (index, token) in (1..).zip(tokens) {
        let output = if index == tokens.len() { output } else { Output::None };
        batch.push(TokenInput::Id(TokenId(*token)), None, SeqId(seq), output).unwrap();
    }
}

pub fn ids(tokens: &[u32]) -> Vec<TokenId> {
    tokens.iter().copied().map(TokenId).collect()
}

/// The executor's error of a refused or failed step.
pub fn refusal<T: std::fmt::Debug>(result: Result<T, StepError>) -> ExecError {
    match result {
        Err(StepError::Exec(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Whether a call failed without losing the device.
pub fn is_failed(error: &ExecError) -> bool {
    matches!(error, ExecError::Device(DeviceError::Failed { .. }))
}
