//! A CPU device with a program, or with a model of real shape and random weights.
#![allow(dead_code, reason = "each benchmark uses a part")]

use std::time::Instant;

use walla_cpu::{CpuDevice, CpuOptions, Variant};
use walla_device::{CacheLayer, Device, GraphId, KvType, MatrixId, Op, Program, SlotDesc};
use walla_types::TensorType;

#[path = "../../../walla_cuda/examples/shapes/mod.rs"]
mod shapes;

pub use self::shapes::Shape;
use self::shapes::{Loader, Rig, SHAPES, layout, model};

/// Options with this number of threads, and the environment's variant.
pub fn options(threads: u32) -> CpuOptions {
    let variant = std::env::var("WALLA_BENCH_VARIANT").ok();
    let cost = std::env::var("WALLA_BENCH_THREAD_COST").ok();
    CpuOptions {
        threads: Some(threads),
        variant: variant.map(|name| Variant::from_name(&name).expect("a variant")),
        thread_cost_nanos: cost.map(|nanos| nanos.parse().expect("a number")),
        inline: std::env::var_os("WALLA_BENCH_INLINE").is_some(),
        ..CpuOptions::default()
    }
}

/// Seconds: wall-clock time, or CPU time of this thread if everything runs inline.
pub fn now() -> f64 {
    #[cfg(target_os = "linux")]
    if std::env::var_os("WALLA_BENCH_INLINE").is_some() {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: the kernel writes the time to the `timespec` that it is given, which is valid.
        let _ = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        return time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9;
    }
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    START.elapsed().as_secs_f64()
}

/// A random matrix.
pub fn load(device: &mut CpuDevice, ty: TensorType, rows: usize, cols: usize) -> MatrixId {
    let linear = Loader::new(device).linear(ty, rows as u32, cols as u32, false);
    linear.expect("loads").matrix
}

/// A device with the memory of a program.
pub struct Bench {
    pub device: CpuDevice,
    rig: Rig,
    program: Program,
}

/// Exclusive bound of positions.
const CONTEXT: u32 = 1024;
/// Pages of the cache, shared equally by the sequences of a step.
const PAGES: u32 = 512;
pub const VOCAB_NONE: u32 = 16;

impl Bench {
    pub fn new(options: CpuOptions, rows: u32, vocab: u32, slots: &[usize]) -> Self {
        let device = CpuDevice::new(options).expect("opens");
        let slots = slots.iter().map(|width| SlotDesc { width: *width as u32 });
        Self::of(device, rows, vocab, &slots.collect::<Vec<_>>(), &[])
    }

    /// A model with random weights in the tensor types of a mixture, and its ops.
    pub fn model(options: CpuOptions, shape: &Shape, mix: &str) -> (Self, Vec<Op>) {
        let mut device = CpuDevice::new(options).expect("opens");
        let model = model(&mut device, shape, mix).expect("loads");
        (Self::of(device, 512, shape.vocab, &model.slots, &model.layers), model.ops)
    }

    fn of(
        mut device: CpuDevice,
        rows: u32,
        vocab: u32,
        slots: &[SlotDesc],
        layers: &[CacheLayer],
    ) -> Self {
        let layout = layout(rows.max(64), CONTEXT - 1);
        let cache = (layers, PAGES, KvType::F16);
        let rig = Rig::new(&mut device, layout, cache, vocab).expect("fits");
        let program = rig.program((rows, CONTEXT, vocab), slots, &[]);
        Self { device, rig, program: Program { pure_decode: false, ..program } }
    }

    /// Seconds of one run: the minimum of several.
    pub fn time(&mut self, rows: u32, sequences: u32, position: u32, ops: &[Op]) -> f64 {
        self.time_of(rows, sequences, position, ops, (0.7, 100))
    }

    /// Seconds of one run: the minimum of up to `max_runs` runs within `max_seconds`.
    pub fn time_of(
        &mut self,
        rows: u32,
        sequences: u32,
        position: u32,
        ops: &[Op],
        (max_seconds, max_runs): (f64, u32),
    ) -> f64 {
        let step = self.prepare(rows, sequences, position, ops);
        let mut best = f64::INFINITY;
        let began = Instant::now();
        let mut runs = 0;
        while runs < 3 || (began.elapsed().as_secs_f64() < max_seconds && runs < max_runs) {
            let start = now();
            self.launch(step);
            self.device.synchronize().expect("runs");
            best = best.min(now() - start);
            runs += 1;
        }
        best
    }

    /// Prepares a program of `ops`, and uploads the step block of `rows` rows of `sequences`
    /// sequences from `position` on.
    pub fn prepare(&mut self, rows: u32, sequences: u32, position: u32, ops: &[Op]) -> GraphId {
        let program = Program { ops: ops.to_vec(), ..self.program.clone() };
        let graph = self.device.prepare(vec![program]).expect("prepares")[0].graph;
        self.upload(rows, sequences, position);
        graph
    }

    /// Uploads the step block of these rows.
    pub fn upload(&mut self, rows: u32, sequences: u32, position: u32) {
        let each = rows / sequences;
        let positions = vec![position + each - 1; sequences as usize];
        self.rig.write(&mut self.device, &positions, each).expect("writes");
        self.rig.upload(&mut self.device, sequences).expect("uploads");
        self.device.synchronize().expect("uploads");
    }

    /// Launches a prepared step.
    pub fn launch(&mut self, step: GraphId) {
        self.device.launch(self.rig.stream, step).expect("launches");
    }
}

/// The models that the benchmarks measure.
pub fn models() -> impl Iterator<Item = &'static Shape> {
    let names = ["demo", "smollm2-135m", "qwen3-0.6b"];
    SHAPES.iter().filter(move |shape| names.contains(&shape.name))
}
