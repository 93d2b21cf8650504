//! Steps of a model by number of threads: no number may be slower than a smaller one.
//!
//! ```text
//! cargo bench -p walla_cpu --bench threads -- [--threads 1,2] [--load 0] [--rounds 5] [filter]
//! ```
//!
//! Each model is loaded once per number of threads, and the numbers take turns, so that other load
//! on the machine affects all of them. A line has the best, the median and the mean of a step in
//! milliseconds: `awaited` from its launch to its end, `queued` from one end to the next with
//! several launches in the queue.
//!
//! `--load` starts busy loops, as a game has. `WALLA_BENCH_THREAD_COST` sets `thread_cost_nanos`.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use walla_device::{Device, GraphId, Op};

use self::support::{Bench, models, options};

/// Steps per queue, at most.
const QUEUED: u32 = 8;
/// Seconds of a series of awaited, or of queued steps.
const SERIES_SECONDS: f64 = 0.1;

struct Arguments {
    threads: Vec<u32>,
    load: u32,
    rounds: u32,
    filter: String,
}

impl Arguments {
    fn parse() -> Self {
        let mut parsed = Self { threads: vec![1, 2], load: 0, rounds: 5, filter: String::new() };
        let mut all = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(argument) = all.next() {
            let mut value = || all.next().expect("a value");
            match argument.as_str() {
                "--threads" => {
                    let numbers = value();
                    let numbers =
                        numbers.split(',').map(|number| number.parse().expect("a number"));
                    parsed.threads = numbers.collect();
                }
                "--load" => parsed.load = value().parse().expect("a number"),
                "--rounds" => parsed.rounds = value().parse().expect("a number"),
                _ => parsed.filter = argument,
            }
        }
        parsed
    }
}

/// A step's rows, sequences and position.
const STEPS: [(&str, u32, u32, u32); 5] = [
    ("1 agent", 1, 1, 192),
    ("4 agents", 4, 4, 192),
    ("8 agents", 8, 8, 192),
    ("12 agents", 12, 12, 192),
    ("prefill 128", 128, 1, 0),
];

/// Milliseconds of awaited and of queued steps.
#[derive(Default)]
struct Times([Vec<f64>; 2]);

impl Times {
    /// Measures one series of each.
    fn add(&mut self, bench: &mut Bench, step: GraphId) {
        let mut queued = 1;
        for times in &mut self.0 {
            let began = Instant::now();
            let mut runs = 0;
            while began.elapsed().as_secs_f64() < SERIES_SECONDS || runs < 2 {
                let start = Instant::now();
                (0..queued).for_each(|_| bench.launch(step));
                bench.device.synchronize().expect("runs");
                times.push(start.elapsed().as_secs_f64() * 1e3 / f64::from(queued));
                runs += 1;
            }
            // No queue is much longer than a series.
            let step_ms = times.iter().copied().fold(f64::INFINITY, f64::min);
            queued = ((SERIES_SECONDS * 1e3 / step_ms) as u32).clamp(1, QUEUED);
        }
    }

    fn report(&mut self) -> String {
        let parts = self.0.each_mut().map(|times| {
            times.sort_by(f64::total_cmp);
            let mean = times.iter().sum::<f64>() / times.len() as f64;
            format!("{:.3} {:.3} {mean:.3}", times[0], times[times.len() / 2])
        });
        parts.join(" | ")
    }
}

/// A load of busy loops, which ends with this value.
struct Load(Arc<AtomicBool>);

impl Load {
    fn start(loops: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..loops {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(stop)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A device with some number of threads, and the prepared steps.
struct Loaded {
    threads: u32,
    bench: Bench,
    steps: Vec<GraphId>,
}

impl Loaded {
    fn new(threads: u32, load: impl Fn(u32) -> (Bench, Vec<Op>)) -> Self {
        let (mut bench, ops) = load(threads);
        let prepare = |&(_, rows, sequences, position): &(&str, u32, u32, u32)| {
            bench.prepare(rows, sequences, position, &ops)
        };
        let steps = STEPS.iter().map(prepare).collect();
        Self { threads, bench, steps }
    }
}

fn main() {
    let arguments = Arguments::parse();
    println!("model, step, threads, load: awaited best median mean | queued best median mean");
    for (shape, mix) in models().zip(["q8_0", "q4_k_m", "q4_k_m"]) {
        if !format!("{} {mix}", shape.name).contains(&arguments.filter) {
            continue;
        }
        let load = |threads| Bench::model(options(threads), shape, mix);
        let mut devices: Vec<_> =
            arguments.threads.iter().map(|&threads| Loaded::new(threads, load)).collect();
        let _load = Load::start(arguments.load);
        std::thread::sleep(Duration::from_millis(50));
        for (index, (name, rows, sequences, position)) in STEPS.into_iter().enumerate() {
            let mut times: Vec<Times> = devices.iter().map(|_| Times::default()).collect();
            for _ in 0..arguments.rounds {
                for (device, times) in devices.iter_mut().zip(&mut times) {
                    // The step block is shared by the steps of a device.
                    let step = device.steps[index];
                    device.bench.upload(rows, sequences, position);
                    times.add(&mut device.bench, step);
                }
            }
            for (device, times) in devices.iter().zip(&mut times) {
                let (threads, loops) = (device.threads, arguments.load);
                println!("{} {mix}, {name}, {threads}, {loops}: {}", shape.name, times.report());
            }
        }
    }
}
