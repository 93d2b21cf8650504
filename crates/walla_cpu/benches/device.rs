//! Speed of the CPU device: matrix products by type and number of rows, then whole decode steps of
//! real model shapes with random weights.
//!
//! ```text
//! cargo bench -p walla_cpu --bench device -- [linear|cached|model|wake] [filter]
//! ```
//!
//! `cached` measures products of a matrix in the L2 cache; `wake` measures small products, whose
//! time is that of publishing and waking.
//!
//! `WALLA_BENCH_THREADS` sets the number of threads (default 2), `WALLA_BENCH_VARIANT` the kernel
//! variant. Each time is the minimum over repeats, because other load on the machine only adds
//! time. `WALLA_BENCH_INLINE` runs everything on one thread and measures its CPU time; use it on a
//! busy machine. `WALLA_BENCH_ROWS` selects one number of rows, for a profiler.

mod support;

use walla_cpu::{CpuDevice, CpuOptions};
use walla_device::{Device, Linear, MatrixId, Op, Slot, op};
use walla_types::TensorType;

use self::support::{Bench, Shape, VOCAB_NONE, load, models};

fn options() -> CpuOptions {
    let threads = std::env::var("WALLA_BENCH_THREADS").ok().and_then(|t| t.parse().ok());
    support::options(threads.unwrap_or(2))
}

/// Adds the product of a matrix with `from` to `to`.
fn project(matrix: MatrixId, from: Slot, to: Slot) -> Op {
    let linear = Linear { matrix, bias: None };
    Op::Project(op::Project { y: from, linear, post_norm: None, scale: 1.0, x: to })
}

/// Weights of at least 48 MiB, so that they are read from memory and not from a cache.
fn linear(filter: &str) {
    let (width, hidden) = (1024, 3072);
    let rows_all = [1, 2, 4, 8, 32, 128];
    println!(
        "GB/s of weights as stored in the file, {width} -> {hidden}, by rows {rows_all:?}; then billion multiply-adds/s"
    );
    for ty in TensorType::ALL.into_iter().filter(|ty| ty.name().contains(filter)) {
        let mut bench = Bench::new(options(), 128, VOCAB_NONE, &[width, hidden]);
        let bytes = ty.row_bytes(width).expect("whole") * hidden;
        let count = (64 << 20) / bytes;
        let (x, y) = (Slot(0), Slot(1));
        let mut ops = Vec::new();
        for _ in 0..count {
            ops.push(project(load(&mut bench.device, ty, hidden, width), x, y));
        }
        let times = rows_all.map(|rows| bench.time(rows, 1, 0, &ops));
        let total = (bytes * count) as f64;
        let speed = times.map(|seconds| format!("{:6.1}", total / seconds / 1e9)).join(" ");
        let macs = (width * hidden * count) as f64;
        let work: Vec<_> = rows_all
            .iter()
            .zip(times)
            .map(|(r, s)| format!("{:5.0}", macs * f64::from(*r) / s / 1e9))
            .collect();
        println!("{:5} {speed}  | {}", ty.name(), work.join(" "));
    }
}

/// Products of a small matrix whose weights stay in the L2 cache: the bound is arithmetic.
fn cached(filter: &str) {
    let width = 768;
    let rows_all = [1, 4, 8, 12, 16, 64, 128];
    println!("billion multiply-adds/s, {width} -> {width}, by rows {rows_all:?}");
    for ty in TensorType::ALL.into_iter().filter(|ty| ty.name().contains(filter)) {
        let mut bench = Bench::new(options(), 128, VOCAB_NONE, &[width, width]);
        let matrix = load(&mut bench.device, ty, width, width);
        let (x, y) = (Slot(0), Slot(1));
        let op = project(matrix, x, y);
        let ops = vec![op; 20];
        let work = rows_all.map(|rows| {
            let seconds = bench.time_of(rows, 1, 0, &ops, (0.3, 1000));
            let macs = (width * width * ops.len()) as f64 * f64::from(rows);
            format!("{:5.1}", macs / seconds / 1e9)
        });
        println!("{:5} {}", ty.name(), work.join(" "));
    }
}

/// Microseconds of a launch with one small product, whose threads sleep before it, and of each
/// further product, whose threads are awake.
fn wake() {
    let width = 256;
    let mut bench = Bench::new(options(), 16, VOCAB_NONE, &[width, width]);
    let matrix = load(&mut bench.device, TensorType::Q8_0, width, width);
    let (x, y) = (Slot(0), Slot(1));
    let op = project(matrix, x, y);
    for rows in [1, 12] {
        let mut micros = |ops: usize| {
            let ops = vec![op.clone(); ops];
            1e6 * bench.time_of(rows, 1, 0, &ops, (2.0, 100_000))
        };
        let (one, many) = (micros(1), micros(101));
        println!("{rows} rows: launch {one:.2} us, further product {:.3} us", (many - one) / 100.0);
    }
}

fn model(shape: &Shape, mix: &str) {
    let (mut bench, ops) = Bench::model(options(), shape, mix);
    let weights = bench.device.memory().weight_bytes as f64;
    let wanted: Option<u32> =
        std::env::var("WALLA_BENCH_ROWS").ok().and_then(|rows| rows.parse().ok());
    let decode = [1, 2, 4, 8, 12, 16, 64].map(|rows| {
        if wanted.is_some_and(|wanted| wanted != rows) {
            return String::new();
        }
        let seconds = bench.time(rows, rows, 192, &ops);
        format!("{rows}: {:.3} ms", seconds * 1e3)
    });
    let prefill = [128, 512].map(|rows| {
        if wanted.is_some_and(|wanted| wanted != rows) {
            return String::new();
        }
        let seconds = bench.time(rows, 1, 0, &ops);
        format!("{rows}: {:.0} tok/s", f64::from(rows) / seconds)
    });
    println!(
        "{} {mix}: {:.0} MB; decode at 192 {}; prefill {}",
        shape.name,
        weights / 1e6,
        decode.join(", "),
        prefill.join(", ")
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let what = args.first().map_or("", String::as_str);
    let filter = args.get(1).map_or("", String::as_str);
    let probe = CpuDevice::new(options()).expect("opens");
    println!("{:?}", probe.info());
    if what == "wake" {
        return wake();
    }
    if what == "cached" {
        return cached(filter);
    }
    if what != "model" {
        linear(filter);
    }
    if what != "linear" {
        for shape in models() {
            for mix in ["q8_0", "q4_0", "q4_k_m", "f16"] {
                if format!("{} {mix}", shape.name).contains(filter) {
                    model(shape, mix);
                }
            }
        }
    }
}
